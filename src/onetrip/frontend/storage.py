"""Calls that address the storage of an operand instead of its elements.

    y = x.sin();  z = y[2:];  z.as_strided((2,), (1,), 0)   ->   y.as_strided((2,), (1,), 0)

An explicit offset of `as_strided` counts from the start of the storage, which for a view began with
another tensor. Here the call gets that tensor, so that nobody later must know where storages begin.
Knows fx nodes and their example values only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..base.errors import Unsupported

READS = frozenset({torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default})
WRITES = frozenset({torch.ops.aten.as_strided_scatter.default})


def storage_owners(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The tensor that a view was taken of, for each operand of a call that addresses storage.

    Found along the calls: two inputs may share a storage in the call that was captured, and none
    in a later one.
    """
    addressed = {n.args[0] for n in graph.nodes if n.target in READS | WRITES}
    return {n: _owner(n) for n in addressed if isinstance(n, fx.Node) and _storages(n)}


def _owner(node: fx.Node) -> fx.Node:
    (own,) = _storages(node)
    found, at = node, node
    while at.op == "call_function":
        source = next((n for n in at.all_input_nodes if own in _storages(n)), None)
        if source is None:
            break
        at = source
        if isinstance(at.meta.get("val"), Tensor):
            found = at
    return found


def _storages(node: fx.Node) -> set[int]:
    """The storages of a node's strided tensors."""
    value = node.meta.get("val", node.meta.get("example_value"))
    values = value if isinstance(value, (list, tuple)) else [value]
    tensors = (v for v in values if isinstance(v, Tensor) and v.layout is torch.strided)
    return {t.untyped_storage()._cdata for t in tensors}


def on_owner(
    node: fx.Node, arguments: Mapping[str, Any], owners: Mapping[fx.Node, fx.Node]
) -> Mapping[str, Any]:
    """The call's arguments with the storage's owner as operand, where the graph made the storage.

    In that of an input an offset counts from a place that only the caller's tensor knows.

    Raises:
        Unsupported: a scatter through a view, whose result has the shape of the view.
    """
    view = arguments["self"]
    owner = owners.get(view, view)
    if owner is view:
        return arguments
    if node.target in WRITES:
        raise Unsupported(f"{node.name} writes into the storage behind the view {view.name}")
    if owner.op != "call_function":
        return arguments
    offset = arguments["storage_offset"]
    if offset is None:
        offset = view.meta["val"].storage_offset()
    return {**arguments, "self": owner, "storage_offset": offset}


def check_owned(
    node: fx.Node, arguments: Mapping[str, Any], owners: Mapping[fx.Node, fx.Node]
) -> None:
    """Raises Unsupported where an offset counts from a place that only the caller's tensor knows.

    Where an input begins in its storage is no part of its type, and may differ from call to call;
    nor is what else lies there, which a scatter copies too.
    """
    view = arguments["self"]
    given = owners.get(view, view).op != "call_function"
    if given and node.target in WRITES:
        raise Unsupported(f"{node.name} copies the storage of its input")
    if given and arguments["storage_offset"] is not None:
        raise Unsupported(f"{node.name} counts from the start of its input's storage")


def addresses_written(graph: fx.Graph, written: Collection[int]) -> bool:
    """Whether a program addresses the storage of an input that it writes.

    In a functional graph the input is another tensor from the write on, with a storage that begins
    and ends with it: what eager finds before and behind, nothing there shows.

    Args:
        graph: Dynamo's, before it is functional.
        written: positions of inputs.
    """
    given = graph.find_nodes(op="placeholder")
    theirs = {s for k in written if k < len(given) for s in _storages(given[k])}
    return any(
        isinstance(x, fx.Node) and _storages(x) & theirs
        for n in graph.nodes
        if n.op != "placeholder" and _ADDRESSING in getattr(n.target, "__name__", str(n.target))
        for x in n.args[:1]
    )


_ADDRESSING = "as_strided"


__all__ = ["READS", "WRITES", "addresses_written", "check_owned", "on_owner", "storage_owners"]
