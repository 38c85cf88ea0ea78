"""Types of what norms give on a CPU, as their kernels give them.

    x f16 or bf16, weight f32:   y as x, mean and 1 / deviation f32, dx as x

A norm of mixed types is what autocast makes of one behind a convolution. The framework's rule for
types says that its statistics are as x; kernels of ours that follow it would round them, and its
own gradient kernels do not read what is rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import Tensor, fx

_REDUCED = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
_FORWARD: Mapping[torch._ops.OpOverload, tuple[int, ...]] = {
    _aten.native_layer_norm.default: (2, 3),
    _aten.native_group_norm.default: (1, 2),
    _aten.native_batch_norm.default: (1, 2, 3, 4),
    _aten._native_batch_norm_legit.default: (1, 2, 3, 4),
    _aten._native_batch_norm_legit.no_stats: (1, 2),
    _aten._native_batch_norm_legit_functional.default: (1, 2, 3, 4),
    _aten._native_batch_norm_legit_no_training.default: (1, 2, 3, 4),
    _aten._batch_norm_with_update.default: (1, 2, 3, 4),
    _aten._batch_norm_with_update_functional.default: (1, 2, 3, 4),
}
"""Norms whose second and third results are statistics, with the positions of their parameters."""
_BACKWARD: Mapping[torch._ops.OpOverload, int] = {_aten.native_group_norm_backward.default: 1}
"""Gradients whose first result is of the type of an operand, with its position."""


def correct_norm_types(module: fx.GraphModule) -> None:
    """States the types that the kernels give in `meta["val"]` of norms and of what reads them."""
    for node in module.graph.nodes:
        if node.target in _FORWARD:
            if _is_mixed(node, _FORWARD[node.target]):
                _state(node, dict.fromkeys((1, 2), torch.float32))
        elif node.target in _BACKWARD:
            x = _given(node, _BACKWARD[node.target])
            if x is not None and x.device.type == "cpu":
                _state(node, {0: x.dtype})


def _is_mixed(node: fx.Node, parameters: tuple[int, ...]) -> bool:
    x = _given(node, 0)
    if x is None or x.device.type != "cpu" or x.dtype not in _REDUCED:
        return False
    return any(p is not None and p.dtype is torch.float32 for p in _givens(node, parameters))


def _givens(node: fx.Node, positions: tuple[int, ...]) -> list[Tensor | None]:
    return [_given(node, k) for k in positions]


def _given(node: fx.Node, position: int) -> Tensor | None:
    argument = node.args[position] if position < len(node.args) else None
    val = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return val if isinstance(val, Tensor) else None


def _state(node: fx.Node, types: Mapping[int, torch.dtype]) -> None:
    """Results of a call by position, with what stands for them or for the same memory."""
    val = list(node.meta["val"])
    for k, dtype in types.items():
        if isinstance(val[k], Tensor):
            val[k] = val[k].to(dtype)
    node.meta["val"] = tuple(val)
    for user in node.users:
        if user.target is operator.getitem:
            position = user.args[1]
            assert isinstance(position, int)
            if position in types:
                _follow(user, val[position])


def _follow(node: fx.Node, val: Tensor | None) -> None:
    node.meta["val"] = val
    for user in node.users:
        if user.target in (_aten.detach.default, _aten.alias.default):
            _follow(user, val)
