"""Comparisons, logic and bits: results are bool or integers, so every one is exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtype import DType, bool_
from ..base.errors import Unsupported
from ..ir.expr import Apply, Expr, apply, compare
from . import arith as m
from .rows import (
    BOOLS,
    FLOATS,
    INT_PAIRS,
    INTS,
    MIXED_PAIRS,
    PAIRS,
    binary_forms,
    default_form,
    elementwise,
    form,
    in_common,
    plain,
    sample,
    without_attrs,
)  # fmt: skip
from .rules import Arg, boolean, like_first, pointwise, promoted
from .scalar import SCALAR_OPS
from .schema import Attrs, Form, Op

COMPARISONS = (
    ("eq", "Equal"), ("ne", ""), ("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"),
    ("ge", "GreaterOrEqual"),
)  # fmt: skip


def _own(operands: tuple[Arg, ...], out: Any, attrs: Attrs) -> tuple[DType, ...]:
    """Each operand in its own operation precision: only its truth is looked at."""
    return tuple(promoted((x,)).compute for x in operands)


def _whole(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    dtype = promoted(operands)
    if dtype.is_float:
        raise Unsupported(f"bits of {dtype.torch_name} are not defined")
    return dtype


def _truths(op: str) -> Any:
    return lambda *xs: Apply(op, tuple(m.truth(x) for x in xs), bool_)


def _bits(op: str, on_bool: str) -> Any:
    def body(*xs: Expr) -> Expr:
        return apply(on_bool if xs[0].dtype is bool_ else op, *xs)

    return body


def _test(name: str, body: Any, fn: Any) -> Op:
    return elementwise(
        name, default_form(name), without_attrs(body), plain(fn), FLOATS + INTS[:1],
        types=like_first(dtype=boolean), compute=in_common,
    )  # fmt: skip


def _infinite(sign: int) -> Any:
    def body(x: Expr) -> Expr:
        if not x.dtype.is_float:
            return m.const(False, bool_)
        return m.eq(x, sign * float("inf"))

    return body


def _finite(x: Expr) -> Expr:
    """x - x is 0 for finite x only."""
    return m.eq(m.sub(x, x), 0) if x.dtype.is_float else m.const(True, bool_)


def _comparison(name: str, onnx: str) -> Op:
    def body(a: Expr, b: Expr) -> Expr:
        return compare(name, a, b)

    return elementwise(
        name, binary_forms(name), without_attrs(body), plain(SCALAR_OPS[name].reference),
        PAIRS + INT_PAIRS + MIXED_PAIRS, types=pointwise(boolean), compute=in_common,
        rounds=(0, 1), rounds_on_gpu=() if name in ("eq", "ne") else None,
        onnx=(onnx,) if onnx else (),
    )  # fmt: skip


def _logical(name: str, arity: int, fn: Any, onnx: str) -> Op:
    pairs = PAIRS[:5] + INT_PAIRS[:2] + (sample(("bool", (4,)), ("bool", (4,))),)
    singles = FLOATS + INTS + BOOLS
    return elementwise(
        name, default_form(name, ("self", "other")[:arity]), without_attrs(_truths(name)),
        plain(fn), pairs if arity == 2 else singles, types=pointwise(boolean), compute=_own,
        onnx=(onnx,),
    )  # fmt: skip


def _bit_forms(name: str, dunder: str) -> tuple[Form, ...]:
    kinds = ("Tensor", "Scalar", "Scalar_Tensor")
    own = tuple(form(f"bitwise_{name}.{k}", ("self", "other")) for k in kinds)
    return (*own, *(form(f"{dunder}.{k}", ("self", "other")) for k in kinds[:2]))


def _bitwise(name: str, on_bool: str, fn: Any) -> Op:
    samples = (*INT_PAIRS[:3], sample(("bool", (4,)), ("bool", (4,))))
    return elementwise(
        f"bitwise_{name}", _bit_forms(name, f"__{name}__"),
        without_attrs(_bits(f"bitwise_{name}", on_bool)), plain(fn), samples,
        types=pointwise(_whole),
    )  # fmt: skip


def _shift(name: str, leaf: str, dunder: str) -> Op:
    kinds = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    forms = tuple(form(f"bitwise_{name}_shift.{k}", ("self", "other")) for k in kinds)
    forms += tuple(form(f"{dunder}.{k}", ("self", "other")) for k in ("Tensor", "Scalar"))

    def reference(a: Any, b: Any, attrs: Attrs) -> Any:
        wide = np.result_type(np.asarray(a), np.asarray(b)) if not isinstance(b, int) else a.dtype
        return SCALAR_OPS[leaf].reference(np.asarray(a, wide), np.asarray(b, wide))

    return elementwise(
        f"{name}_shift", forms, without_attrs(lambda a, b: apply(leaf, a, b)), reference,
        (sample(("i64", (5,)), ("i64", (5,))), sample(("i32", (5,)), 3),
         sample(("u8", (4,)), 1)),
        types=pointwise(_whole),
    )  # fmt: skip


OPS: tuple[Op, ...] = (
    *(_comparison(*row) for row in COMPARISONS),
    _logical("logical_and", 2, np.logical_and, "And"),
    _logical("logical_or", 2, np.logical_or, "Or"),
    _logical("logical_xor", 2, np.logical_xor, "Xor"),
    _logical("logical_not", 1, np.logical_not, "Not"),
    _bitwise("and", "logical_and", np.bitwise_and),
    _bitwise("or", "logical_or", np.bitwise_or),
    _bitwise("xor", "logical_xor", np.bitwise_xor),
    elementwise("bitwise_not", default_form("bitwise_not"),
                without_attrs(_bits("bitwise_not", "logical_not")), plain(np.invert),
                INTS + BOOLS, types=pointwise(_whole)),
    _shift("left", "shl", "__lshift__"),
    _shift("right", "shr", "__rshift__"),
    _test("isnan", m.isnan, np.isnan),
    _test("isinf", lambda x: Apply("isinf", (x,), bool_) if x.dtype.is_float
          else m.const(False, bool_), np.isinf),
    _test("isfinite", _finite, np.isfinite),
    _test("isposinf", _infinite(1), np.isposinf),
    _test("isneginf", _infinite(-1), np.isneginf),
    _test("signbit", lambda x: Apply("signbit", (x,), bool_), np.signbit),
)  # fmt: skip
