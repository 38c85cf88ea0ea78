"""Second ways to compute the same values: what a finder answers with and the planner chooses from.

    Alternative ::= nodes of a graph, the nodes that would take their place, which value is which

A finder reads the structure of an expanded, canonical graph and commits to nothing. Must not know
costs: whether an alternative pays is the planner's affair (plan/choose.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ..ir.graph import Graph, Node, Scalar, Value


class Exactness(Enum):
    """What an alternative may change; the numerics contract decides which may be taken."""

    BITWISE = "bitwise"
    """Every bit is eager's."""
    REASSOCIATES = "reassociates"
    """Sums in another order, or fewer roundings between the operators: no farther from the exact
    value than the nodes it replaces."""
    FINITE_ONLY = "finite-only"
    """Other results where a value is infinite, NaN or rounded to the storage dtype in between."""


ADMITTED: Mapping[str, frozenset[Exactness]] = {
    "bitwise": frozenset({Exactness.BITWISE}),
    "eager": frozenset({Exactness.BITWISE, Exactness.REASSOCIATES}),
    "fast": frozenset(Exactness),
}
"""What each numerics mode admits."""


@dataclass(frozen=True)
class Alternative:
    """One second way.

    Attributes:
        kind: which idea it is: `attention`, `convolution-norm`, `sibling-products`, ...
        nodes: names of the nodes it replaces, in graph order.
        made: the nodes that take their place, in order; operands come from outside `nodes`.
        values: (name of a replaced value that is read outside, the made value it becomes).
        exactness: see `Exactness`.
        note: a few words for the record: what the replacement is.
    """

    kind: str
    nodes: tuple[str, ...]
    made: tuple[Node, ...]
    values: tuple[tuple[str, Value], ...]
    exactness: Exactness
    note: str


@dataclass(frozen=True)
class Declined:
    """A place of a known shape that has no second way, and why: for the record alone.

    Attributes:
        kind: as of an `Alternative`.
        nodes: names of the nodes that look alike, in graph order.
        reason: a sentence.
    """

    kind: str
    nodes: tuple[str, ...]
    reason: str


Found = Alternative | Declined


def taken(graph: Graph, chosen: Iterable[Alternative]) -> Graph:
    """The graph with alternatives in place of their nodes; no two may share a node.

    The made nodes stand where the last replaced node stood, unless an earlier node reads them:
    the result is sorted again so that every value is made before it is used.
    """
    gone: set[str] = set()
    put: dict[str, tuple[Node, ...]] = {}
    renames: dict[str, Value] = {}
    for a in chosen:
        assert gone.isdisjoint(a.nodes), f"{a.kind}: {sorted(gone.intersection(a.nodes))} twice"
        gone.update(a.nodes)
        put[a.nodes[-1]] = a.made
        renames.update(a.values)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(put.get(node.name, ()))
        if node.name not in gone:
            nodes.append(node)
    renamed = tuple(_renamed(n, renames) for n in nodes)
    outputs = tuple(
        v if v is None or isinstance(v, Scalar) else renames.get(v.name, v) for v in graph.outputs
    )
    mutations = tuple((t, renames.get(v.name, v)) for t, v in graph.mutations)
    return replace(graph, nodes=_ordered(renamed), outputs=outputs, mutations=mutations)


def _renamed(node: Node, renames: Mapping[str, Value]) -> Node:
    if not any(v.name in renames for v in node.values):
        return node
    inputs = tuple(renames.get(v.name, v) if isinstance(v, Value) else v for v in node.inputs)
    return replace(node, inputs=inputs)


def _ordered(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with each moved behind its operands' makers; the order is kept where it can be."""
    maker = {v.name: k for k, n in enumerate(nodes) for v in n.outputs}
    placed: list[Node] = []
    state = [0] * len(nodes)
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            k = stack[-1]
            if state[k] == 2:
                stack.pop()
                continue
            state[k] = 1
            open_ = [maker[v.name] for v in nodes[k].values if v.name in maker]
            waiting = [j for j in open_ if state[j] != 2]
            assert all(state[j] == 0 for j in waiting), f"a cycle through {nodes[k].name}"
            if waiting:
                stack.extend(reversed(waiting))
                continue
            state[k] = 2
            placed.append(nodes[k])
            stack.pop()
    return tuple(placed)
