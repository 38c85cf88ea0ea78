"""Bessel functions of orders 0 and 1, Airy's, and functions of the normal distribution's tails.

f32 operands are computed in f64: the cosine far out, and differences near a zero, would lose their
digits otherwise. Every value is an expression of elementary steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..base.dtype import f32
from ..base.errors import Unsupported
from ..ir.expr import Expr, apply
from ..ir.types import TensorType
from . import arith as m
from . import series
from .arith import add, div, mul, sub, where
from .rows import (
    bounded,
    default_form,
    elementwise,
    in_common_float,
    in_double,
    plain,
    sample,
    with_attrs,
    without_attrs,
)
from .rules import Arg, pointwise, promoted_float
from .schema import Attrs, Op
from .series import Series

Body = Callable[[tuple[Expr, ...], Attrs], Expr]
NEAR, NEAR_K = 8.0, 2.0
"""Where the series near 0 end."""


def _sum(t: Expr, coefficients: Series) -> Expr:
    """c0 / 2 + sum of ck Tk(t), by Clenshaw's recurrence from the last term on."""
    twice = add(t, t)
    b0: Expr = m.const(coefficients[-1], t.dtype)
    b1: Expr = m.const(0, t.dtype)
    for c in reversed(coefficients[1:-1]):
        b0, b1 = add(m.fma(twice, b0, m.neg(b1)), c), b0
    return add(m.fma(t, b0, m.neg(b1)), coefficients[0] / 2)


def _in_range(e: Expr, at: Attrs) -> Expr:
    """e as the operand's own dtype has it, perhaps infinite; of integers as f32 has it."""
    common = at["common"] if at["common"].is_float else f32
    return m.to(m.to(e, common), e.dtype)


# ---------------------------------------------------------------- J and Y

_J = (series.J0_NEAR, series.J1_NEAR)
_Y = (series.Y0_NEAR, series.Y1_NEAR)
_P, _Q = (series.P0_FAR, series.P1_FAR), (series.Q0_FAR, series.Q1_FAR)


def _near(x: Expr, coefficients: Series, order: int) -> Expr:
    y = _sum(sub(mul(mul(x, x), 1 / 32), 1), coefficients)
    return mul(x, y) if order else y


def _far(x: Expr, order: int, second: bool) -> Expr:
    """sqrt(2 / (pi x)) (P cos a - 8 / x Q sin a), or that of Y; a = x - (2 n + 1) pi / 4."""
    z = div(8.0, x)
    t = sub(mul(mul(z, z), 2), 1)
    p, q = _sum(t, _P[order]), mul(z, _sum(t, _Q[order]))
    a = sub(x, (2 * order + 1) * math.pi / 4)
    sine, cosine = apply("sin", a), apply("cos", a)
    turned = add(mul(p, sine), mul(q, cosine)) if second else sub(mul(p, cosine), mul(q, sine))
    return mul(mul(math.sqrt(2 / math.pi), m.rsqrt(x)), turned)


def _bessel_j(order: int, x: Expr) -> Expr:
    """Even for order 0, odd for order 1."""
    size = m.absolute(x)
    far = _far(size, order, False)
    far = where(m.lt(x, 0), m.neg(far), far) if order else far
    return where(m.le(size, NEAR), _near(x, _J[order], order), far)


def _bessel_y(order: int, x: Expr, at: Attrs) -> Expr:
    """-inf at 0, and of order 1 where 1 / x leaves the operand's range; NaN below 0."""
    turn = mul(mul(2 / math.pi, m.log(x)), _near(x, _J[order], order))
    pole = sub(turn, div(2 / math.pi, x)) if order else turn
    near = add(pole, _near(x, _Y[order], order))
    y = where(m.le(x, NEAR), near, _far(x, order, True))
    pole = m.eq(x, 0)
    if order:
        pole = m.eq(m.absolute(_in_range(div(1.0, x), at)), math.inf)
    return where(m.lt(x, 0), math.nan, where(pole, -math.inf, y))


# ---------------------------------------------------------------- K

_K_NEAR = (series.K0_NEAR, series.K1_NEAR)
_K_FAR = (series.K0_FAR, series.K1_FAR)
TERMS_I = 14


def _bessel_i(x: Expr, order: int) -> Expr:
    """On (0, 2]: the sum over k of (x / 2)^(2 k + order) / (k! (k + order)!)."""
    half = mul(x, 0.5)
    square = mul(half, half)
    total: Expr = m.const(0, x.dtype)
    for k in reversed(range(TERMS_I)):
        total = m.fma(total, square, m.const(
            1 / (math.factorial(k) * math.factorial(k + order)), x.dtype))  # fmt: skip
    return mul(total, half) if order else total


def _bessel_k(order: int, scaled: bool, x: Expr) -> Expr:
    """inf at 0, NaN below it; times exp(x) if scaled."""
    smooth = _sum(sub(mul(mul(x, x), 0.5), 1), _K_NEAR[order])
    pole = mul(m.log(mul(x, 0.5)), _bessel_i(x, order))
    near = add(pole, div(smooth, x)) if order else sub(smooth, pole)
    far = mul(_sum(sub(div(4.0, x), 1), _K_FAR[order]), m.rsqrt(x))
    if scaled:
        near = mul(near, m.exp(x))
    else:
        far = mul(far, m.exp(m.neg(x)))
    y = where(m.le(x, NEAR_K), near, far)
    return where(m.eq(x, 0), math.inf, where(m.lt(x, 0), math.nan, y))


# ---------------------------------------------------------------- Ai

AIRY_LOW, AIRY_HIGH, AIRY_END = -4.0, 2.0, 103.892
"""Where the series in x itself begins and ends; beyond the last all is 0."""


def _phase(x: float) -> float:
    return 2 / 3 * math.pow(abs(x), 1.5)


def _airy(x: Expr, at: Attrs) -> Expr:
    """NaN at infinities, and where 2 / 3 |x|^(3 / 2) leaves the operand's range, as eager's."""
    size = m.absolute(x)
    root = m.sqrt(size)
    z = div(mul(mul(2.0, size), root), 3.0)
    scale = mul(1 / math.sqrt(math.pi), m.rsqrt(root))

    share = div(_phase(AIRY_LOW), z)
    t = sub(mul(2, mul(share, share)), 1)
    a = sub(z, math.pi / 4)
    p, q = _sum(t, series.AIRY_P), div(_sum(t, series.AIRY_Q), z)
    low = mul(scale, add(mul(p, apply("cos", a)), mul(q, apply("sin", a))))

    middle = _sum(div(add(x, 1.0), 3.0), series.AIRY_MIDDLE)
    far = _sum(sub(div(2 * _phase(AIRY_HIGH), z), 1), series.AIRY_FAR)
    high = mul(mul(0.5, scale), mul(far, m.exp(m.neg(z))))
    high = where(m.gt(x, AIRY_END), 0.0, high)

    y = where(m.lt(x, AIRY_LOW), low, where(m.le(x, AIRY_HIGH), middle, high))
    lost = m.both(m.lt(x, 0), m.eq(_in_range(z, at), math.inf))
    return where(m.either(lost, m.eq(size, math.inf)), math.nan, y)


# ---------------------------------------------------------------- tails of the normal distribution


def _erfcx(x: Expr) -> Expr:
    """exp(x^2) erfc(x); below 0 it is 2 exp(x^2) - erfcx(-x)."""
    size = m.absolute(x)
    t = sub(1.0, div(7.5, add(size, 3.75)))
    y = div(_sum(t, series.ERFCX), add(1, add(size, size)))
    return where(m.lt(x, 0), sub(mul(2, m.exp(mul(x, x))), y), y)


def _log_ndtr(x: Expr) -> Expr:
    """log of the share below x: by erfcx in the lower tail, by erfc above it."""
    t = mul(x, math.sqrt(0.5))
    low = sub(m.log(div(_erfcx(m.neg(t)), 2)), mul(t, t))
    return where(m.lt(x, -1), low, m.log1p(div(apply("erfc", t), -2)))


QUARTER = 0.25
STEPS = 3


def _ndtri(p: Expr) -> Expr:
    """x with the share p below it.

    In the middle by the inverse of erf. In a tail by Newton's method on log Phi(x) = log p, whose
    slope is sqrt(2 / pi) / erfcx(-x / sqrt 2), from Abramowitz and Stegun's 26.2.23.
    """
    upper = m.gt(p, 0.5)
    share = where(upper, sub(1.0, p), p)
    level = m.log(share)
    z = m.sqrt(mul(-2, level))
    top = add(mul(add(mul(0.010328, z), 0.802853), z), 2.515517)
    bottom = add(mul(add(mul(add(mul(0.001308, z), 0.189269), z), 1.432788), z), 1)
    x = sub(div(top, bottom), z)
    for _ in range(STEPS):
        slope = _erfcx(mul(x, -math.sqrt(0.5)))
        # log Phi(x) = log(erfcx(-x / sqrt 2) / 2) - x^2 / 2
        miss = sub(sub(m.log(div(slope, 2)), mul(mul(x, x), 0.5)), level)
        x = sub(x, mul(mul(miss, slope), math.sqrt(math.pi / 2)))
    tail = where(upper, m.neg(x), x)
    middle = mul(math.sqrt(2), apply("erfinv", sub(add(p, p), 1)))
    y = where(m.lt(share, QUARTER), tail, middle)
    low, high = (m.const(x, p.dtype) for x in (-math.inf, math.inf))
    edge = where(m.eq(p, 0), low, where(m.eq(p, 1), high, math.nan))
    return where(m.both(m.gt(p, 0), m.lt(p, 1)), y, edge)


# ---------------------------------------------------------------- references, by quadrature

_ANGLES = (np.arange(400) + 0.5) * (math.pi / 400)


def _np_bessel_j(order: int, x: Any) -> Any:
    """The mean of cos(n t - x sin t) over half a turn; the midpoint rule is exact."""
    x = np.asarray(x, float)[..., None]
    return np.cos(order * _ANGLES - x * np.sin(_ANGLES)).mean(-1)


def _np_bessel_y(order: int, x: Any) -> Any:
    """mean of sin(x sin t - n t) over half a turn, less 1 / pi times the integral over all s > 0 of
    (exp(n s) + (-1)^n exp(-n s)) exp(-x sinh s)."""
    x = np.asarray(x, float)[..., None]
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t, w = (nodes + 1) * (math.pi / 2), weights / 2
    turn = (w * np.sin(x * np.sin(t) - order * t)).sum(-1)
    u = np.linspace(-6, 6, 4001)
    s, ds = np.exp(u - np.exp(-u)), (1 + np.exp(-u)) * (u[1] - u[0])
    grown = np.exp(order * s) + (-1) ** order * np.exp(-order * s)
    with np.errstate(all="ignore"):
        tail = np.nan_to_num(grown * np.exp(-x * np.sinh(s)) * s * ds).sum(-1)
    return turn - tail / math.pi


def _np_bessel_k(order: int, scaled: bool, x: Any) -> Any:
    """The integral of exp(-x cosh s) cosh(n s) over s > 0."""
    x = np.asarray(x, float)[..., None]
    s = np.linspace(0, 12, 6001)
    y = np.exp(-x * (np.cosh(s) - scaled)) * np.cosh(order * s) * (s[1] - s[0])
    return y.sum(-1) - y[..., 0] / 2


def _np_airy(x: Any) -> Any:
    """1 / pi times the integral of cos(t^3 / 3 + x t) over t > 0: on the real line up to
    sqrt(-x), where the phase rests, then along exp(i pi / 6). Above 1 it is exp(-z) / pi times that
    of exp(-sqrt(x) t^2) cos(t^3 / 3), z = 2 / 3 x^(3 / 2)."""
    x = np.asarray(x, float)[..., None]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    unit, w = (nodes + 1) / 2, weights / 2
    below, turn = np.minimum(x, 1), np.exp(1j * math.pi / 6)
    rest, r = np.sqrt(np.maximum(-below, 0)), 12 * unit
    first, second = rest * unit, rest + turn * r
    phases = (np.exp(1j * (t**3 / 3 + below * t)) for t in (first, second))
    low = sum((e * w).sum(-1) * s for e, s in zip(phases, (rest[..., 0], 12 * turn), strict=True))
    root = np.sqrt(np.maximum(x, 1))
    t = r / np.sqrt(root)
    high = (w * np.exp(-root * t * t) * np.cos(t**3 / 3)).sum(-1) * (12 / np.sqrt(root[..., 0]))
    high = high * np.exp(-2 / 3 * root[..., 0] ** 3)
    return np.where(x[..., 0] > 1, high, np.real(low)) / math.pi


def _np_erfcx(x: Any) -> Any:
    """2 / sqrt pi times the integral of exp(-s^2 - 2 x s) over s > 0."""
    size = np.abs(np.asarray(x, float))[..., None]
    nodes, weights = np.polynomial.legendre.leggauss(200)
    s, w = (nodes + 1) * 4, weights * 4
    y = (w * np.exp(-(s**2) - 2 * size * s)).sum(-1) * (2 / math.sqrt(math.pi))
    return np.where(np.asarray(x) < 0, 2 * np.exp(np.square(x)) - y, y)


def _np_log_ndtr(x: Any) -> Any:
    t = np.abs(np.asarray(x, float)) * math.sqrt(0.5)
    tail = _np_erfcx(t) / 2
    return np.where(np.asarray(x) < 0, np.log(tail) - t * t, np.log1p(-tail * np.exp(-t * t)))


def _np_ndtri(p: Any) -> Any:
    """By halving an interval, in the lower half."""
    p = np.asarray(p, float)
    share = np.minimum(p, 1 - p)
    low, high = np.full_like(p, -40.0), np.zeros_like(p)
    for _ in range(60):
        middle = (low + high) / 2
        below = _np_log_ndtr(middle) < np.log(share)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(p > 0.5, -low, low)


# ---------------------------------------------------------------- rows


def _types(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    (y,) = pointwise(promoted_float)(operands, at)
    if y.dtype.compute is not y.dtype:
        raise Unsupported(f"a Bessel function or tail in {y.dtype.torch_name}")
    return (y,)


def _row(name: str, body: Body, reference: Callable[..., Any], mark: str = "+") -> Op:
    """Eager's own f64 functions are too far from the true values to be sampled."""
    samples = (sample((f"f32{mark}", (3, 4))), sample((f"f32{mark}", (30,))))
    return elementwise(f"special_{name}", default_form(f"special_{name}", _operands(name)),
                       in_double(body), plain(reference), samples, types=_types,
                       compute=in_common_float)  # fmt: skip


def _operands(name: str) -> Sequence[str]:
    """What ATen calls the operand."""
    return ("x",) if name.startswith(("scaled", "airy")) else ("self",)


ORDERS = (0, 1)
_one = without_attrs
OPS: tuple[Op, ...] = tuple(map(bounded, (
    *(_row(f"bessel_j{n}", _one(partial(_bessel_j, n)), partial(_np_bessel_j, n), "")
      for n in ORDERS),
    *(_row(f"bessel_y{n}", with_attrs(partial(_bessel_y, n)), partial(_np_bessel_y, n))
      for n in ORDERS),
    *(_row(f"{prefix}modified_bessel_k{n}", _one(partial(_bessel_k, n, scaled)),
           partial(_np_bessel_k, n, scaled))
      for prefix, scaled in (("", False), ("scaled_", True)) for n in ORDERS),
    _row("airy_ai", with_attrs(_airy), _np_airy, ""),
    _row("erfcx", _one(_erfcx), _np_erfcx, ""),
    _row("log_ndtr", _one(_log_ndtr), _np_log_ndtr, ""),
    _row("ndtri", _one(_ndtri), _np_ndtri, "%"),
)))  # fmt: skip
