"""Pairs of reductions of which the second is written as if it needed the first, and does not.

    max f,  sum exp(f - max f)             a maximum and what lies below it, in one walk
    sum x,  sum (x - sum x / n)^2          a mean and the squares around it, in one walk

What walks over long rows finds both at once (Milakov and Gimelshein, 2018; Welford, 1962). Says
which reductions are such a pair; whether that pays is for others to know.
"""

from __future__ import annotations

from ..base.dtype import f32
from ..base.sym import product
from ..ir.expr import Apply, Const, Expr, Reduced, Reduction


def partner(second: Reduction) -> Reduction | None:
    """The first reduction of the pair of which this is the second."""
    return maximum_of(second) or sum_of(second)


def maximum_of(total: Reduction) -> Reduction | None:
    """The reduction max f where `total` is the sum of exp(f - max f), in f32."""
    match total:
        case Reduction(
            monoid="sum",
            lift=(Apply(op="exp", args=(Apply(op="sub", args=(f, Reduced(reduction=top))),)),),
        ) if f.dtype is f32 and top.monoid == "max":
            return top if top.axes == total.axes and top.lift[0] is f else None
    return None


def sum_of(squares: Reduction) -> Reduction | None:
    """The reduction sum x where `squares` is the sum of (x - sum x / n)^2, in f32."""
    match squares:
        case Reduction(monoid="sum", lift=(Apply(op="mul", args=(left, right)),)) if left is right:
            return _around(left, squares)
    return None


def _around(distance: Expr, squares: Reduction) -> Reduction | None:
    match distance:
        case Apply(
            op="sub",
            args=(x, Apply(op="div", args=(Reduced(reduction=total), Const(value=count)))),
        ) if x.dtype is f32 and total.monoid == "sum":
            whole = product([a.extent for a in total.axes])
            same = total.axes == squares.axes and total.lift[0] is x
            if same and isinstance(whole, int) and 0 < whole == count:
                return total
    return None
