"""Orthogonal polynomials of a degree that is an operand: Chebyshev, Hermite, Laguerre, Legendre.

Each is its three-term recurrence, a leaf, with eager's closed forms in front: the ends of the
interval, and trigonometric forms inside it for Chebyshev's of high degree. A degree is cut to a
whole number; negative ones, and those that no 64-bit integer holds, give 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..ir.expr import Expr, apply
from . import arith as m
from .arith import add, div, mul, sub, where
from .rows import bounded, elementwise, form, in_output, plain, sample, without_attrs
from .rules import Arg, pointwise, promoted_float
from .scalar import SCALAR_OPS
from .schema import Attrs, Op, Sample

Array = Any
HERMITE_LIMITS = {"f32": 128, "f64": 512}
"""Degrees above which eager answers NaN."""


@dataclass(frozen=True)
class Chebyshev:
    """One of the four kinds.

    Attributes:
        first: the polynomial of degree 1.
        inner: of degree n at cos(angle), inside the interval; takes (n, angle, x, at the end).
        ends: of degree n at 1 and at -1; takes (n, sign) with the sign (-1)^n.
        beyond: the highest degree for which the recurrence is taken inside the interval.
    """

    first: Callable[[Expr], Expr]
    inner: Callable[[Expr, Expr, Expr, Expr], Expr]
    ends: Callable[[Expr, Expr], tuple[Expr, Expr]]
    beyond: int


def _first_kind(n: Expr, angle: Expr, x: Expr, end: Expr) -> Expr:
    """cos(n t)."""
    return apply("cos", mul(n, angle))


def _second_kind(n: Expr, angle: Expr, x: Expr, end: Expr) -> Expr:
    """sin((n + 1) t) / sin t."""
    sine, turn = apply("sin", angle), mul(add(n, 1), angle)
    limit = div(mul(add(n, 1), apply("cos", turn)), x)
    return where(m.ne(sine, 0), div(apply("sin", turn), sine), limit)


def _half_turns(function: str, n: Expr, angle: Expr, x: Expr, end: Expr) -> Expr:
    """f((n + 1/2) t) / f(t / 2), and the value at the end where t / 2 is at that end."""
    other = {"cos": "sin", "sin": "cos"}[function]
    half = div(angle, 2)
    value = div(apply(function, mul(add(n, 0.5), angle)), apply(function, half))
    return where(m.ne(apply(other, half), 1), value, end)


KINDS: dict[str, Chebyshev] = {
    "t": Chebyshev(lambda x: x, _first_kind, lambda n, sign: (m.const(1, n.dtype), sign), 6),
    "u": Chebyshev(lambda x: add(x, x), _second_kind,
                   lambda n, sign: (add(n, 1), mul(sign, add(n, 1))), 8),
    "v": Chebyshev(lambda x: sub(add(x, x), 1), partial(_half_turns, "cos"),
                   lambda n, sign: (m.const(1, n.dtype), mul(sign, add(add(n, n), 1))), 8),
    "w": Chebyshev(lambda x: add(add(x, x), 1), partial(_half_turns, "sin"),
                   lambda n, sign: (add(add(n, n), 1), sign), 8),
}  # fmt: skip
SHIFTED_BEYOND = {"t": 6, "u": 6, "v": 6, "w": 4}


def _sign(n: Expr) -> Expr:
    """(-1)^n."""
    half = mul(n, 0.5)
    return where(m.eq(half, apply("floor", half)), m.const(1, n.dtype), -1)


def _degree(n: Expr, value: Callable[[Expr], Expr]) -> Expr:
    """The polynomial of a whole degree; 0 where there is none."""
    whole = apply("trunc", n)
    inside = m.both(m.ge(whole, 0), m.lt(whole, 2.0**63))
    return where(inside, value(where(inside, m.absolute(whole), 0)), 0)


def _chebyshev(kind: str, shifted: bool) -> Callable[[Expr, Expr], Expr]:
    k = KINDS[kind]
    beyond = SHIFTED_BEYOND[kind] if shifted else k.beyond

    def value(given: Expr, n: Expr) -> Expr:
        x = sub(add(given, given), 1) if shifted else given
        upper, lower = k.ends(n, _sign(n))
        angular = m.both(m.gt(n, beyond), m.lt(m.absolute(x), 1))
        end = where(m.gt(x, 0), upper, lower)
        near = apply("chebyshev", x, k.first(x), where(angular, 0, n))
        y = where(angular, k.inner(n, apply("acos", x), x, end), near)
        top, bottom = (m.eq(given, 1), m.eq(given, 0 if shifted else -1))
        return where(top, upper, where(bottom, lower, y))

    return lambda x, n: _degree(n, partial(value, x))


def _legendre(x: Expr, n: Expr) -> Expr:
    def value(n: Expr) -> Expr:
        ends = where(m.gt(x, 0), m.const(1, x.dtype), _sign(n))
        return where(m.eq(m.absolute(x), 1), ends, apply("legendre", x, n))

    return _degree(n, value)


def _laguerre(x: Expr, n: Expr) -> Expr:
    return _degree(n, lambda n: apply("laguerre", x, n))


def _hermite(leaf: str, x: Expr, n: Expr) -> Expr:
    def value(n: Expr) -> Expr:
        above = m.gt(n, HERMITE_LIMITS[x.dtype.name])
        return where(above, m.const(float("nan"), x.dtype), apply(leaf, x, where(above, 0, n)))

    return _degree(n, value)


# ---------------------------------------------------------------- references


def _np_chebyshev(kind: str, shifted: bool) -> Callable[[Array, Array], Array]:
    def reference(x: Array, n: Array) -> Array:
        x = np.asarray(x, float)
        x = 2 * x - 1 if shifted else x
        first = {"t": x, "u": 2 * x, "v": 2 * x - 1, "w": 2 * x + 1}[kind]
        n = np.asarray(n, float)
        return np.where(n > -1, SCALAR_OPS["chebyshev"].reference(x, first, n), 0.0)

    return reference


def _np_leaf(leaf: str) -> Callable[[Array, Array], Array]:
    def reference(x: Array, n: Array) -> Array:
        n = np.asarray(n, float)
        return np.where(n > -1, SCALAR_OPS[leaf].reference(np.asarray(x, float), n), 0.0)

    return reference


# ---------------------------------------------------------------- rows

DEGREES: tuple[Sample, ...] = (
    sample(("f32", (3, 4)), ("f32", (3, 4))),
    sample(("f64", (5,)), ("f64", (5,))),
    sample(("f32", (5,)), 11),
    sample(("f64", (2, 3)), 4),
    sample(-0.3, ("f32", (4,))),
)


def _types(operands: tuple[Arg, ...], at: Attrs) -> Any:
    (y,) = pointwise(promoted_float)(operands, at)
    if y.dtype.compute is not y.dtype:
        raise Unsupported(f"orthogonal polynomials in {y.dtype.torch_name}")
    return (y,)


def _row(name: str, body: Callable[[Expr, Expr], Expr], reference: Callable[..., Array]) -> Op:
    target = f"special_{name}"
    forms = tuple(form(f"{target}.{overload}", ("x", "n"))
                  for overload in ("default", "n_scalar", "x_scalar"))  # fmt: skip
    return elementwise(target, forms, without_attrs(body), plain(reference), DEGREES,
                       types=_types, compute=in_output)  # fmt: skip


OPS: tuple[Op, ...] = tuple(map(bounded, (
    *(_row(f"{prefix}chebyshev_polynomial_{kind}", _chebyshev(kind, shifted),
           _np_chebyshev(kind, shifted))
      for prefix, shifted in (("", False), ("shifted_", True)) for kind in KINDS),
    _row("hermite_polynomial_h", partial(_hermite, "hermite_h"), _np_leaf("hermite_h")),
    _row("hermite_polynomial_he", partial(_hermite, "hermite_he"), _np_leaf("hermite_he")),
    _row("laguerre_polynomial_l", _laguerre, _np_leaf("laguerre")),
    _row("legendre_polynomial_p", _legendre, _np_leaf("legendre")),
)))  # fmt: skip
