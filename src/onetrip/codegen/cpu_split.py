"""Reduction in parts: few long rows, or few columns, shared by many threads.

    part[k, s]  = fold of the k-th part of the reduced axis, for each point s of the space
    whole[s]    = fold over k of part[k, s]                        stage after stage
    stores      read whole[s]

The parts depend on the extents alone, never on the number of threads. Must not know: text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.sym import Dim, Var, add, ceildiv, mul
from ..ir.expr import Expr, Load, Local, Reduced, Reduction, children, walk
from ..ir.kernel import Let, Loop, Mapping, Scratch, Stmt
from ..ir.nest import Axis, Nest, Store
from ..ir.types import TensorType
from .cpp_index import MOST_LANES
from .cpu_axes import axes_in, count, flat, iterations, pick_lane
from .cpu_columns import Columns, stored_with, suits
from .cpu_space import BLOCK, PIECES, Space
from .cpu_stages import TERMS, Level

LEAST_ROWS = 32
"""Fewest rows of a part when the lanes own columns."""


@dataclass(frozen=True)
class _Split:
    """One stage in parts: the part's number, its level, and the names of both working memories.

    `settled` are values of a point that later loops over more axes read, and their memories.
    """

    stage: Sequence[Reduction]
    number: Var
    level: Level
    parts: tuple[tuple[str, ...], ...]
    wholes: tuple[tuple[str, ...], ...]
    settled: tuple[tuple[Expr, str], ...] = ()


def split(space: Space, lane: Var | None) -> tuple[Stmt, ...]:
    """Every stage in parts, then the stores."""
    stages = space.stages
    out: list[Stmt] = []
    done: list[_Split] = []
    made: list[Store] = []
    for stage in stages.ready(space.roots, space.bound):
        s = _plan(space, stage, lane)
        out += _memory(space, s)
        if lane is not None and suits(space, stage, lane):
            early = [x for x in stored_with(space, stage, lane) if x not in made]
            out += _by_rows(space, s, done, lane, early)
            made += early
        else:
            out += _partials(space, s, done, lane)
        out += _join(space, s, lane)
        done.append(s)
        _remember(space, s)
    for group in _by_axes([x for x in space.nest.stores if x not in made]):
        out += _final(space, group, done, lane)
    return tuple(out)


def _plan(space: Space, stage: Sequence[Reduction], lane: Var | None) -> _Split:
    fresh = space.stages.fresh
    axis = max(stage[0].axes, key=lambda v: count(v.extent))
    along = pick_lane(stage[0].axes, space.found) if lane is None else None
    length = _length(axis, along, lane)
    k = Var(fresh("k"), ceildiv(axis.extent, length))
    start = mul(k, length)
    parts, wholes = (
        tuple(tuple(fresh(kind) for _ in r.lift) for r in stage) for kind in ("part", "whole")
    )
    settled = () if lane is None else tuple((e, fresh("held")) for e in _settled(space, stage))
    return _Split(stage, k, Level(axis, 1, start, add(start, length)), parts, wholes, settled)


def _settled(space: Space, stage: Sequence[Reduction]) -> list[Expr]:
    """The largest values that are known with this stage, where loops over more axes read them.

    Lanes own columns and rows run outside: what depends on the column alone would be computed again
    for each row.
    """
    known = {*stage, *(r for r in space.nest.reductions if space.stages.knows(r))}
    later = [e for r in space.nest.reductions if r not in known for e in r.lift]
    stack = [*later, *(e for s in space.nest.stores if s.axes for e in s.roots)]
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if e in seen or isinstance(e, Reduced):
            continue
        seen.add(e)
        inner = {x.reduction for x in walk((e,)) if isinstance(x, Reduced)}
        if inner & {*stage} and inner <= known and axes_in(e.free) <= space.bound:
            found[e] = None
        else:
            stack.extend(children(e))
    return list(found)


def _length(axis: Var, along: Var | None, lane: Var | None) -> int:
    """Elements of one part of the split axis."""
    if not isinstance(axis.extent, int):
        return 2 * BLOCK if axis is along else BLOCK // 32
    wanted = -(-axis.extent // PIECES)
    if axis is along:
        return max(_whole(wanted, 4 * MOST_LANES * TERMS), BLOCK)
    rows = _whole(wanted, TERMS) if wanted > TERMS else wanted
    return max(rows, 1 if lane is None else LEAST_ROWS)


def _whole(count_: int, unit: int) -> int:
    """Rounded up to a multiple: parts are made of whole blocks of terms."""
    return -(-count_ // unit) * unit


def _points(space: Space) -> Dim:
    return iterations(space.axes)


def _memory(space: Space, s: _Split) -> list[Stmt]:
    out: list[Stmt] = []
    for r, parts, wholes in zip(s.stage, s.parts, s.wholes, strict=True):
        for e, part, whole in zip(r.lift, parts, wholes, strict=True):
            size = mul(s.number.extent, _points(space))
            out.append(Scratch(part, TensorType.dense(e.dtype, (size,))))
            out.append(Scratch(whole, TensorType.dense(e.dtype, (_points(space),))))
    held = [Scratch(name, TensorType.dense(e.dtype, (_points(space),))) for e, name in s.settled]
    return [*out, *held]


def _place(space: Space, s: _Split) -> Dim:
    return add(mul(s.number, _points(space)), flat(space.axes))


def _partials(
    space: Space, s: _Split, done: Sequence[_Split], lane: Var | None
) -> tuple[Stmt, ...]:
    def body() -> tuple[Stmt, ...]:
        first = _recall(space, done, lane)
        bound = space.bound | {s.number}
        loops = space.stages.reduce(s.stage, bound, lane, part=s.level)
        return (*first, *loops, *_keep(space, s, s.parts, _place(space, s)))

    return (Loop(s.number, 1, space.threads, space.loops(lane, body, blocks=False)),)


def _by_rows(
    space: Space, s: _Split, done: Sequence[_Split], lane: Var, stores: Sequence[Store]
) -> tuple[Stmt, ...]:
    """The parts of all columns at once, and the stores for each element of their rows."""
    levels = space.stages.levels(s.stage, lane, s.level)
    columns = Columns(space, s.stage, lane, lambda: _recall(space, done, lane), stores)
    body = columns.loops(levels, s.parts, _place(space, s))
    for v in reversed([v for v in space.axes if v is not lane]):
        body = (Loop(v, 1, space.threads, body),)
    return (Loop(s.number, 1, space.threads, body),)


def _join(space: Space, s: _Split, lane: Var | None) -> tuple[Stmt, ...]:
    """The parts of each point folded; they are few, and in cache."""
    joined = [
        Reduction(r.monoid, (s.number,), tuple(
            Load(name, (_place(space, s),), e.dtype) for e, name in zip(r.lift, names, strict=True)
        ))
        for r, names in zip(s.stage, s.parts, strict=True)
    ]  # fmt: skip

    def body() -> tuple[Stmt, ...]:
        stages, place = space.stages, flat(space.axes)
        loops = stages.reduce(joined, space.bound, lane)
        kept = _keep(space, replace(s, stage=joined), s.wholes, place)
        for r, same in zip(s.stage, joined, strict=True):
            states = (Reduced(same, c, e.dtype) for c, e in enumerate(same.lift))
            stages.know(r, tuple(map(stages.resolve, states)))
        held = [Store(name, (place,), stages.resolve(e)) for e, name in s.settled]
        return (*loops, *kept, *held)

    threads = space.threads if lane is not None else Mapping.SERIAL
    return Space(space.nest, space.stages, threads).loops(lane, body)


def _keep(
    space: Space, s: _Split, names: Sequence[tuple[str, ...]], place: Dim
) -> tuple[Store, ...]:
    """Stores of a stage's states, as they are known now."""
    out = []
    for r, row in zip(s.stage, names, strict=True):
        for c, (e, name) in enumerate(zip(r.lift, row, strict=True)):
            value = space.stages.resolve(Reduced(r, c, e.dtype))
            out.append(Store(name, (place,), value))
    return tuple(out)


def _remember(space: Space, s: _Split) -> None:
    for r, names in zip(s.stage, s.wholes, strict=True):
        loads = (Load(n, (flat(space.axes),), e.dtype) for n, e in zip(names, r.lift, strict=True))
        space.stages.know(r, tuple(loads))


def _recall(space: Space, done: Sequence[_Split], lane: Var | None) -> tuple[Let, ...]:
    """The results of earlier stages, read once for each point (or vector of points)."""
    over = (lane,) if lane is not None else ()
    lets = []
    for s in done:
        for r, names in zip(s.stage, s.wholes, strict=True):
            values = []
            for e, whole in zip(r.lift, names, strict=True):
                name = space.stages.fresh("got")
                lets.append(Let(name, Load(whole, (flat(space.axes),), e.dtype)))
                values.append(Local(name, e.dtype, over))
            space.stages.know(r, tuple(values))
        for e, held in s.settled:
            name = space.stages.fresh("got")
            lets.append(Let(name, Load(held, (flat(space.axes),), e.dtype)))
            space.stages.replace(e, Local(name, e.dtype, over))
    return tuple(lets)


def _by_axes(stores: Sequence[Store]) -> list[list[Store]]:
    groups: dict[tuple[Var, ...], list[Store]] = {}
    for s in stores:
        groups.setdefault(s.axes, []).append(s)
    return list(groups.values())


def _final(
    space: Space, group: Sequence[Store], done: Sequence[_Split], lane: Var | None
) -> tuple[Stmt, ...]:
    """The stores, spread over the threads like a pointwise nest."""
    axes = group[0].axes
    bare = tuple(replace(s, axes=()) for s in group)
    wide = Nest((*space.nest.space, *(Axis(v) for v in axes)), space.nest.buffers, bare)
    over = Space(wide, space.stages, space.threads)
    along = lane if lane is not None or not axes else pick_lane(axes, space.found)
    if along is not None and along in axes:
        return over.loops(along, lambda: over.all(along), lambda: _recall(space, done, None))
    return over.loops(along, lambda: (*_recall(space, done, lane), *over.all(along)))
