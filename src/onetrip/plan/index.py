"""What of a graph matters to grouping: atoms, the values between them, the views that are free.

    node ::= alias      a movement that is a view of its operand: never a kernel
           | generated  it has a nest
           | library    contraction, opaque call or extern

An atom is a node that is no alias. Atoms read *base* values through chains of aliases, which every
reader takes into its own kernel; a library call reads the view itself, as an alias of the base.
Must not know costs or targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..base.lazy import cached_property
from ..base.sym import Dim
from ..ir.graph import Graph, Node, Value
from ..ir.nest import Nest
from ..ir.types import TensorType
from ..ops.schema import Movement
from ..ops.table import OPS


@dataclass(frozen=True)
class View:
    """A value that is an alias: `offset` and strides of `type` are in elements of `base`."""

    value: Value
    base: str
    type: TensorType
    offset: Dim


@dataclass(frozen=True)
class Atom:
    """A node that makes values of its own.

    Attributes:
        number: position among the atoms, in graph order.
        chain: the alias nodes that stand between the node and the bases it reads, in graph order.
        reads: the base values that it reads.
        generated: whether it has a nest.
    """

    number: int
    node: Node
    chain: tuple[str, ...]
    reads: tuple[str, ...]
    generated: bool

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name


@dataclass(frozen=True)
class Index:
    """A graph as atoms.

    Attributes:
        views: the values that are aliases.
        readers: atoms that read each base value, in order.
        needed: base values that must exist when the graph ends.
        maker: the atom that makes each base value; inputs have none.
    """

    graph: Graph
    nests: Mapping[str, Nest]
    atoms: tuple[Atom, ...]
    views: Mapping[str, View]
    readers: Mapping[str, tuple[int, ...]]
    needed: frozenset[str]
    maker: Mapping[str, int]
    position: Mapping[str, int]
    values: Mapping[str, Value] = field(repr=False)

    @cached_property
    def by_name(self) -> Mapping[str, Atom]:
        """Atoms by the name of their node."""
        return {a.name: a for a in self.atoms}

    @cached_property
    def closures(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For each atom the atoms above it and those below it, as bits."""
        ups, downs = [0] * len(self.atoms), [0] * len(self.atoms)
        for a in self.atoms:
            for name in a.reads:
                source = self.maker.get(name)
                if source is not None:
                    ups[a.number] |= ups[source] | 1 << source
        for a in reversed(self.atoms):
            for v in a.node.outputs:
                for r in self.readers.get(v.name, ()):
                    downs[a.number] |= downs[r] | 1 << r
        return tuple(ups), tuple(downs)

    def members(self, atoms: Sequence[int]) -> tuple[str, ...]:
        """Names of the atoms' nodes and of the alias nodes between them, in graph order."""
        if len(atoms) == 1:
            return (*self.atoms[atoms[0]].chain, self.atoms[atoms[0]].name)
        names: dict[str, None] = {}
        for k in atoms:
            names.update(dict.fromkeys((*self.atoms[k].chain, self.atoms[k].name)))
        return tuple(sorted(names, key=self.position.__getitem__))

    def type_of(self, name: str) -> TensorType:
        """The type of a value as it lies in memory."""
        view = self.views.get(name)
        return view.type if view is not None else self.values[name].type

    def base(self, name: str) -> str:
        """The value whose memory a value shares: itself unless it is an alias."""
        view = self.views.get(name)
        return view.base if view is not None else name


def index_graph(
    graph: Graph, nests: Mapping[str, Nest], copies: frozenset[str] = frozenset()
) -> Index:
    """The atoms of a graph.

    Args:
        nests: nests of the primitive nodes, by node name; other nodes are library calls.
        copies: nodes that must not be aliases though they could be.
    """
    views: dict[str, View] = {}
    chains: dict[str, tuple[str, ...]] = {}
    atoms: list[Atom] = []
    position = {n.name: k for k, n in enumerate(graph.nodes)}
    for node in graph.nodes:
        view = None if node.name in copies or node.name not in nests else _view(node, views)
        if view is not None:
            views[node.name] = view
            chains[node.name] = (*chains.get(node.values[0].name, ()), node.name)
            continue
        chain = dict.fromkeys(n for v in node.values for n in chains.get(v.name, ()))
        ordered = tuple(sorted(chain, key=position.__getitem__))
        reads = tuple(dict.fromkeys(_base(v.name, views) for v in node.values))
        atoms.append(Atom(len(atoms), node, ordered, reads, node.name in nests))
    readers: dict[str, list[int]] = {}
    for a in atoms:
        for name in a.reads:
            readers.setdefault(name, []).append(a.number)
    return Index(
        graph,
        nests,
        tuple(atoms),
        views,
        {k: tuple(v) for k, v in readers.items()},
        frozenset(_base(n, views) for n in graph.needed),
        {v.name: a.number for a in atoms for v in a.node.outputs},
        position,
        {v.name: v for v in graph.values()},
    )


def _base(name: str, views: Mapping[str, View]) -> str:
    view = views.get(name)
    return view.base if view is not None else name


def _view(node: Node, views: Mapping[str, View]) -> View | None:
    """The alias that a movement is, given how its operand lies in memory."""
    op = OPS.get(node.op)
    if op is None or not isinstance(op.body, Movement) or op.body.view is None or not node.inputs:
        return None
    source = node.inputs[0]
    if not isinstance(source, Value):
        return None
    before = views.get(source.name)
    if before is not None:
        node = replace(node, inputs=(Value(source.name, before.type), *node.inputs[1:]))
    found = op.body.view(node)
    if found is None:
        return None
    (strides, offset), stated = found, node.output.type
    lying = zip(stated.shape, strides, stated.strides, strict=True)
    # Nothing follows from the stride of one element: it is as eager states it.
    kind = TensorType(stated.dtype, stated.shape, tuple(t if n == 1 else s for n, s, t in lying))
    base, start = (source.name, 0) if before is None else (before.base, before.offset)
    return View(node.output, base, kind, start + offset)
