"""Graphs of torch programs as finders of alternatives see them: captured, expanded, canonical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.frontend.torch_fx import import_graph
from onetrip.ir.graph import Graph
from onetrip.passes.alternatives import Alternative, taken
from onetrip.passes.canonicalize import canonicalize
from onetrip.passes.expand import expand
from onetrip.passes.finders import Finder
from onetrip.passes.gpu_library import gpu_forms


class _SeenError(Exception):
    """The graph is known: nothing is to be compiled."""


def graph_of(program: Callable[..., Any], *args: Any, device: str = "cpu") -> Graph:
    """The one graph of a program."""
    graphs: list[Graph] = []
    forms = gpu_forms(lambda node, moved: False) if device == "cuda" else {}

    def see(captured: CapturedGraph) -> Any:
        graph = canonicalize(import_graph(captured.module).graph)
        graphs.append(canonicalize(expand(graph, forms)))
        raise _SeenError

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=make_backend(see), dynamic=False)
    try:
        with torch.no_grad():
            compiled(*args)
    except Exception:
        assert graphs, "the program was not captured"
    (graph,) = graphs
    return graph


def found(find: Finder, graph: Graph, device: str = "cpu") -> tuple[list[str], list[str]]:
    """(what the alternatives replace: operators and their exactness; why others were declined).

    Each alternative is taken alone, so that a graph that cannot be ordered would show.
    """
    made, declined = [], []
    operators = {n.name: n.op for n in graph.nodes}
    for f in find(graph, device):
        if isinstance(f, Alternative):
            taken(graph, [f])
            ends = [operators[n] for n in f.nodes if n in operators]
            made.append(f"{ends[-1]} {f.exactness.value}: {f.note}")
        else:
            declined.append(f.reason)
    return made, declined
