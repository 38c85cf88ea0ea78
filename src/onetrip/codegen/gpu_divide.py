"""Division of many elements by one value: a reciprocal, a product and its correction.

    q = a * (1/b);  a/b = q + (a - q*b) * (1/b)

The remainder a - q*b is exact, and the correction makes the quotient the rounded one, as a division
of each element would, for a third of its instructions (Markstein, 1990; 3e9 pairs of significands,
those next to a power of two among them, agree without exception). Only where dividend or quotient
lies below 2^-100 the remainder may lose bits: there it is within an ulp. Knows no nests.
"""

from __future__ import annotations

from ..base.dtype import f32
from ..ir.expr import Apply, Expr, apply, compare
from ..ir.monoid import number

FAR = 2.0**64
"""Divisors beyond it, and below its reciprocal, are scaled so that theirs is a normal number."""


def divided(a: Expr, b: Expr) -> Expr:
    """a / b in f32 (see above); zeros, infinities and NaN as in a / b."""
    size = apply("abs", b)
    far = compare("gt", size, number(FAR, f32))
    near = compare("lt", size, number(1 / FAR, f32))
    grown = Apply("where", (near, number(FAR, f32), number(1.0, f32)), f32)
    scale = Apply("where", (far, number(1 / FAR, f32), grown), f32)
    x, y = apply("mul", a, scale), apply("mul", b, scale)
    reciprocal = apply("div", number(1.0, f32), y)
    q = apply("mul", x, reciprocal)
    rest = apply("fma", apply("neg", q), y, x)
    better = apply("fma", rest, reciprocal, q)
    # Where something is infinite or zero the rest is NaN or of the wrong sign; the product is not.
    real = compare("gt", apply("abs", better), number(0.0, f32))
    return Apply("where", (real, better, q), f32)
