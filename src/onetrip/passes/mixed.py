"""Reductions over unlike axes in one nest: which axes a program walks, and which it holds.

    row[i] = sum_j x[i, j];  column[j] = sum_i x[i, j];  y[i, j] = x[i, j] / row[i]

    walked  i   one after the other, in parts; a reduction over them has an accumulator and is
                finished when the parts are joined
    held    j   on chip at once; a reduction over held axes alone is finished within each row

What needs a finished row is stored as the walk goes; what needs a finished column is stored after
it, over the axes of that column. One needs no other's result of the walk.
Must not know chips or costs: how much can be held is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..base.sym import Sym, Var
from ..ir.expr import Expr, Reduced, Reduction, children, walk
from ..ir.nest import Nest, Store


@dataclass(frozen=True)
class Walk:
    """A way to compute a nest of reductions over unlike axes.

    Attributes:
        walked: axes that are walked; held: the other axes of stores and reductions.
        columns: the reductions that are finished after the walk.
        late: the stores made of those.
    """

    walked: tuple[Var, ...]
    held: tuple[Var, ...]
    columns: tuple[Reduction, ...]
    late: tuple[Store, ...]


def is_mixed(nest: Nest) -> bool:
    """Whether a reduction varies over an axis that is not the whole nest's."""
    return varies_inside([e for e in nest.expressions if isinstance(e, Reduced)],
                         [a.var for a in nest.space])  # fmt: skip


def varies_inside(folds: Iterable[Expr], space: Iterable[Var]) -> bool:
    """Whether a reduction varies over an axis of more than one point outside the space."""
    outer = set(space)
    return any(
        isinstance(a, Var) and a not in outer and a.extent != 1
        for e in folds
        if isinstance(e, Reduced)
        for a in e.reduction.free
    )


def walks(nest: Nest) -> tuple[Walk, ...]:
    """Every way to compute a nest in one walk over some of its axes; none where there is none."""
    if nest.scans:
        return ()
    reductions = nest.reductions
    axes = dict.fromkeys(a for s in nest.stores for a in s.axes)
    axes |= dict.fromkeys(a for r in reductions for a in r.axes)
    points = _large([*axes, *(a.var for a in nest.space)])
    if any(_large((*r.axes, *_axes(r.free))) != points for r in reductions):
        return ()
    classes: dict[frozenset[Reduction], list[Var]] = {}
    for a in axes:
        classes.setdefault(frozenset(r for r in reductions if a in r.axes), []).append(a)
    ways = (_walk(nest, tuple(walked), tuple(axes)) for by, walked in classes.items() if by)
    return tuple(w for w in ways if w is not None)


def is_nested(way: Walk, nest: Nest) -> bool:
    """Whether the held axes of a row can be loops inside each other: what is reduced within a row
    varies over no axis that is reduced there."""
    rows = [r for r in nest.reductions if r not in way.columns]
    around = {a for r in rows for a in r.free if a in way.held}
    return around.isdisjoint(a for r in nest.reductions for a in r.axes)


def _walk(nest: Nest, walked: tuple[Var, ...], axes: tuple[Var, ...]) -> Walk | None:
    """The way that walks over some axes, each of them reduced by the same reductions."""
    columns = tuple(r for r in nest.reductions if set(walked) <= set(r.axes))
    late: list[Store] = []
    for r in nest.reductions:
        if not set(columns).isdisjoint(_used(r.lift)):
            return None
    for s in nest.stores:
        if set(columns).isdisjoint(_used(s.roots)):
            if not _large(walked) <= _large(s.axes):
                return None
        elif _is_of_columns(s, set(columns), nest) and _large(walked).isdisjoint(s.axes):
            late.append(s)
        else:
            return None
    held = tuple(a for a in axes if a not in walked)
    if not all(isinstance(a.extent, int) and a.extent for a in held):
        return None
    return Walk(walked, held, columns, tuple(late))


def _is_of_columns(s: Store, columns: set[Reduction], nest: Nest) -> bool:
    """Whether a store needs finished columns alone, each of them over the store's own axes."""
    used, space = _direct(s.roots), {a.var for a in nest.space}
    return used <= columns and all(
        _large(_axes(r.free)) - space == _large(s.axes) - space for r in used
    )


def _used(roots: tuple[Expr, ...]) -> set[Reduction]:
    """Every reduction below some expressions."""
    return {e.reduction for e in walk(roots) if isinstance(e, Reduced)}


def _direct(roots: tuple[Expr, ...]) -> set[Reduction]:
    """The reductions whose results some expressions use, without those inside them."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            stack.extend(() if isinstance(e, Reduced) else children(e))
    return {e.reduction for e in seen if isinstance(e, Reduced)}


def _axes(free: Iterable[Sym]) -> tuple[Var, ...]:
    return tuple(a for a in free if isinstance(a, Var))


def _large(axes: Iterable[Var]) -> frozenset[Var]:
    """Without axes of one point, on which nothing depends."""
    return frozenset(a for a in axes if a.extent != 1)
