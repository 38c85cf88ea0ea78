"""Hurwitz's zeta function, the sum of (q + k)^-x over k >= 0, and what is made of it.

zeta(x, q) = sum over k < N of (q + k)^-x, and with w = q + N the tail of Euler and Maclaurin:
             w^(1 - x) / (x - 1) - w^-x / 2
             + sum over j of B(2j) / (2j)! x (x + 1) .. (x + 2j - 2) w^(1 - x - 2j)
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ..base.dtype import f64
from ..base.errors import Unsupported
from ..ir.expr import Expr, apply
from . import arith as m
from .arith import add, div, mul, sub, where
from .rows import elementwise, form, in_double, plain, sample, without_attrs
from .rules import Arg, pointwise, promoted_float
from .schema import Attrs, Op

TERMS = 10
"""Of the sum itself: the tail then begins above 9."""
TAIL = 12
EPSILON = 2.0**-53


def _bernoulli(count: int) -> list[Fraction]:
    """B(0) .. B(count - 1): the sum over k <= n of (n + 1 over k) B(k) is 0 for n > 0."""
    found = [Fraction(1)]
    for n in range(1, count):
        terms = (math.comb(n + 1, k) * b for k, b in enumerate(found))
        found.append(-sum(terms, Fraction(0)) / (n + 1))
    return found


_B = _bernoulli(2 * TAIL + 1)
DIVISORS = tuple(float(math.factorial(2 * j) / _B[2 * j]) for j in range(1, TAIL + 1))
"""(2j)! / B(2j)."""


def _is_whole(x: Expr) -> Expr:
    return m.eq(x, apply("floor", x))


def _small(part: Expr, whole: Expr) -> Expr:
    """Whether the sum ends here: a term of no weight. NaN has weight."""
    return m.lt(m.absolute(div(part, whole)), EPSILON)


def _positive(x: Expr, q: Expr) -> Expr:
    """For q > 0, in the order of eager's steps, which tells where a step leaves the range."""
    power = m.neg(x)
    total = b = m.power(q, power)
    w = q
    for _ in range(TERMS - 1):
        w = add(w, 1)
        b = m.power(w, power)
        total = add(total, b)
    done = _small(b, total)
    total = where(done, total, sub(add(total, div(mul(b, w), sub(x, 1))), mul(b, 0.5)))
    rising: Expr = m.const(1, x.dtype)
    for j, divisor in enumerate(DIVISORS):
        rising, b = mul(rising, add(x, 2 * j)), div(b, w)
        part = div(mul(rising, b), divisor)
        total = where(done, total, add(total, part))
        done = m.either(done, _small(part, total))
        rising, b = mul(rising, add(x, 2 * j + 1)), div(b, w)
    return total


def zeta(x: Expr, q: Expr) -> Expr:
    """Of f64 operands, as eager's CPU kernel has it; NaN for x < 1, infinite at its poles.

    Below 0, with q = f - n for 0 < f < 1 and a whole x, the first n terms are
    (-1)^x (zeta(x, 1 - f) - zeta(x, 1 - f + n)), and those from f on zeta(x, f).
    """
    floor = apply("floor", q)
    part = sub(q, floor)
    half = mul(x, 0.5)
    sign = where(_is_whole(half), m.const(1, x.dtype), -1)
    far = _positive(x, sub(sub(1, part), floor))
    far = where(m.isnan(far), 0.0, far)  # what underflows
    first = sub(_positive(x, sub(1, part)), far)
    below = where(m.eq(x, math.inf), math.inf, add(mul(sign, first), _positive(x, part)))
    pole = where(_is_whole(q), m.const(math.inf, x.dtype), where(_is_whole(x), below, math.nan))
    value = where(m.le(q, 0), pole, _positive(x, q))
    value = where(m.lt(x, 1), math.nan, value)
    return where(m.eq(x, 1), math.inf, value)


def polygamma(order: int, x: Expr) -> Expr:
    """(-1)^(n + 1) n! zeta(n + 1, x), for orders above 1."""
    value = zeta(m.const(order + 1, f64), m.to(x, f64))
    return m.to(mul((-1) ** (order + 1) * _factorial(order), value), x.dtype)


def _factorial(n: int) -> float:
    return float(math.factorial(n)) if n < 171 else math.inf


def np_zeta(x: Any, q: Any) -> Any:
    """From far up, where the tail has two terms; q below 0 counts up as it is."""
    x, q = (np.asarray(a, float)[..., None] for a in (x, q))
    steps = np.arange(2000.0)
    w = (q + 2000)[..., 0]
    with np.errstate(all="ignore"):
        total = (np.abs(q + steps) ** -x * np.where((q + steps < 0) & (x % 2 == 1), -1, 1)).sum(-1)
    x = x[..., 0]
    return total + w ** (1 - x) / (x - 1) + w**-x / 2 + x * w ** (-1 - x) / 12


def _types(operands: tuple[Arg, ...], at: Attrs) -> Any:
    (y,) = pointwise(promoted_float)(operands, at)
    if y.dtype.compute is not y.dtype:
        raise Unsupported(f"the zeta function in {y.dtype.torch_name}")
    return (y,)


def _row() -> Op:
    forms = [form(f"special_zeta.{overload}", ("self", "other"))
             for overload in ("default", "other_scalar", "self_scalar")]  # fmt: skip
    samples = (sample(2.5, ("f32+", (3, 4))), sample(3, ("f64", (5,))), sample(1.5, ("f64+", (4,))))
    return elementwise("special_zeta", forms, without_attrs(zeta), plain(np_zeta), samples,
                       types=_types, compute=in_double)  # fmt: skip


OPS: tuple[Op, ...] = (_row(),)
