"""Special functions by series and recurrences: Bessel, polygamma, and short combinations.

Each is an expression of elementary steps, so every backend computes the same. Chebyshev series are
summed by Clenshaw's recurrence; their coefficients are the integrals that define them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtype import f32, f64
from ..ir.expr import Expr, apply
from . import arith as m
from .arith import add, div, mul, sub, where
from .rows import (
    FLOATS,
    INTS,
    PAIRS,
    bounded,
    default_form,
    elementwise,
    form,
    in_common_float,
    in_output,
    plain,
    sample,
    unary,
    with_attrs,
    without_attrs,
)  # fmt: skip
from .rules import pointwise, promoted_float
from .scalar import SCALAR_OPS
from .schema import Attrs, Op
from .zeta import np_zeta, polygamma

Series = Sequence[float]

# exp(-x) I0(x) and exp(-x) I1(x) / x on [0, 8], in y = x / 2 - 2; then exp(-x) sqrt(x) I0(x) and
# I1(x) beyond 8, in y = 32 / x - 2.
NEAR_0: Series = (
    6.7679527440947608e-1, -3.046826723431984e-1, 1.7162090152220878e-1, -9.4901097048047644e-2,
    4.9305284239670708e-2, -2.3737414805899469e-2, 1.0546460394594998e-2, -4.3243099950505759e-3,
    1.6394756169413358e-3, -5.7637557453858237e-4, 1.8850288509584166e-4, -5.7541950100821037e-5,
    1.6448448070728897e-5, -4.4167383584587506e-6, 1.1173875391201037e-6, -2.6707938539406117e-7,
    6.0469950225419189e-8, -1.300025009986248e-8, 2.6598237246823867e-9, -5.1897956016352629e-10,
    9.6758090353732369e-11, -1.7268262914415557e-11, 2.9550526631296398e-12,
    -4.8564467831119295e-13, 7.6761854986049356e-14, -1.1685332877993452e-14,
    1.715391285555133e-15, -2.4312798465479547e-16, 3.3307945188222381e-17,
    -4.4153416464793394e-18,
)  # fmt: skip
FAR_0: Series = (
    8.0449041101410883e-1, 3.3691164782556941e-3, 6.889758346916824e-5, 2.8913705208347565e-6,
    2.0489185894690637e-7, 2.2666689904981781e-8, 3.3962320257083863e-9, 4.9406023882249696e-10,
    1.1889147107846438e-11, -3.1499165279632414e-11, -1.3215811840447713e-11,
    -1.7941785315068061e-12, 7.1801244513836662e-13, 3.8527783827421427e-13,
    1.5400862175214098e-14, -4.1505693472872221e-14, -9.5548466988283076e-15,
    3.8116806693526224e-15, 1.7725601330565264e-15, -3.4254856196772191e-16,
    -2.8276239805165835e-16, 3.4612228676974611e-17, 4.46562142029676e-17,
    -4.8305044859441821e-18, -7.233180487874754e-18,
)  # fmt: skip
NEAR_1: Series = (
    2.5258718644363365e-1, -1.7641651835783406e-1, 1.026436586898471e-1, -5.2945981208094991e-2,
    2.4726449030626517e-2, -1.0564084894626198e-2, 4.1564229443128882e-3, -1.5135724506312531e-3,
    5.1228595616857577e-4, -1.6176081582589675e-4, 4.7815651075500542e-5, -1.3273163656039436e-5,
    3.4702513081376785e-6, -8.5687202646954547e-7, 2.0032947535521353e-7, -4.4450591287963281e-8,
    9.3815373864957718e-9, -1.8872497517228293e-9, 3.625590281552117e-10,
    -6.6634897235020277e-11, 1.1736186298890902e-11, -1.9839743977649437e-12,
    3.2237933659455747e-13, -5.0421855047279117e-14, 7.6006842947354069e-15,
    -1.1055969477353863e-15, 1.5536319577362005e-16, -2.1114212143581661e-17,
    2.7779141127610464e-18,
)  # fmt: skip
FAR_1: Series = (
    7.7857623501828012e-1, -9.7610974913614684e-3, -1.1058893876262372e-4,
    -3.8825648088776904e-6, -2.5122362378702089e-7, -2.6314688468895195e-8,
    -3.835380385964237e-9, -5.5897434621965838e-10, -1.8974958123505412e-11,
    3.2526035830154882e-11, 1.4125807436613781e-11, 2.0356285441470895e-12,
    -7.1985517762459085e-13, -4.0835511110921973e-13, -2.1015418427726643e-14,
    4.2724400167119514e-14, 1.0420276984128803e-14, -3.8144030724370078e-15,
    -1.8803547755107824e-15, 3.3082023109209283e-16, 2.9626289976459501e-16,
    -3.209525921993424e-17, -4.6503053684893583e-17, 4.4143483230717079e-18,
    7.5172963108421048e-18,
)  # fmt: skip
SERIES: dict[int, tuple[tuple[Series, Series], tuple[int, int]]] = {
    0: ((NEAR_0, FAR_0), (30, 25)),
    1: ((NEAR_1, FAR_1), (17, 7)),
}
"""By order: both series, and how many of their terms eager sums in f32."""


def _chebyshev(y: Expr, series: Series, terms: int) -> Expr:
    """c0 / 2 + sum of ck Tk(y / 2), by Clenshaw's recurrence from the last term on."""
    kept = series[:terms] if y.dtype is f32 else series
    b0: Expr = m.const(kept[-1], y.dtype)
    b1: Expr = m.const(0, y.dtype)
    b2: Expr = b1
    for c in reversed(kept[:-1]):
        b2, b1 = b1, b0
        b0 = add(m.fma(y, b1, m.neg(b2)), c)
    return mul(0.5, sub(b0, b2))


def _bessel(order: int, scaled: bool) -> Callable[[Expr], Expr]:
    """The modified Bessel function of the first kind, times exp(-|x|) if scaled."""
    (near_series, far_series), (near_terms, far_terms) = SERIES[order]

    def body(x: Expr) -> Expr:
        size = m.absolute(x)
        near = _chebyshev(sub(div(size, 2), 2), near_series, near_terms)
        near = mul(near, size) if order else near
        far = _chebyshev(sub(div(32.0, size), 2), far_series, far_terms)
        far = div(far, m.sqrt(size))
        y = where(m.le(size, 8), near, far)
        y = y if scaled else mul(m.exp(size), y)
        return where(m.lt(x, 0), m.neg(y), y) if order else y

    return body


def _np_bessel(order: int, scaled: bool) -> Callable[[Any], Any]:
    """The mean over an angle t of exp(x cos t) cos(order t); the trapezoidal rule is exact."""

    def reference(x: Any) -> Any:
        t = (np.arange(512) + 0.5) * (math.pi / 512)
        wide = np.asarray(x, float)[..., None]
        y = (np.exp(np.abs(wide) * (np.cos(t) - 1)) * np.cos(order * t)).mean(-1)
        y = y if scaled else y * np.exp(np.abs(x))
        return np.where(np.asarray(x) < 0, -y, y) if order else y

    return reference


# ---------------------------------------------------------------- polygamma

DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""B(2k) / 2k: psi(x) ~ log x - 1 / 2x - sum of these over x^2k."""
STEPS = 10


def _digamma_positive(x: Expr) -> Expr:
    """The recurrence psi(x) = psi(x + 1) - 1 / x up to 10, then the asymptotic series."""
    total: Expr = m.const(0, x.dtype)
    for _ in range(STEPS):
        below = m.lt(x, STEPS)
        total = where(below, sub(total, div(1, x)), total)
        x = where(below, add(x, 1), x)
    z = div(1, mul(x, x))
    tail: Expr = m.const(0, x.dtype)
    for c in reversed(DIGAMMA_SERIES):
        tail = add(mul(tail, z), c)
    return sub(sub(add(total, m.log(x)), div(0.5, x)), mul(tail, z))


def _digamma(x: Expr) -> Expr:
    """Reflected for x < 0: psi(x) = psi(1 - x) - pi / tan(pi x); NaN at negative integers."""
    negative = m.lt(x, 0)
    value = _digamma_positive(where(negative, sub(1, x), x))
    wide = m.to(x, f64)
    part = sub(wide, apply("trunc", wide))
    turn = m.to(div(math.pi, apply("tan", mul(part, math.pi))), x.dtype)
    value = where(negative, sub(value, turn), value)
    value = where(m.both(negative, m.eq(x, apply("trunc", x))), math.nan, value)
    infinite = apply("copysign", m.const(math.inf, x.dtype), m.neg(x))
    return where(m.eq(x, 0), infinite, value)


def _trigamma(x: Expr) -> Expr:
    """Reflected below 1/2, then the recurrence by six steps and the asymptotic series."""
    low = m.lt(x, 0.5)
    sine = apply("sin", mul(math.pi, x))
    turn = div(math.pi**2, mul(sine, sine))
    y = where(low, sub(1, x), x)
    total: Expr = where(low, m.neg(turn), 0)
    for _ in range(6):
        total = add(total, div(1, mul(y, y)))
        y = add(y, 1)
    z = div(1, mul(y, y))
    inner = sub(1 / 6, mul(z, sub(1 / 30, mul(z, 1 / 42))))
    tail = add(add(1, div(1, mul(2, y))), mul(z, inner))
    total = add(total, div(tail, y))
    return where(low, m.neg(total), total)


def _polygamma(x: Expr, at: Attrs) -> Expr:
    n = at["n"]
    return (_digamma, _trigamma)[n](x) if n < 2 else polygamma(n, x)


def _np_polygamma(order: int, x: Any) -> Any:
    """From far up the recurrence, where the asymptotic series is exact; reflected below 1/2."""
    if order > 1:
        return (-1) ** (order + 1) * math.factorial(order) * np_zeta(order + 1, x)
    x = np.asarray(x, float)
    y, steps = np.where(x < 0.5, 1 - x, x), np.arange(30.0)
    far = y + 30
    if order == 0:
        up = np.log(far) - 1 / (2 * far) - 1 / (12 * far**2) + 1 / (120 * far**4)
        up = up - 1 / (252 * far**6) - (1 / (y[..., None] + steps)).sum(-1)
        return np.where(x < 0.5, up - math.pi / np.tan(math.pi * x), up)
    up = 1 / far + 1 / (2 * far**2) + 1 / (6 * far**3) - 1 / (30 * far**5) + 1 / (42 * far**7)
    up = up + (1 / (y[..., None] + steps) ** 2).sum(-1)
    return np.where(x < 0.5, (math.pi / np.sin(math.pi * x)) ** 2 - up, up)


# ---------------------------------------------------------------- short combinations


def _spherical_bessel(x: Expr) -> Expr:
    """sin(x) / x; near 0 its Taylor series, the sum of (-x^2)^k / (2 k + 1)!, and 0 at infinity."""
    square = mul(x, x)
    series: Expr = m.const(0, x.dtype)
    for k in reversed(range(7)):
        series = add(mul(series, square), (-1) ** k / math.factorial(2 * k + 1))
    far = where(m.eq(m.absolute(x), math.inf), 0.0, div(apply("sin", x), x))
    return where(m.lt(m.absolute(x), 0.5), series, far)


def _sinc(x: Expr) -> Expr:
    """sin(pi x) / (pi x), 1 at 0."""
    turn = mul(math.pi, x)
    return where(m.eq(x, 0), 1, div(apply("sin", turn), turn))


def _entropy(x: Expr) -> Expr:
    """-x log(x); 0 at 0, -inf below it."""
    outside = where(m.eq(x, 0), 0, where(m.isnan(x), x, -math.inf))
    return where(m.gt(x, 0), mul(m.neg(x), m.log(x)), outside)


def _np_entropy(x: Any) -> Any:
    inside = -x * np.log(np.where(x > 0, x, 1))
    return np.where(x > 0, inside, np.where(x == 0, 0, -np.inf))


def _xlog1py(x: Expr, y: Expr, at: Attrs) -> Expr:
    """x log1p(y); 0 where x is 0, unless y is NaN."""
    zero = m.both(m.eq(x, 0), m.negation(m.isnan(y)))
    return where(zero, 0.0, mul(x, m.rounded(m.log1p(y), at["common"])))


def _logaddexp2(a: Expr, b: Expr) -> Expr:
    """max + log2(1 + exp2(-|a - b|)); equal infinities stay."""
    same = m.both(m.eq(a, b), m.eq(m.absolute(a), math.inf))
    tail = m.log1p(apply("exp2", m.neg(m.absolute(sub(a, b)))))
    return where(same, a, add(m.maximum(a, b), mul(tail, 1 / math.log(2))))


def _scaled(factor: float) -> Callable[[Expr], Expr]:
    return lambda x: mul(x, factor)


def _angle(x: Expr) -> Expr:
    """pi below 0, else 0; NaN stays."""
    return where(m.isnan(x), x, where(m.lt(x, 0), m.const(math.pi, x.dtype), 0))


FAR: tuple[Op, ...] = (
    unary("i0", _bessel(0, False), _np_bessel(0, False), also=("special_modified_bessel_i0",)),
    unary("special_i0e", _bessel(0, True), _np_bessel(0, True)),
    unary("special_i1", _bessel(1, False), _np_bessel(1, False),
          also=("special_modified_bessel_i1",)),
    unary("special_i1e", _bessel(1, True), _np_bessel(1, True)),
    elementwise("special_spherical_bessel_j0", default_form("special_spherical_bessel_j0", ("x",)),
                without_attrs(_spherical_bessel),
                plain(lambda x: np.where(x == 0, 1.0, np.sin(x) / np.where(x == 0, 1, x))),
                (FLOATS[0], FLOATS[3], INTS[0]), types=pointwise(promoted_float),
                compute=in_output),
    unary("digamma", _digamma, lambda x: _np_polygamma(0, x), samples=FLOATS),
    elementwise("polygamma", default_form("polygamma", ("self",), ("n",)), with_attrs(_polygamma),
                lambda x, at: _np_polygamma(at["n"], x),
                tuple(sample(*s.operands, n=n) for n in (0, 1, 2, 5) for s in FLOATS[:2]),
                types=pointwise(promoted_float), compute=in_output),
    unary("sinc", _sinc, np.sinc),
    unary("special_entr", _entropy, _np_entropy),
    elementwise("special_xlog1py", (form("special_xlog1py.default", ("self", "other")),
                                    form("special_xlog1py.self_scalar", ("self", "other")),
                                    form("special_xlog1py.other_scalar", ("self", "other"))),
                with_attrs(_xlog1py),
                plain(lambda x, y: np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log1p(y))), PAIRS,
                rounds=(0, 1), types=pointwise(promoted_float), compute=in_common_float),
    elementwise("logaddexp2", default_form("logaddexp2", ("self", "other")),
                without_attrs(_logaddexp2), plain(np.logaddexp2), PAIRS[:3], rounds=(0, 1)),
)  # fmt: skip
"""Eager's steps are others, or it calls other libraries for them."""
OPS: tuple[Op, ...] = (
    *map(bounded, FAR),
    unary("erfinv", lambda x: apply("erfinv", x), SCALAR_OPS["erfinv"].reference,
          samples=(sample(("f32%", (3, 4))), sample(("f64%", (3, 4))), sample(("bf16%", (5,))))),
    unary("deg2rad", _scaled(math.pi / 180), np.deg2rad),
    unary("rad2deg", _scaled(180 / math.pi), np.rad2deg),
    unary("angle", _angle, lambda x: np.where(np.isnan(x), x, np.where(x < 0, math.pi, 0))),
)  # fmt: skip
