"""One canonical form of a graph: no dead nodes, no node computed twice, no move that moves nothing.

Library calls stay in their order and are never merged: they may draw random numbers or check data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..base.intern import key_of
from ..ir.graph import Graph, Node, Scalar, Value
from ..ops.schema import Movement, Opaque
from ..ops.table import OPS

Renames = dict[str, Value]


def canonicalize(graph: Graph) -> Graph:
    """The graph after common-subexpression and dead-code elimination."""
    return eliminate_dead(eliminate_common(graph))


def eliminate_common(graph: Graph) -> Graph:
    """Equal operators on equal operands become one; a movement that moves nothing goes."""
    renames: Renames = {}
    seen: dict[Any, Node] = {}
    kept: list[Node] = []
    for old in graph.nodes:
        node = _renamed(old, renames)
        if _is_identity(node):
            renames[node.name] = node.values[0]
            continue
        first = seen.setdefault(_key(node), node)
        if first is node:
            kept.append(node)
            continue
        renames.update(
            {mine.name: theirs for mine, theirs in zip(node.outputs, first.outputs, strict=True)}
        )
    return _with_outputs(graph, tuple(kept), renames)


def eliminate_dead(graph: Graph) -> Graph:
    """Nodes that nothing needs are dropped; externs stay, since nothing is known of their effects.

    The capture has dropped the dead calls that it knows to be pure.
    """
    needed = set(graph.needed)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op == "extern" or any(v.name in needed for v in node.outputs):
            needed |= {v.name for v in node.values}
            kept.append(node)
    return graph.with_nodes(tuple(reversed(kept)))


def _is_library(node: Node) -> bool:
    return node.op not in OPS or isinstance(OPS[node.op].body, Opaque)


def _key(node: Node) -> Any:
    if _is_library(node):
        return id(node)
    operands = tuple(
        v.name if isinstance(v, Value) else ("scalar", key_of(v.value)) for v in node.inputs
    )
    types = tuple(v.type for v in node.outputs)
    return node.op, operands, tuple((k, key_of(v)) for k, v in node.attrs), types


def _is_identity(node: Node) -> bool:
    """A view that gives its operand's own shape and strides."""
    body = OPS[node.op].body if node.op in OPS else None
    if not isinstance(body, Movement) or body.view is None or len(node.values) != 1:
        return False
    made = body.view(node)
    source = node.values[0].type
    return made is not None and made == (source.strides, 0) and node.output.type == source


def _renamed(node: Node, renames: Mapping[str, Value]) -> Node:
    if not any(v.name in renames for v in node.values):
        return node
    return replace(node, inputs=tuple(_new(v, renames) for v in node.inputs))


def _new(v: Any, renames: Mapping[str, Value]) -> Any:
    return renames.get(v.name, v) if isinstance(v, Value) else v


def _with_outputs(graph: Graph, nodes: tuple[Node, ...], renames: Renames) -> Graph:
    outputs = tuple(
        v if v is None or isinstance(v, Scalar) else renames.get(v.name, v) for v in graph.outputs
    )
    mutations = tuple((t, renames.get(v.name, v)) for t, v in graph.mutations)
    return replace(graph, nodes=nodes, outputs=outputs, mutations=mutations)
