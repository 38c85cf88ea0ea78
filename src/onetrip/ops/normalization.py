"""Softmax and the normalizations, forward, as eager computes them: in operation precision.

Variances take two passes over the values (mean, then mean of squared distances); the fused kernel
keeps the row in registers, so the second pass is no second trip to memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.dtype import DType
from ..base.errors import Unsupported
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from .composite import (
    ABSENT,
    CHANNEL_SUM,
    Outputs,
    composite,
    convert,
    count_of,
    dense,
    finish,
    last_dims,
    one_dim,
    optional,
    per_channel,
    tensor,
    wide,
)  # fmt: skip
from .rows import default_form, form, sample
from .rules import Arg, as_dtype, check_compiled, laid_out
from .schema import Attrs, Builder, Op

Types = tuple[TensorType, ...]
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52, "bf16": 2.0**-7, "f16": 2.0**-10}
"""The spacing of 1.0 by dtype: the default `eps` of rms_norm."""


# ---------------------------------------------------------------- softmax


def _softmax_dtype(x: TensorType, at: Attrs) -> DType:
    if at.get("dtype") is not None:
        return as_dtype(at["dtype"])
    dtype = x.dtype.compute if at.get("half_to_float") else x.dtype
    if not dtype.is_float:
        raise Unsupported(f"softmax of {dtype.torch_name}")
    return dtype


def _softmax_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    return (laid_out(check_compiled(_softmax_dtype(x, at)), x.shape, (x,)),)


def _shifted(build: Builder, node: Node) -> tuple[Value, int]:
    """x - max(x), and the dimension."""
    x = tensor(node, 0)
    k = one_dim(x.type, node.attr)
    x = convert(build, x, node.output.type.dtype.compute)
    return build("sub", x, build("amax", x, dim=(k,), keepdim=True)), k


def _softmax(build: Builder, node: Node) -> Outputs:
    """exp(x - max) / sum(exp(x - max))."""
    shifted, k = _shifted(build, node)
    e = build("exp", shifted)
    y = build("div", e, build("sum", e, dim=(k,), keepdim=True))
    return (convert(build, y, node.output.type.dtype),)


def _safe_softmax(build: Builder, node: Node) -> Outputs:
    """softmax, and 0 in rows of -inf alone."""
    x, at = tensor(node, 0), node.attr
    y = build("softmax", x, dim=at["dim"], dtype=at.get("dtype"))
    # The peak that the softmax takes, where that is of the operand's own values.
    seen = wide(build, x) if at.get("dtype") is None else x
    peak = build("amax", seen, dim=(one_dim(x.type, at),), keepdim=True)
    return (build("where", build("eq", peak, -math.inf), 0.0, y),)


def _log_softmax(build: Builder, node: Node) -> Outputs:
    """x - max - log(sum(exp(x - max)))."""
    shifted, k = _shifted(build, node)
    total = build("sum", build("exp", shifted), dim=(k,), keepdim=True)
    return (convert(build, build("sub", shifted, build("log", total)), node.output.type.dtype),)


def _np_softmax(x: Any, at: Attrs) -> Any:
    e = np.exp(x - x.max(at["dim"], keepdims=True))
    return e / e.sum(at["dim"], keepdims=True)


def _np_safe_softmax(x: Any, at: Attrs) -> Any:
    empty = (x == -np.inf).all(at["dim"], keepdims=True)
    return np.where(empty, 0.0, _np_softmax(np.where(empty, 0.0, x), at))


# ---------------------------------------------------------------- statistics of rows


def moments(
    build: Builder, x: Value, dims: tuple[int, ...], **how: str
) -> tuple[Value, Value, Value]:
    """(mean, x - mean, mean of its squares), reduced dimensions kept."""
    mean = build("mean", x, dim=dims, keepdim=True, **how)
    centred = build("sub", x, mean)
    squares = build("mul", centred, centred)
    return mean, centred, build("mean", squares, dim=dims, keepdim=True, **how)


def inverse_deviation(build: Builder, variance: Value, eps: float) -> Value:
    """1 / sqrt(variance + eps)."""
    return build("rsqrt", build("add", variance, eps))


def _affine(build: Builder, y: Value, weight: Value | None, bias: Value | None) -> Value:
    """y * weight + bias, fused where both are there."""
    if weight is not None and bias is not None:
        return build("multiply_add", y, wide(build, weight), wide(build, bias))
    if weight is not None:
        return build("mul", y, wide(build, weight))
    return y if bias is None else build("add", y, wide(build, bias))


def _row_stats(x: TensorType, count: int) -> TensorType:
    lead = x.shape[: x.rank - count]
    return dense(x.dtype.compute, (*lead, *(1,) * count))


def _layer_norm_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    stats = _row_stats(x, len(at["normalized_shape"]))
    return dense(x.dtype, x.shape), stats, stats


def _layer_norm(build: Builder, node: Node) -> Outputs:
    """(x - mean) / sqrt(variance + eps) * weight + bias; then mean and 1/deviation."""
    x = wide(build, tensor(node, 0))
    dims = last_dims(x.type.rank, len(node.attr["normalized_shape"]))
    mean, centred, variance = moments(build, x, dims)
    scale = inverse_deviation(build, variance, node.attr.get("eps", 1e-5))
    params = optional(node, ("weight", "bias"), 1)
    y = _affine(build, build("mul", centred, scale), params["weight"], params["bias"])
    return finish(build, node, (y, mean, scale))


def _rms_norm_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    return dense(x.dtype, x.shape), _row_stats(x, len(at["normalized_shape"]))


def _rms_norm(build: Builder, node: Node) -> Outputs:
    """x / sqrt(mean(x^2) + eps) * weight; then 1/root."""
    source = tensor(node, 0)
    x = wide(build, source)
    dims = last_dims(x.type.rank, len(node.attr["normalized_shape"]))
    eps = node.attr.get("eps")
    eps = EPSILON[x.type.dtype.name] if eps is None else eps
    square = build("mean", build("mul", x, x), dim=dims, keepdim=True)
    scale = inverse_deviation(build, square, eps)
    weight = optional(node, ("weight",), 1)["weight"]
    y = _affine(build, build("mul", x, scale), weight, None)
    return finish(build, node, (y, scale))


def _np_layer_norm(x: Any, *rest: Any) -> Any:
    *params, at = rest
    axes = tuple(range(x.ndim - len(at["normalized_shape"]), x.ndim))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    scale = 1 / np.sqrt(var + at["eps"])
    return _np_affine((x - mean) * scale, params, at), mean, scale


def _np_affine(y: Any, params: Any, at: Attrs, shape: Any = None) -> Any:
    params = [p if shape is None else p.reshape(shape) for p in params]
    if at.get("has_weight", True):
        y = y * params.pop(0)
    return y + params.pop(0) if at.get("has_bias", True) and params else y


def _np_rms_norm(x: Any, *rest: Any) -> Any:
    *params, at = rest
    axes = tuple(range(x.ndim - len(at["normalized_shape"]), x.ndim))
    eps = EPSILON["f32"] if at.get("eps") is None else at["eps"]
    scale = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + eps)
    return _np_affine(x * scale, params, at), scale


# ---------------------------------------------------------------- group norm


def _group_norm_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    stats = dense(x.dtype.compute, (at["N"], at["group"]))
    return dense(x.dtype, x.shape), stats, stats


def _group_norm(build: Builder, node: Node) -> Outputs:
    """scale = weight / deviation, y = (x - mean) * scale + bias."""
    source, at = tensor(node, 0), node.attr
    n, groups, channels = at["N"], at["group"], at["C"]
    x = wide(build, source)
    rank = x.type.rank
    rows = build("view", x, size=(n, groups, channels // groups * at["HxW"]))
    mean, _, variance = moments(build, rows, (2,))
    inverse = inverse_deviation(build, variance, at["eps"])
    params = optional(node, ("weight", "bias"), 1)

    def spread(v: Value) -> Value:
        """A statistic of each group for each of its channels, broadcast over positions."""
        each = build("expand", v, size=(n, groups, channels // groups))
        return build("view", each, size=(n, channels, *(1,) * (rank - 2)))

    scale, centre = spread(inverse), spread(mean)
    if params["weight"] is not None:
        scale = build("mul", scale, per_channel(build, wide(build, params["weight"]), rank))
    y = _centred(build, x, centre, scale, params["bias"])
    stats = (build("view", v, size=(n, groups)) for v in (mean, inverse))
    return finish(build, node, (y, *stats))


def _centred(build: Builder, x: Value, mean: Value, scale: Value, bias: Value | None) -> Value:
    """(x - mean) * scale + bias. Eager's x * scale + (bias - scale * mean) loses what the two
    products share, in numbers that lie near their mean."""
    away = build("sub", x, mean)
    if bias is None:
        return build("mul", away, scale)
    each = per_channel(build, wide(build, bias), x.type.rank)
    return build("multiply_add", away, scale, each)


def _np_group_norm(x: Any, *rest: Any) -> Any:
    *params, at = rest
    rows = x.reshape(at["N"], at["group"], -1)
    mean, var = rows.mean(-1, keepdims=True), rows.var(-1, keepdims=True)
    scale = 1 / np.sqrt(var + at["eps"])
    shape = (1, at["C"], *(1,) * (x.ndim - 2))
    y = _np_affine(((rows - mean) * scale).reshape(x.shape), params, at, shape)
    return y, mean[..., 0], scale[..., 0]


# ---------------------------------------------------------------- batch norm


def _channels(x: TensorType) -> TensorType:
    return dense(x.dtype.compute, (x.shape[1],))


def _evaluated_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    if at.get("training"):
        raise Unsupported("batch norm in training updates its statistics in place")
    x = operands[0]
    none = dense(x.dtype.compute, (0,))
    return laid_out(check_compiled(x.dtype), x.shape, (x,)), none, none


def _evaluated(build: Builder, node: Node) -> Outputs:
    """scale = weight / deviation, shift = bias - mean * scale, y = x * scale + shift.

    The statistics come back as well where the node says so: a GPU's kernel saves them, a CPU's
    leaves both empty.
    """
    x = wide(build, tensor(node, 0))
    parts = optional(node, ("weight", "bias", "running_mean", "running_var"), 1)
    mean, variance = parts["running_mean"], parts["running_var"]
    assert mean is not None and variance is not None, "evaluation needs both statistics"
    mean, inverse = (
        wide(build, mean),
        inverse_deviation(build, wide(build, variance), node.attr["eps"]),
    )
    y = convert(
        build,
        _scaled(build, x, mean, inverse, parts["weight"], parts["bias"]),
        node.outputs[0].type.dtype,
    )
    saved = node.outputs[1:]
    if not saved or saved[0].type.numel == 0:
        return (y,) + (None,) * len(saved)
    return y, mean, inverse


def _scaled(
    build: Builder,
    x: Value,
    mean: Value,
    inverse: Value,
    weight: Value | None,
    bias: Value | None,
) -> Value:
    """x * scale + shift from statistics of each channel, fused as in eager's CPU kernel."""
    scale = inverse if weight is None else build("mul", inverse, wide(build, weight))
    against = build("neg", mean)
    if bias is None:
        shift = build("mul", against, scale)
    else:
        shift = build("multiply_add", against, scale, wide(build, bias))
    ends = (per_channel(build, v, x.type.rank) for v in (scale, shift))
    return build("multiply_add", x, *ends)


def _batch_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    """Output, mean, 1/deviation, and the new running statistics where there are old ones."""
    if not at.get("training", True):
        raise Unsupported("batch norm with given statistics and outputs of training")
    x, stats = operands[0], _channels(operands[0])
    new = at.get("has_running_mean", False)
    running = tuple(operands[-2:]) if new else ()
    y = laid_out(check_compiled(x.dtype), x.shape, (x,))
    return (y, stats, stats, *(dense(r.dtype, r.shape) for r in running))


def _batch(build: Builder, node: Node) -> Outputs:
    running = bool(node.attr.get("has_running_mean", False))
    return finish(build, node, _training(build, node, running))


def _training(build: Builder, node: Node, has_running: bool) -> list[Value]:
    """Statistics of the batch, and distances from them; running ones move by `momentum`."""
    x = wide(build, tensor(node, 0))
    dims = tuple(k for k in range(x.type.rank) if k != 1)
    mean, _, variance = moments(build, x, dims, **CHANNEL_SUM)
    size = (x.type.shape[1],)
    mean, variance = (build("view", v, size=size) for v in (mean, variance))
    inverse = inverse_deviation(build, variance, node.attr["eps"])
    parts = optional(node, ("weight", "bias", "running_mean", "running_var"), 1)
    scale, weight = inverse, parts["weight"]
    if weight is not None:
        scale = build("mul", scale, wide(build, weight))
    centre, scale = (per_channel(build, v, x.type.rank) for v in (mean, scale))
    y = _centred(build, x, centre, scale, parts["bias"])
    results = [y, mean, inverse]
    old = (parts["running_mean"], parts["running_var"])
    if has_running and old[0] is not None and old[1] is not None:
        count = count_of(x, dims)
        unbiased = build("div", build("mul", variance, count), count - 1)
        results += [_moving(build, old[0], mean, node), _moving(build, old[1], unbiased, node)]
    return results


def _updated_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    y, mean, inverse, *new = _batch_type(operands, {**at, "has_running_mean": True})
    return (y, mean, inverse, ABSENT, *new)


def _updated(build: Builder, node: Node) -> Outputs:
    """As in training, an empty reserve among the results."""
    y, mean, inverse, *new = _training(build, node, has_running=True)
    kept = (*node.outputs[:3], *node.outputs[4:])
    results = (y, mean, inverse, *new)
    made = [convert(build, v, o.type.dtype) for v, o in zip(results, kept, strict=True)]
    return (*made[:3], None, *made[3:])


def _moving(build: Builder, old: Value, new: Value, node: Node) -> Value:
    """momentum * new + (1 - momentum) * old."""
    momentum = node.attr["momentum"]
    kept = build("mul", wide(build, old), 1 - momentum)
    return build("add", build("mul", new, momentum), kept)


def _np_evaluated(x: Any, *rest: Any) -> Any:
    *params, at = rest
    mean, var = params[-2:]
    shape = (1, -1, *(1,) * (x.ndim - 2))
    y = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + at["eps"])
    return _np_affine(y, params[:-2], at, shape), np.zeros(0), np.zeros(0)


def _np_updated(x: Any, *rest: Any) -> Any:
    *params, at = rest
    y, mean, inverse, *new = _np_batch(x, *params, {**at, "has_running_mean": True})
    return (y, mean, inverse, np.zeros(0), *new)


def _np_batch(x: Any, *rest: Any) -> Any:
    *params, at = rest
    axes = tuple(k for k in range(x.ndim) if k != 1)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    mean, var = x.mean(axes), x.var(axes)
    scale = 1 / np.sqrt(var + at["eps"])
    y = (x - mean.reshape(shape)) * scale.reshape(shape)
    if not at.get("has_running_mean", False):
        return _np_affine(y, params, at, shape), mean, scale
    n, m = x.size / x.shape[1], at["momentum"]
    new = [m * v + (1 - m) * r for v, r in zip((mean, var * n / (n - 1)), params[-2:], strict=True)]
    return (_np_affine(y, params[:-2], at, shape), mean, scale, *new)


ROW = (("f32", (4, 6)), ("f32", (6,)), ("f32", (6,)))
IMAGE = ("f32", (2, 6, 3, 2))
SIX = ("f32", (6,))
POSITIVE = ("f32+", (6,))
NORM = {"normalized_shape": (6,), "eps": 1e-5}
GROUPS = {"N": 2, "C": 6, "HxW": 6, "group": 3, "eps": 1e-5}
PARAMS = ("input", "weight?", "bias?")
STATS = (*PARAMS, "running_mean", "running_var")
BATCH = {"momentum": 0.1, "eps": 1e-5}
OPS: tuple[Op, ...] = (
    composite("softmax", (form("_softmax.default", ("self",), ("dim", "half_to_float")),
                          form("softmax.int", ("self",), ("dim", "dtype"))),
              _softmax_type, _softmax, _np_softmax,
              (sample(("f32", (3, 5)), dim=-1), sample(("bf16", (3, 4, 5)), dim=1),
               sample(("bf16", (3, 5)), dim=1, half_to_float=True)), onnx=("Softmax",)),
    composite("safe_softmax", default_form("_safe_softmax", ("self",), ("dim", "dtype")),
              _softmax_type, _safe_softmax, _np_safe_softmax,
              (sample(("f32", (3, 5)), dim=-1), sample(("bf16", (3, 4, 5)), dim=1),
               sample(("f32", (3, 5)), dim=0, dtype="f64"))),
    composite("log_softmax", (form("_log_softmax.default", ("self",), ("dim", "half_to_float")),
                              form("log_softmax.int", ("self",), ("dim", "dtype"))),
              _softmax_type, _log_softmax, lambda x, at: np.log(_np_softmax(x, at)),
              (sample(("f32", (3, 5)), dim=-1), sample(("bf16", (3, 4, 5)), dim=1)),
              onnx=("LogSoftmax",)),
    composite("layer_norm", default_form("native_layer_norm", PARAMS,
                                         ("normalized_shape", "eps")),
              _layer_norm_type, _layer_norm, _np_layer_norm,
              (sample(*ROW, has_weight=True, has_bias=True, **NORM),
               sample(ROW[0], has_weight=False, has_bias=False, **NORM),
               sample(("bf16", (2, 3, 6)), ("bf16", (6,)), has_weight=True, has_bias=False,
                      **NORM)), onnx=("LayerNormalization",)),
    composite("rms_norm", (form("_fused_rms_norm.default", ("input", "weight?"),
                                ("normalized_shape", "eps")),),
              _rms_norm_type, _rms_norm, _np_rms_norm,
              (sample(ROW[0], ROW[1], has_weight=True, **NORM),
               sample(ROW[0], has_weight=False, normalized_shape=(4, 6), eps=None)),
              onnx=("RMSNormalization",)),
    composite("group_norm", default_form("native_group_norm", PARAMS,
                                         ("N", "C", "HxW", "group", "eps")),
              _group_norm_type, _group_norm, _np_group_norm,
              (sample(IMAGE, SIX, SIX, has_weight=True, has_bias=True, **GROUPS),
               sample(("bf16", (2, 6, 6)), has_weight=False, has_bias=False, **GROUPS)),
              onnx=("GroupNormalization",)),
    composite("batch_norm",
              (form("_native_batch_norm_legit_no_training.default", STATS, ("momentum", "eps")),
               form("native_batch_norm.default", STATS, ("training", "momentum", "eps"))),
              _evaluated_type, _evaluated, _np_evaluated,
              (sample(IMAGE, SIX, SIX, SIX, POSITIVE, has_weight=True, has_bias=True, **BATCH),
               sample(("bf16", (4, 6)), SIX, POSITIVE, has_weight=False, has_bias=False,
                      **BATCH)), onnx=("BatchNormalization",)),
    composite("batch_norm_training",
              (form("_native_batch_norm_legit_functional.default",
                    (*PARAMS, "running_mean", "running_var"), ("training", "momentum", "eps"),
                    has_running_mean=True),
               form("_native_batch_norm_legit.no_stats", PARAMS,
                    ("training", "momentum", "eps"), has_running_mean=False)),
              _batch_type, _batch, _np_batch,
              (sample(IMAGE, SIX, SIX, SIX, POSITIVE, has_weight=True, has_bias=True,
                      has_running_mean=True, training=True, **BATCH),
               sample(("bf16", (4, 6)), has_weight=False, has_bias=False, training=True,
                      has_running_mean=False, **BATCH))),
    composite("batch_norm_update",
              default_form("_batch_norm_with_update_functional", STATS, ("momentum", "eps")),
              _updated_type, _updated, _np_updated,
              (sample(IMAGE, SIX, SIX, SIX, POSITIVE, has_weight=True, has_bias=True, **BATCH),)),
)  # fmt: skip
