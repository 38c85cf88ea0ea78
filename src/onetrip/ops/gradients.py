"""Gradients of the composites, in operation precision with one final rounding each.

A gradient that the call does not ask for (`output_mask`) is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..base.sym import Dim
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from .composite import (
    ABSENT,
    CHANNEL_SUM,
    Outputs,
    composite,
    convert,
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
from .rules import Arg, as_dtype, check_compiled, laid_out, normal_dim
from .schema import Attrs, Builder, Op
from .statistics import halves

Types = tuple[TensorType, ...]


def _input_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    dtype = as_dtype(at["input_dtype"]) if "input_dtype" in at else operands[0].dtype
    x = operands[0]
    return (laid_out(check_compiled(dtype), x.shape, operands[:2]),)


def _softmax_backward(build: Builder, node: Node) -> Outputs:
    """(g - sum(g y)) y."""
    g, y = (wide(build, tensor(node, k)) for k in (0, 1))
    k = one_dim(y.type, node.attr)
    total = build("sum", build("mul", g, y), dim=(k,), keepdim=True)
    dx = build("mul", build("sub", g, total), y)
    return (convert(build, dx, node.output.type.dtype),)


def _log_softmax_backward(build: Builder, node: Node) -> Outputs:
    """g - exp(y) sum(g)."""
    g, y = (wide(build, tensor(node, k)) for k in (0, 1))
    total = build("sum", g, dim=(one_dim(y.type, node.attr),), keepdim=True)
    dx = build("sub", g, build("mul", build("exp", y), total))
    return (convert(build, dx, node.output.type.dtype),)


def _np_softmax_backward(g: Any, y: Any, at: Attrs) -> Any:
    return (g - (g * y).sum(at["dim"], keepdims=True)) * y


def _np_log_softmax_backward(g: Any, y: Any, at: Attrs) -> Any:
    return g - np.exp(y) * g.sum(at["dim"], keepdims=True)


def _masked(types: Types, at: Attrs) -> Types:
    mask = at.get("output_mask", (True,) * len(types))
    return tuple(t if asked else ABSENT for t, asked in zip(types, mask, strict=True))


def _row_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x, *rest = operands[1:]
    shape = tuple(at["normalized_shape"])
    param = rest[-1].dtype if at.get("has_weight") or at.get("has_bias") else x.dtype
    types = (dense(x.dtype, x.shape), dense(param, shape), dense(param, shape))
    return _masked(types[: len(at["output_mask"])], at)


def _row_gradient(
    build: Builder,
    g: Value,
    normal: Value,
    scale: Value,
    dims: tuple[int, ...],
    centred: bool,
    **how: str,
) -> Value:
    """scale (g - [mean(g)] - normal mean(g normal)); the middle term for centred norms only."""
    along = build("mean", build("mul", g, normal), dim=dims, keepdim=True, **how)
    rest = build("sub", g, build("mul", normal, along))
    if centred:
        rest = build("sub", rest, build("mean", g, dim=dims, keepdim=True, **how))
    return build("mul", rest, scale)


def _over_rows(build: Builder, v: Value, count: int, shape: tuple[Dim, ...]) -> Value:
    """The sum of v over all dimensions but the last `count`."""
    lead = tuple(range(v.type.rank - count))
    return build("sum", v, dim=lead) if lead else build("view", v, size=shape)


def _layer_norm_backward(build: Builder, node: Node) -> Outputs:
    g, x, mean, scale = (wide(build, tensor(node, k)) for k in range(4))
    weight = optional(node, ("weight", "bias"), 4)["weight"]
    shape = tuple(node.attr["normalized_shape"])
    dims = last_dims(x.type.rank, len(shape))
    normal = build("mul", build("sub", x, mean), scale)
    weighted = g if weight is None else build("mul", g, wide(build, weight))
    dx = _row_gradient(build, weighted, normal, scale, dims, True)
    dw = _over_rows(build, build("mul", g, normal), len(shape), shape)
    return finish(build, node, [dx, dw, _over_rows(build, g, len(shape), shape)])


def _rms_norm_backward(build: Builder, node: Node) -> Outputs:
    g, x, scale = (wide(build, tensor(node, k)) for k in range(3))
    weight = optional(node, ("weight",), 3)["weight"]
    shape = tuple(node.attr["normalized_shape"])
    dims = last_dims(x.type.rank, len(shape))
    normal = build("mul", x, scale)
    weighted = g if weight is None else build("mul", g, wide(build, weight))
    dx = _row_gradient(build, weighted, normal, scale, dims, False)
    dw = _over_rows(build, build("mul", g, normal), len(shape), shape)
    return finish(build, node, [dx, dw])


def _np_row_backward(centred: bool) -> Any:
    def reference(g: Any, x: Any, *rest: Any) -> Any:
        *parts, at = rest
        mean, scale = (parts[0], parts[1]) if centred else (0, parts[0])
        normal = (x - mean) * scale
        count = len(at["normalized_shape"])
        axes = tuple(range(x.ndim - count, x.ndim))
        lead = tuple(range(x.ndim - count))
        w = g * parts[2 if centred else 1] if at.get("has_weight") else g
        dx = w - normal * (w * normal).mean(axes, keepdims=True)
        dx = (dx - w.mean(axes, keepdims=True) if centred else dx) * scale
        found = (dx, (g * normal).sum(lead), g.sum(lead))
        return found[: len(at["output_mask"])]

    return reference


def _group_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[1]
    param = operands[4].dtype if at.get("has_weight") else x.dtype
    channels = dense(param, (at["C"],))
    return _masked((dense(x.dtype, x.shape), channels, channels), at)


def _group_norm_backward(build: Builder, node: Node) -> Outputs:
    """As the gradient of layer norm, with the channels of a group and their positions as a row."""
    at, source = node.attr, tensor(node, 1)
    n, groups, channels = at["N"], at["group"], at["C"]
    size = (n, groups, channels // groups, at["HxW"])

    def rows(v: Value) -> Value:
        return build("view", wide(build, v), size=size)

    def of_group(v: Value) -> Value:
        return build("view", wide(build, v), size=(n, groups, 1, 1))

    g, x = rows(tensor(node, 0)), rows(source)
    mean, scale = of_group(tensor(node, 2)), of_group(tensor(node, 3))
    weight = optional(node, ("weight",), 4)["weight"]
    normal = build("mul", build("sub", x, mean), scale)
    weighted = g
    if weight is not None:
        each = build("view", wide(build, weight), size=(1, groups, channels // groups, 1))
        weighted = build("mul", g, each)
    dx = _row_gradient(build, weighted, normal, scale, (2, 3), True)
    dw, db = (build("sum", v, dim=(0, 3)) for v in (build("mul", g, normal), g))
    dx = build("view", dx, size=source.type.shape)
    return finish(build, node, [dx, *(build("view", v, size=(channels,)) for v in (dw, db))])


def _np_group_backward(g: Any, x: Any, mean: Any, scale: Any, *rest: Any) -> Any:
    *weight, at = rest
    size = (at["N"], at["group"], at["C"] // at["group"], at["HxW"])
    g, shape, rows = g.reshape(size), x.shape, x.reshape(size)
    normal = (rows - mean[..., None, None]) * scale[..., None, None]
    w = g * weight[0].reshape(1, size[1], size[2], 1) if weight else g
    inner = w - w.mean((2, 3), keepdims=True)
    inner = inner - normal * (w * normal).mean((2, 3), keepdims=True)
    dx = inner * scale[..., None, None]
    return dx.reshape(shape), (g * normal).sum((0, 3)).reshape(-1), g.sum((0, 3)).reshape(-1)


def _prelu_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    g, x, w = operands
    return dense(x.dtype, g.shape), dense(w.dtype, g.shape)


def _prelu_backward(build: Builder, node: Node) -> Outputs:
    """(g, 0) where x > 0, else (w g, x g)."""
    g, x, w = (wide(build, tensor(node, k)) for k in range(3))
    above = build("gt", x, 0)
    dx = build("where", above, g, build("mul", w, g))
    return finish(build, node, (dx, build("where", above, 0.0, build("mul", x, g))))


def _batch_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x, *rest = operands[1:]
    if _trained(at) and not all(at.get(f"has_{n}") for n in _stats(at)[3:]):
        raise Unsupported("the gradient of batch norm without saved statistics")
    param = rest[0].dtype if at.get("has_weight", True) else x.dtype
    channels = dense(param, (x.shape[1],))
    y = laid_out(check_compiled(x.dtype), x.shape, (x,))
    return _masked((y, channels, channels), at)


def _trained(at: Attrs) -> bool:
    """Whether the statistics were the batch's own; two calls say it by different names."""
    return bool(at["update"] if "update" in at else at["train"])


_STATS = ("weight", "running_mean", "running_var", "save_mean", "save_invstd")


def _stats(at: Attrs) -> tuple[str, ...]:
    """What the call names its weight and statistics."""
    return (*_STATS[:-1], "save_var") if "update" in at else _STATS


def _batch_backward(build: Builder, node: Node) -> Outputs:
    """As the gradient of layer norm with the roles of rows taken by channels."""
    g, x = (wide(build, tensor(node, k)) for k in (0, 1))
    parts = dict(zip(_STATS, optional(node, _stats(node.attr), 2).values(), strict=True))
    rank = x.type.rank
    dims = tuple(k for k in range(rank) if k != 1)
    trained = _trained(node.attr)
    mean, scale = parts["save_mean"], parts["save_invstd"]
    if not trained:
        mean, variance = parts["running_mean"], parts["running_var"]
        assert variance is not None
        shifted = build("add", wide(build, variance), node.attr["eps"])
        scale = build("rsqrt", shifted)
    assert mean is not None and scale is not None
    mean, scale = (per_channel(build, wide(build, v), rank) for v in (mean, scale))
    normal = build("mul", build("sub", x, mean), scale)
    db = build("sum", g, dim=dims, **CHANNEL_SUM)
    dw = build("sum", build("mul", g, normal), dim=dims, **CHANNEL_SUM)
    weight = parts["weight"]
    weighted = g
    if weight is not None:
        weighted = build("mul", g, per_channel(build, wide(build, weight), rank))
    dx = (
        _row_gradient(build, weighted, normal, scale, dims, True, **CHANNEL_SUM)
        if trained
        else build("mul", weighted, scale)
    )
    return finish(build, node, [dx, dw, db])


def _np_batch_backward(g: Any, x: Any, *rest: Any) -> Any:
    *parts, at = rest
    own = zip(_STATS, _stats(at), strict=True)
    found = {n: parts.pop(0) for n, m in own if at.get(f"has_{m}", n == "weight")}
    axes = tuple(k for k in range(x.ndim) if k != 1)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    if _trained(at):
        mean, scale = found["save_mean"], found["save_invstd"]
    else:
        mean, scale = found["running_mean"], 1 / np.sqrt(found["running_var"] + at["eps"])
    normal = (x - mean.reshape(shape)) * scale.reshape(shape)
    w = g * found["weight"].reshape(shape) if "weight" in found else g
    dx = w * scale.reshape(shape)
    if _trained(at):
        inner = w - w.mean(axes, keepdims=True) - normal * (w * normal).mean(axes, keepdims=True)
        dx = inner * scale.reshape(shape)
    return dx, (g * normal).sum(axes), g.sum(axes)


def _glu_backward_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[1]
    return (dense(x.dtype, x.shape),)


def _glu_backward(build: Builder, node: Node) -> Outputs:
    """[g s, g s (1 - s) a] of the halves (a, b), s = 1 / (1 + exp(-b))."""
    g, x = tensor(node, 0), tensor(node, 1)
    k = normal_dim(node.attr["dim"], x.type.rank)
    a, b = (wide(build, v) for v in halves(build, x, k))
    s = build("reciprocal", build("add", build("exp", build("neg", b)), 1))
    da = build("mul", s, wide(build, g))
    db = build("mul", build("mul", build("sub", 1.0, s), da), a)
    dtype = x.type.dtype
    return (build("cat", *(convert(build, v, dtype) for v in (da, db)), dim=k),)


def _np_glu_backward(g: Any, x: Any, at: Attrs) -> Any:
    a, b = np.split(x, 2, at["dim"])
    s = 1 / (1 + np.exp(-b))
    return np.concatenate([g * s, g * s * (1 - s) * a], at["dim"])


def _sized_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (dense(operands[0].dtype, tuple(at["input_sizes"])),)


def _into_zeros(op: str, keys: tuple[str, ...]) -> Callable[[Builder, Node], Outputs]:
    """The gradient put into zeros at the place that was read."""

    def expand(build: Builder, node: Node) -> Outputs:
        g = tensor(node, 0)
        size = tuple(node.attr["input_sizes"])
        zeros = build("full", size=size, fill_value=0, dtype=g.type.dtype)
        return (build(op, zeros, g, **{k: node.attr[k] for k in keys}),)

    return expand


def _np_slice_backward(g: Any, at: Attrs) -> Any:
    dx = np.zeros(at["input_sizes"])
    key = [slice(None)] * dx.ndim
    key[at["dim"]] = slice(at["start"], at["end"], at["step"])
    dx[tuple(key)] = g
    return dx


def _np_select_backward(g: Any, at: Attrs) -> Any:
    dx = np.zeros(at["input_sizes"])
    key: list[Any] = [slice(None)] * dx.ndim
    key[at["dim"]] = at["index"]
    dx[tuple(key)] = g
    return dx


SLICED = ("dim", "start", "end", "step")
ROW = ("f32", (4, 6))
STAT = ("f32+", (4, 1))
ALL3 = (True, True, True)
CHANNEL = ("f32+", (6,))
IMAGE = ("f32", (2, 6, 3, 2))
SAVED = {"has_running_mean": False, "has_running_var": False, "has_save_mean": True,
         "has_save_invstd": True, "eps": 1e-5, "output_mask": ALL3}  # fmt: skip
RUNNING = {**SAVED, "has_running_mean": True, "has_running_var": True, "has_save_mean": False,
           "has_save_invstd": False}  # fmt: skip
GROUP = ("f32+", (2, 3))
GROUPS = {"N": 2, "C": 6, "HxW": 6, "group": 3}
OPS: tuple[Op, ...] = (
    composite("softmax_backward",
              (form("_softmax_backward_data.default", ("grad_output", "output"),
                    ("dim", "input_dtype")),),
              _input_type, _softmax_backward, _np_softmax_backward,
              (sample(ROW, ROW, dim=1), sample(("bf16", (3, 4)), ("bf16", (3, 4)), dim=0))),
    composite("log_softmax_backward",
              (form("_log_softmax_backward_data.default", ("grad_output", "output"),
                    ("dim", "input_dtype")),),
              _input_type, _log_softmax_backward, _np_log_softmax_backward,
              (sample(ROW, ROW, dim=1), sample(("bf16", (3, 4)), ("bf16", (3, 4)), dim=0))),
    composite("layer_norm_backward",
              default_form("native_layer_norm_backward",
                           ("grad_out", "input", "mean", "rstd", "weight?", "bias?"),
                           ("normalized_shape", "output_mask")),
              _row_type, _layer_norm_backward, _np_row_backward(True),
              (sample(ROW, ROW, STAT, STAT, ("f32", (6,)), ("f32", (6,)), has_weight=True,
                      has_bias=True, normalized_shape=(6,), output_mask=ALL3),
               sample(ROW, ROW, STAT, STAT, has_weight=False, has_bias=False,
                      normalized_shape=(6,), output_mask=(True, False, False)))),
    composite("rms_norm_backward",
              default_form("_fused_rms_norm_backward",
                           ("grad_out", "input", "rstd", "weight?"),
                           ("normalized_shape", "output_mask")),
              _row_type, _rms_norm_backward, _np_row_backward(False),
              (sample(ROW, ROW, STAT, ("f32", (6,)), has_weight=True, normalized_shape=(6,),
                      output_mask=(True, True)),)),
    composite("batch_norm_backward",
              default_form("native_batch_norm_backward",
                           ("grad_out", "input", *(f"{n}?" for n in _STATS)),
                           ("train", "eps", "output_mask")),
              _batch_type, _batch_backward, _np_batch_backward,
              (sample(IMAGE, IMAGE, CHANNEL, CHANNEL, CHANNEL, has_weight=True, train=True,
                      **SAVED),
               sample(IMAGE, IMAGE, CHANNEL, CHANNEL, has_weight=False, train=False,
                      **RUNNING))),
    composite("batch_norm_update_backward",
              default_form("batch_norm_backward",
                           ("grad_out", "input", "weight", "running_mean?", "running_var?",
                            "save_mean?", "save_var?", "reserve"),
                           ("update", "eps", "output_mask")),
              _batch_type, _batch_backward, _np_batch_backward,
              (sample(IMAGE, IMAGE, CHANNEL, CHANNEL, CHANNEL, ("u8", (0,)), update=True,
                      has_save_var=True, **SAVED),)),
    composite("group_norm_backward",
              default_form("native_group_norm_backward",
                           ("grad_out", "input", "mean", "rstd", "weight?"),
                           ("N", "C", "HxW", "group", "output_mask")),
              _group_type, _group_norm_backward, _np_group_backward,
              (sample(IMAGE, IMAGE, GROUP, GROUP, ("f32", (6,)), has_weight=True,
                      output_mask=ALL3, **GROUPS),
               sample(("f32", (2, 6, 6)), ("f32", (2, 6, 6)), GROUP, GROUP, has_weight=False,
                      output_mask=(True, False, False), **GROUPS))),
    composite("prelu_backward",
              default_form("_prelu_kernel_backward", ("grad_output", "self", "weight")),
              _prelu_type, _prelu_backward,
              lambda g, x, w, at: (np.where(x > 0, g, w * g), np.where(x > 0, 0, x * g)),
              (sample(ROW, ROW, ROW), sample(*(("bf16", (3, 4)),) * 3))),
    composite("slice_backward",
              default_form("slice_backward", ("grad_output",), ("input_sizes", *SLICED)),
              _sized_type, _into_zeros("slice_scatter", SLICED), _np_slice_backward,
              (sample(("f32", (4, 2)), input_sizes=(4, 6), dim=1, start=1, end=5, step=2),
               sample(("bf16", (2, 6)), input_sizes=(4, 6), dim=0, start=2, end=4, step=1))),
    composite("select_backward",
              default_form("select_backward", ("grad_output",), ("input_sizes", "dim", "index")),
              _sized_type, _into_zeros("select_scatter", ("dim", "index")), _np_select_backward,
              (sample(("f32", (4,)), input_sizes=(4, 6), dim=1, index=-1),)),
    composite("glu_backward", default_form("glu_backward", ("grad_output", "self"), ("dim",)),
              _glu_backward_type, _glu_backward, _np_glu_backward,
              (sample(("f32", (4, 3)), ROW, dim=-1),)),
)  # fmt: skip
