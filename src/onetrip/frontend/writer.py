"""Calls written into an ATen graph, each with the fake value and origin that later stages read.

Must not know which calls are written, or why.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.fx
from torch._guards import detect_fake_mode

Node = torch.fx.Node


class Writer:
    """Appends calls in front of one node, each with its fake value, under that node's origin."""

    def __init__(self, node: Node) -> None:
        self._node = node
        kept = ("val", "tensor_meta", "original_aten")
        self._meta = {k: v for k, v in node.meta.items() if k not in kept}

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A call of an operator; `meta["val"]` is what it gives for the arguments' own."""
        graph = self._node.graph
        with graph.inserting_before(self._node):
            new = graph.call_function(target, args, kwargs)
        values = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        fake_args, fake_kwargs = values
        mode = detect_fake_mode(_values(self._node)) or contextlib.nullcontext()
        with mode, torch.no_grad():
            new.meta = {**self._meta, "val": target(*fake_args, **fake_kwargs)}
        return new


def _values(node: Node) -> list[Any]:
    nodes = [node, *node.all_input_nodes]
    flat: list[Any] = []
    for n in nodes:
        value = n.meta.get("val")
        flat.extend(value if isinstance(value, (list, tuple)) else [value])
    return flat
