"""One graph as the page sees it: calls, what passes between them, and a draft of its groups.

    call  an eager call with its nodes; views are read through and are none
    edge  what a call hands to another; fused, or cut with a reason

A graph has two boards where alternatives pay: as it is written, and with them. Must not know
sessions or JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..base.lazy import cached_property
from ..passes.alternatives import ADMITTED
from ..plan.decision import Decision
from ..plan.draft import Draft, Pair, name_of
from ..plan.draft_pool import Grouping
from ..plan.plan import GraphPlan
from ..plan.pool import Part
from ..report.keys import Call, layerless, layers
from ..report.view import Planned

_STANDING = ("nodes", "node_of", "edges", "around", "copies", "ways")
"""What twins have in common."""
LOCKED = ("illegal", "extern", "over-limit")
"""Classes of decisions that no user can overrule."""


@dataclass(frozen=True)
class Node:
    """A call on the board.

    Attributes:
        atoms: numbers of the draft's atoms.
        form: equal for the same call in copies of a layer.
    """

    id: int
    call: Call
    atoms: tuple[int, ...]
    form: str


@dataclass(frozen=True)
class Edge:
    """What one call hands to another.

    Attributes:
        a, b: the calls that make and read it.
        pairs: the atoms that do.
        values: base values.
        form: equal for the same edge in copies of a layer.
    """

    id: int
    a: int
    b: int
    pairs: tuple[Pair, ...]
    values: tuple[str, ...]
    bytes: int
    form: tuple[str, str, tuple[int, ...]]


class Board:
    """The calls and edges of one graph, which never change, and its groups, which do."""

    def __init__(self, planned: Planned, draft: Draft | None = None) -> None:
        self.planned = planned
        self.draft = draft or Draft(planned.problem, planned.graph)

    def twin(self) -> Board:
        """The same graph with groups of its own; prices are shared."""
        made = Board(self.planned, self.draft.twin())
        for name in _STANDING:
            made.__dict__[name] = getattr(self, name)
        return made

    # -------------------------------------------------------------- what stands

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Calls in the order of their first atom."""
        keys = self.planned.keys
        atoms: dict[str, list[int]] = {}
        for atom in self.draft.index.atoms:
            atoms.setdefault(keys.call_of[atom.name].key, []).append(atom.number)
        return tuple(
            Node(k, keys.by_key[key], tuple(own), layerless(key))
            for k, (key, own) in enumerate(atoms.items())
        )

    @cached_property
    def node_of(self) -> dict[int, int]:
        """The call of each atom."""
        return {k: node.id for node in self.nodes for k in node.atoms}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Edges in graph order of the reader; within a call there is none."""
        index = self.draft.index
        pairs: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
        for atom in index.atoms:
            for name in atom.reads:
                maker = index.maker.get(name)
                if maker is None or self.node_of[maker] == self.node_of[atom.number]:
                    continue
                ends = (self.node_of[maker], self.node_of[atom.number])
                pairs.setdefault(ends, []).append((maker, atom.number, name))
        return tuple(self._edge(k, ends, found) for k, (ends, found) in enumerate(pairs.items()))

    def _edge(self, number: int, ends: tuple[int, int], found: list[tuple[int, int, str]]) -> Edge:
        values = tuple(dict.fromkeys(name for _, _, name in found))
        size = sum(map(self.draft.evaluator.value_bytes, values))
        made, read = (self.nodes[k] for k in ends)
        apart = tuple(
            b - a for a, b in zip(layers(made.call.module), layers(read.call.module), strict=False)
        )
        pairs = tuple((a, b) for a, b, _ in found)
        return Edge(number, *ends, pairs, values, size, (made.form, read.form, apart))

    @cached_property
    def around(self) -> dict[int, tuple[int, ...]]:
        """The edges at each call."""
        found: dict[int, list[int]] = {n.id: [] for n in self.nodes}
        for e in self.edges:
            found[e.a].append(e.id)
            found[e.b].append(e.id)
        return {k: tuple(v) for k, v in found.items()}

    @cached_property
    def copies(self) -> dict[tuple[str, str, tuple[int, ...]], tuple[int, ...]]:
        """Edges by their form."""
        found: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
        for e in self.edges:
            found.setdefault(e.form, []).append(e.id)
        return {form: tuple(ids) for form, ids in found.items()}

    @cached_property
    def ways(self) -> dict[int, str]:
        """The edges of a graph as it is written that lie inside of a second way to compute it,
        which Best may take, and what that is."""
        problem = self.planned.problem
        if any(choice.taken for choice in self.planned.plan.alternatives):
            return {}
        ways = [a for a in problem.made if a.exactness in ADMITTED[problem.numerics]]
        way_of = {name: k for k, way in enumerate(ways) for name in way.nodes}
        atoms, found = self.draft.index.atoms, dict[int, str]()
        for e in self.edges:
            inside = {way_of.get(atoms[k].name, -1) for pair in e.pairs for k in pair}
            if len(inside) == 1 and -1 not in inside:
                found[e.id] = ways[inside.pop()].note
        return found

    def like(self, edge: Edge) -> tuple[Edge, ...]:
        """The same edge in all copies of its layer."""
        return tuple(self.edges[k] for k in self.copies[edge.form])

    # -------------------------------------------------------------- groups

    def start(self, plan: GraphPlan) -> None:
        """Takes over the groups of a plan of this graph."""
        self.draft.start(self.draft.grouping_of(plan.groups))

    def learn(self) -> None:
        """Asks all that a page asks first, so that twins know the answers."""
        self.draft.sums()
        for edge in self.edges:
            self.why(edge)

    def is_fused(self, edge: Edge) -> bool:
        """Whether no byte of the edge lies in memory for its reader."""
        return all(map(self.draft.is_one, edge.pairs))

    def fuse(self, edge: Edge) -> Decision | None:
        """Both ends in one kernel, or why not; then nothing has changed."""
        return self.draft.fuse(*edge.pairs)

    def cut(self, edge: Edge) -> str | None:
        """Both ends in kernels of their own, or why not; then nothing has changed."""
        return self.draft.cut(self.nodes[edge.a].atoms, self.nodes[edge.b].atoms)

    def why(self, edge: Edge) -> Decision | None:
        """Why an edge is not fused; None where it is."""
        pool = self.draft.pool
        for a, b in edge.pairs:
            for home in sorted(pool.homes[b]):
                reader = pool.parts[home]
                if not reader.holds(a) and pool.owner[a] >= 0:
                    return self.draft.why(pool.parts[pool.owner[a]], reader)
        return None

    def ends(self, edge: Edge) -> list[Part]:
        """The groups that make and read what an edge hands on."""
        pool = self.draft.pool
        homes = {h for a, b in edge.pairs for h in (pool.owner[a], *pool.homes[b]) if h >= 0}
        return [pool.parts[h] for h in homes]

    def edges_of(self, parts: Iterable[Part]) -> list[Edge]:
        """The edges at any call of some groups."""
        nodes = {self.node_of[k] for p in parts for k in p.atoms}
        return [self.edges[k] for k in sorted({e for n in nodes for e in self.around[n]})]

    def parts(self) -> dict[str, Part]:
        """Groups by the names that they keep."""
        return {name_of(p): p for p in self.draft.pool.parts.values()}

    @property
    def grouping(self) -> Grouping:
        """The groups as they are now."""
        return self.draft.grouping


def is_locked(decision: Decision) -> bool:
    """Whether no user can fuse here."""
    return decision.cls in LOCKED
