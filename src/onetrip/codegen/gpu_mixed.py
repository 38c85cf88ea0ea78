"""Reductions over unlike axes in one walk: rows in parts, then what joins the columns of the parts.

    for each part, for each of its rows i:     row[i] = sum_j x[i, j]
                                               partial[part, j] += x[i, j]
    for each j:                                column[j] = sum over parts of partial[part, j]

Each part adds in the order of its rows and the parts are added in theirs: the same bits every time.
The numbers are those that the price was made of (cost/mixed.py).
"""

from __future__ import annotations

from dataclasses import replace

from ..base.sym import Var, add, mul
from ..cost.mixed import Tiled, cover
from ..ir.expr import Expr, Load, Reduced, Reduction, Rewriter
from ..ir.nest import Axis, Buffer, Nest, Store
from .gpu_build import Tiling
from .gpu_split import (
    Pieces,
    Split,
    chunked,
    flat,
    inner_axes,
    mapped,
    nest_of,
    partial_state,
    run_of,
    size,
    stored_run,
)

NEAR = 16
"""Parts without a guard may be longer by one in so many rows."""


def tiling_of(nest: Nest, tiled: Tiled, walked: tuple[Var, ...]) -> Tiling:
    """Lanes of a nest or of its parts: whole held axes, rows along the last of `walked`."""
    lanes = {a.var: 1 for a in nest.space} | dict.fromkeys(walked, 1)
    for a in inner_axes(nest):
        if a not in walked:
            assert isinstance(a.extent, int)
            lanes[a] = cover(a.extent)
    if walked[-1].extent != 1:
        lanes[walked[-1]] = tiled.rows
    return Tiling(lanes, tiled.warps, "mixed", stages=tiled.stages, reload=tiled.reload)


def in_parts(nest: Nest, tiled: Tiled, stem: str) -> tuple[Nest, Tiling, Pieces]:
    """The nest of the parts, its tiling, and the nests that join them with their scratch."""
    walk = tiled.walk
    longest = max(walk.walked, key=_length)
    cut = _cut(longest, tiled.parts, tiled.rows if longest is walk.walked[-1] else 1)
    part, run = Var("part", cut.parts), Var(f"{cut.axis.name}_run", cut.chunk)
    scratch: list[Buffer] = []
    stores: list[Store] = []
    joins: dict[Reduction, Reduction] = {}
    for number, r in enumerate(walk.columns):
        own = _left_free(r, nest)
        points = mul(size(a.var for a in nest.space), size(own))
        here = add(mul(part, points), flat((*(a.var for a in nest.space), *own)))
        known = []
        for k, e in enumerate(r.lift):
            name = f"{stem}_part{number}_{k}"
            scratch.append(partial_state(name, e, mul(points, cut.parts)))
            stores.append(Store(name, (here,), Reduced(run_of(r, cut, part, run), k, e.dtype), own))
            known.append(Load(name, (here,), e.dtype))
        joins[r] = Reduction(r.monoid, (part,), tuple(known))
    rows = [s for s in nest.stores if s not in walk.late]
    stores += [stored_run(s, cut, part, run) for s in rows]
    pool = (*nest.buffers, *scratch)
    parts = nest_of((Axis(part), *nest.space), tuple(stores), pool)
    walked = tuple(run if a is cut.axis else a for a in walk.walked)
    joined = tuple(_joining(nest, late, joins, pool) for late in _by_axes(walk.late))
    return parts, tiling_of(parts, tiled, walked), Pieces(joined, tuple(scratch))


def _cut(axis: Var, most: int, lanes: int) -> Split:
    """At most so many parts, which run at the same time: as even ones as whole tiles allow.

    Parts of equal size need no guard; they are taken where they are hardly longer.
    """
    least, extent = chunked(axis.extent, most, lanes), axis.extent
    if not (isinstance(least, int) and isinstance(extent, int)):
        return Split(axis, most, least)
    near = range(least, least + least // NEAR + 1, lanes)
    chunk = next((c for c in near if extent % c == 0), least)
    return Split(axis, -(-extent // chunk), chunk)


def _length(a: Var) -> int:
    return a.extent if isinstance(a.extent, int) else 1 << 62


def _left_free(r: Reduction, nest: Nest) -> tuple[Var, ...]:
    """The inner axes over which a column stands, in the order of the nest."""
    return tuple(a for a in inner_axes(nest) if a in r.free)


def _by_axes(late: tuple[Store, ...]) -> list[tuple[Store, ...]]:
    """Stores that one kernel makes: those over the same axes."""
    groups: dict[frozenset[Var], list[Store]] = {}
    for s in late:
        groups.setdefault(frozenset(s.axes), []).append(s)
    return [tuple(g) for g in groups.values()]


def _joining(
    nest: Nest,
    late: tuple[Store, ...],
    joins: dict[Reduction, Reduction],
    pool: tuple[Buffer, ...],
) -> Nest:
    """The nest over the axes of some columns that makes their stores of the parts."""

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Reduced) and e.reduction in joins:
            return Reduced(joins[e.reduction], e.component, e.dtype)
        return None

    axes = tuple(Axis(a) for a in late[0].axes)
    stores = tuple(replace(mapped(s, Rewriter(leaf=leaf)), axes=()) for s in late)
    return nest_of((*nest.space, *axes), stores, pool)
