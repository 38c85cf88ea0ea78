"""Which changed inputs a group may write straight into, so that no copy back is left.

    (input t, value v) in graph.mutations; group k stores v
    v lies in t's memory  <=  nobody needs what t was after step k; within k every read of t is of
                              the element that is stored; no later group holds a node before v in
                              the graph that can stop the call, as a bad index does

The answer is for nests; whether the kernels that a schedule makes of them read what an input was
before they overwrite it is asked of the kernels (`kernels_write_in_place`); else the copy stays.
Must not know memory offsets or devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..base.sym import Dim, Var, atoms
from ..cost.sizes import at_most
from ..ir.expr import Expr, Load, dims_of, payloads, walk
from ..ir.kernel import Assign, Carry, Kernel, Let, Loop, Stmt
from ..ir.nest import Combine, Nest, Store
from ..ir.types import TensorType
from ..ops.opaque import in_place_variant, may_stop
from .index import Index
from .lifetime import NO_TARGETS, Targets, last_uses, output_memory
from .plan import Group


def written_in_place(index: Index, groups: Sequence[Group]) -> Targets:
    """The values of a plan that may be stored into the inputs that they become."""
    if not index.graph.mutations:
        return NO_TARGETS
    pairs, last = _single_writes(index, output_memory(index, groups)), last_uses(index, groups)
    stops = _stops(index, groups)
    found: dict[str, str] = {}
    for step, group in enumerate(groups):
        later = min((at for k, at in stops.items() if k > step), default=len(index.position))
        mine = {
            v: pairs[v]
            for v in group.stored
            if v in pairs and last.get(pairs[v], -1) <= step and _position(index, v) < later
        }
        if group.call is not None:
            found.update(_library(index, group, mine))
        elif step not in stops:
            found.update(_generated(group, mine))
    return found


def _single_writes(index: Index, kept: frozenset[str]) -> dict[str, str]:
    """Mutations of one input by one value of its exact form that stands in memory of its own."""
    graph = index.graph
    values = [index.base(v.name) for _, v in graph.mutations]
    return {
        v.name: t.name
        for t, v in graph.mutations
        if v.name in index.maker
        and values.count(v.name) == 1
        and v.name not in kept
        and v.type == t.type
        and _dense(t.type)
    }


def _dense(t: TensorType) -> bool:
    """Whether every element has an address of its own."""
    return at_most(t.storage_elements, t.numel)


def _position(index: Index, value: str) -> int:
    """Where in the graph a base value is made."""
    return index.position[index.atoms[index.maker[value]].name]


def _stops(index: Index, groups: Sequence[Group]) -> dict[int, int]:
    """Where in the graph each group first holds a node that raises on some values: a bad index.

    Then nothing may have been written that eager would have written after that. A node that is
    computed again raises no more. Groups without such a node are left out.
    """
    found: dict[int, int] = {}
    passed: set[str] = set()
    for step, group in enumerate(groups):
        new = [n for n in group.nodes if n not in passed and _may_stop(index, group, n)]
        passed.update(new)
        if new:
            found[step] = min(index.position[n] for n in new)
    return found


def _may_stop(index: Index, group: Group, node: str) -> bool:
    if group.call is not None:
        return may_stop(group.call)
    return any(map(payloads, _indices(index.nests[node])))


def _indices(nest: Nest) -> Iterator[Dim]:
    for e in nest.expressions:
        yield from dims_of(e)
    for s in nest.stores:
        yield from s.index


# ------------------------------------------------------------------ library calls


def _library(index: Index, group: Group, mine: dict[str, str]) -> dict[str, str]:
    """A call with an overload that changes its first operand, when that is the input."""
    call = group.call
    assert call is not None
    if not mine or in_place_variant(call) is None:
        return {}
    first, *others = (v.name for v in call.values)
    target = mine.get(call.output.name)
    alone = target == first and target not in map(index.base, others)
    return {call.output.name: first} if alone else {}


# ------------------------------------------------------------------ generated kernels


def _generated(group: Group, mine: dict[str, str]) -> dict[str, str]:
    """The values whose nest reads the input at the stored element only."""
    nest = group.nest if mine else None
    if nest is None:
        return {}
    stores = {s.buffer: s for s in nest.stores}
    return {v: t for v, t in mine.items() if _same_element(nest, stores[v], t)}


def _same_element(nest: Nest, store: Store, name: str) -> bool:
    if store.combine is not Combine.SET or store.axes or store.guard is not None:
        return False
    loads = [e for e in nest.loads if e.buffer == name]
    return all(e.index == store.index for e in loads)


# ------------------------------------------------------------------ kernels


def kernels_write_in_place(
    kernels: Sequence[tuple[Kernel, tuple[str, ...]]], value: str, target: str
) -> bool:
    """Whether launched kernels may store `value` into the memory of `target`.

    One kernel stores it, and none after it reads the input. Where that kernel reads the input, it
    stores once, and reads only in the statements before the store and in the store itself, at the
    same element, in the same loops; and each of these loops reaches other elements, so that nothing
    is stored twice.
    """
    names = [{a: b.name for a, b in zip(given, k.buffers, strict=True)} for k, given in kernels]
    writers = [n for n, held in enumerate(names) if value in held]
    if len(writers) != 1:
        return False
    (writer,) = writers
    if any(target in held for held in names[writer + 1 :]):
        return False
    held = names[writer]
    kernel, old = kernels[writer][0], held.get(target)
    return old is None or _body_writes_in_place(kernel.body, (), held[value], old)


def _body_writes_in_place(
    body: Sequence[Stmt], loops: tuple[Loop, ...], new: str, old: str
) -> bool:
    found = [
        (k, loops_, inner, s)
        for loops_, inner in _bodies(body, loops)
        for k, s in enumerate(inner)
        if isinstance(s, Store) and s.buffer == new
    ]
    if len(found) != 1:
        return False
    ((place, around, inside, store),) = found
    assert isinstance(store, Store)
    everywhere = [e for _, b in _bodies(body, loops) for s in b for e in _reads(s, old)]
    before = [e for s in inside[: place + 1] for e in _reads(s, old)]
    here = len(everywhere) == len(before) and all(e.index == store.index for e in before)
    return here and _reaches(around, store)


def _bodies(
    body: Sequence[Stmt], loops: tuple[Loop, ...]
) -> Iterator[tuple[tuple[Loop, ...], Sequence[Stmt]]]:
    yield loops, body
    for stmt in body:
        if isinstance(stmt, Loop):
            yield from _bodies(stmt.body, (*loops, stmt))


def _reads(stmt: Stmt, old: str) -> list[Load]:
    return [e for e in walk(_roots(stmt)) if isinstance(e, Load) and e.buffer == old]


def _roots(stmt: Stmt) -> tuple[Expr, ...]:
    if isinstance(stmt, Store):
        return stmt.roots
    if isinstance(stmt, Assign):
        return stmt.values
    if isinstance(stmt, Let):
        return (stmt.value,)
    if isinstance(stmt, Loop):
        return tuple(p for d in (stmt.start, stmt.end) for p in payloads(d))
    return (stmt.init,) if isinstance(stmt, Carry) else ()


def _reaches(loops: Sequence[Loop], store: Store) -> bool:
    """Whether each loop moves the stored element, itself or by where a loop inside starts."""
    moved = set(store.free)
    for loop in reversed(loops):
        if loop.axis not in moved:
            return False
        moved |= {a for a in atoms(loop.start) if isinstance(a, Var)}
    return True
