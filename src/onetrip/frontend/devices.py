"""Tensors of several devices in one graph: a kernel reads none of another device's memory.

PyTorch lets a call on one device take numbers that are tensors without dimensions on the CPU. Each
is brought over once, so that what reads it can still share kernels; what else crosses devices, or
computes beside the graph's own, runs as the library runs it.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

CPU = torch.device("cpu")
_COPY = torch.ops.aten._to_copy.default
_MOVES = frozenset({_COPY, torch.ops.aten.copy_.default})


def main_device(graph: fx.Graph) -> torch.device:
    """Where a graph computes: the first device of its tensors that is not the CPU."""
    devices = dict.fromkeys(t.device for node in graph.nodes for t in tensors(node))
    return next((d for d in devices if d.type != "cpu"), CPU)


def tensors(node: fx.Node) -> list[Tensor]:
    """The tensors of a node's value."""
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, Tensor)]


def bring_numbers(module: fx.GraphModule) -> None:
    """Copies CPU numbers to the device of the calls that read them, in place."""
    graph, device = module.graph, main_device(module.graph)
    if device == CPU:
        return
    brought: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if not _computes_on(node, device):
            continue
        for source in [n for n in node.all_input_nodes if _is_number(n)]:
            if source not in brought:
                brought[source] = _copied(graph, source, device)
            node.replace_input_with(source, brought[source])
    if brought:
        module.recompile()


def _computes_on(node: fx.Node, device: torch.device) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target in _MOVES:
        return False
    return any(t.device == device for t in tensors(node))


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.device == CPU and not value.dim()


def _copied(graph: fx.Graph, source: fx.Node, device: torch.device) -> fx.Node:
    after = source
    if source.op == "placeholder":  # inputs stay together, before everything else
        after = list(graph.find_nodes(op="placeholder"))[-1]
    with graph.inserting_after(after):
        made = graph.call_function(_COPY, (source,), {"device": device})
    made.meta = {**source.meta, "val": _COPY(source.meta["val"], device=device)}
    return made
