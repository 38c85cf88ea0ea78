"""Calls over lists of tensors (`torch._foreach_*`) become one call for each tensor.

    _foreach_add.List([a, b], [c, d], alpha=2)   ->   add(a, c, alpha=2), add(b, d, alpha=2)

This is what the library's own loop over the list computes, so nothing is rounded otherwise; and
only calls of single tensors can share a kernel with what is read and written around them. A call
that the table does not name stays as it is. Must not know optimizers, the IR or plans.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Rule = Callable[[Mapping[str, Any], int], Arguments]
"""(arguments by schema name, position in the list) -> arguments of one tensor's call."""


def _at(x: Any, k: int) -> Any:
    """What the k-th call takes of an argument: its own element of a list, all of anything else."""
    return x[k] if isinstance(x, (list, tuple)) else x


def _each(*names: str, **keywords: str) -> Rule:
    """Positional arguments by the list call's names, keyword arguments as `keyword=name`."""

    def rule(given: Mapping[str, Any], k: int) -> Arguments:
        named = {key: _at(given[name], k) for key, name in keywords.items() if name in given}
        return tuple(_at(given[name], k) for name in names), named

    return rule


def _norm(given: Mapping[str, Any], k: int) -> Arguments:
    return (given["self"][k], given["ord"], None, False), {"dtype": given["dtype"]}


UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "max",
)  # fmt: skip
ARITHMETIC = {
    "add": (aten.add.Tensor, aten.add.Scalar),
    "sub": (aten.sub.Tensor, aten.sub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Scalar),
    "div": (aten.div.Tensor, aten.div.Scalar),
    "maximum": (aten.maximum.default, aten.clamp_min.default),
    "minimum": (aten.minimum.default, aten.clamp_max.default),
    "clamp_min": (aten.maximum.default, aten.clamp_min.default),
    "clamp_max": (aten.minimum.default, aten.clamp_max.default),
}
"""The call of one tensor with a tensor, and with a number."""

RULES: dict[str, tuple[Any, Rule]] = {
    **{f"{name}.default": (getattr(aten, name).default, _each("self")) for name in UNARY},
    **{
        f"{name}.{overload}": (pair[second != "other"], _each("self", second, **scale))
        for name, pair in ARITHMETIC.items()
        for overload, second, scale in (
            ("List", "other", {"alpha": "alpha"}),
            ("Scalar", "scalar", {}),
            ("ScalarList", "scalars", {}),
        )
    },
    **{
        f"pow.{overload}": (target, _each("self", "exponent"))
        for overload, target in (
            ("List", aten.pow.Tensor_Tensor),
            ("Scalar", aten.pow.Tensor_Scalar),
            ("ScalarList", aten.pow.Tensor_Scalar),
            ("ScalarAndTensor", aten.pow.Scalar),
        )
    },
    "add.Tensor": (aten.add.Tensor, _each("self", "other", alpha="alpha")),
    "mul.Tensor": (aten.mul.Tensor, _each("self", "other")),
    "div.Tensor": (aten.div.Tensor, _each("self", "other")),
    "lerp.List": (aten.lerp.Tensor, _each("self", "tensors1", "weights")),
    "lerp.Scalar": (aten.lerp.Scalar, _each("self", "tensors1", "weight")),
    "lerp.ScalarList": (aten.lerp.Scalar, _each("self", "tensors1", "weight")),
    **{
        f"{name}.{overload}": (
            getattr(aten, name).default,
            _each("self", "tensor1", "tensor2", value=value),
        )
        for name in ("addcmul", "addcdiv")
        for overload, value in (("Scalar", "value"), ("ScalarList", "scalars"))
    },
    "norm.Scalar": (aten.linalg_vector_norm.default, _norm),
    "copy.default": (aten.copy.default, _each("self", "src")),
    "zero.default": (aten.zeros_like.default, _each("self")),
}
"""By name without `aten._foreach_`: the call of one tensor, and how its arguments are found."""


def split_foreach(module: fx.GraphModule) -> None:
    """Replaces the list calls that the table names, in place."""
    found = [n for n in module.graph.nodes if _rule(n) is not None]
    for node in found:
        _split(node)
    if found:
        module.recompile()


def _rule(node: fx.Node) -> tuple[Any, Rule] | None:
    name = str(node.target)
    if node.op != "call_function" or not name.startswith("aten._foreach_"):
        return None
    taken_apart = all(u.target is operator.getitem for u in node.users)
    return RULES.get(name.removeprefix("aten._foreach_")) if taken_apart else None


def _split(node: fx.Node) -> None:
    rule = _rule(node)
    assert rule is not None
    target, arguments = rule
    given = _given(node)
    values: Sequence[Any] = node.meta["val"]
    kept = {k: v for k, v in node.meta.items() if k != "tensor_meta"}
    for user in list(node.users):
        k = user.args[1]
        assert isinstance(k, int)
        args, kwargs = arguments(given, k)
        with node.graph.inserting_before(node):
            one = node.graph.call_function(target, args, kwargs)
        one.meta = {**kept, "val": values[k]}
        user.replace_all_uses_with(one)
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _given(node: fx.Node) -> dict[str, Any]:
    """Arguments by schema name, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given: dict[str, Any] = {}
    for k, argument in enumerate(node.target._schema.arguments):
        at_place = k < len(node.args) and not argument.kwarg_only
        other = node.kwargs.get(argument.name, argument.default_value)
        given[argument.name] = node.args[k] if at_place else other
    return given
