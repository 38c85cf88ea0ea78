"""Pairs of reductions of which the second is written as if it needed the first, and does not.

    max f,  sum exp(f - max f)      a maximum and what lies below it, in one walk

What walks over long rows finds both at once (Milakov and Gimelshein, 2018). Says which reductions
are such a pair; whether that pays is for others to know.
"""

from __future__ import annotations

from ..base.dtype import f32
from ..ir.expr import Apply, Reduced, Reduction


def maximum_of(total: Reduction) -> Reduction | None:
    """The reduction max f where `total` is the sum of exp(f - max f), in f32."""
    match total:
        case Reduction(
            monoid="sum",
            lift=(Apply(op="exp", args=(Apply(op="sub", args=(f, Reduced(reduction=top))),)),),
        ) if f.dtype is f32 and top.monoid == "max":
            return top if top.axes == total.axes and top.lift[0] is f else None
    return None
