"""Monoids on tiles: the lanes of a tile folded, an accumulator joined with one more element.

Where a monoid has a form in plain steps that costs less than its combination, in that form. Knows
no nests and no loops.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.dtype import DType, f32
from ..base.sym import Var
from ..ir.expr import Apply, Cast, Const, Expr, Fold, Load, Local, compare, walk
from ..ir.monoid import MONOIDS, lowest, number
from .gpu_split import size


def fold(monoid: str, axes: tuple[Var, ...], lift: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The states of a Fold; where a monoid has a form in two plain steps, in that form."""
    if monoid in _IN_STEPS:
        return _IN_STEPS[monoid](axes, lift)
    return tuple(Fold(monoid, axes, lift, n, e.dtype) for n, e in enumerate(lift))


def _softmax_fold(axes: tuple[Var, ...], lift: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The maximum of all lanes, then each lane's sum scaled once."""
    tops, sums = lift
    kind = tops.dtype
    top = Fold("max", axes, (tops,), 0, kind)
    scale = Apply("exp", (Apply("sub", (tops, _finite(top)), kind),), kind)
    return top, Fold("sum", axes, (Apply("mul", (sums, scale), kind),), 0, kind)


def _welford_fold(axes: tuple[Var, ...], lift: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The mean of all lanes, then the squared distances from it: no division per element."""

    def total(e: Expr) -> Expr:
        return Fold("sum", axes, (e,), 0, e.dtype)

    count, mean, squares = lift
    kind: DType = mean.dtype
    points = size(axes)
    if isinstance(points, int) and points and not set(axes) & count.free:
        n = _times(count, number(points, kind))
        middle = Apply("div", (total(mean), number(points, kind)), kind)
    else:
        n = total(count)
        none = compare("eq", n, number(0, kind))
        some = Apply("where", (none, number(1, kind), n), kind)
        middle = Apply("div", (total(_times(count, mean)), some), kind)
    off = Apply("sub", (mean, middle), kind)
    spread = _times(count, Apply("mul", (off, off), kind))
    if not is_number(squares, 0.0):
        spread = Apply("add", (squares, spread), kind)
    return n, middle, total(spread)


def joined(monoid: str, state: tuple[Expr, ...], lift: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """`state` combined with one more element."""
    if monoid == "welford" and is_number(lift[0], 1.0) and is_number(lift[2], 0.0):
        count, mean, squares = state
        kind = mean.dtype
        n = Apply("add", (count, lift[0]), kind)
        off = Apply("sub", (lift[1], mean), kind)
        share = _share(n)
        new = Apply("add", (mean, Apply("mul", (off, share), kind)), kind)
        left = Apply("sub", (lift[1], new), kind)
        return n, new, Apply("add", (squares, Apply("mul", (off, left), kind)), kind)
    if monoid == "online_softmax" and is_number(lift[1], 1.0):
        return _softmax_joined(state, lift[0])
    return MONOIDS[monoid].combine(state, lift)


def _softmax_joined(state: tuple[Expr, ...], x: Expr) -> tuple[Expr, ...]:
    """(maximum, sum of exp(. - maximum)) with one more element; a lane of -inf only adds 0."""
    old, total = state
    kind = old.dtype
    top = Apply("maximum", (old, x), kind)
    safe = _finite(top)
    exp = _exp_of(x)
    kept, new = (Apply(exp, (Apply("sub", (e, safe), kind),), kind) for e in (old, x))
    return top, Apply("add", (Apply("mul", (total, kept), kind), new), kind)


def softmax_near(
    state: tuple[Expr, ...], x: Expr, near: tuple[Var, ...], inside: Expr | None
) -> tuple[Expr, ...]:
    """The same with several elements at once: one scale of the old sum serves them all."""
    old, total = state
    kind = old.dtype
    if inside is not None:
        x = _lowest_outside(x, inside)
    top = Apply("maximum", (old, Fold("max", near, (x,), 0, kind)), kind)
    safe = _finite(top)
    exp = _exp_of(x)
    kept, new = (Apply(exp, (Apply("sub", (e, safe), kind),), kind) for e in (old, x))
    added = Fold("sum", near, (new,), 0, kind)
    return top, Apply("add", (Apply("mul", (total, kept), kind), added), kind)


def _exp_of(x: Expr) -> str:
    """The exponential for the terms of a sum: a near one where what is read has 16 bits."""
    read = [e.dtype.bits for e in walk((x,)) if isinstance(e, Load | Local)]
    return "near_exp" if x.dtype is f32 and read and max(read) <= 16 else "exp"


def _share(n: Expr) -> Expr:
    """1 / n, near: a weight of one step among all."""
    if n.dtype is f32:
        return Apply("near_reciprocal", (n,), f32)
    return Apply("div", (number(1, n.dtype), n), n.dtype)


def _lowest_outside(x: Expr, inside: Expr) -> Expr:
    """x with lanes that join no maximum where `inside` is false; a load brings them itself."""
    source = x.arg if isinstance(x, Cast) else x
    if isinstance(source, Load) and source.guard is inside and source.dtype.is_float:
        filled = replace(source, other=lowest(source.dtype))
        return Cast(filled, x.dtype) if isinstance(x, Cast) else filled
    return Apply("where", (inside, x, lowest(x.dtype)), x.dtype)


def _finite(top: Expr) -> Expr:
    """A maximum that can be subtracted: 0 for the maximum of nothing."""
    kind = top.dtype
    return Apply("where", (compare("eq", top, lowest(kind)), number(0, kind), top), kind)


def _times(a: Expr, b: Expr) -> Expr:
    return b if is_number(a, 1.0) else Apply("mul", (a, b), b.dtype)


def is_number(e: Expr, value: float) -> bool:
    """Whether e is this constant."""
    return isinstance(e, Const) and e.value == value


_IN_STEPS = {"welford": _welford_fold, "online_softmax": _softmax_fold}
