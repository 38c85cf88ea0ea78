"""Attention found by structure in a graph that spells it out.

    o = softmax(f(q k^T)) v      ->      o = attention(q, k, v, mask, scale)

Must not know costs.
"""

from __future__ import annotations

from ..ir.graph import Graph
from .alternatives import Alternative


def find(graph: Graph, device: str) -> list[Alternative]:
    """Every attention of the graph that the library's call can express."""
    return []
