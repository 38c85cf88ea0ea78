"""Calls that address the storage of an operand instead of its elements.

    y = x.sin();  z = y[2:];  z.as_strided((2,), (1,), 0)   ->   y.as_strided((2,), (1,), 0)

An explicit offset of `as_strided` counts from the start of the storage, which for a view began with
another tensor. Here the call gets that tensor, so that nobody later must know where storages begin.
Knows fx nodes and their example values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..base.errors import Unsupported

READS = frozenset({torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default})
WRITES = frozenset({torch.ops.aten.as_strided_scatter.default})


def storage_owners(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The first node over the same storage, for each operand of a call that addresses it."""
    addressed = {n.args[0] for n in graph.nodes if n.target in READS | WRITES}
    first: dict[int, fx.Node] = {}
    owners: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes if addressed else ():
        val = node.meta.get("val")
        if isinstance(val, Tensor) and val.layout is torch.strided:
            owner = first.setdefault(val.untyped_storage()._cdata, node)
            if node in addressed:
                owners[node] = owner
    return owners


def on_owner(
    node: fx.Node, arguments: Mapping[str, Any], owners: Mapping[fx.Node, fx.Node]
) -> Mapping[str, Any]:
    """The call's arguments with the storage's owner as operand.

    Raises:
        Unsupported: a scatter through a view, whose result has the shape of the view.
    """
    view = arguments["self"]
    owner = owners.get(view, view)
    if owner is view:
        return arguments
    if node.target in WRITES:
        raise Unsupported(f"{node.name} writes into the storage behind the view {view.name}")
    offset = arguments["storage_offset"]
    if offset is None:
        offset = view.meta["val"].storage_offset()
    return {**arguments, "self": owner, "storage_offset": offset}


def check_owned(node: fx.Node, arguments: Mapping[str, Any]) -> None:
    """Raises Unsupported where an offset counts from a place that only the caller's tensor knows.

    Where an input begins in its storage is no part of its type, and may differ from call to call.
    """
    given = arguments["self"].op != "call_function"
    if given and arguments["storage_offset"] is not None:
        raise Unsupported(f"{node.name} counts from the start of its input's storage")


__all__ = ["READS", "WRITES", "check_owned", "on_owner", "storage_owners"]
