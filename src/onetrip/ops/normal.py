"""The normal distribution from its bell exp(-x^2 / 2), which a gradient needs anyway.

Below 0 it keeps the digits that `1 + erf` loses, and takes half as long. Must not know operators.
"""

from __future__ import annotations

from ..ir.expr import Expr
from . import arith as m
from .arith import const, div, mul, sub, where

# The share of normal numbers above z >= 0, over its bell, is t P(t) of t = 1 / (1 + STEP z): within
# 3e-8 (1 + z^2 / 4) of itself. From the highest power down; a linear program found them.
STEP = 0.3
P = (
    0.0364239364862442, -0.15997421741485596, 0.21042628586292267, -0.05667692795395851,
    0.1296773999929428, 0.09974057972431183, 0.1207512691617012, 0.11963168531656265,
)  # fmt: skip


def bell(x: Expr) -> Expr:
    """exp(-x^2 / 2)."""
    return m.exp(mul(mul(x, x), -0.5))


def share_below(x: Expr) -> Expr:
    """The share of normal numbers below an f32 x: the tail beyond a negative x, else what is left
    of 1 without the tail beyond x."""
    one = const(1, x.dtype)
    t = div(one, m.fma(STEP, m.absolute(x), one))
    p: Expr = const(P[0], x.dtype)
    for coefficient in P[1:]:
        p = m.fma(p, t, const(coefficient, x.dtype))
    tail = mul(mul(bell(x), t), p)
    return where(m.lt(x, 0), tail, sub(1, tail))
