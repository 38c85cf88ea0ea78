"""Products over one input as one product, their weights joined at each call.

    x @ a, x @ b, x @ c    ->    y = x @ [a b c];  its columns

Weights are inputs that may change between calls, so joining them is a kernel of each call: it pays
where they are small beside x, or the products too small for the chip. A result that must lie as the
caller expects is copied out; kernels of ours read the columns where they lie. Must not know costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from .alternatives import Alternative, Exactness, Found
from .chains import escapes, is_plain_product, turned
from .writer import Writer

KIND = "sibling-products"
MOST = 64
"""Products that are joined: one kernel reads as many weights."""
APART = 256
"""Nodes between one sibling and the next, beyond which neither waits for the other."""


def find(graph: Graph, device: str) -> list[Found]:
    """Every set of products over one input of which none needs another's result."""
    taken = {v.name for v in graph.values()}
    place = {n.name: k for k, n in enumerate(graph.nodes)}
    found: list[Found] = []
    for group in _siblings(graph, place):
        first = group[0]
        writer = Writer(f"{first.name}_joined", taken, first.origin, first.call)
        values = _joined(graph, group, writer)
        note = f"{len(group)} products over one input as one"
        names = tuple(n.name for n in group)
        nodes = tuple(writer.nodes)
        found.append(Alternative(KIND, names, nodes, values, Exactness.REASSOCIATES, note))
    return found


def _siblings(graph: Graph, place: dict[str, int]) -> Iterator[tuple[Node, ...]]:
    """Groups of two products or more, in graph order."""
    by_input: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if is_plain_product(node) and _is_known(node):
            x = node.values[-2]
            by_input.setdefault((node.op, x.name), []).append(node)
    for nodes in by_input.values():
        for near in _near(nodes, place):
            free = _independent(graph, near, place)
            if len(free) > 1:
                yield free


def _is_known(node: Node) -> bool:
    """Whether a result lies row by row and its sizes are numbers."""
    kind = node.output.type
    return kind.is_contiguous and all(isinstance(n, int) for n in kind.shape)


def _near(nodes: Sequence[Node], place: dict[str, int]) -> Iterator[list[Node]]:
    run = [nodes[0]]
    for node in nodes[1:]:
        if len(run) == MOST or place[node.name] - place[run[-1].name] > APART:
            yield run
            run = []
        run.append(node)
    yield run


def _independent(graph: Graph, nodes: Sequence[Node], place: dict[str, int]) -> tuple[Node, ...]:
    """Those of which none reads what another made, directly or through others."""
    after: set[str] = set()
    free: list[Node] = []
    own = {n.name for n in nodes}
    for node in graph.nodes[place[nodes[0].name] : place[nodes[-1].name] + 1]:
        depends = any(v.name in after for v in node.values)
        if node.name in own and not depends:
            free.append(node)
        if node.name in own or depends:
            after.update(v.name for v in node.outputs)
    return tuple(free)


# ------------------------------------------------------------------ the product


def _joined(graph: Graph, group: Sequence[Node], writer: Writer) -> tuple[tuple[str, Value], ...]:
    """The joined product, and which of its columns each value is."""
    first = group[0]
    x = first.values[-2]
    widths: list[Any] = [n.output.type.shape[1] for n in group]
    weight = _columns(graph, [n.values[-1] for n in group], writer)
    operands = [x, weight]
    if first.op == "addmm":
        operands.insert(0, writer("cat", *(n.values[0] for n in group), dim=0))
    kind = TensorType.dense(first.output.type.dtype, (x.type.shape[0], sum(widths)))
    y = writer.library(first.op, operands, kind, **first.attr)
    values: list[tuple[str, Value]] = []
    start = 0
    for node, width in zip(group, widths, strict=True):
        part = writer("slice", y, dim=1, start=start, end=start + width, step=1)
        if escapes(graph, node.output):
            part = writer("clone", part)
        values.append((node.output.name, part))
        start += width
    return tuple(values)


def _columns(graph: Graph, weights: Sequence[Value], writer: Writer) -> Value:
    """[inner, all columns]: joined along the rows of weights where all lie turned."""
    sources = [turned(graph, w) for w in weights]
    if all(s is not None for s in sources):
        return writer.permuted(writer("cat", *(s for s in sources if s is not None), dim=0), (1, 0))
    return writer("cat", *weights, dim=1)
