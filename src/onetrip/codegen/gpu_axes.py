"""Nests to nests, before they get a schedule: axes chosen so that work meets in the same data.

    y[40960*p + 4096*c + i] = x[40960*p + 4096*c + i] - sum over r of x[40960*p + r]
        ->  the sum runs over (c, i) as well: one tile serves both

    y[i] = where(i < n, f(i), g(i - n)) for i < 2n
        ->  y[i] = f(i) and y[n + i] = g(i) for i < n: no lane computes what it does not keep

Knows no chip and picks no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ..base.dtype import bool_
from ..base.sym import Dim, Sym, Var, add, mul, product, rebuild, within
from ..ir.expr import Apply, Const, Expr, Load, Position, Reduced, Rewriter, Rng, children, walk
from ..ir.monoid import number
from ..ir.nest import Axis, Nest, Store
from .gpu_split import flat, mapped

PARTS = 4
"""Most parts of an axis that are computed side by side: each holds its own registers."""


def on_common_axes(nest: Nest) -> Nest:
    """Reductions over one axis take a store's axes where that makes both read the same places."""
    if nest.scans:
        return nest
    for axis in dict.fromkeys(r.axes[0] for r in nest.reductions if len(r.axes) == 1):
        for axes in dict.fromkeys(s.axes for s in nest.stores if len(s.axes) > 1):
            moved = _over(nest, axis, axes)
            if moved is not None and _shared(moved, axes) > _shared(nest, axes):
                return on_common_axes(moved)
    return nest


def _over(nest: Nest, axis: Var, axes: tuple[Var, ...]) -> Nest | None:
    """The nest with `axis` of its reductions spelled as a position in `axes`."""
    if axis in axes or product([a.extent for a in axes]) != axis.extent:
        return None
    own = [r for r in nest.reductions if axis in r.axes]
    if any(axis in s.axes for s in nest.stores) or any(set(axes) & r.free for r in own):
        return None
    return replace(nest, stores=tuple(_with(s, {axis: flat(axes)}) for s in nest.stores))


def _with(s: Store, values: dict[Sym, Dim]) -> Store:
    return mapped(s, Rewriter(index=lambda d: rebuild(d, values.get)))


def _shared(nest: Nest, axes: tuple[Var, ...]) -> int:
    """Loads that reductions make and a store over `axes` makes again."""
    reduced = {e for r in nest.reductions for e in walk(r.lift) if isinstance(e, Load)}
    return len(reduced & _direct(x for s in nest.stores if s.axes == axes for x in s.roots))


def _direct(roots: Iterable[Expr]) -> set[Load]:
    """The loads of values, without those inside their reductions."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen and not isinstance(e, Reduced):
            seen.add(e)
            stack.extend(children(e))
    return {e for e in seen if isinstance(e, Load)}


def parts_apart(nest: Nest) -> Nest:
    """A pointwise nest whose guards cut an axis into few equal parts, without those guards."""
    written = {s.buffer for s in nest.stores}
    if written & {e.buffer for e in nest.loads}:
        return nest
    if nest.reductions or nest.scans or any(isinstance(e, Rng) for e in nest.expressions):
        return nest
    for axis in (a.var for a in nest.space):
        extent = axis.extent
        if not isinstance(extent, int):
            continue
        cuts = {c for e in nest.expressions for c in _cuts(e, axis) if 0 < c < extent}
        chunk = math.gcd(extent, *cuts)
        if cuts and extent // chunk <= PARTS:
            return parts_apart(_side_by_side(nest, axis, chunk))
    return nest


def _cuts(e: Expr, axis: Var) -> tuple[int, ...]:
    """Where along the axis the value of a comparison changes."""
    known = _comparison(e)
    if known is None:
        return ()
    op, distance = known
    start = add(axis, mul(distance, -1))
    return (start + (op in ("le", "gt")),) if isinstance(start, int) else ()


def _comparison(e: Expr) -> tuple[str, Dim] | None:
    """(op, d) of a comparison of d with 0 in index arithmetic."""
    if not (isinstance(e, Apply) and e.op in ("lt", "le", "gt", "ge")):
        return None
    left, right = map(_place, e.args)
    return None if left is None or right is None else (e.op, add(left, mul(right, -1)))


def _place(e: Expr) -> Dim | None:
    if isinstance(e, Position):
        return e.value
    return e.value if isinstance(e, Const) and type(e.value) is int else None


def _side_by_side(nest: Nest, axis: Var, chunk: int) -> Nest:
    assert isinstance(axis.extent, int)
    short = Var(axis.name, chunk)
    stores = []
    for start in range(0, axis.extent, chunk):
        settle = Rewriter(node=_settled)
        values: dict[Sym, Dim] = {axis: add(short, start)}
        stores += [mapped(_with(s, values), settle) for s in nest.stores]
    space = tuple(Axis(short, a.kind) if a.var is axis else a for a in nest.space)
    return replace(nest, space=space, stores=tuple(stores))


def _settled(e: Expr) -> Expr | None:
    """e where a comparison or a condition in it is decided, else None."""
    if isinstance(e, Load):
        if not isinstance(e.guard, Const):
            return None
        return replace(e, guard=None, other=None) if e.guard.value else _otherwise(e)
    if not isinstance(e, Apply):
        return None
    truth = _truth(e)
    if truth is not None:
        return Const(truth, bool_)
    first = e.args[0]
    if e.op == "where" and isinstance(first, Const):
        return e.args[1] if first.value else e.args[2]
    if e.op == "logical_and":
        return next((b for a, b in (e.args, e.args[::-1]) if _is_true(a)), None)
    return None


def _is_true(e: Expr) -> bool:
    return isinstance(e, Const) and e.value is True


def _otherwise(e: Load) -> Expr:
    return e.other if e.other is not None else number(0, e.dtype)


def _truth(e: Apply) -> bool | None:
    """The value of a comparison of places or a conjunction, if it is the same everywhere."""
    if e.op == "logical_and":
        return False if any(isinstance(a, Const) and a.value is False for a in e.args) else None
    known = _comparison(e)
    if known is None:
        return None
    op, distance = known
    beyond = 1 << 62
    below = within(add(mul(distance, -1), -1), beyond)
    not_below = within(distance, beyond)
    above = within(add(distance, -1), beyond)
    not_above = within(mul(distance, -1), beyond)
    yes, no = {
        "lt": (below, not_below),
        "ge": (not_below, below),
        "gt": (above, not_above),
        "le": (not_above, above),
    }[op]
    return True if yes else (False if no else None)
