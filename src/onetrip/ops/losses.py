"""Losses of elements and of classes, with the rounding points of eager's own kernels.

A loss that eager computes in one kernel is computed in operation precision and rounded once; one
that it spells as a chain of tensor operators rounds after each of them. Then follows the mean or
the sum. Gradients are in `loss_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtype import i64
from ..base.errors import Unsupported
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from .composite import Outputs, composite, convert, dense, optional, tensor, wide
from .rows import default_form, sample
from .rules import Arg, broadcast, check_compiled, promoted
from .schema import Attrs, Builder, Op, Sample

Types = tuple[TensorType, ...]
NONE, MEAN, SUM = 0, 1, 2
"""What the attribute `reduction` says."""


# ---------------------------------------------------------------- of elements


def reduction_of(at: Attrs) -> int:
    """NONE, MEAN or SUM."""
    how: int = at.get("reduction", MEAN)
    return how


def reduced_loss(build: Builder, losses: Value, node: Node) -> Value:
    """The mean, the sum or the losses themselves."""
    name = {NONE: "", MEAN: "mean", SUM: "sum"}[reduction_of(node.attr)]
    return build(name, losses) if name else losses


def _np_reduced(losses: Any, at: Attrs) -> Any:
    how: dict[int, Callable[..., Any]] = {NONE: np.asarray, MEAN: np.mean, SUM: np.sum}
    return how[reduction_of(at)](losses)


def _element_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    dtype = check_compiled(promoted(operands[:2]))
    if not dtype.is_float:
        raise Unsupported(f"a loss of {dtype.torch_name}")
    shape = broadcast([x.shape for x in operands])
    return (dense(dtype, shape if reduction_of(at) == NONE else ()),)


Term = Callable[[Builder, Value, Value, Attrs], Value]


def _of_elements(term: Term) -> Callable[[Builder, Node], Outputs]:
    """term(a, b) in operation precision, rounded once, times the weight, reduced."""

    def expand(build: Builder, node: Node) -> Outputs:
        dtype = node.output.type.dtype
        a, b = (convert(build, tensor(node, k), dtype.compute) for k in (0, 1))
        y = convert(build, term(build, a, b, node.attr), dtype)
        weight = optional(node, ("weight",), 2)["weight"]
        y = y if weight is None else build("mul", y, weight)
        return (reduced_loss(build, y, node),)

    return expand


def _mse(build: Builder, a: Value, b: Value, at: Attrs) -> Value:
    """(a - b)^2."""
    d = build("sub", a, b)
    return build("mul", d, d)


def _smooth_l1(build: Builder, a: Value, b: Value, at: Attrs) -> Value:
    """d^2 / (2 beta) where d = |a - b| is below beta, else d - beta / 2."""
    beta = at.get("beta", 1.0)
    d = build("abs", build("sub", a, b))
    near = build("div", build("mul", build("mul", d, 0.5), d), beta) if beta else d
    return build("where", build("lt", d, beta), near, build("sub", d, 0.5 * beta))


def _huber(build: Builder, a: Value, b: Value, at: Attrs) -> Value:
    """d^2 / 2 where d = |a - b| is at most delta, else delta (d - delta / 2)."""
    delta = at.get("delta", 1.0)
    d = build("abs", build("sub", a, b))
    near = build("mul", build("mul", d, 0.5), d)
    far = build("mul", build("sub", d, 0.5 * delta), delta)
    return build("where", build("le", d, delta), near, far)


def _cross_entropy(build: Builder, p: Value, target: Value, at: Attrs) -> Value:
    """(target - 1) log(1 - p) - target log(p), both logarithms at least -100.

    Eager refuses p outside [0, 1]; here the logarithm of it is NaN.
    """
    miss = build("clamp", build("log1p", build("neg", p)), min=-100.0)
    hit = build("clamp", build("log", p), min=-100.0)
    missed = build("mul", build("sub", target, 1.0), miss)
    return build("sub", missed, build("mul", target, hit))


def _np_element(fn: Callable[[Any, Any, Attrs], Any]) -> Callable[..., Any]:
    def reference(a: Any, b: Any, *rest: Any) -> Any:
        *weight, at = rest
        y = fn(a, b, at)
        return _np_reduced(y * weight[0] if weight else y, at)

    return reference


def _np_smooth_l1(a: Any, b: Any, at: Attrs) -> Any:
    d, beta = np.abs(a - b), at.get("beta", 1.0)
    return np.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)


def _np_huber(a: Any, b: Any, at: Attrs) -> Any:
    d, delta = np.abs(a - b), at.get("delta", 1.0)
    return np.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


def _np_cross_entropy(p: Any, t: Any, at: Attrs) -> Any:
    return (t - 1) * np.maximum(np.log1p(-p), -100) - t * np.maximum(np.log(p), -100)


def _with_logits(build: Builder, node: Node) -> Outputs:
    """(1 - t) x - (1 + (q - 1) t) log_sigmoid(x) with positive weights q, times the weight."""
    x, target = tensor(node, 0), tensor(node, 1)
    parts = optional(node, ("weight", "pos_weight"), 2)
    log = build("log_sigmoid", x)
    positive, weight = parts["pos_weight"], parts["weight"]
    if positive is not None:
        more = build("add", build("mul", build("sub", positive, 1), target), 1)
        log = build("mul", more, log)
    y = build("sub", build("mul", build("sub", 1, target), x), log)
    y = y if weight is None else build("mul", y, weight)
    return (reduced_loss(build, convert(build, y, node.output.type.dtype), node),)


def _np_with_logits(x: Any, t: Any, *rest: Any) -> Any:
    *parts, at = rest
    weight = parts.pop(0) if at.get("has_weight") else 1.0
    positive = parts.pop(0) if at.get("has_pos_weight") else 1.0
    log = -np.logaddexp(0, -x)
    return _np_reduced(weight * ((1 - t) * x - (1 + (positive - 1) * t) * log), at)


def _soft_margin(build: Builder, node: Node) -> Outputs:
    """log1p(exp(-x y))."""
    x, y = tensor(node, 0), tensor(node, 1)
    z = build("exp", build("mul", build("neg", y), x))
    return (reduced_loss(build, build("log1p", z), node),)


# ---------------------------------------------------------------- of classes


def class_types(operands: tuple[Arg, ...], at: Attrs, spatial: bool) -> tuple[int, ...]:
    """The shape of the targets; Unsupported where the operands are not classes and targets."""
    x, target = operands[0], operands[1]
    if target.dtype is not i64:
        raise Unsupported(f"targets of {target.dtype.torch_name} are classes of a library call")
    ranks = (4,) if spatial else (1, 2)
    if x.rank not in ranks:
        raise Unsupported(f"classes of {x.rank} dimensions", expected=f"one of {ranks}")
    check_compiled(x.dtype)
    shape: tuple[int, ...] = target.shape
    return shape


def _class_type(spatial: bool) -> Callable[[tuple[Arg, ...], Attrs], Types]:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        x = operands[0]
        shape = class_types(operands, at, spatial)
        whole = reduction_of(at) == NONE and x.rank > 1
        return dense(x.dtype, shape if whole else ()), dense(x.dtype, ())

    return rule


def batched(build: Builder, x: Value, target: Value) -> tuple[Value, Value]:
    """Scores of one sample as a batch of one; others as they are."""
    if x.type.rank > 1:
        return x, target
    return build("unsqueeze", x, dim=0), build("view", target, size=(1,))


def _nll(build: Builder, node: Node) -> Outputs:
    """-w[t] x[.., t, ..] where the target t counts; the mean is over the weights that count."""
    x, target = batched(build, tensor(node, 0), tensor(node, 1))
    weight = optional(node, ("weight",), 2)["weight"]
    counted = build("ne", target, node.attr["ignore_index"])
    safe = build("where", counted, target, 0)
    picked = build("gather", x, build("unsqueeze", safe, dim=1), dim=1)
    losses = build("neg", wide(build, build("squeeze", picked, dim=1)))
    share = convert(build, counted, losses.type.dtype)
    if weight is not None:
        each = wide(build, build("index", weight, safe))
        losses, share = build("mul", losses, each), build("where", counted, each, 0.0)
    losses = build("where", counted, losses, 0.0)
    return _nll_reduced(build, node, losses, share)


def _nll_reduced(build: Builder, node: Node, losses: Value, share: Value) -> Outputs:
    dtype, how = node.outputs[0].type.dtype, reduction_of(node.attr)
    if how == NONE and node.outputs[0].type.rank:
        return convert(build, losses, dtype), build("full", size=(), fill_value=0, dtype=dtype)
    count, total = build("sum", share), build("sum", losses)
    loss = build("div", total, count) if how == MEAN else total
    return convert(build, loss, dtype), convert(build, count, dtype)


def _np_nll(x: Any, target: Any, *rest: Any) -> Any:
    *weight, at = rest
    whole = reduction_of(at) == NONE and x.ndim > 1
    if x.ndim == 1:
        x, target = x[None], target.reshape(1)
    counted = target != at["ignore_index"]
    safe = np.where(counted, target, 0)
    share = counted * (weight[0][safe] if weight else 1.0)
    losses = -share * np.take_along_axis(x, safe[:, None], 1)[:, 0]
    if whole:
        return losses, np.zeros(())
    total = losses.sum()
    return total / share.sum() if reduction_of(at) == MEAN else total, share.sum()


PAIR = (("f32", (3, 4)), ("f32", (3, 4)))
HALVES = (("bf16", (2, 5)), ("bf16", (2, 5)))


def each_reduction(*operands: Any, **attrs: Any) -> tuple[Sample, ...]:
    """The sample with no reduction, with the mean and with the sum."""
    return tuple(sample(*operands, reduction=r, **attrs) for r in (NONE, MEAN, SUM))


def _element_loss(
    name: str,
    term: Term,
    fn: Callable[[Any, Any, Attrs], Any],
    attrs: Sequence[str] = (),
    samples: Sequence[Sample] = (),
    operands: Sequence[str] = ("self", "target"),
) -> Op:
    return composite(
        name, default_form(name, operands, ("reduction", *attrs)), _element_type,
        _of_elements(term), _np_element(fn), samples,
    )  # fmt: skip


CLASSES = (("f32", (5, 4)), ("i64", (5,)))
MAPS = (("f32", (2, 4, 3, 2)), ("i64", (2, 3, 2)))
WEIGHT = ("f32+", (4,))
SHARES = (("f32%", (3, 4)), ("f32%", (3, 4)))
LOGITS = (("f32", (3, 4)), ("f32%", (3, 4)))
WEIGHTS = {"has_weight": True, "has_pos_weight": True}
NO_WEIGHTS = {"has_weight": False, "has_pos_weight": False}


def _class_loss(name: str, spatial: bool, operands: Sequence[Any], more: Sequence[Sample]) -> Op:
    samples = (
        *each_reduction(*operands, has_weight=False, ignore_index=1),
        *each_reduction(*operands, WEIGHT, has_weight=True, ignore_index=-100),
        *more,
    )
    return composite(
        name, default_form(f"{name}_forward", ("self", "target", "weight?"),
                           ("reduction", "ignore_index")),
        _class_type(spatial), _nll, _np_nll, samples,
    )  # fmt: skip


OPS: tuple[Op, ...] = (
    _element_loss("mse_loss", _mse, lambda a, b, at: (a - b) ** 2,
                  samples=each_reduction(*PAIR) + each_reduction(*HALVES)[:1]),
    _element_loss("smooth_l1_loss", _smooth_l1, _np_smooth_l1, ("beta",),
                  each_reduction(*PAIR, beta=0.7) + each_reduction(*HALVES)[:1]),
    _element_loss("huber_loss", _huber, _np_huber, ("delta",),
                  each_reduction(*PAIR, delta=0.7) + each_reduction(*HALVES)[:1]),
    _element_loss("binary_cross_entropy", _cross_entropy, _np_cross_entropy,
                  samples=(*each_reduction(*SHARES, has_weight=False),
                           sample(*SHARES, ("f32+", (4,)), has_weight=True, reduction=NONE),
                           sample(("bf16%", (2, 5)), ("bf16%", (2, 5)), has_weight=False,
                                  reduction=NONE)),
                  operands=("self", "target", "weight?")),
    composite("binary_cross_entropy_with_logits",
              default_form("binary_cross_entropy_with_logits",
                           ("self", "target", "weight?", "pos_weight?"), ("reduction",)),
              _element_type, _with_logits, _np_with_logits,
              (*each_reduction(*LOGITS, **NO_WEIGHTS),
               sample(*LOGITS, ("f32+", (4,)), ("f32+", (4,)), reduction=NONE, **WEIGHTS),
               sample(("bf16", (2, 5)), ("bf16%", (2, 5)), reduction=NONE, **NO_WEIGHTS))),
    composite("soft_margin_loss", default_form("soft_margin_loss", ("self", "target"),
                                               ("reduction",)),
              _element_type, _soft_margin,
              lambda x, y, at: _np_reduced(np.log1p(np.exp(-x * y)), at),
              each_reduction(*PAIR) + each_reduction(*HALVES)[:1]),
    _class_loss("nll_loss", False, CLASSES,
                each_reduction(("bf16", (3, 4)), ("i64", (3,)), has_weight=False,
                               ignore_index=-100)
                + each_reduction(("f32", (4,)), ("i64", ()), has_weight=False, ignore_index=-100)),
    _class_loss("nll_loss2d", True, MAPS, ()),
)  # fmt: skip
