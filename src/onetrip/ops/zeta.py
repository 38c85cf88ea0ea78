"""Hurwitz's zeta function, the sum of (q + k)^-x over k >= 0, and what is made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.dtype import f64
from ..base.errors import Unsupported
from ..ir.expr import Expr, apply
from . import arith as m
from .arith import mul
from .rows import (
    bounded,
    elementwise,
    form,
    in_common_float,
    in_double,
    plain,
    sample,
    without_attrs,
)
from .rules import Arg, pointwise, promoted_float
from .schema import Attrs, Op


def zeta(x: Expr, q: Expr) -> Expr:
    """Of f64 operands, as eager's CPU kernel has it; NaN for x < 1, infinite at its poles."""
    return apply("zeta", x, q)


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
    return elementwise("special_zeta", forms, in_double(without_attrs(zeta)), plain(np_zeta),
                       samples, types=_types, compute=in_common_float)  # fmt: skip


OPS: tuple[Op, ...] = (bounded(_row()),)
