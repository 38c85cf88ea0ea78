"""The finders of alternatives: one row for each idea.

A finder reads an expanded, canonical graph and answers with what it found, in graph order; it
commits to nothing. `device` is where the graph computes, `cpu` or `cuda`: which library calls
exist there. Must not know costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.graph import Graph
from .alternatives import Found
from .attention import find as attention
from .conv_norm import find as convolutions
from .library_epilogues import find as epilogues
from .sibling_products import find as siblings

Finder = Callable[[Graph, str], Sequence[Found]]

FINDERS: tuple[Finder, ...] = (attention, convolutions, epilogues, siblings)


def find_alternatives(
    graph: Graph, device: str, finders: tuple[Finder, ...] = FINDERS
) -> tuple[Found, ...]:
    """All second ways to compute parts of a graph, in the order of the table."""
    return tuple(found for find in finders for found in find(graph, device))
