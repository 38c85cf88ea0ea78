"""Schedules of a collapsed nest for a CPU: which axis the lanes walk, who runs what, in what order.

    pointwise   threads over the outer axes and blocks of the innermost, lanes along it
    transpose   the same, with jumping loads copied through a tile in the level-1 cache
    row         a thread takes a row through all its stages while it is in cache
    column      lanes own columns, the reduced axes run inside
    split       few long rows, or few columns: fixed parts, partial results, then their join
    mixed       reductions over rows and over columns: one walk, see `cpu_mixed`

The split never depends on the number of threads, so results do not either.
Must not know: C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.affine import coefficient
from ..base.sym import Dim, Size, Var, add, atoms, ceildiv, mul
from ..cost.mixed import mixed_of
from ..ir.expr import Expr, Load, Rewriter, Scanned, walk
from ..ir.kernel import Facts, Kernel, Loop, Mapping, Scratch, Stmt, statements
from ..ir.monoid import MONOIDS
from ..ir.nest import Axis, Nest, Store
from ..ir.types import TensorType
from ..target.model import Target
from .cpp_index import MOST_LANES
from .cpu_axes import (
    accesses,
    count,
    in_order,
    is_heavy,
    iterations,
    pick_lane,
    score,
    strided_loads,
    traffic,
)
from .cpu_columns import suits
from .cpu_intervals import in_pieces
from .cpu_means import in_two_passes
from .cpu_mixed import OneWalk
from .cpu_rows import in_outputs
from .cpu_space import BLOCK, PIECES, Space
from .cpu_split import split
from .cpu_stages import Stages
from .scan_order import turned
from .scheduled import Scheduled

SERIAL_BYTES = 1 << 16
"""Traffic below which a parallel region costs more than it gains."""
SPLIT_BYTES = 1 << 18
"""Traffic from which reducing in parts pays for a second pass over the partial results."""
TILE = 64
"""Edge of a transposed tile: it fits the level-1 cache, and each of its rows is a few lines of
memory. Its rows are padded so that they fall into different cache sets."""
LEAST_TILE = 32
"""Extent from which an axis is tiled."""
PITCH = TILE + MOST_LANES


def schedule(nest: Nest, target: Target, *, name: str, facts: Facts) -> Scheduled:
    """One kernel that computes the nest.

    Args:
        nest: collapsed: flat offsets, axes p0.. and r0...
        target: a CPU; the text itself fits every vector width.
        name: the kernel's identifier.
        facts: cost and origin, written into the head of the text.
    """
    nest = turned(Nest(nest.space, nest.buffers, in_two_passes(nest.stores)))
    body: list[Stmt] = []
    families: list[str] = []
    writer = Stages(accesses(nest))
    tiled = None if in_order(nest.stores) else mixed_of(nest, target)
    if tiled is not None:
        body += OneWalk(Space(nest, writer, _threads(nest)), tiled).statements()
        families.append("mixed")
    for part in _with_rows(_independent(nest), nest) if tiled is None else ():
        family, made = _build(Space(part, writer, _threads(nest)))
        body += made
        families.append(family)
    body = list(in_outputs(body, nest.buffers))
    kernel = Kernel(name, nest.buffers, in_pieces(body), _sizes(nest, body),
                    "+".join(dict.fromkeys(families)), facts=facts)  # fmt: skip
    return Scheduled((kernel,))


def _threads(nest: Nest) -> Mapping:
    size = traffic(nest)
    small = isinstance(size, int) and size < SERIAL_BYTES
    return Mapping.SERIAL if small or in_order(nest.stores) else Mapping.THREADS


def _sizes(nest: Nest, body: Sequence[Stmt]) -> tuple[Size, ...]:
    """Every size that the kernel names, sorted."""
    dims: list[Dim] = [d for b in nest.buffers for d in b.type.shape]
    dims += [d for s in nest.stores for d in s.index]
    for e in walk(nest.roots):
        dims += [a for a in e.free if isinstance(a, Size)]
    dims += [x.axis.extent for x in statements(tuple(body)) if isinstance(x, Loop)]
    dims += [d for x in statements(tuple(body)) if isinstance(x, Scratch) for d in x.type.shape]
    found = {a for d in dims for a in atoms(d) if isinstance(a, Size)}
    return tuple(sorted(found, key=lambda s: s.name))


def _independent(nest: Nest) -> list[Nest]:
    """Nests that share no reduction over the space; the axes of their stores join the space."""
    if in_order(nest.stores) and len(nest.stores) > 1:
        return [nest]
    bound = {a.var for a in nest.space}
    groups: list[list[Store]] = []
    for s in nest.stores:
        if groups and _belong(groups[-1], s, bound, nest):
            groups[-1].append(s)
        else:
            groups.append([s])
    return [_promoted(Nest(nest.space, nest.buffers, tuple(g))) for g in groups]


def _belong(group: Sequence[Store], s: Store, bound: set[Var], nest: Nest) -> bool:
    """Whether a store is computed best together with a group: same axes or shared stages."""
    if set(group[0].axes) == set(s.axes):
        return True
    stages = Stages(())
    mine, theirs = (
        {r for stage in stages.ready(roots, frozenset(bound)) for r in stage}
        for roots in (s.roots, [e for g in group for e in g.roots])
    )
    return bool(mine & theirs)


def _promoted(nest: Nest) -> Nest:
    """Inner axes of the stores become space where nothing is reduced or scanned before them."""
    axes = nest.stores[0].axes
    bound = frozenset(a.var for a in nest.space)
    if not axes or any(set(s.axes) != set(axes) for s in nest.stores):
        return nest
    scanned = {e.axis for e in nest.scans}
    if scanned or Stages(()).ready(nest.roots, bound):
        return nest
    space = (*nest.space, *(Axis(v) for v in axes))
    return Nest(space, nest.buffers, tuple(replace(s, axes=()) for s in nest.stores))


def _with_rows(parts: Sequence[Nest], nest: Nest) -> list[Nest]:
    """The nests, but what is stored for each element of rows that another nest walks is its own."""
    out = list(parts)
    for part in parts:
        inner = tuple(a.var for a in part.space[len(nest.space) :])
        if not inner or part.reductions or part.scans:
            continue
        stores = tuple(replace(s, axes=inner) for s in part.stores)
        for n, other in enumerate(out):
            both = replace(other, stores=(*other.stores, *stores))
            if other is not part and _rows(other, nest) == _rows(both, nest) == {*inner}:
                out[n] = both
                out.remove(part)
                break
    return out


def _rows(part: Nest, nest: Nest) -> set[Var]:
    """The axes of the rows that a nest walks; none where it walks no rows."""
    space = Space(part, Stages(accesses(nest)), _threads(nest))
    lane = None if part.scans or not part.reductions else _lane(space)
    stages = space.stages.ready(space.roots, space.bound)
    if lane is None or not _wants_split(space, lane, [stage[0].axes for stage in stages]):
        return set()
    return {*stages[0][0].axes} if suits(space, stages[0], lane) else set()


def _build(space: Space) -> tuple[str, tuple[Stmt, ...]]:
    """(family, statements) of a nest whose stores belong together."""
    lane = _lane(space)
    if space.nest.scans:
        return "scan", _scanned(space, lane)
    stages = space.stages.ready(space.roots, space.bound)
    if not stages:
        other = None if lane is None else _transposed_axis(space, lane)
        if lane is not None and other is not None:
            return "transpose", _transpose(space, lane, other)
        return "pointwise", space.loops(lane, lambda: space.all(lane))
    if _wants_split(space, lane, [stage[0].axes for stage in stages]):
        return "split", split(space, lane)
    return "row" if lane is None else "column", space.loops(lane, lambda: space.all(lane))


def _lane(space: Space) -> Var | None:
    """The space axis of the lanes; None when an inner axis serves them better."""
    scanned = {e.axis for e in space.nest.scans}
    inner = {v for r in space.nest.reductions for v in r.axes}
    inner |= {v for s in space.nest.stores for v in s.axes}
    inner -= scanned
    outer = pick_lane(space.axes, space.found)
    best = max((score(v, space.found) for v in inner), default=0.0)
    if outer is None or (inner and score(outer, space.found) < best):
        return None
    longest = max((count(v.extent) for v in inner), default=0)
    if score(outer, space.found) == 0 and longest >= MOST_LANES:
        return None
    return outer


def _wants_split(space: Space, lane: Var | None, axes: Sequence[tuple[Var, ...]]) -> bool:
    size = traffic(space.nest)
    if space.threads is Mapping.SERIAL or (isinstance(size, int) and size < SPLIT_BYTES):
        return False
    reduced = max(count(iterations(a)) for a in axes)
    if lane is None:
        rows = count(iterations(space.axes))
        return rows < MOST_LANES and reduced >= 4 * BLOCK
    return reduced > PIECES and count(iterations(space.axes)) < PIECES * BLOCK


# ---------------------------------------------------------------- transposes


def _transposed_axis(space: Space, lane: Var) -> Var | None:
    """The axis along which jumping loads are contiguous, when a tile of both pays."""
    size = traffic(space.nest)
    loads = strided_loads(space.roots, lane)
    others = [v for v in space.axes if v is not lane and _tiled(loads, v)]
    if not others or in_order(space.nest.stores):
        return None
    if isinstance(size, int) and size < SERIAL_BYTES:
        return None
    other = max(others, key=lambda v: count(v.extent))
    return other if min(count(lane.extent), count(other.extent)) >= LEAST_TILE else None


def _tiled(loads: Sequence[Load], other: Var) -> list[Load]:
    return [x for x in loads if coefficient(x.index[0], other) == 1]


def _transpose(space: Space, lane: Var, other: Var) -> tuple[Stmt, ...]:
    """Square tiles: jumping loads are copied into one, turned around, then read along its rows."""
    fresh = space.stages.fresh
    by = Var(fresh("ty"), ceildiv(other.extent, TILE))
    bx = Var(fresh("tx"), ceildiv(lane.extent, TILE))
    row, column = mul(by, TILE), mul(bx, TILE)
    place = add(mul(add(other, mul(row, -1)), PITCH), add(lane, mul(column, -1)))
    body: list[Stmt] = []
    tiles: dict[Expr, Expr] = {}
    for load in _tiled(strided_loads(space.roots, lane), other):
        name = fresh("tile")
        body.append(Scratch(name, TensorType.dense(load.dtype, (TILE * PITCH,))))
        keep = (Store(name, (place,), load),)
        copy = Loop(other, MOST_LANES, Mapping.SERIAL, keep, row, add(row, TILE))
        body.append(Loop(lane, 1, Mapping.SERIAL, (copy,), column, add(column, TILE)))
        tiles[load] = Load(name, (place,), load.dtype)
    stores = tuple(_swapped(s, tiles) for s in space.nest.stores)
    across = Loop(lane, MOST_LANES, Mapping.SERIAL, stores, column, add(column, TILE))
    body.append(Loop(other, 1, Mapping.SERIAL, (across,), row, add(row, TILE)))
    inner: tuple[Stmt, ...] = tuple(body)
    outer = [v for v in space.axes if v is not lane and v is not other]
    for v in (bx, by, *reversed(outer)):
        inner = (Loop(v, 1, space.threads, inner),)
    return inner


def _swapped(s: Store, tiles: dict[Expr, Expr]) -> Store:
    swap = Rewriter(leaf=lambda e: tiles.get(e))
    return replace(s, value=swap(s.value), guard=None if s.guard is None else swap(s.guard))


# ---------------------------------------------------------------- scans


def _scanned(space: Space, lane: Var | None) -> tuple[Stmt, ...]:
    """Lanes across the scans where one walk computes and stores everything, else row by row."""
    direct = _direct_scans(space)
    if not direct:
        return space.loops(None, lambda: space.all(None))
    if lane is not None and score(lane, space.found) == 0 and not _is_dear(direct):
        lane = None
    return space.loops(lane, lambda: _scan_loop(space, direct, lane), vectors=1)


def _is_dear(scans: Sequence[Scanned]) -> bool:
    """Whether a step takes longer than reading its elements far apart, one row for each lane."""
    states = [MONOIDS[x.monoid].combine(x.lift, x.lift)[x.component] for x in scans]
    return is_heavy(states)


def _direct_scans(space: Space) -> tuple[Scanned, ...]:
    """The scans, when one walk along their axis computes and stores everything."""
    scans = space.nest.scans
    axis = scans[0].axis
    same = all(x.axis is axis and not x.reverse for x in scans)
    plain = all(not isinstance(e, Scanned) for x in scans for e in walk(x.lift))
    alone = all(s.axes == (axis,) for s in space.nest.stores) and not space.nest.reductions
    return scans if same and plain and alone else ()


def _scan_loop(space: Space, scans: Sequence[Scanned], lane: Var | None) -> tuple[Stmt, ...]:
    first: list[Stmt] = []
    step: list[Stmt] = []
    for scan in scans:
        carries, body, value, _ = space.stages.scan_step(scan, space.bound, lane)
        first += carries
        step += body
        space.stages.replace(scan, value)
    step += map(space.resolved, space.nest.stores)
    return (*first, Loop(scans[0].axis, 1, Mapping.SERIAL, tuple(step)))
