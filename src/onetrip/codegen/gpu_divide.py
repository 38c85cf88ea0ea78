"""Division of many elements by one value: a reciprocal, a product and its correction.

    q = a * (1/b);  a/b = q + (a - q*b) * (1/b)

The remainder a - q*b is exact, and the correction makes the quotient the rounded one, as a division
of each element would, for a third of its instructions (Markstein, 1990; 3e9 pairs of significands,
those next to a power of two among them, agree without exception). Only where dividend or quotient
lies below 2^-100 the remainder may lose bits: there it is within an ulp.

A divisor whose range is known (`gpu_ranges`) needs no scaling; and no test for what is infinite, if
the quotient becomes an f8e4m3, which is NaN there as well. The remainder's sign is then turned
round, so that zeros keep theirs under a divisor without one.

The product alone is within two ulp. That will do where the divisor is a sum, whose last bits depend
on the order of its terms, and the quotient is rounded to 16 bits (softmax): `rough`. Not to 8 bits:
quotients by a scale of a row often lie half way between two such numbers.
"""

from __future__ import annotations

import math
from typing import TypeGuard

from ..base.dtype import f8e4m3, f32
from ..ir.expr import Apply, Cast, Expr, Reduced, apply, compare, walk
from ..ir.monoid import number
from .gpu_ranges import ANY, LARGEST, SMALLEST, Range

FAR = 2.0**64
"""Divisors beyond it, and below its reciprocal, are scaled so that theirs is a normal number."""
SUMS = frozenset({"sum", "online_softmax"})


def rough(e: Expr) -> Apply | None:
    """The quotient in e, where that is one by a sum, rounded to 16 bits."""
    if not (isinstance(e, Cast) and e.dtype.is_float and e.dtype.bits == 16):
        return None
    q = e.arg
    if not is_division(q):
        return None
    sums = (isinstance(x, Reduced) and x.reduction.monoid in SUMS for x in walk(q.args[1:]))
    return q if any(sums) else None


def is_division(e: Expr) -> TypeGuard[Apply]:
    """Whether e is a / b in f32."""
    return isinstance(e, Apply) and e.op == "div" and e.dtype is f32


def narrow(e: Expr) -> Apply | None:
    """The quotient in e, where that is one rounded to f8e4m3."""
    if not (isinstance(e, Cast) and e.dtype is f8e4m3):
        return None
    return e.arg if is_division(e.arg) else None


def narrowly_divided(a: Expr, b: Expr, known: Range) -> Expr:
    """a / b in f32 for an f8e4m3 (see above): NaN where that is infinite."""
    if not known.is_positive:
        return divided(a, b, known)
    x, y, reciprocal = _scaled(a, b, known)
    if known.infinite:
        y = Apply("where", (compare("gt", y, number(LARGEST, f32)), number(1.0, f32), y), f32)
    q = apply("mul", x, reciprocal)
    rest = apply("fma", q, y, apply("neg", x))
    return apply("fma", rest, apply("neg", reciprocal), q)


def divided(a: Expr, b: Expr, known: Range = ANY) -> Expr:
    """a / b in f32 (see above); zeros, infinities and NaN as in a / b.

    Args:
        known: the range of b.
    """
    x, y, reciprocal = _scaled(a, b, known)
    q = apply("mul", x, reciprocal)
    rest = apply("fma", apply("neg", q), y, x)
    better = apply("fma", rest, reciprocal, q)
    # Where something is infinite or zero the rest is NaN or of the wrong sign; the product is not.
    real = compare("gt", apply("abs", better), number(0.0, f32))
    return Apply("where", (real, better, q), f32)


def roughly_divided(a: Expr, b: Expr, known: Range = ANY) -> Expr:
    """a / b in f32 to 16 bits; zeros, infinities and NaN as in a / b."""
    x, _, reciprocal = _scaled(a, b, known)
    return apply("mul", x, reciprocal)


def roughly(a: Expr) -> Expr:
    """a; where it is an exponential, by a shorter way: that of x to |x| + 2 ulp, |x| < 104."""
    if not (isinstance(a, Apply) and a.op == "exp" and a.dtype is f32):
        return a
    return apply("exp2", apply("mul", a.args[0], number(1 / math.log(2), f32)))


def _scaled(a: Expr, b: Expr, known: Range) -> tuple[Expr, Expr, Expr]:
    """a and b in the range where b has a reciprocal, and that."""
    if known.low >= SMALLEST and known.high <= 1 / SMALLEST:
        return a, b, apply("div", number(1.0, f32), b)
    size = apply("abs", b)
    far = compare("gt", size, number(FAR, f32))
    near = compare("lt", size, number(1 / FAR, f32))
    grown = Apply("where", (near, number(FAR, f32), number(1.0, f32)), f32)
    scale = Apply("where", (far, number(1 / FAR, f32), grown), f32)
    y = apply("mul", b, scale)
    return apply("mul", a, scale), y, apply("div", number(1.0, f32), y)
