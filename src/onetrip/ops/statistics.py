"""Composites of reductions and slices: variances, norms, extremes with positions, splits.

Each expands to primitives in operation precision with one final rounding, unless eager itself
rounds in between (logsumexp does).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.dtype import f64, i64
from ..base.errors import Unsupported
from ..base.sym import Dim, add, ceildiv, is_nonnegative
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from .composite import (
    Outputs,
    composite,
    convert,
    count_of,
    dense,
    finish,
    reduced_dims,
    tensor,
    wide,
)  # fmt: skip
from .normalization import moments
from .reduction import along, of_some, running_extreme
from .rows import default_form, form, sample
from .rules import (
    Arg,
    asked_float,
    concrete,
    first,
    index_dtype,
    like_first,
    normal_dim,
    promoted,
    promoted_float,
    reduction,
)
from .schema import Attrs, Builder, Kind, Op

Types = tuple[TensorType, ...]


# ---------------------------------------------------------------- variances


def _correction(at: Attrs) -> float:
    """What is taken off the count: 1 unless said otherwise."""
    if at.get("correction") is not None:
        return float(at["correction"])
    return 1.0 if at.get("unbiased", True) else 0.0


def _degrees(build: Builder, count: Dim, correction: float) -> Any:
    """max(0, count - correction): an input of no elements has the variance 0 / 0."""
    if isinstance(count, int):
        return max(count - correction, 0.0)
    if correction.is_integer() and is_nonnegative(add(count, -int(correction))):
        return add(count, -int(correction))
    number = build("scalar_tensor", s=count, dtype=f64)
    return build("clamp", build("sub", number, correction), min=0.0, max=None)


def _variance(build: Builder, node: Node) -> tuple[Value, Value]:
    """(variance, mean) in f64, shaped as the output: eager accumulates both so, and a square of
    an f32 may lie beyond its range."""
    x = convert(build, tensor(node, 0), f64)
    dims = reduced_dims(node)
    mean, centred, _ = moments(build, x, dims)
    keep = bool(node.attr.get("keepdim", False))
    square = build("sum", build("mul", centred, centred), dim=dims, keepdim=keep)
    divisor = _degrees(build, count_of(x, dims), _correction(node.attr))
    shape = node.outputs[0].type.shape
    mean = mean if keep or not x.type.rank else build("view", mean, size=shape)
    return build("div", square, divisor), mean


def _var(root: bool, with_mean: bool) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        variance, mean = _variance(build, node)
        spread = build("sqrt", variance) if root else variance
        results = (spread, mean) if with_mean else (spread,)
        return finish(build, node, results)

    return expand


def _variance_type(count: int) -> Callable[[tuple[Arg, ...], Attrs], Types]:
    rule = reduction(asked_float)
    return lambda operands, at: rule(operands, at) * count


def _np_var(root: bool, with_mean: bool) -> Callable[..., Any]:
    def reference(x: Any, at: Attrs) -> Any:
        def spread(a: Any, **more: Any) -> Any:
            return (np.std if root else np.var)(a, ddof=_correction(at), **more)

        found = along(spread)(x, at)
        return (found, along(np.mean)(x, at)) if with_mean else found

    return reference


def _variance_op(name: str, root: bool, with_mean: bool) -> Op:
    forms = (
        form(f"{name}.correction", ("self",), ("dim", "correction", "keepdim")),
        form(f"{name}.dim", ("self",), ("dim", "unbiased", "keepdim")),
        form(f"{name}.default", ("self",), ("unbiased",)),
    )
    samples = (
        sample(("f32", (3, 8)), dim=(1,)), sample(("f32", (3, 8)), dim=(0,), keepdim=True),
        sample(("bf16", (2, 9)), dim=(1,), correction=0), sample(("f32", (7,)), unbiased=False),
    )  # fmt: skip
    return composite(
        name, forms, _variance_type(2 if with_mean else 1), _var(root, with_mean),
        _np_var(root, with_mean), samples,
    )  # fmt: skip


# ---------------------------------------------------------------- norms and logsumexp


def _power_norm(build: Builder, x: Value, order: float, more: dict[str, Any]) -> Value:
    """(sum |x|^order)^(1/order), with the orders that eager spells in their own way."""
    if order == 2:
        return build("sqrt", build("sum", build("mul", x, x), **more))
    size = build("abs", x)
    if order == math.inf:
        return build("amax", size, **more)
    if order == -math.inf:
        return build("amin", size, **more)
    if order == 1:
        return build("sum", size, **more)
    if order == 0:
        return build("sum", convert(build, build("ne", x, 0), x.type.dtype), **more)
    return build("pow", build("sum", build("pow", size, order), **more), 1.0 / order)


def _order_of(at: Attrs) -> float:
    order = at.get("ord", at.get("p", 2))
    return 2.0 if order is None else float(order)


def _norm(build: Builder, node: Node) -> Outputs:
    out = node.output.type
    x = convert(build, convert(build, tensor(node, 0), out.dtype), out.dtype.compute)
    more = {"dim": reduced_dims(node), "keepdim": bool(node.attr.get("keepdim", False))}
    return (convert(build, _power_norm(build, x, _order_of(node.attr), more), out.dtype),)


def _np_norm(x: Any, at: Attrs) -> Any:
    order = _order_of(at)

    def norm(a: Any, **more: Any) -> Any:
        if math.isinf(order):
            return (np.max if order > 0 else np.min)(np.abs(a), **more)
        if order == 0:
            return np.sum(a != 0, **more)
        return np.sum(np.abs(a) ** order, **more) ** (1 / order)

    return along(norm)(x, at)


def _logsumexp(build: Builder, node: Node) -> Outputs:
    """log(sum(exp(x - m))) + m, with m = max(x), or 0 where that is infinite.

    Every step rounds to the operand's dtype, as eager's own steps do.
    """
    x, dims = tensor(node, 0), reduced_dims(node)
    x = x if x.type.dtype.is_float else convert(build, x, node.output.type.dtype)
    keep = bool(node.attr.get("keepdim", False))
    peak = build("amax", x, dim=dims, keepdim=True)
    safe = build("where", build("isinf", peak), 0.0, peak)
    total = build("sum", build("exp", build("sub", x, safe)), dim=dims, keepdim=keep)
    offset = safe if keep else build("view", safe, size=node.output.type.shape)
    return (build("add", build("log", total), offset),)


# ---------------------------------------------------------------- extremes with positions


def _extreme_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return reduction(of_some)(operands, at) + reduction(index_dtype)(operands, at)


def _extreme(name: str) -> Callable[[Builder, Node], Outputs]:
    """Values and positions: two components of one reduction."""

    def expand(build: Builder, node: Node) -> Outputs:
        x = tensor(node, 0)
        more = {"dim": node.attr["dim"], "keepdim": bool(node.attr.get("keepdim", False))}
        return build(f"{name}_value", x, **more), build(f"arg{name}", x, **more)

    return expand


def _np_extreme(name: str) -> Callable[..., Any]:
    value, place = getattr(np, name), getattr(np, f"arg{name}")

    def reference(x: Any, at: Attrs) -> Any:
        more = {"axis": at["dim"], "keepdims": bool(at.get("keepdim", False))}
        return value(x, **more), place(x, **more)

    return reference


def _extreme_op(name: str) -> Op:
    return composite(
        f"{name}_dim", (form(f"{name}.dim", ("self",), ("dim", "keepdim")),), _extreme_type,
        _extreme(name), _np_extreme(name),
        (sample(("f32", (3, 5)), dim=1), sample(("i64", (3, 5)), dim=0, keepdim=True),
         sample(("bf16", (4, 3)), dim=-1)),
    )  # fmt: skip


def _running_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    return dense(x.dtype, x.shape), dense(i64, x.shape)


def _running_op(name: str) -> Op:
    """Running extremes and their last positions: two components of one scan."""

    def expand(build: Builder, node: Node) -> Outputs:
        x, k = tensor(node, 0), node.attr["dim"]
        return build(f"cum{name}_value", x, dim=k), build(f"cum{name}_place", x, dim=k)

    return composite(
        f"cum{name}", default_form(f"cum{name}", ("self",), ("dim",)), _running_type, expand,
        lambda x, at: running_extreme(name, x, at["dim"]),
        (sample(("f32", (3, 5)), dim=1), sample(("i64", (4, 3)), dim=0),
         sample(("bf16", (7,)), dim=0)),
    )  # fmt: skip


def _dist_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (dense(promoted(operands), ()),)


def _dist(build: Builder, node: Node) -> Outputs:
    """The norm of a - b."""
    apart = build("sub", tensor(node, 0), tensor(node, 1))
    return (build("vector_norm", apart, ord=node.attr.get("p", 2)),)


def _both_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return reduction(first)(operands, at) * 2


def _both(build: Builder, node: Node) -> Outputs:
    """The least and the greatest element."""
    more = {"dim": node.attr.get("dim"), "keepdim": bool(node.attr.get("keepdim", False))}
    x = tensor(node, 0)
    return build("amin", x, **more), build("amax", x, **more)


# ---------------------------------------------------------------- splits


def _pieces(x: TensorType, at: Attrs) -> tuple[int, list[Dim]]:
    """(dimension, sizes of the pieces)."""
    k = normal_dim(at.get("dim", 0), x.rank)
    size = x.shape[k]
    asked: Any = at.get("split_sizes", at.get("split_size"))
    if "chunks" in at:
        asked = ceildiv(size, at["chunks"]) or 1
    if isinstance(asked, tuple):
        return k, list(asked)
    count = concrete(ceildiv(size, asked), "the number of pieces")
    last = size - asked * (count - 1)
    return k, [asked] * (count - 1) + [last] if count else [size]


def _split_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    k, sizes = _pieces(x, at)
    return tuple(dense(x.dtype, (*x.shape[:k], n, *x.shape[k + 1 :])) for n in sizes)


def _split(build: Builder, node: Node) -> Outputs:
    x = tensor(node, 0)
    k, sizes = _pieces(x.type, node.attr)
    start: Dim = 0
    found: list[Value] = []
    for n in sizes:
        found.append(build("slice", x, dim=k, start=start, end=start + n, step=1))
        start = start + n
    return tuple(found)


def _np_split(x: Any, at: Attrs) -> Any:
    k, sizes = _pieces(TensorType.dense(i64, x.shape), at)
    ends: Any = np.cumsum(np.asarray(sizes, int))
    return tuple(np.split(x, ends[:-1], k))


def _unbind_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    k = normal_dim(at.get("dim", 0), x.rank)
    count = concrete(x.shape[k], "the number of slices")
    return (dense(x.dtype, (*x.shape[:k], *x.shape[k + 1 :])),) * count


def _unbind(build: Builder, node: Node) -> Outputs:
    x = tensor(node, 0)
    k = normal_dim(node.attr.get("dim", 0), x.type.rank)
    return tuple(build("select", x, dim=k, index=n) for n in range(len(node.outputs)))


def _glu_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    k = normal_dim(at.get("dim", -1), x.rank)
    return (dense(x.dtype, (*x.shape[:k], x.shape[k] // 2, *x.shape[k + 1 :])),)


def halves(build: Builder, x: Value, k: int) -> tuple[Value, Value]:
    """Both halves of x along dimension k."""
    half = x.type.shape[k] // 2
    a, b = (build("slice", x, dim=k, start=s, end=s + half, step=1) for s in (0, half))
    return a, b


def _glu(build: Builder, node: Node) -> Outputs:
    """a / (1 + exp(-b)) of the halves (a, b)."""
    x = tensor(node, 0)
    a, b = halves(build, x, normal_dim(node.attr.get("dim", -1), x.type.rank))
    gate = build("reciprocal", build("add", build("exp", build("neg", wide(build, b))), 1))
    return (convert(build, build("mul", wide(build, a), gate), node.output.type.dtype),)


def _np_glu(x: Any, at: Attrs) -> Any:
    a, b = np.split(x, 2, at.get("dim", -1))
    return a / (1 + np.exp(-b))


# ---------------------------------------------------------------- log_sigmoid and rrelu


def _log_sigmoid(build: Builder, node: Node) -> Outputs:
    """log_sigmoid(x), and the exp(-|x|) that its gradient reads where it is kept."""
    x = tensor(node, 0)
    y = build("log_sigmoid", x)
    if 0 in node.outputs[1].type.shape:
        return y, None
    e = build("exp", build("neg", build("abs", wide(build, x))))
    return y, convert(build, e, x.type.dtype)


def _rrelu_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    if at.get("training"):
        raise Unsupported("slopes drawn at random")
    x, noise = operands
    return dense(x.dtype, x.shape), dense(noise.dtype, noise.shape)


def _rrelu(build: Builder, node: Node) -> Outputs:
    """leaky_relu with the mean slope; the noise stays as it is."""
    slope = (node.attr["lower"] + node.attr["upper"]) / 2
    return build("leaky_relu", tensor(node, 0), negative_slope=slope), tensor(node, 1)


PIECES = ("f32", (2, 7, 4))
NORMS = tuple(sample(("f32", (3, 5)), dim=(1,), ord=o) for o in (2, 1, 0, 3, math.inf, -math.inf))
OPS: tuple[Op, ...] = (
    _variance_op("var", False, False),
    _variance_op("std", True, False),
    _variance_op("var_mean", False, True),
    _variance_op("std_mean", True, True),
    composite("vector_norm",
              (form("linalg_vector_norm.default", ("self",), ("ord", "dim", "keepdim", "dtype")),
               form("norm.ScalarOpt_dim", ("self",), ("p", "dim", "keepdim")),
               form("norm.Scalar", ("self",), ("p",))),
              reduction(asked_float), _norm, _np_norm,
              (*NORMS, sample(("bf16", (3, 5)), dim=(0,), keepdim=True), sample(("f32", (4, 2)))),
              onnx=("ReduceL2",)),
    composite("logsumexp", (form("logsumexp.default", ("self",), ("dim", "keepdim")),),
              reduction(promoted_float), _logsumexp,
              lambda x, at: along(lambda a, **k: np.log(np.sum(np.exp(a), **k)))(x, at),
              (sample(("f32", (3, 5)), dim=(1,)), sample(("i64", (3, 5)), dim=(1,)),
               sample(("bf16", (3, 5)), dim=(0,), keepdim=True)),
              onnx=("ReduceLogSumExp",)),
    composite("aminmax", (form("aminmax.default", ("self",), ("dim", "keepdim")),), _both_type,
              _both, lambda x, at: (along(np.min)(x, at), along(np.max)(x, at)),
              (sample(("f32", (3, 5)), dim=1, keepdim=True), sample(("f32", (7,))))),
    _extreme_op("max"),
    _extreme_op("min"),
    _running_op("max"),
    _running_op("min"),
    composite("dist", default_form("dist", ("self", "other"), ("p",)), _dist_type, _dist,
              lambda a, b, at: _np_norm(a - b, at),
              (sample(("f32", (3, 5)), ("f32", (5,))), sample(("f32", (4,)), ("f32", (4,)), p=1),
               sample(("bf16", (9,)), ("bf16", (9,)), p=3))),
    composite("split", (form("split.Tensor", ("self",), ("split_size", "dim")),
                        form("unsafe_split.Tensor", ("self",), ("split_size", "dim")),
                        form("split.sizes", ("self",), ("split_size", "dim")),
                        form("split_with_sizes.default", ("self",), ("split_sizes", "dim")),
                        form("unsafe_split_with_sizes.default", ("self",),
                             ("split_sizes", "dim")),
                        form("chunk.default", ("self",), ("chunks", "dim")),
                        form("unsafe_chunk.default", ("self",), ("chunks", "dim"))),
              _split_type, _split, _np_split,
              (sample(PIECES, split_size=3, dim=1), sample(PIECES, split_sizes=(1, 4, 2), dim=-2),
               sample(PIECES, chunks=2, dim=0), sample(PIECES, chunks=3, dim=1)),
              kind=Kind.MOVEMENT, onnx=("Split",)),
    composite("unbind", (form("unbind.int", ("self",), ("dim",)),), _unbind_type, _unbind,
              lambda x, at: tuple(np.moveaxis(x, at.get("dim", 0), 0)),
              (sample(PIECES), sample(PIECES, dim=-1)), kind=Kind.MOVEMENT),
    composite("glu", default_form("glu", ("self",), ("dim",)), _glu_type, _glu, _np_glu,
              (sample(("f32", (3, 8))), sample(("bf16", (4, 3)), dim=0))),
    composite("log_sigmoid_forward", default_form("log_sigmoid_forward"), like_first(2),
              _log_sigmoid, lambda x, at: (-np.logaddexp(0, -x), np.exp(-np.abs(x))),
              (sample(("f32", (3, 4))), sample(("bf16", (5,))))),
    composite("rrelu_with_noise",
              default_form("rrelu_with_noise_functional", ("self", "noise"),
                           ("lower", "upper", "training")), _rrelu_type, _rrelu,
              lambda x, n, at: (np.where(x > 0, x, x * (at["lower"] + at["upper"]) / 2), n),
              (sample(("f32", (3, 4)), ("f32", (3, 4)), lower=0.1, upper=0.3, training=False),)),
)  # fmt: skip
