"""Activations and their pointwise gradients, in the order of operations of eager's vector kernels.

Every formula keeps one rounding at the end; nothing here knows storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtype import f32
from ..ir.expr import Expr
from . import arith as m
from .arith import add, div, mul, neg, sub, where
from .normal import bell, share_below
from .rows import (
    bounded,
    default_form,
    elementwise,
    in_output,
    sample,
    with_attrs,
)  # fmt: skip
from .rules import first, like_first, pointwise, promoted_float
from .scalar import SCALAR_OPS
from .schema import Attrs, Op, Sample

SQRT_HALF = math.sqrt(0.5)
TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBE = 0.044715
DENSITY = 1 / math.sqrt(2 * math.pi)
_erf = SCALAR_OPS["erf"].reference


def _relu(x: Expr, at: Attrs) -> Expr:
    return where(m.lt(x, 0), 0, x)


def _relu6(x: Expr, at: Attrs) -> Expr:
    return _between(x, 0, 6)


def _hardtanh(x: Expr, at: Attrs) -> Expr:
    return _between(x, at.get("min_val", -1), at.get("max_val", 1))


def _between(x: Expr, low: float, high: float) -> Expr:
    """min(max(x, low), high), with the sign of x's zero and its NaN; a NaN bound makes all NaN."""
    if math.isnan(low) or math.isnan(high):
        return m.const(math.nan, x.dtype)
    x = where(m.lt(x, low), low, x)
    return where(m.gt(x, high), high, x)


def _leaky_relu(x: Expr, at: Attrs) -> Expr:
    one = m.const(1, x.dtype)
    return mul(x, where(m.gt(x, 0), one, at.get("negative_slope", 0.01)))


def _elu(x: Expr, at: Attrs) -> Expr:
    """scale * x above 0, else alpha * scale * expm1(input_scale * x), which keeps a zero's sign."""
    scale = m.const(at.get("scale", 1), x.dtype)
    low = _coefficient(at, x)
    below = mul(m.expm1(mul(x, at.get("input_scale", 1))), low)
    return where(m.gt(x, 0), mul(x, scale), below)


def _celu(x: Expr, at: Attrs) -> Expr:
    """elu with scale 1 and input scale 1 / alpha, as eager calls it."""
    alpha = at.get("alpha", 1.0)
    return _elu(x, {"alpha": alpha, "scale": 1.0, "input_scale": 1.0 / alpha})


def _prelu(x: Expr, w: Expr, at: Attrs) -> Expr:
    return where(m.gt(x, 0), x, mul(w, x))


def _nan_to_num(x: Expr, at: Attrs) -> Expr:
    """NaN and infinities replaced; absent replacements are 0 and the storage dtype's extremes."""
    if not x.dtype.is_float:
        return x
    top = LARGEST[at["common"].name]
    high, low = at.get("posinf"), at.get("neginf")
    nan = at.get("nan") or 0.0
    y = where(m.eq(x, math.inf), top if high is None else high, x)
    y = where(m.eq(x, -math.inf), -top if low is None else low, y)
    return where(m.isnan(x), nan, y)


def _coefficient(at: Attrs, x: Expr) -> Expr:
    """alpha * scale, rounded as eager does: both factors first."""
    alpha, scale = (m.const(at.get(k, 1), x.dtype).value for k in ("alpha", "scale"))
    return m.const(alpha * scale, x.dtype)


def _inner(x: Expr) -> Expr:
    """sqrt(2/pi) (x + 0.044715 x^3)."""
    return mul(TANH_SCALE, m.fma(TANH_CUBE, mul(mul(x, x), x), x))


def _gelu(x: Expr, at: Attrs) -> Expr:
    if at.get("approximate", "none") == "tanh":
        return mul(mul(0.5, x), add(1, m.tanh(_inner(x))))
    if _from_bell(x, at):
        return mul(x, share_below(x))
    return mul(mul(x, 0.5), add(1, m.erf(mul(x, SQRT_HALF))))


def _from_bell(x: Expr, at: Attrs) -> bool:
    """Whether gelu has no erf: where eager calls oneDNN, whose bits no spelling has."""
    return x.dtype is f32 and not at["gpu"]


def _silu(x: Expr, at: Attrs) -> Expr:
    return div(x, add(1, m.exp(neg(x))))


def _mish(x: Expr, at: Attrs) -> Expr:
    return mul(x, m.tanh(m.log1p(m.exp(x))))


def _softplus(x: Expr, at: Attrs) -> Expr:
    """log1p(exp(beta x)) / beta, and x itself beyond the threshold."""
    scaled = mul(x, at.get("beta", 1))
    curve = div(m.log1p(m.exp(scaled)), at.get("beta", 1))
    return where(m.gt(scaled, at.get("threshold", 20)), x, curve)


def _hard(x: Expr) -> Expr:
    return m.clamp(add(x, 3), 0, 6)


def _hardswish(x: Expr, at: Attrs) -> Expr:
    return div(mul(x, _hard(x)), 6)


def _hardsigmoid(x: Expr, at: Attrs) -> Expr:
    return div(_hard(x), 6)


def _log_sigmoid(x: Expr, at: Attrs) -> Expr:
    """min(x, 0) - log1p(exp(-|x|))."""
    return sub(m.minimum(x, 0), m.log1p(m.exp(neg(m.absolute(x)))))


def _hardshrink(x: Expr, at: Attrs) -> Expr:
    size = m.const(at.get("lambd", 0.5), at["common"]).value
    return where(m.both(m.ge(x, -size), m.le(x, size)), 0, x)


def _softshrink(x: Expr, at: Attrs) -> Expr:
    size = at.get("lambd", 0.5)
    inside = where(m.isnan(x), x, 0)
    low = where(m.lt(x, -size), add(x, size), inside)
    return where(m.gt(x, size), sub(x, size), low)


def _threshold(x: Expr, at: Attrs) -> Expr:
    return where(m.le(x, at["threshold"]), at["value"], x)


def _logit(x: Expr, at: Attrs) -> Expr:
    eps = at.get("eps")
    z = x if eps is None else where(m.lt(x, eps), eps, where(m.gt(x, 1 - eps), 1 - eps, x))
    near = at["common"]
    return m.log(m.rounded(div(z, m.rounded(sub(1, z), near)), near))


def _logit_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    """g / (x (1 - x)) between eps and 1 - eps; 0 beyond them, NaN beyond [0, 1] without eps.

    Eager's CPU kernel rounds every step.
    """
    near = x.dtype if at["gpu"] else at["common"]
    low, beyond = (0.0, math.nan) if at.get("eps") is None else (at["eps"], 0.0)
    low = m.const(low, near).value
    inside = m.both(m.ge(x, low), m.le(x, m.const(1 - low, near).value))
    spread = m.rounded(mul(x, m.rounded(sub(1, x), near)), near)
    return where(inside, div(g, spread), beyond)


def _dropout_backward(g: Expr, mask: Expr, at: Attrs) -> Expr:
    return mul(mul(g, mask), at["scale"])


def _rrelu_backward(g: Expr, x: Expr, noise: Expr, at: Attrs) -> Expr:
    """The slopes drawn in training are the noise; else each is the mean of both bounds."""
    if at["training"] and at["upper"] - at["lower"] > 1e-6:
        return mul(g, noise)
    return where(m.gt(x, 0), g, mul(g, (at["lower"] + at["upper"]) / 2))


def _threshold_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    return where(m.le(x, at.get("threshold", 0)), 0, g)


def _sigmoid_backward(g: Expr, y: Expr, at: Attrs) -> Expr:
    return mul(mul(g, sub(1, y)), y)


def _tanh_backward(g: Expr, y: Expr, at: Attrs) -> Expr:
    return mul(g, m.fma(neg(y), y, m.const(1, y.dtype)))


def _gelu_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    if at.get("approximate", "none") == "tanh":
        return mul(g, _gelu_tanh_slope(x))
    erf = mul(0.5, add(1, m.erf(mul(x, SQRT_HALF))))
    below = share_below(x) if _from_bell(x, at) else erf
    return mul(g, add(below, mul(x, mul(DENSITY, bell(x)))))


def _gelu_tanh_slope(x: Expr) -> Expr:
    t = m.tanh(_inner(x))
    cube = m.const(3 * m.const(TANH_CUBE, x.dtype).value, x.dtype)
    one = m.const(1, x.dtype)
    steep = mul(TANH_SCALE, m.fma(cube, mul(x, x), one))
    right = mul(mul(mul(0.5, x), m.fma(neg(t), t, one)), steep)
    return add(mul(0.5, add(1, t)), right)


def _silu_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    s = div(1, add(1, m.exp(neg(x))))
    return mul(mul(g, s), m.fma(x, sub(1, s), m.const(1, x.dtype)))


def _mish_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    s = div(1, add(1, m.exp(neg(x))))
    t = m.tanh(m.log1p(m.exp(x)))
    return mul(g, m.fma(mul(x, s), m.fma(neg(t), t, m.const(1, x.dtype)), t))


def _leaky_relu_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    one = m.const(1, x.dtype)
    return mul(g, where(m.gt(x, 0), one, at["negative_slope"]))


def _elu_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    scale, inner, low = at["scale"], at["input_scale"], _coefficient(at, x)
    if at["is_result"]:
        below = mul(mul(g, inner), add(x, low))
    else:
        below = mul(mul(mul(g, inner), low), m.exp(mul(x, inner)))
    return where(m.gt(x, 0), mul(g, scale), below)


def _softplus_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    scaled = mul(x, at["beta"])
    z = m.exp(scaled)
    return where(m.gt(scaled, at["threshold"]), g, div(mul(g, z), add(z, 1)))


def _hardtanh_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    return where(m.both(m.gt(x, at["min_val"]), m.lt(x, at["max_val"])), g, 0)


def _hardswish_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    inside = mul(g, add(div(x, 3), 0.5))
    return where(m.le(x, -3), 0, where(m.ge(x, 3), g, inside))


def _hardsigmoid_backward(g: Expr, x: Expr, at: Attrs) -> Expr:
    sixth = m.const(m.const(1 / 6, f32).value, x.dtype)
    return where(m.both(m.gt(x, -3), m.lt(x, 3)), mul(g, sixth), 0)


def _log_sigmoid_backward(g: Expr, x: Expr, buffer: Expr, at: Attrs) -> Expr:
    """The saved exp(-|x|) is recomputed when the buffer is empty, as on a GPU."""
    negative = m.lt(x, 0)
    one = m.const(1, x.dtype)
    share = div(buffer, add(1, buffer))
    slope = sub(where(negative, one, 0), mul(where(negative, one, -1), share))
    return mul(slope, g)


ONE = (sample(("f32", (3, 5))), sample(("bf16", (2, 9))), sample(("f64", (4,))))


def _one(**attrs: Any) -> tuple[Sample, ...]:
    return tuple(sample(*s.operands, **attrs) for s in ONE)


def _two(**attrs: Any) -> tuple[Sample, ...]:
    return tuple(sample(*s.operands, *s.operands, **attrs) for s in ONE)


def _activation(
    name: str,
    body: Callable[..., Expr],
    fn: Callable[..., Any],
    attrs: Sequence[str] = (),
    samples: Sequence[Sample] = ONE,
    onnx: tuple[str, ...] = (),
) -> Op:
    return elementwise(
        name, default_form(name, ("self",), attrs), with_attrs(body), fn, samples,
        types=like_first(), compute=in_output, onnx=onnx,
    )  # fmt: skip


def _gradient(
    name: str,
    operands: Sequence[str],
    body: Callable[..., Expr],
    fn: Callable[..., Any],
    attrs: Sequence[str] = (),
    samples: Sequence[Sample] | None = None,
) -> Op:
    return elementwise(
        name, default_form(name, operands, attrs), with_attrs(body), fn,
        _two() if samples is None else samples, types=pointwise(first), compute=in_output,
    )  # fmt: skip


def _np_gelu(x: Any, at: Attrs) -> Any:
    if at.get("approximate") == "tanh":
        return 0.5 * x * (1 + np.tanh(TANH_SCALE * (x + TANH_CUBE * x**3)))
    return 0.5 * x * (1 + _erf(x * SQRT_HALF))


def _np_gelu_backward(g: Any, x: Any, at: Attrs) -> Any:
    if at.get("approximate") == "tanh":
        t = np.tanh(TANH_SCALE * (x + TANH_CUBE * x**3))
        steep = TANH_SCALE * (1 + 3 * TANH_CUBE * x**2)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * steep)
    return g * (0.5 * (1 + _erf(x * SQRT_HALF)) + x * DENSITY * np.exp(-0.5 * x * x))


def _np_elu(x: Any, at: Attrs) -> Any:
    low = at.get("alpha", 1) * np.expm1(at.get("input_scale", 1) * np.minimum(x, 0))
    return at.get("scale", 1) * np.where(x > 0, x, low)


def _np_elu_backward(g: Any, x: Any, at: Attrs) -> Any:
    a, s, i = at["alpha"], at["scale"], at["input_scale"]
    below = g * i * (x + a * s) if at["is_result"] else g * i * a * s * np.exp(x * i)
    return np.where(x > 0, g * s, below)


def _np_nan_to_num(x: Any, at: Attrs) -> Any:
    high, low = at.get("posinf"), at.get("neginf")
    return np.nan_to_num(x, nan=at.get("nan") or 0.0, posinf=high, neginf=low)


def _np_silu_backward(g: Any, x: Any, at: Attrs) -> Any:
    s = 1 / (1 + np.exp(-x))
    return g * s * (1 + x * (1 - s))


def _np_mish_backward(g: Any, x: Any, at: Attrs) -> Any:
    t = np.tanh(np.log1p(np.exp(x)))
    return g * (t + x * (1 - t * t) / (1 + np.exp(-x)))


def _np_softplus(x: Any, at: Attrs) -> Any:
    b = at.get("beta", 1)
    return np.where(x * b > at.get("threshold", 20), x, np.log1p(np.exp(x * b)) / b)


def _np_logit(x: Any, at: Attrs) -> Any:
    z = x if at.get("eps") is None else np.clip(x, at["eps"], 1 - at["eps"])
    return np.log(z / (1 - z))


def _np_logit_backward(g: Any, x: Any, at: Attrs) -> Any:
    low, beyond = (0.0, math.nan) if at.get("eps") is None else (at["eps"], 0.0)
    return np.where((x < low) | (x > 1 - low), beyond, g / (x * (1 - x)))


def _np_rrelu_backward(g: Any, x: Any, noise: Any, at: Attrs) -> Any:
    if at["training"]:
        return g * noise
    return np.where(x > 0, g, g * (at["lower"] + at["upper"]) / 2)


def _np_softshrink(x: Any, at: Attrs) -> Any:
    size = at.get("lambd", 0.5)
    return np.where(np.abs(x) > size, x - np.sign(x) * size, 0)


def _np_log_sigmoid_backward(g: Any, x: Any, b: Any, at: Attrs) -> Any:
    return np.where(x < 0, 1 - b / (1 + b), b / (1 + b)) * g


LARGEST = {
    "bf16": 255 * 2.0**120, "f16": 65504.0, "f32": (2 - 2.0**-23) * 2.0**127,
    "f64": (2 - 2.0**-52) * 2.0**1023,
}  # fmt: skip
"""The largest finite value of each float."""
ELU = {"alpha": 1.3, "scale": 1.1, "input_scale": 0.7}
OPS: tuple[Op, ...] = (
    _activation("relu", _relu, lambda x, at: np.maximum(x, 0), onnx=("Relu",),
                samples=(*ONE, sample(("i64", (5,))))),
    _activation("relu6", _relu6, lambda x, at: np.clip(x, 0, 6)),
    _activation("hardtanh", _hardtanh,
                lambda x, at: np.clip(x, at.get("min_val", -1), at.get("max_val", 1)),
                ("min_val", "max_val"), ONE + _one(min_val=-0.3, max_val=0.6)),
    _activation("leaky_relu", _leaky_relu,
                lambda x, at: np.where(x > 0, x, x * at.get("negative_slope", 0.01)),
                ("negative_slope",), ONE + _one(negative_slope=0.2), ("LeakyRelu",)),
    _activation("elu", _elu, _np_elu, ("alpha", "scale", "input_scale"), ONE + _one(**ELU),
                ("Elu",)),
    _activation("celu", _celu, lambda x, at: np.where(
                    x > 0, x, at.get("alpha", 1) * np.expm1(np.minimum(x, 0) / at.get("alpha", 1))),
                ("alpha",), ONE + _one(alpha=0.7), ("Celu",)),
    elementwise("prelu", default_form("_prelu_kernel", ("self", "weight")),
                with_attrs(_prelu), lambda x, w, at: np.where(x > 0, x, w * x),
                _two(), compute=in_output, onnx=("PRelu",)),
    _activation("nan_to_num", _nan_to_num, _np_nan_to_num, ("nan", "posinf", "neginf"),
                ONE + _one(nan=2.0, posinf=3.0, neginf=-1.0)),
    _activation("gelu", _gelu, _np_gelu, ("approximate",), ONE + _one(approximate="tanh"),
                ("Gelu",)),
    _activation("silu", _silu, lambda x, at: x / (1 + np.exp(-x))),
    _activation("mish", _mish, lambda x, at: x * np.tanh(np.log1p(np.exp(x))), onnx=("Mish",)),
    _activation("softplus", _softplus, _np_softplus, ("beta", "threshold"),
                ONE + _one(beta=2, threshold=1), ("Softplus",)),
    _activation("hardswish", _hardswish, lambda x, at: x * np.clip(x + 3, 0, 6) / 6,
                onnx=("HardSwish",)),
    _activation("hardsigmoid", _hardsigmoid, lambda x, at: np.clip(x + 3, 0, 6) / 6,
                onnx=("HardSigmoid",)),
    elementwise("log_sigmoid", (), with_attrs(_log_sigmoid),
                lambda x, at: -np.logaddexp(0, -x), ONE, types=like_first(), compute=in_output),
    _activation("hardshrink", _hardshrink,
                lambda x, at: np.where(np.abs(x) > at.get("lambd", 0.5), x, 0), ("lambd",)),
    _activation("softshrink", _softshrink, _np_softshrink, ("lambd",)),
    _activation("threshold", _threshold,
                lambda x, at: np.where(x <= at["threshold"], at["value"], x),
                ("threshold", "value"), _one(threshold=0.1, value=-0.5)),
    bounded(elementwise("logit", default_form("logit", ("self",), ("eps",)), with_attrs(_logit),
                _np_logit,
                (*(sample((f"{x[0]}%", x[1])) for s in ONE for x in s.operands),
                 *_one(eps=0.2), sample(("i64", (5,)), eps=0.2)),
                types=like_first(dtype=promoted_float), compute=in_output)),
    _gradient("logit_backward", ("grad_output", "self"), _logit_backward, _np_logit_backward,
              ("eps",), (sample(("f32", (3, 5)), ("f32%", (3, 5))), *_two(eps=0.2))),
    _gradient("native_dropout_backward", ("grad_output", "mask"), _dropout_backward,
              lambda g, mask, at: g * mask * at["scale"], ("scale",),
              (sample(("f32", (3, 5)), ("bool", (3, 5)), scale=1.25),
               sample(("bf16", (9,)), ("bool", (9,)), scale=1.3))),
    _gradient("rrelu_with_noise_backward", ("grad_output", "self", "noise"), _rrelu_backward,
              _np_rrelu_backward, ("lower", "upper", "training", "self_is_result"),
              tuple(sample(*(("f32", (3, 5)),) * 3, lower=0.1, upper=0.4, training=t,
                           self_is_result=False) for t in (True, False))),
    _gradient("threshold_backward", ("grad_output", "self"), _threshold_backward,
              lambda g, x, at: np.where(x <= at["threshold"], 0, g), ("threshold",),
              _two(threshold=0)),
    _gradient("sigmoid_backward", ("grad_output", "output"), _sigmoid_backward,
              lambda g, y, at: g * (1 - y) * y),
    _gradient("tanh_backward", ("grad_output", "output"), _tanh_backward,
              lambda g, y, at: g * (1 - y * y)),
    _gradient("gelu_backward", ("grad_output", "self"), _gelu_backward, _np_gelu_backward,
              ("approximate",), _two() + _two(approximate="tanh")),
    _gradient("silu_backward", ("grad_output", "self"), _silu_backward, _np_silu_backward),
    _gradient("mish_backward", ("grad_output", "self"), _mish_backward, _np_mish_backward),
    _gradient("leaky_relu_backward", ("grad_output", "self"), _leaky_relu_backward,
              lambda g, x, at: np.where(x > 0, g, g * at["negative_slope"]),
              ("negative_slope", "self_is_result"),
              _two(negative_slope=0.2, self_is_result=False)),
    elementwise("elu_backward",
                default_form("elu_backward", ("grad_output", "self_or_result"),
                             ("alpha", "scale", "input_scale", "is_result")),
                with_attrs(_elu_backward), _np_elu_backward,
                _two(is_result=False, **ELU) + _two(is_result=True, **ELU),
                types=pointwise(first), compute=in_output),
    _gradient("softplus_backward", ("grad_output", "self"), _softplus_backward,
              lambda g, x, at: np.where(x * at["beta"] > at["threshold"], g,
                                        g / (1 + np.exp(-x * at["beta"]))),
              ("beta", "threshold"), _two(beta=2, threshold=1)),
    _gradient("hardtanh_backward", ("grad_output", "self"), _hardtanh_backward,
              lambda g, x, at: np.where((x <= at["min_val"]) | (x >= at["max_val"]), 0, g),
              ("min_val", "max_val"), _two(min_val=-0.3, max_val=0.6)),
    _gradient("hardswish_backward", ("grad_output", "self"), _hardswish_backward,
              lambda g, x, at: np.where(x < -3, 0, np.where(x >= 3, g, g * (x / 3 + 0.5)))),
    _gradient("hardsigmoid_backward", ("grad_output", "self"), _hardsigmoid_backward,
              lambda g, x, at: np.where((x > -3) & (x < 3), g / 6, 0)),
    _gradient("log_sigmoid_backward", ("grad_output", "self", "buffer"), _log_sigmoid_backward,
              _np_log_sigmoid_backward,
              samples=(sample(("f32", (3, 4)), ("f32", (3, 4)), ("f32", (3, 4))),)),
)  # fmt: skip
