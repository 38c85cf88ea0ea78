"""Products, convolutions and what follows them, one reader after the other.

    y = conv(x, w);  z = y * s + h;  r = relu(z)     a chain of three: y and z have one reader each

Must not know libraries or costs.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node, Value
from ..ops.schema import Movement
from ..ops.table import OPS
from .lower import is_primitive


def sole_reader(graph: Graph, value: Value) -> Node | None:
    """The node that alone reads a value, and reads it once; None where the value must exist."""
    readers = graph.consumers.get(value.name, ())
    if value.name in graph.needed or len(readers) != 1:
        return None
    (node,) = readers
    return node if sum(v.name == value.name for v in node.values) == 1 else None


def is_plain_product(node: Node) -> bool:
    """Whether a node is x @ w, or that plus one number for each column."""
    if node.op != "addmm":
        return node.op == "mm"
    at, bias = node.attr, node.values[0].type
    return bias.shape == node.output.type.shape[1:] and at.get("alpha", 1) == at.get("beta", 1) == 1


def turned(graph: Graph, matrix: Value) -> Value | None:
    """The matrix of which another is the transpose."""
    maker = graph.producers.get(matrix.name)
    if maker is None or maker.op != "permute":
        return None
    source = maker.values[0]
    return source if source.type.strides == tuple(reversed(matrix.type.strides)) else None


def is_view(node: Node) -> bool:
    """Whether a node may be an alias of its operand."""
    op = OPS.get(node.op)
    return op is not None and isinstance(op.body, Movement) and op.body.view is not None


def escapes(graph: Graph, value: Value) -> bool:
    """Whether a value, or a view of it, must exist when the graph ends."""
    return value.name in graph.needed or any(
        escapes(graph, n.output) for n in graph.consumers.get(value.name, ()) if is_view(n)
    )


def is_stored(graph: Graph, value: Value) -> bool:
    """Whether a value is in memory whatever is fused: it is needed, or a library call reads it.

    One that only kernels of ours read need not be stored, and so is left to them.
    """
    if value.name in graph.needed:
        return True
    readers = graph.consumers.get(value.name, ())
    return any(_stores(graph, n) for n in readers)


def _stores(graph: Graph, reader: Node) -> bool:
    op = OPS.get(reader.op)
    if op is None or not is_primitive(op):
        return True
    return is_view(reader) and is_stored(graph, reader.output)
