"""Nests to nests, before they get a schedule: reductions split over programs, softmax in one walk.

A split reduction becomes partial states in a scratch buffer and a nest that joins them, always in
the same order: no atomics, the same bits every time. Knows no chip; the number of parts is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..base.errors import Unsupported
from ..base.sym import Dim, Size, Var, add, atoms, ceildiv, mul, substitute
from ..ir.expr import (
    Apply,
    Const,
    Expr,
    Load,
    Position,
    Reduced,
    Reduction,
    Rewriter,
    Rng,
    Scanned,
    both,
    children,
    compare,
    substitute_axes,
    walk,
)  # fmt: skip
from ..ir.monoid import MONOIDS, number
from ..ir.nest import Access, Axis, Buffer, Combine, Nest, Store
from ..ir.types import TensorType


@dataclass(frozen=True)
class Split:
    """Cut `axis` into `parts` runs of `chunk` elements: side by side, or in turn by `turn` of them.

    Taken in turn, all parts work in the same neighbourhood and end at the end of the axis.
    """

    axis: Var
    parts: int
    chunk: Dim
    turn: int | None = None

    def at(self, part: Dim, run: Dim) -> Dim:
        """Where on the axis an element of a part's run lies."""
        if self.turn is None:
            return add(mul(part, self.chunk), run)
        whole = mul(add(mul(run // self.turn, self.parts), part), self.turn)
        return add(whole, run % self.turn)


@dataclass(frozen=True)
class Pieces:
    """Nests to be launched in order, and the buffers between them."""

    nests: tuple[Nest, ...]
    scratch: tuple[Buffer, ...]


def flat(axes: Iterable[Var]) -> Dim:
    """Row-major position in a space."""
    total: Dim = 0
    for a in axes:
        total = add(mul(total, a.extent), a)
    return total


def size(axes: Iterable[Var]) -> Dim:
    """Number of points of a space."""
    total: Dim = 1
    for a in axes:
        total = mul(total, a.extent)
    return total


def inner_axes(nest: Nest) -> tuple[Var, ...]:
    """The axes of reductions, stores and scans, each once, outer before inner."""
    found: dict[Var, None] = {}
    for reduction in nest.reductions:
        found.update(dict.fromkeys(reduction.axes))
    for store in nest.stores:
        found.update(dict.fromkeys(store.axes))
    space = {a.var for a in nest.space}
    return tuple(a for a in found if a not in space)


def sizes_of(nest: Nest) -> tuple[Size, ...]:
    """The symbolic sizes that a nest mentions, by name."""
    dims: list[Dim] = [a.extent for a in nest.space]
    dims += [a.extent for a in inner_axes(nest)]
    dims += [b.type.storage_elements for b in nest.buffers]
    dims += [d for s in nest.stores for d in s.index]
    found = {a for d in dims for a in atoms(d)}
    for e in nest.expressions:
        found |= e.free
    return tuple(sorted((a for a in found if isinstance(a, Size)), key=lambda s: s.name))


def nest_of(space: tuple[Axis, ...], stores: tuple[Store, ...], pool: Iterable[Buffer]) -> Nest:
    """A nest with exactly the buffers it uses, each with the access it makes."""
    bare = Nest(space, (), stores)
    read = {e.buffer for e in bare.loads}
    written = {s.buffer for s in stores}
    joined = {s.buffer for s in stores if s.combine is not Combine.SET}
    kept = []
    for b in pool:
        if b.name in read | written:
            update = b.name in joined or b.name in read & written
            update |= b.access is Access.UPDATE and b.name in written
            plain = Access.WRITE if b.name in written else Access.READ
            kept.append(replace(b, access=Access.UPDATE if update else plain))
    return Nest(space, tuple(kept), stores)


def split(nest: Nest, cut: Split, stem: str) -> Pieces:
    """Partial states per part; a nest that joins them; and, where needed, one that goes on.

    All reductions that depend on no other one must run over `cut.axis`. What is stored along it
    without needing any of them is stored by the part that reads it: one trip for both.
    """
    first = first_reductions(nest)
    space = tuple(a.var for a in nest.space)
    part = Var("part", cut.parts)
    run = Var(f"{cut.axis.name}_run", cut.chunk)
    scratch: list[Buffer] = []
    stores: list[Store] = []
    joins: dict[Reduction, Reduction] = {}
    points = size(space)
    here = add(mul(part, points), flat(space))
    for number_, reduction in enumerate(first):
        cut_one = run_of(reduction, cut, part, run)
        loads: list[Expr] = []
        for k, e in enumerate(reduction.lift):
            counted = _counted(cut_one, k)
            if counted is not None:
                loads.append(counted)
                continue
            name = f"{stem}_part{number_}_{k}"
            scratch.append(partial_state(name, e, mul(points, cut.parts)))
            stores.append(Store(name, (here,), Reduced(cut_one, k, e.dtype)))
            loads.append(Load(name, (here,), e.dtype))
        joins[reduction] = Reduction(reduction.monoid, (part,), tuple(loads))
    pool = (*nest.buffers, *scratch)
    outer = (Axis(part), *nest.space)
    early = [s for s in nest.stores if _is_early(s, cut, nest)]
    stores += (stored_run(s, cut, part, run) for s in early)
    partial = nest_of(outer, tuple(stores), pool)
    late = replace(nest, stores=tuple(s for s in nest.stores if s not in early))
    rest = _finish(late, joins, stem, pool)
    return Pieces((partial, *rest.nests), (*scratch, *rest.scratch))


def _counted(part: Reduction, component: int) -> Expr | None:
    """How many elements every part has, where that component is their number."""
    count = part.lift[0]
    points = size(part.axes)
    if part.monoid != "welford" or component or not isinstance(points, int):
        return None
    return number(points, count.dtype) if isinstance(count, Const) and count.value == 1 else None


def _is_early(s: Store, cut: Split, nest: Nest) -> bool:
    """Whether a store along the cut axis needs no reduction and changes nothing that is read."""
    fixed = s.buffer not in {e.buffer for e in nest.loads}
    return cut.axis in s.axes and fixed and not is_reduced(s)


def is_reduced(s: Store) -> bool:
    """Whether what is stored needs a reduction to be finished."""
    return any(isinstance(e, Reduced) for e in walk(s.roots))


def stored_run(s: Store, cut: Split, part: Var, run: Var) -> Store:
    """The part's own run of a store along the cut axis."""
    at = cut.at(part, run)
    inside = _inside(cut, at)
    moved = mapped(s, Rewriter(index=lambda d: substitute(d, {cut.axis: at})))
    return replace(
        moved,
        axes=tuple(run if a is cut.axis else a for a in s.axes),
        value=guarded(moved.value, inside, {run}),
        guard=moved.guard if inside is None else both(inside, moved.guard),
    )


def _inside(cut: Split, at: Dim) -> Expr | None:
    """Where a part's run is within the axis; None where it always is."""
    whole = mul(cut.chunk, cut.parts)
    if whole is cut.axis.extent or whole == cut.axis.extent:
        return None
    return compare("lt", Position(at), Position(cut.axis.extent))


def run_of(reduction: Reduction, cut: Split, part: Var, run: Var) -> Reduction:
    """A reduction over the part's own run of the cut axis."""
    at = cut.at(part, run)
    inside = _inside(cut, at)
    axes = tuple(run if a is cut.axis else a for a in reduction.axes)
    neutral = MONOIDS[reduction.monoid].identity(tuple(e.dtype for e in reduction.lift))
    lift = []
    for e, zero in zip(reduction.lift, neutral, strict=True):
        moved = guarded(substitute_axes(e, {cut.axis: at}), inside, {run})
        if inside is not None:
            moved = Apply("where", (inside, moved, zero), e.dtype)
        lift.append(moved)
    return Reduction(reduction.monoid, axes, tuple(lift))


def _finish(
    nest: Nest, joins: dict[Reduction, Reduction], stem: str, pool: tuple[Buffer, ...]
) -> Pieces:
    """The nest with its first reductions taken from the parts."""
    later = any(s.axes for s in nest.stores) or len(nest.reductions) > len(joins)
    if not later:
        stores = _replaced(nest.stores, joins)
        return Pieces((nest_of(nest.space, stores, pool),), ())
    here = flat(a.var for a in nest.space)
    points = size(a.var for a in nest.space)
    known_now = [s for s in nest.stores if _is_known(s, joins, nest)]
    later_ = [s for s in nest.stores if s not in known_now]
    scratch: list[Buffer] = []
    stores_: list[Store] = []
    known: dict[Expr, Expr] = {}
    for number_, e in enumerate(_ready(later_, joins, nest)):
        name = f"{stem}_state{number_}"
        scratch.append(partial_state(name, e, points))
        stores_.append(Store(name, (here,), e))
        known[e] = Load(name, (here,), e.dtype)
    every = (*pool, *scratch)
    join = nest_of(nest.space, _replaced((*stores_, *known_now), joins), every)
    rest = tuple(mapped(s, Rewriter(leaf=known.get)) for s in later_)
    return Pieces((join, nest_of(nest.space, rest, every)), tuple(scratch))


def _ready(
    stores: Sequence[Store], joins: dict[Reduction, Reduction], nest: Nest
) -> tuple[Expr, ...]:
    """The largest values that are known for each point of the space once the parts are joined: what
    goes on reads them instead of the states, and computes them for no element again."""
    space = {a.var for a in nest.space}
    written = {s.buffer for s in nest.stores}
    ready: set[Expr] = set()
    roots = tuple(e for s in stores for e in s.roots)
    for e in walk(roots):
        if isinstance(e, Reduced):
            fit = e.reduction in joins
        else:
            fit = all(c in ready for c in children(e)) and not isinstance(e, Scanned | Rng)
            fit &= not (isinstance(e, Load) and e.buffer in written)
        if fit and all(a in space for a in e.free if isinstance(a, Var)):
            ready.add(e)
    found: dict[Expr, None] = {}
    stack, seen = list(reversed(roots)), set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e in ready:
            if any(isinstance(x, Reduced) for x in walk((e,))):
                found[e] = None
        else:
            stack.extend(reversed(children(e)))
    return tuple(found)


def _is_known(s: Store, joins: dict[Reduction, Reduction], nest: Nest) -> bool:
    """Whether a store can be made as soon as the first reductions are joined."""
    used = {e.reduction for e in walk(s.roots) if isinstance(e, Reduced)}
    read = {e.buffer for e in nest.loads}
    return not s.axes and used <= set(joins) and s.buffer not in read


def _replaced(stores: tuple[Store, ...], joins: dict[Reduction, Reduction]) -> tuple[Store, ...]:
    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Reduced) and e.reduction in joins:
            return Reduced(joins[e.reduction], e.component, e.dtype)
        return None

    return tuple(mapped(s, Rewriter(leaf=leaf)) for s in stores)


def mapped(s: Store, rewrite: Rewriter) -> Store:
    """A store with every expression rewritten."""
    guard = None if s.guard is None else rewrite(s.guard)
    return replace(s, index=tuple(map(rewrite.dim, s.index)), value=rewrite(s.value), guard=guard)


def partial_state(name: str, e: Expr, count: Dim) -> Buffer:
    """Scratch for so many values of one component of a state."""
    return Buffer(name, TensorType.dense(e.dtype, (count,)), Access.WRITE)


def first_reductions(nest: Nest) -> tuple[Reduction, ...]:
    """The reductions that depend on no other one."""
    return tuple(
        r for r in nest.reductions if not any(isinstance(e, Reduced) for e in walk(r.lift))
    )


def guarded(e: Expr, inside: Expr | None, varying: set[Var]) -> Expr:
    """e whose loads that vary over `varying` read nothing where `inside` is false."""
    if inside is None:
        return e

    def node(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or not varying & x.free:
            return None
        other = x.other if x.other is not None else number(0, x.dtype)
        return Load(x.buffer, x.index, x.dtype, both(inside, x.guard), other)

    return Rewriter(node=node)(e)


def stores_apart(nest: Nest) -> tuple[Nest, ...]:
    """A nest without reductions as pointwise nests: the axes of its stores join the space."""
    groups: dict[tuple[Var, ...], list[Store]] = {}
    for s in nest.stores:
        groups.setdefault(s.axes, []).append(s)
    written = {s.buffer for s in nest.stores}
    if len(groups) > 1 and written & {e.buffer for e in nest.loads}:
        raise Unsupported(
            "stores over different axes of a group that updates a buffer in place",
            expected="stores over the same axes, or separate outputs",
            found=", ".join(sorted(written)),
            next_step="cut the group before the in-place store",
        )
    return tuple(
        nest_of(
            (*nest.space, *(Axis(a) for a in axes)),
            tuple(replace(s, axes=()) for s in stores),
            nest.buffers,
        )
        for axes, stores in groups.items()
    )


def flattened(nest: Nest, stem: str = "i") -> Nest:
    """A pointwise nest over one axis; the old ones become quotients and remainders of it."""
    axes = [a.var for a in nest.space]
    one = Var(stem, size(axes))
    values: dict[Var, Dim] = {}
    inner: Dim = 1
    for position, a in reversed(list(enumerate(axes))):
        whole = one // inner
        values[a] = whole % a.extent if position else whole
        inner = mul(inner, a.extent)
    index = Rewriter(index=lambda d: _placed(d, values))
    return replace(nest, space=(Axis(one),), stores=tuple(mapped(s, index) for s in nest.stores))


def _placed(d: Dim, values: dict[Var, Dim]) -> Dim:
    return substitute(d, dict(values.items()))


def chunked(extent: Dim, parts: int, lanes: int) -> Dim:
    """Elements of one part: a whole number of tiles."""
    return mul(ceildiv(ceildiv(extent, parts), lanes), lanes)
