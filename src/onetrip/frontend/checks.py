"""What a call must be to become an operator of the table; each raises Unsupported with the reason.

Knows fx nodes and our types, nothing of how a graph is read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..base.dtype import COMPILED
from ..base.errors import Unsupported
from ..ir.graph import Node, Operand, Value
from ..ir.types import TensorType, same_shape
from ..ops.composite import ABSENT
from ..ops.schema import Kind, Movement, Op
from .devices import tensors

MOST_OPERANDS = 64
"""Tensors that one kernel joins: each element asks in turn which of them it comes from."""


def check_devices(node: fx.Node, own: torch.device) -> None:
    """It computes on the graph's own device, on tensors that lie there."""
    nodes = (node, *node.all_input_nodes)
    devices = {t.device for n in nodes for t in tensors(n) if n is node or not _is_empty(t)}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Unsupported(f"{node.target} moves data between devices ({names})")
    if devices != {own} and not all(map(_is_empty, tensors(node))):
        raise Unsupported(f"{node.target} computes on {devices.pop()}, the graph on {own}")


def _is_empty(t: Tensor) -> bool:
    count: Any = t.numel()
    return isinstance(count, int) and count == 0


def check_count(operands: tuple[Operand, ...]) -> None:
    """It joins no more tensors than one kernel takes."""
    if len(operands) > MOST_OPERANDS:
        raise Unsupported(f"{len(operands)} operands, one kernel takes at most {MOST_OPERANDS}")


def check_types(op: Op, node: Node) -> None:
    """The entry's own type rule must give what the framework says."""
    for v in (*node.values, *node.outputs):
        if v.type.dtype not in COMPILED:
            raise Unsupported(f"no kernel computes on {v.type.dtype.torch_name}")
    forms = tuple(x.type if isinstance(x, Value) else x.value for x in node.inputs)
    expected = op.types(forms, node.attr)
    found = tuple(v.type for v in node.outputs)
    # Statistics beside a composite's first output differ by device; its expansion follows them.
    checked = 1 if op.kind is Kind.COMPOSITE else len(found)
    for want, have in list(zip(expected, found, strict=False))[:checked]:
        if want == ABSENT or want.shape == have.shape == (0,):
            continue  # a result that this call does not have, or that it was not asked for
        if want.dtype is not have.dtype or not same_shape(want.shape, have.shape):
            raise Unsupported(f"{op.name} gives {want} by its rule and {have} in the framework")
    for v in node.outputs:
        views = isinstance(op.body, Movement) or op.kind is Kind.MOVEMENT
        if not views and not _is_dense(v.type):
            raise Unsupported(f"{op.name} gives a result with gaps or overlaps in memory")


def _is_dense(t: TensorType) -> bool:
    """Whether the elements fill their storage without gap or overlap."""
    if any(s == 0 for s in t.shape):
        return True
    return t.is_contiguous or t.storage_elements == t.numel
