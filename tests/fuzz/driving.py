"""Programs compiled together and judged; one that is wrong is cut to the steps that matter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from judging import Left, known, run, wrong
from programs import Leaf, Program, Ref, Step, module, tensors
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from onetrip.api.backend import builds

TOGETHER = 16
"""Programs in one compilation."""


@dataclass(frozen=True)
class Failure:
    """A program and what was wrong with it."""

    program: Program
    note: str

    def __repr__(self) -> str:
        return f"{self.note}\n{self.program!r}\n"


def compiled(
    programs: Sequence[Program], backend: str = "onetrip", dynamic: bool = False, **options: Any
) -> list[Left]:
    """What each leaves where all are one compiled graph.

    Raises whatever compiling or running raises; a graph that falls back to eager is an error too.
    """
    torch._dynamo.reset()
    made = torch.compile(
        module(programs), backend=backend, dynamic=dynamic, options=options or None
    )
    given = [tensors(p) for p in programs]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = iter(made(*(t for leaves in given for t in leaves)))
    assert builds["eager"] == 0, "a graph runs in eager"
    return [
        Left(tuple(next(found) for _ in p.results), tuple(leaves))
        for p, leaves in zip(programs, given, strict=True)
    ]


def failures(programs: Sequence[Program], **options: Any) -> Iterator[Failure]:
    """The programs that are wrong, but for those on which torch's `aot_eager` fails alike."""
    for failure in _failures(programs, **options):
        theirs = next(_failures([failure.program], backend="aot_eager"), None)
        if theirs is None or _first(theirs.note) != _first(failure.note):
            yield failure


def _failures(programs: Sequence[Program], **options: Any) -> Iterator[Failure]:
    """The programs that are wrong; where the compilation fails, those that fail alone."""
    try:
        lefts = compiled(programs, **options)
    except Exception as error:
        if len(programs) == 1:
            yield Failure(programs[0], f"raises {type(error).__name__}: {str(error)[:300]}")
            return
        half = len(programs) // 2
        yield from _failures(programs[:half], **options)
        yield from _failures(programs[half:], **options)
        return
    for program, left in zip(programs, lefts, strict=True):
        if note := wrong(left, known(program)):
            yield Failure(program, note)


# ------------------------------------------------------------------ cutting smaller


def smallest(failure: Failure, **options: Any) -> Failure:
    """The failure with as few results and steps as still fail in the same way.

    A step goes by putting what eager has there in its place, as a leaf of its own.
    """

    def fails(program: Program) -> Failure | None:
        found = next(_failures([program], **options), None)
        same = found is not None and _first(found.note) == _first(failure.note)
        return found if same else None

    best = failure
    for simpler in (_earlier_results, _last_steps, _fewer_steps):
        best = _least(best, simpler, fails)
    return best


def _first(note: str) -> str:
    """What kind of wrong it is: which values differ in what way depends on what stood before."""
    kind = note.partition(":")[0]
    return "values" if kind == "ulp" or kind.startswith("other") else kind


def _least(
    best: Failure,
    simpler: Callable[[Program], Iterator[Program]],
    fails: Callable[[Program], Failure | None],
) -> Failure:
    while True:
        found = next(filter(None, map(fails, simpler(best.program))), None)
        if found is None:
            return best
        best = found


def _earlier_results(p: Program) -> Iterator[Program]:
    """One value alone, the first that a step makes before the last."""
    made = [r for s in p.steps for r in _outputs(p, s) if (r,) != p.results]
    yield from (_needed(replace(p, results=(r,))) for r in made)


def _outputs(p: Program, step: Step) -> list[Ref]:
    """The values of a step that anything reads or returns."""
    read = _refs([(s.args, s.kwargs) for s in p.steps]) + list(p.results)
    return list(dict.fromkeys(r for r in read if r.name == step.name))


def _last_steps(p: Program) -> Iterator[Program]:
    """The steps next to the results alone, then those before them too, and so on."""
    near = {r.name for r in p.results}
    while len(near) < len(p.steps):
        smaller: Program | None = p
        for step in p.steps:
            if step.name not in near and smaller is not None:
                smaller = _without(smaller, step)
        if smaller is not None and len(smaller.steps) < len(p.steps):
            yield _needed(smaller)
        read = {r.name for s in p.steps if s.name in near for r in _refs((s.args, s.kwargs))}
        if read <= near:
            return
        near |= read


def _fewer_steps(p: Program) -> Iterator[Program]:
    """Each program with a step less, its outputs leaves."""
    for step in reversed(p.steps):
        made = _without(p, step)
        if made is not None:
            yield _needed(made)


def _refs(x: Any) -> list[Ref]:
    return [r for r in tree_leaves(x) if isinstance(r, Ref)]


def _needed(p: Program) -> Program:
    """Without steps that nothing returned depends on, and leaves that nothing reads.

    What writes in place stays with all that it reads.
    """
    wanted = {r.name for r in p.results}
    kept: list[Step] = []
    for step in reversed(p.steps):
        if step.name in wanted or step.writes:
            kept.append(step)
            wanted |= {r.name for r in _refs((step.args, step.kwargs))}
    leaves = tuple((n, leaf) for n, leaf in p.leaves if n in wanted)
    return Program(leaves, tuple(reversed(kept)), p.results)


def _without(p: Program, gone: Step) -> Program | None:
    """The program in which leaves stand where a step's outputs did."""
    if gone.writes:
        return replace(p, steps=tuple(s for s in p.steps if s.name != gone.name))
    outputs = _outputs(p, gone)
    if set(outputs) & set(p.results):
        return None
    values = dict(zip(outputs, run(replace(p, results=tuple(outputs)), tensors(p)).results,
                      strict=True))  # fmt: skip
    names = {r: Ref(f"{r.name}_{r.part or 0}") for r in outputs}
    leaves = tuple((names[r].name, _as_leaf(t)) for r, t in values.items())

    def renamed(x: Any) -> Any:
        return tree_map_only(Ref, lambda r: names.get(r, r), x)

    steps = tuple(
        replace(s, args=renamed(s.args), kwargs=renamed(s.kwargs))
        for s in p.steps
        if s.name != gone.name
    )
    results = tuple(names.get(r, r) for r in p.results)
    return Program((*p.leaves, *leaves), steps, results)


def _as_leaf(t: Tensor) -> Leaf:
    return Leaf(t.dtype, tuple(t.shape), "dense", "given", 0, tuple(t.flatten().tolist()))


__all__ = ["TOGETHER", "Failure", "compiled", "failures", "smallest"]
