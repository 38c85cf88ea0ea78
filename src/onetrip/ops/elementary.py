"""Elementwise operators beside arithmetic: steps, divisors, neighbours, products of vectors."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import numpy as np

from ..base.dtype import bool_, f32, f64, i32
from ..base.errors import Unsupported
from ..ir.expr import Expr, apply, cast
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .composite import Outputs, composite, convert, dense, one_dim, tensor, wide
from .rows import (
    FLOATS,
    INT_PAIRS,
    PAIRS,
    binary,
    default_form,
    elementwise,
    form,
    in_common,
    plain,
    sample,
    with_attrs,
    without_attrs,
)  # fmt: skip
from .rules import (
    Arg,
    broadcast,
    check_compiled,
    like_first,
    pointwise,
    promoted,
    promoted_float,
)  # fmt: skip
from .scalar import SCALAR_OPS
from .schema import Attrs, Builder, Op

Types = tuple[TensorType, ...]


def _heaviside(x: Expr, value: Expr) -> Expr:
    """`value` at 0, 1 above, 0 below and for NaN."""
    if x.dtype is bool_:
        return m.either(x, value)
    return m.where(m.eq(x, 0), value, m.where(m.gt(x, 0), m.const(1, x.dtype), 0))


def _np_heaviside(x: Any, value: Any) -> Any:
    return np.where(np.equal(x, 0), value, np.greater(x, 0))


def _whole_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    dtype = promoted(operands)
    if not dtype.is_integral:
        raise Unsupported(f"divisors of {dtype.torch_name}")
    return pointwise(promoted)(operands, at)


def _lcm(a: Expr, b: Expr) -> Expr:
    """|a / gcd b|; 0 with 0. As C++ has it, what is narrower than 32 bits is multiplied there."""
    own = a.dtype
    range_ = i32 if own.bits < i32.bits else own
    divisor = cast(apply("gcd", a, b), range_)
    none = m.eq(divisor, 0)
    share = apply("truncdiv", cast(a, range_), m.where(none, m.const(1, range_), divisor))
    return cast(m.where(none, 0, m.absolute(m.mul(share, cast(b, range_)))), own)


def _single_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    (y,) = pointwise(promoted)(operands, at)
    if not y.dtype.is_float or y.dtype.compute is not y.dtype:
        raise Unsupported(f"neighbours of a number in {y.dtype.torch_name}")
    return (y,)


def _round_decimals(x: Expr, at: Attrs) -> Expr:
    """round(x 10^d) / 10^d, and round(x / 10^-d) 10^-d for negative d."""
    if not x.dtype.is_float:
        return x
    power = 10.0 ** abs(at["decimals"])
    there, back = (m.mul, m.div) if at["decimals"] > 0 else (m.div, m.mul)
    return back(apply("round", there(x, power)), power)


# ---------------------------------------------------------------- mantissa and exponent

LADDER = {f32: 64, f64: 512}
"""The largest power of two by which a number is scaled at once."""


def _halved(x: Expr) -> tuple[Expr, Expr]:
    """(m, e) of |x| = m 2^e, 1/2 <= m < 1, by halving the distance; e is of x's dtype.

    Every step is a product with a power of two, and so exact.
    """
    top = LADDER[x.dtype]
    falling = [top >> k for k in range(top.bit_length())]
    size = m.absolute(x)
    exponent: Expr = m.const(1, x.dtype)
    moves = [(n, m.ge, 2.0**n) for n in falling]
    moves += [(-n, m.lt, 2.0 ** (1 - n)) for n in (top, *falling)]
    for n, beyond, edge in moves:
        far = beyond(size, edge)
        size = m.where(far, m.mul(size, 2.0**-n), size)
        exponent = m.where(far, m.add(exponent, n), exponent)
    return m.mul(size, 0.5), exponent


def _has_exponent(x: Expr) -> Expr:
    return m.both(m.ne(x, 0), m.lt(m.absolute(x), math.inf))


def _mantissa(x: Expr) -> Expr:
    """x itself for 0, NaN and infinity."""
    return m.where(_has_exponent(x), apply("copysign", _halved(x)[0], x), x)


def _exponent(x: Expr) -> Expr:
    """0 for 0, NaN and infinity."""
    return m.where(_has_exponent(x), _halved(x)[1], 0)


def _float_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    (x,) = operands
    if not x.dtype.is_float:
        raise Unsupported(f"the mantissa of {x.dtype.torch_name}")
    return like_first()(operands, at)


def _exponent_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return like_first(1, lambda operands, at: i32)(operands, at)


def _frexp_types(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (*_float_type(operands, at), *_exponent_type(operands, at))


def _frexp(build: Builder, node: Node) -> Outputs:
    x = tensor(node, 0)
    return build("mantissa", x), build("exponent", x)


def _addr_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x, a, b = operands
    dtype = check_compiled(promoted(operands))
    if dtype is bool_:
        raise Unsupported("an outer product of bool")
    return (dense(dtype, broadcast((x.shape, (a.shape[0], b.shape[0])))),)


def _addr(build: Builder, node: Node) -> Outputs:
    """beta x + alpha a b^T; x is left out where beta is 0."""
    dtype = node.output.type.dtype
    x, a, b = (convert(build, tensor(node, k), dtype.compute) for k in range(3))
    alpha, beta = node.attr.get("alpha", 1), node.attr.get("beta", 1)
    a = build("unsqueeze", a, dim=1)
    outer = build("mul", a if alpha == 1 else build("mul", a, alpha), b)
    if beta != 0:
        outer = build("add", x if beta == 1 else build("mul", x, beta), outer)
    return (convert(build, outer, dtype),)


def _cross_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    a, b = operands
    return (dense(check_compiled(promoted(operands)), broadcast((a.shape, b.shape))),)


def _cross(build: Builder, node: Node) -> Outputs:
    """a[i + 1] b[i + 2] - a[i + 2] b[i + 1] along a dimension of three."""
    k = one_dim(node.output.type, {"dim": node.attr.get("dim", -1)})
    dtype = node.output.type.dtype
    a, b = (convert(build, tensor(node, n), dtype.compute) for n in (0, 1))

    def ahead(x: Any, steps: int) -> Any:
        return build("roll", x, shifts=(-steps,), dims=(k - node.output.type.rank + x.type.rank,))

    forth, back = (build("mul", ahead(a, s), ahead(b, 3 - s)) for s in (1, 2))
    return (convert(build, build("sub", forth, back), dtype),)


def _ldexp_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    x, other = operands
    power = TensorType(promoted_float((other,)), other.shape, other.strides)
    return pointwise(promoted)((x, power), at)


def _ldexp(build: Builder, node: Node) -> Outputs:
    """x 2^other, two operators as in eager: the power may overflow where the product would not."""
    x, other = node.inputs
    return (build("mul", x, build("pow", 2.0, other)),)


def _mvlgamma(build: Builder, node: Node) -> Outputs:
    """p (p - 1) / 4 log pi + the sum over j < p of lgamma(x - j / 2)."""
    x, p = tensor(node, 0), int(node.attr["p"])
    terms = [wide(build, build("lgamma", build("add", x, -j / 2))) for j in reversed(range(p))]
    total = convert(build, reduce(partial(build, "add"), terms), node.output.type.dtype)
    return (build("add", total, p * (p - 1) * math.log(math.pi) / 4),)


def _np_mvlgamma(x: Any, at: Attrs) -> Any:
    lgamma, p = SCALAR_OPS["lgamma"].reference, at["p"]
    return p * (p - 1) * math.log(math.pi) / 4 + sum(lgamma(x - j / 2) for j in range(p))


OPS: tuple[Op, ...] = (
    elementwise("heaviside", default_form("heaviside", ("self", "values")),
                without_attrs(_heaviside), plain(_np_heaviside),
                (*PAIRS[:3], *INT_PAIRS[:1], sample(("bool", (4,)), ("bool", (4,))))),
    elementwise("gcd", default_form("gcd", ("self", "other")),
                without_attrs(lambda a, b: apply("gcd", a, b)), plain(np.gcd), INT_PAIRS[:2],
                types=_whole_type),
    elementwise("lcm", default_form("lcm", ("self", "other")), without_attrs(_lcm),
                plain(np.lcm), INT_PAIRS[:2], types=_whole_type),
    binary("nextafter", lambda a, b: apply("nextafter", a, b), np.nextafter,
           forms=default_form("nextafter", ("self", "other")),
           samples=(sample(("f64", (3, 4)), ("f64", (3, 4))),), types=_single_type),
    elementwise("round_decimals", (form("round.decimals", ("self",), ("decimals",)),),
                with_attrs(_round_decimals), lambda x, at: np.round(x, at["decimals"]),
                tuple(sample(*s.operands, decimals=d) for s in FLOATS for d in (2, -1)),
                types=like_first(), compute=in_common),
    elementwise("mantissa", (), without_attrs(_mantissa), plain(lambda x: np.frexp(x)[0]), FLOATS,
                types=_float_type),
    elementwise("exponent", (), without_attrs(_exponent), plain(lambda x: np.frexp(x)[1]), FLOATS,
                types=_exponent_type, compute=in_common),
    composite("frexp", (form("frexp.Tensor"),), _frexp_types, _frexp, lambda x, at: np.frexp(x),
              FLOATS),
    composite("addr", default_form("addr", ("self", "vec1", "vec2"), ("beta", "alpha")),
              _addr_type, _addr,
              lambda x, a, b, at: at.get("beta", 1) * x + at.get("alpha", 1) * np.outer(a, b),
              (sample(("f32", (3, 4)), ("f32", (3,)), ("f32", (4,)), beta=0.5, alpha=2.0),
               sample(("i64", (4,)), ("i64", (3,)), ("i64", (4,))),
               sample(("bf16", (3, 4)), ("bf16", (3,)), ("bf16", (4,)), beta=0))),
    composite("ldexp", (form("ldexp.Tensor", ("self", "other")),), _ldexp_type, _ldexp,
              lambda x, y, at: x * 2.0**y,
              (sample(("f32", (3, 4)), ("i32", (4,))), sample(("f32", (3, 1)), ("f32", (4,))))),
    composite("mvlgamma", default_form("mvlgamma", ("self",), ("p",)),
              pointwise(promoted_float), _mvlgamma, _np_mvlgamma,
              (sample(("f32+", (3, 4)), p=1), sample(("f64+", (5,)), p=3))),
    composite("cross", default_form("linalg_cross", ("self", "other"), ("dim",)), _cross_type,
              _cross, lambda a, b, at: np.cross(a, b, axis=at.get("dim", -1)),
              (sample(("f32", (4, 3)), ("f32", (4, 3))), sample(("i64", (3, 2)), ("i64", (3, 2)),
                                                                dim=0))),
)  # fmt: skip
