"""Gradients of the losses, with the rounding points of eager's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.graph import Node, Value
from ..ir.types import TensorType
from .composite import Outputs, composite, convert, dense, optional, per_channel, tensor, wide
from .losses import (
    CLASSES,
    HALVES,
    MAPS,
    MEAN,
    NONE,
    PAIR,
    SHARES,
    WEIGHT,
    batched,
    class_types,
    reduction_of,
)  # fmt: skip
from .rows import default_form, sample
from .rules import Arg, broadcast, check_compiled, promoted
from .schema import Attrs, Builder, Op, Sample

Types = tuple[TensorType, ...]


# ---------------------------------------------------------------- of elements


def _element_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    shape = broadcast([x.shape for x in operands])
    return (dense(check_compiled(promoted(operands[1:])), shape),)


def _share(build: Builder, node: Node) -> Value | float:
    """What each element contributes to the loss: 1 / count for a mean, else 1."""
    if reduction_of(node.attr) != MEAN:
        return 1.0
    x = tensor(node, 1).type
    if isinstance(x.numel, int):
        return 1.0 / max(x.numel, 1)
    dtype = x.dtype.compute
    return build("div", 1.0, build("full", size=(), fill_value=x.numel, dtype=dtype))


Slope = Callable[[Builder, Value, Value, Value | float, Attrs], Value]


def _of_elements(slope: Slope) -> Callable[[Builder, Node], Outputs]:
    """slope(a - b, g, share) in operation precision, rounded once."""

    def expand(build: Builder, node: Node) -> Outputs:
        dtype = node.output.type.dtype
        g, a, b = (convert(build, tensor(node, k), dtype.compute) for k in range(3))
        dx = slope(build, build("sub", a, b), g, _share(build, node), node.attr)
        return (convert(build, dx, dtype),)

    return expand


def _mse(build: Builder, d: Value, g: Value, share: Value | float, at: Attrs) -> Value:
    """2 d g, over the count for a mean."""
    double = build("mul", share, 2.0) if isinstance(share, Value) else 2.0 * share
    return build("mul", build("mul", d, double), g)


def _smooth_l1(build: Builder, d: Value, g: Value, share: Value | float, at: Attrs) -> Value:
    """share g clamp(d / beta, -1, 1)."""
    return _clipped(build, d, g, share, at.get("beta", 1.0), 1.0)


def _huber(build: Builder, d: Value, g: Value, share: Value | float, at: Attrs) -> Value:
    """share g clamp(d, -delta, delta)."""
    delta = at.get("delta", 1.0)
    return _clipped(build, d, g, share, delta, delta)


def _clipped(
    build: Builder, d: Value, g: Value, share: Value | float, bound: float, top: float
) -> Value:
    """share g d top / bound inside of the bound, share g top with d's sign outside of it."""
    scaled = build("mul", g, share)
    far = scaled if top == 1.0 else build("mul", scaled, top)
    inside = build("mul", build("mul", d, share), g)
    if top != bound:
        inside = build("div", inside, bound) if bound else inside
    above = build("where", build("ge", d, bound), far, inside)
    return build("where", build("le", d, -bound), build("neg", far), above)


def _np_element(fn: Callable[[Any, Attrs], Any]) -> Callable[..., Any]:
    def reference(g: Any, a: Any, b: Any, at: Attrs) -> Any:
        return g * fn(a - b, at) / (a.size if reduction_of(at) == MEAN else 1)

    return reference


def _np_smooth_l1(d: Any, at: Attrs) -> Any:
    return np.clip(d / at["beta"], -1, 1)


def _np_huber(d: Any, at: Attrs) -> Any:
    return np.clip(d, -at["delta"], at["delta"])


def _cross_entropy(build: Builder, node: Node) -> Outputs:
    """g (p - t) / max((1 - p) p, 1e-12); then times the weight, then over the count."""
    dtype = node.output.type.dtype
    g, p, target = (convert(build, tensor(node, k), dtype.compute) for k in range(3))
    spread = build("clamp", build("mul", build("sub", 1.0, p), p), min=1e-12)
    dx = build("div", build("mul", g, build("sub", p, target)), spread)
    dx = convert(build, dx, dtype)
    weight = optional(node, ("weight",), 3)["weight"]
    dx = dx if weight is None else build("mul", dx, weight)
    if reduction_of(node.attr) == MEAN:
        dx = build("div", dx, tensor(node, 1).type.numel)
    return (dx,)


def _np_cross_entropy(g: Any, p: Any, t: Any, *rest: Any) -> Any:
    *weight, at = rest
    dx = g * (p - t) / np.maximum((1 - p) * p, 1e-12)
    dx = dx * weight[0] if weight else dx
    return dx / p.size if reduction_of(at) == MEAN else dx


def _soft_margin(build: Builder, node: Node) -> Outputs:
    """-share y z / (1 + z) g with z = exp(-x y), rounded after every step."""
    g, x, y = (tensor(node, k) for k in range(3))
    z = build("exp", build("mul", build("neg", y), x))
    share = _share(build, node)
    against = build("neg", share) if isinstance(share, Value) else -share
    dx = build("div", build("mul", build("mul", y, z), against), build("add", z, 1))
    return (build("mul", dx, g),)


def _np_soft_margin(g: Any, x: Any, y: Any, at: Attrs) -> Any:
    z = np.exp(-x * y)
    return -g * y * z / (1 + z) / (x.size if reduction_of(at) == MEAN else 1)


# ---------------------------------------------------------------- of classes


def _class_type(spatial: bool) -> Callable[[tuple[Arg, ...], Attrs], Types]:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        class_types(operands[1:], at, spatial)
        x = operands[1]
        return (dense(x.dtype, x.shape),)

    return rule


def _nll(build: Builder, node: Node) -> Outputs:
    """-g w[t] / total at [.., t, ..] where the target t counts, else 0."""
    g, source = tensor(node, 0), tensor(node, 1)
    x, target = batched(build, source, tensor(node, 2))
    parts = optional(node, ("weight", "total_weight"), 3)
    weight, total = parts["weight"], parts["total_weight"]
    g = wide(build, g)
    g = build("unsqueeze", g, dim=1) if g.type.rank else g
    if reduction_of(node.attr) == MEAN:
        assert total is not None
        g = build("div", g, wide(build, total))
    column = build("unsqueeze", target, dim=1)
    classes = per_channel(build, build("arange", end=x.type.shape[1]), x.type.rank)
    counts = build("ne", column, node.attr["ignore_index"])
    hit = build("logical_and", build("eq", classes, column), counts)
    dx = build("neg", g)
    if weight is not None:
        dx = build("mul", dx, per_channel(build, wide(build, weight), x.type.rank))
    dx = convert(build, build("where", hit, dx, 0.0), source.type.dtype)
    return (dx if source.type.rank > 1 else build("squeeze", dx, dim=0),)


def _np_nll(g: Any, x: Any, target: Any, *rest: Any) -> Any:
    *weight, total, at = rest
    shape = x.shape
    if x.ndim == 1:
        x, target = x[None], target.reshape(1)
    counted = target != at["ignore_index"]
    safe = np.where(counted, target, 0)
    share = counted * (weight[0][safe] if weight else 1.0)
    share = -share * (g / total if reduction_of(at) == MEAN else g)
    dx = np.zeros_like(x)
    np.put_along_axis(dx, safe[:, None], share[:, None], 1)
    return dx.reshape(shape)


GRADIENT = ("f32", ())


def _samples(*operands: Any, **attrs: Any) -> tuple[Sample, ...]:
    """A gradient for each element, and one of the mean."""
    each = sample(("f32", operands[0][1]), *operands, reduction=NONE, **attrs)
    return each, sample(GRADIENT, *operands, reduction=MEAN, **attrs)


def _element_gradient(
    name: str,
    slope: Slope,
    fn: Callable[[Any, Attrs], Any],
    attrs: Sequence[str] = (),
    **values: Any,
) -> Op:
    halves = sample(HALVES[0], *HALVES, reduction=NONE, **values)
    return composite(
        name, default_form(name, ("grad_output", "self", "target"), ("reduction", *attrs)),
        _element_type, _of_elements(slope), _np_element(fn), (*_samples(*PAIR, **values), halves),
    )  # fmt: skip


def _class_gradient(name: str, spatial: bool, operands: Sequence[Any], more: Any = ()) -> Op:
    scores, targets = operands
    each, total = ("f32", targets[1]), ("f32+", ())

    def samples(ignore: int, *weight: Any) -> tuple[Sample, ...]:
        attrs = {"has_weight": bool(weight), "ignore_index": ignore}
        return (
            sample(each, scores, targets, *weight, total, reduction=NONE, **attrs),
            sample(GRADIENT, scores, targets, *weight, total, reduction=MEAN, **attrs),
        )

    return composite(
        name, default_form(name, ("grad_output", "self", "target", "weight?", "total_weight"),
                           ("reduction", "ignore_index")),
        _class_type(spatial), _nll, _np_nll, (*samples(1), *samples(-100, WEIGHT), *more),
    )  # fmt: skip


OPS: tuple[Op, ...] = (
    _element_gradient("mse_loss_backward", _mse, lambda d, at: 2 * d),
    _element_gradient("smooth_l1_loss_backward", _smooth_l1, _np_smooth_l1, ("beta",), beta=0.7),
    _element_gradient("huber_loss_backward", _huber, _np_huber, ("delta",), delta=0.7),
    composite("binary_cross_entropy_backward",
              default_form("binary_cross_entropy_backward",
                           ("grad_output", "self", "target", "weight?"), ("reduction",)),
              _element_type, _cross_entropy, _np_cross_entropy,
              (*_samples(*SHARES, has_weight=False),
               *_samples(*SHARES, ("f32+", (4,)), has_weight=True))),
    composite("soft_margin_loss_backward",
              default_form("soft_margin_loss_backward", ("grad_output", "self", "target"),
                           ("reduction",)),
              _element_type, _soft_margin, _np_soft_margin,
              (*_samples(*PAIR), sample(HALVES[0], *HALVES, reduction=NONE))),
    _class_gradient("nll_loss_backward", False, CLASSES,
                    (sample(GRADIENT, ("f32", (4,)), ("i64", ()), ("f32+", ()),
                            has_weight=False, reduction=MEAN, ignore_index=-100),)),
    _class_gradient("nll_loss2d_backward", True, MAPS),
)  # fmt: skip
