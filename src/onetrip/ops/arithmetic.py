"""Elementwise arithmetic and elementary functions. Formulas follow eager's contiguous CPU kernels.

Nothing here knows how a value is stored: bodies see operands in operation precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.dtype import DType, bf16, bool_
from ..base.sym import Sym
from ..ir.expr import Apply, Const, Expr, apply
from . import arith as m
from .rows import (
    BOOLS,
    FLOATS,
    INT_PAIRS,
    INTS,
    MIXED_PAIRS,
    PAIRS,
    binary,
    binary_forms,
    bounded,
    default_form,
    elementwise,
    form,
    in_common_float,
    in_output,
    plain,
    sample,
    selecting,
    unary,
    with_attrs,
    without_attrs,
)  # fmt: skip
from .rules import (
    Arg,
    broadcast,
    check_compiled,
    first,
    laid_out,
    like_first,
    pointwise,
    promoted,
    promoted_float,
)  # fmt: skip
from .scalar import SCALAR_OPS
from .schema import Attrs, Form, Op

FLOAT_PAIRS = PAIRS + MIXED_PAIRS
NUMERIC_PAIRS = tuple(s for s in MIXED_PAIRS if s.operands[0][0] != "bool")
BOTH = (0, 1)


def _scaled(x: Expr, alpha: Any) -> Expr:
    return m.mul(x, m.place(alpha, x.dtype) if isinstance(alpha, Sym) else m.const(alpha, x.dtype))


def _add(a: Expr, b: Expr, attrs: Attrs, sign: int = 1) -> Expr:
    """a + alpha * b; a fused multiply-add for floats, as eager's vector kernel spells it."""
    alpha = attrs.get("alpha", 1)
    if a.dtype is bool_:
        return m.either(a, b)
    if not isinstance(alpha, Sym) and alpha == 1:
        return m.add(a, b) if sign > 0 else m.sub(a, b)
    if a.dtype.is_float and not isinstance(alpha, Sym):
        number = m.const(alpha, a.dtype if attrs["gpu"] else attrs["common"]).value
        return m.fma(sign * number, b, a)
    return m.add(a, _scaled(b, alpha)) if sign > 0 else m.sub(a, _scaled(b, alpha))


def _reference_add(a: Any, b: Any, attrs: Attrs) -> Any:
    if np.result_type(np.asarray(a), np.asarray(b)).kind == "b":
        return np.logical_or(a, b)
    return a + np.multiply(b, attrs.get("alpha", 1))


def _sub(a: Expr, b: Expr, attrs: Attrs) -> Expr:
    return _add(a, b, attrs, -1)


def _rsub(a: Expr, b: Expr, attrs: Attrs) -> Expr:
    return _add(b, a, attrs, -1)


def _mul(a: Expr, b: Expr) -> Expr:
    return m.both(a, b) if a.dtype is bool_ else m.mul(a, b)


_DIVISIONS = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}


def _div(a: Expr, b: Expr, attrs: Attrs) -> Expr:
    """a / b; rounded quotients of two half-precision tensors round between the steps."""
    mode = attrs.get("rounding_mode")
    if attrs["gpu"] and mode is None and isinstance(b, Const) and a.dtype.is_float:
        return m.mul(a, m.div(1, b))
    steps = attrs["common"].compute is not attrs["common"] and not isinstance(b, Const)
    if mode is None or not steps:
        return apply(_DIVISIONS[mode], a, b)
    return _stepwise(a, b, mode, attrs["common"])


def _stepwise(a: Expr, b: Expr, mode: str, common: DType) -> Expr:
    """trunc(a / b) or floor(a / b) with every step rounded to `common`."""

    def near(e: Expr) -> Expr:
        return m.rounded(e, common)

    quotient = near(m.div(a, b))
    if mode == "trunc":
        return apply("trunc", quotient)
    rest = apply("fmod", a, b)
    whole = near(m.div(near(m.sub(a, rest)), b))
    unlike = m.ne(m.lt(b, 0), m.lt(rest, 0))
    whole = m.where(m.both(m.ne(rest, 0), unlike), near(m.sub(whole, 1)), whole)
    floor = apply("floor", whole)
    floor = m.where(m.gt(near(m.sub(whole, floor)), 0.5), near(m.add(floor, 1)), floor)
    zero = apply("copysign", m.const(0, a.dtype), quotient)
    return m.where(m.eq(b, 0), quotient, m.where(m.eq(whole, 0), zero, floor))


def _quotient(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """True division of integers gives floats; the rounded ones keep the common dtype."""
    rounded = attrs.get("rounding_mode") is not None
    return promoted(operands) if rounded else promoted_float(operands)


def _reference_div(a: Any, b: Any, attrs: Attrs) -> Any:
    mode = attrs.get("rounding_mode")
    if mode is None:
        return np.true_divide(a, b)
    a, b = np.asarray(a), np.asarray(b)
    a, b = a.astype(np.result_type(a, b)), b.astype(np.result_type(a, b))
    return SCALAR_OPS[_DIVISIONS[mode]].reference(a, b)


def _nonzero(b: Any) -> Any:
    """b, with 1 for integer zeros: dividing by those is an error that kernels report."""
    return np.where(np.equal(b, 0) & (np.asarray(b).dtype.kind in "iu"), 1, b)


def _reciprocal(x: Expr) -> Expr:
    return m.div(1, x)


_POWERS: dict[float, Callable[[Expr, DType], Expr]] = {
    0.0: lambda x, d: m.const(1, x.dtype),
    1.0: lambda x, d: x,
    2.0: lambda x, d: m.mul(x, x),
    3.0: lambda x, d: m.mul(m.rounded(m.mul(x, x), d), x),
    0.5: lambda x, d: m.sqrt(x),
    -0.5: lambda x, d: m.rsqrt(x),
    -1.0: lambda x, d: _reciprocal(x),
    -2.0: lambda x, d: m.div(1, m.rounded(m.mul(x, x), d)),
}
"""Exponents that eager spells without a power function (x ** y, y a number); d: its rounding."""


def _pow(a: Expr, b: Expr, attrs: Attrs) -> Expr:
    if isinstance(b, Const) and a.dtype.is_float and float(b.value) in _POWERS:
        return _POWERS[float(b.value)](a, attrs["common"])
    return m.power(a, b)


def _rounding(op: str) -> Any:
    return lambda x: apply(op, x) if x.dtype.is_float else x


def _lerp(a: Expr, b: Expr, w: Expr) -> Expr:
    """Both halves from the nearer end: a + w (b - a) where |w| < 1/2, else b + (w - 1)(b - a)."""
    near = m.lt(m.absolute(w), 0.5)
    return m.fma(m.where(near, w, m.sub(w, 1)), m.sub(b, a), m.where(near, a, b))


def _addcmul(a: Expr, b: Expr, c: Expr, attrs: Attrs) -> Expr:
    """a + (value * b) * c, the last two steps fused for floats."""
    scaled = _scaled(b, attrs.get("value", 1))
    return m.fma(scaled, c, a) if a.dtype.is_float else m.add(a, m.mul(scaled, c))


def _addcdiv(a: Expr, b: Expr, c: Expr, attrs: Attrs) -> Expr:
    """a + value * b / c."""
    return m.add(a, m.div(_scaled(b, attrs.get("value", 1)), c))


def _extreme(op: str, on_bool: Any) -> Any:
    return lambda a, b: on_bool(a, b) if a.dtype is bool_ else apply(op, a, b)


def _ignoring_nan(op: str, whole: str) -> Any:
    """Of two equal zeros the first, as eager's CPU kernels have it; its bf16 one the second."""

    def body(a: Expr, b: Expr, attrs: Attrs) -> Expr:
        if not a.dtype.is_float:
            return apply(whole, a, b)
        larger = apply(op, a, b)
        return m.where(m.eq(a, b), b, larger) if attrs["common"] is bf16 else larger

    return with_attrs(body)


def _above(x: Expr, low: Expr) -> Expr:
    """max(x, low); NaN and the sign of zero are x's, as in eager's clamp."""
    return m.where(m.lt(x, low), low, x)


def _below(x: Expr, high: Expr) -> Expr:
    return m.where(m.gt(x, high), high, x)


def _clamp(x: Expr, attrs: Attrs) -> Expr:
    """Between two numbers; a number that is NaN makes every element NaN, as in eager."""
    low, high = (attrs.get(k) for k in ("min", "max"))
    if any(isinstance(b, float) and math.isnan(b) for b in (low, high)):
        return m.const(math.nan, x.dtype)
    if low is not None:
        x = _above(x, _bound(low, x.dtype))
    return x if high is None else _below(x, _bound(high, x.dtype))


def _bound(value: Any, dtype: DType) -> Expr:
    return m.place(value, dtype) if isinstance(value, Sym) else m.const(value, dtype)


def _clamp_dtype(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    bounds = (attrs.get(k) for k in ("min", "max"))
    return promoted((*operands, *(b for b in bounds if b is not None)))


def _clamp_tensors(xs: tuple[Expr, ...], attrs: Attrs) -> Expr:
    x, *bounds = xs
    if attrs.get("has_min", True):
        x = m.maximum(x, bounds.pop(0))
    return m.minimum(x, bounds.pop(0)) if attrs.get("has_max", True) else x


def _reference_clamp(x: Any, attrs: Attrs) -> Any:
    for key, fn in (("min", np.maximum), ("max", np.minimum)):
        if attrs.get(key) is not None:
            x = fn(x, attrs[key])
    return x


def _reference_clamp_tensors(x: Any, *rest: Any) -> Any:
    *bounds, attrs = rest
    if attrs.get("has_min", True):
        x = np.maximum(x, bounds.pop(0))
    return np.minimum(x, bounds.pop(0)) if attrs.get("has_max", True) else x


def _choose(condition: Expr, a: Expr, b: Expr) -> Expr:
    return m.where(m.truth(condition), a, b)


def _chosen(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    return promoted(operands[1:])


def _fill_type(operands: tuple[Arg, ...], attrs: Attrs) -> Any:
    x, mask = operands[:2]
    check_compiled(x.dtype)
    return (laid_out(x.dtype, broadcast([x.shape, mask.shape]), (x,)),)


def _fill_dtypes(operands: tuple[Arg, ...], out: Any, attrs: Attrs) -> tuple[DType, ...]:
    return (out.dtype.compute, bool_, out.dtype.compute)


def _xlogy(x: Expr, y: Expr, attrs: Attrs) -> Expr:
    """x log(y); 0 where x is 0, unless y is NaN."""
    zero = m.both(m.eq(x, 0), m.negation(m.isnan(y)))
    return m.where(zero, 0.0, m.mul(x, m.rounded(m.log(y), attrs["common"])))


def _reference_xlogy(x: Any, y: Any) -> Any:
    return np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log(y))


def _logaddexp(a: Expr, b: Expr) -> Expr:
    """max + log1p(exp(-|a - b|)); equal infinities stay."""
    same = m.both(m.eq(a, b), Apply("isinf", (a,), bool_))
    tail = m.log1p(m.exp(m.neg(m.absolute(m.sub(a, b)))))
    return m.where(same, a, m.add(m.maximum(a, b), tail))


def _function(name: str, onnx: tuple[str, ...] = (), **more: Any) -> Op:
    """A float function that is one scalar operator."""
    leaf = SCALAR_OPS[name]
    return unary(
        name, lambda x: apply(leaf.name, x), lambda x: leaf.reference(np.asarray(x, float)),
        onnx=onnx, **more,
    )  # fmt: skip


def _same(name: str, body: Any, fn: Any, **more: Any) -> Op:
    """A unary operator that keeps its operand's dtype."""
    samples = more.pop("samples", FLOATS + INTS)
    return unary(name, body, fn, types=like_first(), samples=samples, **more)


FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "sigmoid",
    "sqrt", "rsqrt",
)  # fmt: skip
_ONNX = {
    "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid",
    "sqrt": "Sqrt",
}  # fmt: skip
ALPHA = ("alpha",)
MODES = (
    sample(("f32", (3, 4)), ("f32", (3, 4)), rounding_mode="floor"),
    sample(("f32", (3, 4)), ("f32", (3, 4)), rounding_mode="trunc"),
    sample(("i64", (9,)), ("i64", (9,)), rounding_mode="floor"),
    sample(("i64", (9,)), ("i64", (9,)), rounding_mode="trunc"),
    sample(("i32", (9,)), 3, rounding_mode="trunc"),
)
SCALED = (
    sample(("f32", (3, 4)), ("f32", (3, 4)), alpha=0.3),
    sample(("bf16", (3, 4)), ("bf16", (3, 4)), alpha=2),
    sample(("i64", (4,)), ("i64", (4,)), alpha=3),
)
TRIPLES = (
    sample(("f32", (3, 4)), ("f32", (3, 4)), ("f32", (4,)), value=0.3),
    sample(("bf16", (3, 4)), ("bf16", (3, 4)), ("bf16", (3, 4)), value=0.3),
    sample(("f32", (3, 4)), ("f32", (3, 4)), ("f32", (3, 4))),
)

OPS: tuple[Op, ...] = (
    elementwise("add", binary_forms("add", ALPHA), with_attrs(_add),
                _reference_add,
                PAIRS + INT_PAIRS + MIXED_PAIRS + SCALED
                + (sample(("bool", (4,)), ("bool", (4,))),), rounds=BOTH, rounds_on_gpu=(),
                onnx=("Add",)),
    elementwise("sub", binary_forms("sub", ALPHA), with_attrs(_sub),
                lambda a, b, at: a - np.multiply(b, at.get("alpha", 1)),
                PAIRS + INT_PAIRS + NUMERIC_PAIRS + SCALED, rounds=BOTH, rounds_on_gpu=(),
                onnx=("Sub",)),
    elementwise("rsub", binary_forms("rsub", ALPHA), with_attrs(_rsub),
                lambda a, b, at: b - np.multiply(a, at.get("alpha", 1)),
                PAIRS + INT_PAIRS + NUMERIC_PAIRS + SCALED, rounds=BOTH, rounds_on_gpu=()),
    binary("mul", _mul, np.multiply, onnx=("Mul",)),
    elementwise("div", (*binary_forms("div"), *binary_forms("true_divide"),
                        *(form(f"div.{k}", ("self", "other"), ("rounding_mode",))
                          for k in ("Tensor_mode", "Scalar_mode")),
                        form("floor_divide.default", ("self", "other"), rounding_mode="floor"),
                        form("floor_divide.Scalar", ("self", "other"), rounding_mode="floor")),
                with_attrs(_div), _reference_div, PAIRS + INT_PAIRS[:3] + MIXED_PAIRS + MODES,
                types=pointwise(_quotient), compute=in_output, rounds=(0,), onnx=("Div",)),
    binary("remainder", lambda a, b: apply("remainder", a, b),
           lambda a, b: np.remainder(a, _nonzero(b)),
           forms=(*binary_forms("remainder"),
                  form("remainder.Scalar_Tensor", ("self", "other"))),
           rounds=BOTH),
    binary("fmod", lambda a, b: apply("fmod", a, b),
           lambda a, b: np.fmod(a, _nonzero(b)), onnx=("Mod",), rounds=BOTH),
    elementwise("pow", (
                  form("pow.Tensor_Tensor", ("self", "exponent")),
                  form("pow.Tensor_Scalar", ("self", "exponent")),
                  form("pow.Scalar", ("self", "exponent"))),
           with_attrs(_pow), plain(np.power),
           (*(sample(("f32", (3, 4)), e) for e in (2, 3, 0.5, -0.5, -1, -2, 1.7, 0)),
              sample(("bf16", (5,)), 2), sample(("f32", (4,)), ("f32", (4,))),
              sample(2.0, ("f32", (4,))), sample(("i64", (4,)), 3),
              sample(("i64", (4,)), 0.5)), rounds=BOTH, onnx=("Pow",)),
    _same("square", lambda x: m.mul(x, x), np.square),
    _same("neg", m.neg, np.negative, onnx=("Neg",)),
    _same("abs", m.absolute, np.abs, onnx=("Abs",)),
    _same("sign", lambda x: apply("sign", x), SCALAR_OPS["sign"].reference, onnx=("Sign",)),
    _same("sgn", lambda x: apply("sign", x), SCALAR_OPS["sign"].reference),
    _same("positive", lambda x: x, np.positive, target="positive", samples=FLOATS),
    _same("floor", _rounding("floor"), np.floor, onnx=("Floor",)),
    _same("ceil", _rounding("ceil"), np.ceil, onnx=("Ceil",)),
    _same("trunc", _rounding("trunc"), np.trunc),
    _same("round", _rounding("round"), np.rint, onnx=("Round",)),
    _same("frac", lambda x: m.sub(x, apply("trunc", x)), lambda x: x - np.trunc(x),
          samples=FLOATS),
    unary("reciprocal", _reciprocal, lambda x: 1 / x, onnx=("Reciprocal",)),
    *(_function(n, (_ONNX[n],) if n in _ONNX else ()) for n in FUNCTIONS),
    elementwise("maximum", default_form("maximum", ("self", "other")),
                without_attrs(_extreme("maximum", m.either)), plain(np.maximum),
                PAIRS[:5] + INT_PAIRS[:2], onnx=("Max",)),
    elementwise("minimum", default_form("minimum", ("self", "other")),
                without_attrs(_extreme("minimum", m.both)), plain(np.minimum),
                PAIRS[:5] + INT_PAIRS[:2], onnx=("Min",)),
    elementwise("fmax", default_form("fmax", ("self", "other")),
                _ignoring_nan("fmax", "maximum"), plain(np.fmax),
                PAIRS[:5] + INT_PAIRS[:2]),
    elementwise("fmin", default_form("fmin", ("self", "other")),
                _ignoring_nan("fmin", "minimum"), plain(np.fmin),
                PAIRS[:5] + INT_PAIRS[:2]),
    elementwise("clamp", (form("clamp.default", ("self",), ("min", "max")),
                          form("clamp_min.default", ("self",), ("min",)),
                          form("clamp_max.default", ("self",), ("max",))),
                with_attrs(_clamp), _reference_clamp,
                (sample(("f32", (3, 4)), min=-0.3, max=0.4), sample(("bf16", (5,)), min=0.3),
                 sample(("i64", (5,)), max=1), sample(("i64", (5,)), min=0.5),
                 sample(("f32", (5,)), min=1, max=-1),
                 sample(("f32", (5,)), min=0, max=math.nan)),
                types=pointwise(_clamp_dtype), compute=in_output, onnx=("Clip",)),
    elementwise("clamp_tensor", (form("clamp.Tensor", ("self", "min?", "max?")),
                                 form("clamp_min.Tensor", ("self", "min"), has_max=False),
                                 form("clamp_max.Tensor", ("self", "max"), has_min=False)),
                _clamp_tensors, _reference_clamp_tensors,
                (sample(("f32", (3, 4)), ("f32", (4,)), ("f32", (3, 1)),
                        has_min=True, has_max=True),
                 sample(("f32", (3, 4)), ("f32", (4,)), has_min=True, has_max=False),
                 sample(("i64", (4,)), ("i64", (4,)), has_min=False, has_max=True))),
    elementwise("where", tuple(form(f"where.{k}", ("condition", "self", "other"))
                               for k in ("self", "ScalarSelf", "ScalarOther", "Scalar")),
                without_attrs(_choose), plain(np.where),
                (sample(("bool", (3, 4)), ("f32", (3, 4)), ("f32", (4,))),
                 sample(("bool", (3, 1)), ("bf16", (3, 4)), 0.3),
                 sample(("bool", (3,)), ("i64", (3,)), ("f32", (3,)))),
                types=pointwise(_chosen), compute=selecting, onnx=("Where",)),
    elementwise("masked_fill", tuple(form(f"masked_fill.{k}", ("self", "mask", "value"))
                                     for k in ("Scalar", "Tensor")),
                without_attrs(lambda x, mask, v: m.where(mask, v, x)),
                plain(lambda x, mask, v: np.where(mask, v, x)),
                (sample(("f32", (3, 4)), ("bool", (3, 4)), -math.inf),
                 sample(("bf16", (3, 4)), ("bool", (4,)), 0.3),
                 sample(("f32", (3, 4)), ("bool", (3, 1)), ("f32", ()))),
                types=_fill_type, compute=_fill_dtypes),
    binary("copysign", lambda a, b: apply("copysign", a, b), np.copysign,
           types=pointwise(promoted_float), compute=in_output, samples=FLOAT_PAIRS),
    elementwise("atan2", default_form("atan2", ("self", "other")),
                without_attrs(lambda a, b: apply("atan2", a, b)), plain(np.arctan2), PAIRS[:5],
                rounds=BOTH, types=pointwise(promoted_float), compute=in_output),
    elementwise("hypot", default_form("hypot", ("self", "other")),
                without_attrs(lambda a, b: apply("hypot", a, b)), plain(np.hypot), PAIRS[:5],
                rounds=BOTH),
    bounded(elementwise("xlogy", (form("xlogy.Tensor", ("self", "other")),
                          form("xlogy.Scalar_Self", ("self", "other")),
                          form("xlogy.Scalar_Other", ("self", "other"))),
                with_attrs(_xlogy), plain(_reference_xlogy), PAIRS, rounds=BOTH,
                types=pointwise(promoted_float), compute=in_common_float)),
    elementwise("logaddexp", default_form("logaddexp", ("self", "other")),
                without_attrs(_logaddexp), plain(np.logaddexp), PAIRS[:3],
                rounds=BOTH),
    elementwise("lerp", (form("lerp.Scalar", ("self", "end", "weight")),
                         form("lerp.Tensor", ("self", "end", "weight"))),
                without_attrs(_lerp), plain(lambda a, b, w: a + w * (b - a)),
                (sample(("f32", (3, 4)), ("f32", (3, 4)), 0.3),
                 sample(("bf16", (3, 4)), ("bf16", (3, 4)), 0.7),
                 sample(("f32", (3, 4)), ("f32", (4,)), ("f32", (3, 4)))),
                types=pointwise(first), compute=in_output),
    elementwise("addcmul", default_form("addcmul", ("self", "tensor1", "tensor2"), ("value",)),
                with_attrs(_addcmul),
                lambda a, b, c, at: a + at.get("value", 1) * b * c, TRIPLES),
    elementwise("addcdiv", default_form("addcdiv", ("self", "tensor1", "tensor2"), ("value",)),
                with_attrs(_addcdiv),
                lambda a, b, c, at: a + at.get("value", 1) * b / c, TRIPLES,
                types=pointwise(promoted_float), compute=in_output),
    elementwise("multiply_add", (Form("prims.fma.default", ("a", "b", "c")),),
                without_attrs(m.fma), plain(lambda a, b, c: a * b + c),
                tuple(sample(*s.operands[:2], ("f32", (3, 4))) for s in TRIPLES[:1]),
                doc="a * b + c, rounded once: what eager's vector kernels compile to."),
    elementwise("clone", default_form("clone"),
                without_attrs(lambda x: x), plain(lambda x: x), FLOATS + INTS + BOOLS,
                types=like_first(), compute=lambda xs, out, at: (out.dtype,), onnx=("Identity",)),
)  # fmt: skip
