"""Invariants of a Program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .faults import Fault, Invariant
from .graph import Value
from .kernel import Packed, spans
from .nest import Access
from .program import Alias, Alloc, Bind, Call, Free, Launch, Program, Step, Update
from .types import TensorType


@dataclass
class _Life:
    """A value's type, steps and memory."""

    type: TensorType
    born: int
    root: str
    freed: int | None = None
    offset: int | None = None
    uses: list[int] = field(default_factory=list)


def _made(step: Step) -> tuple[Value, ...]:
    if isinstance(step, Alloc | Alias):
        return (step.value,)
    return step.outputs if isinstance(step, Call) and not step.out else ()


def _used(step: Step) -> tuple[str, ...]:
    if isinstance(step, Launch):
        return step.arguments
    if isinstance(step, Call):
        written = step.outputs if step.out else ()
        return tuple(v.name for v in (*step.inputs, *written) if isinstance(v, Value))
    if isinstance(step, Alias):
        return (step.source,)
    if isinstance(step, Update):
        return (step.target, step.value)
    return (step.source,) if isinstance(step, Bind) and isinstance(step.source, str) else ()


def _lives(p: Program) -> dict[str, _Life]:
    lives = {v.name: _Life(v.type, -1, v.name) for v in p.inputs}
    for n, step in enumerate(p.steps):
        for v in _made(step):
            source = lives.get(step.source) if isinstance(step, Alias) else None
            lives[v.name] = _Life(v.type, n, v.name if source is None else source.root)
        if isinstance(step, Alloc) and isinstance(step.offset, int):
            lives[step.value.name].offset = step.offset
    return lives


def _definitions(p: Program) -> Iterator[Fault]:
    known = {v.name for v in p.inputs}
    sizes = {b.source for b in p.steps if isinstance(b, Bind)}
    for step in p.steps:
        for name in _used(step):
            if name not in known and not (isinstance(step, Bind) and name in sizes):
                yield Fault(step, f"{name} defined before this step and not freed", "it is not")
        for v in _made(step):
            if v.name in known:
                yield Fault(step, f"a new name for {v.name}", "a value of that name is alive")
            known.add(v.name)
        if isinstance(step, Free):
            if step.value not in known:
                yield Fault(step, f"{step.value} alive until it is freed", "it is not")
            known.discard(step.value)
    for o in p.outputs:
        if isinstance(o, str) and o not in known:
            yield Fault(p.outputs, f"the output {o} alive at the end", "it is not")


def _arguments(p: Program) -> Iterator[Fault]:
    lives = _lives(p)
    for step in p.steps:
        if not isinstance(step, Launch):
            continue
        buffers = step.kernel.buffers
        if len(buffers) != len(step.arguments):
            yield Fault(step, f"{len(buffers)} arguments", str(len(step.arguments)))
            continue
        for b, name in zip(buffers, step.arguments, strict=True):
            yield from _argument(step, b.name, b.type, name, lives[name].type)


def _argument(
    step: Step, buffer: str, wanted: TensorType, name: str, found: TensorType
) -> Iterator[Fault]:
    if wanted.dtype is not found.dtype:
        yield Fault(step, f"{buffer}: {wanted!r}", f"{name}: {found!r}")
    elif wanted.storage_elements != found.storage_elements:
        count = f"{wanted.storage_elements} elements for {buffer}"
        yield Fault(step, count, f"{found.storage_elements} of {name}")


def _inputs(p: Program) -> Iterator[Fault]:
    inputs = {v.name for v in p.inputs}
    roots = {name: life.root for name, life in _lives(p).items()}
    for n, step in enumerate(p.steps):
        if isinstance(step, Update) and step.target not in inputs:
            yield Fault(step, "an input as the target of an update", step.target)
        if isinstance(step, Launch):
            for b, name in zip(step.kernel.buffers, step.arguments, strict=True):
                if b.access is not Access.READ and name in inputs:
                    yield Fault(step, f"memory of its own for {b.name}", f"the input {name}")
                elif b.access is not Access.READ and roots[name] in inputs:
                    yield from _overwritten(p, n, name, roots)


def _overwritten(p: Program, n: int, name: str, roots: dict[str, str]) -> Iterator[Fault]:
    """Uses of what an input was after a launch has written it as `name`."""
    old = {other for other, root in roots.items() if root == roots[name] and other != name}
    later = {u for s in p.steps[n + 1 :] if not isinstance(s, Alias) for u in _used(s)}
    later |= {o for o in p.outputs if isinstance(o, str)}
    newer = {s.value.name for s in p.steps[n + 1 :] if isinstance(s, Alias)}
    for other in sorted((later & old) - newer):
        yield Fault(p.steps[n], f"no use of {other} after {name} is stored into it", "a use")


def _arena(p: Program) -> Iterator[Fault]:
    lives = _lives(p)
    last = _last_uses(p, lives)
    placed = [(name, x) for name, x in lives.items() if x.offset is not None]
    for k, (name, x) in enumerate(placed):
        end = _end(x)
        if isinstance(p.arena_bytes, int) and end is not None and end > p.arena_bytes:
            yield Fault(p.steps[x.born], f"memory below {p.arena_bytes} bytes", f"up to {end}")
        for other, y in placed[:k]:
            together = last[other] >= x.born and last[name] >= y.born
            if together and _overlap(x, y) and not _in_place(p, name, x, y, last[other]):
                yield Fault(
                    p.steps[x.born],
                    f"bytes that {other} (steps {y.born} to {last[other]}) does not use",
                    f"{x.offset} to {end} while {other} has {y.offset} to {_end(y)}",
                )


def _in_place(p: Program, name: str, x: _Life, y: _Life, step: int) -> bool:
    """Whether x takes over y's exact memory in the launch that reads y last and writes x first."""
    first = next((n for n, s in enumerate(p.steps) if n > x.born and name in _used(s)), None)
    same = x.offset == y.offset and _end(x) == _end(y)
    return same and first == step and isinstance(p.steps[step], Launch)


def _side_by_side(p: Program) -> Iterator[Fault]:
    """Kernels of one launch run in no order: none may touch what another writes."""
    lives = _lives(p)
    for step in p.steps:
        if not (isinstance(step, Launch) and isinstance(step.kernel, Packed)):
            continue
        uses = [
            (part, step.arguments[n], step.kernel.buffers[n].access is not Access.READ)
            for part, (_, span) in enumerate(spans(step.kernel))
            for n in range(span.start, span.stop)
        ]
        for part, name, _ in (use for use in uses if use[2]):
            for other in (u for k, u, _ in uses if k != part):
                x, y = lives[name], lives[other]
                if x.root == y.root or _overlap(x, y):
                    yield Fault(step, f"{name} written by one kernel alone", f"{other} in another")


def _last_uses(p: Program, lives: dict[str, _Life]) -> dict[str, int]:
    """The last step at which the memory of each value is used, through whatever alias."""
    last = {life.root: life.born for life in lives.values()}
    for n, step in enumerate(p.steps):
        for name in _used(step):
            if name in lives:
                last[lives[name].root] = n
    for o in p.outputs:
        if isinstance(o, str) and o in lives:
            last[lives[o].root] = len(p.steps)
    return last


def _end(x: _Life) -> int | None:
    count = x.type.storage_elements
    if x.offset is None or not isinstance(count, int):
        return None
    return x.offset + count * x.type.dtype.itemsize


def _overlap(x: _Life, y: _Life) -> bool:
    ends = _end(x), _end(y)
    if x.offset is None or y.offset is None or None in ends:
        return False
    return x.offset < (ends[1] or 0) and y.offset < (ends[0] or 0)


PROGRAM: tuple[Invariant[Program], ...] = (
    Invariant("a value is used between its definition and its end", _definitions),
    Invariant("arguments of a launch have the types of the kernel's buffers", _arguments),
    Invariant("an input changes by an update, or by a launch after its last use", _inputs),
    Invariant("memory of values that live together does not overlap", _arena),
    Invariant("kernels of one launch do not touch what another of them writes", _side_by_side),
)
