"""The price of a group, or why it cannot be one nest; groups of equal structure are priced once.

    structure ::= operators, attributes, types, which operand is which, what is stored

Identical layers differ in names only, so the fuse() attempt and the cost of a region are shared by
all of its copies. Must not know which groups are being tried or why.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from ..base.intern import key_of
from ..cost.occupancy import Need, Resources, need
from ..cost.roofline import Cost, kernel_cost, library_cost
from ..cost.sizes import Hints, number, smaller
from ..cost.traffic import traffic, work
from ..ir.graph import Node, Scalar
from ..ir.nest import Nest
from ..ir.types import TensorType
from ..passes.close import Closing, Unfusable
from ..passes.fuse import fuse
from ..target import Target
from .index import Atom, Index

Names = tuple[str, ...]


@dataclass(frozen=True)
class Priced:
    """What a group costs and needs; a library call needs nothing that is known here."""

    cost: Cost
    need: Need | None
    pointwise: bool


@dataclass(frozen=True)
class _Entry:
    """A priced structure: names stand for positions among externals and members."""

    names: Names
    outcome: Priced | Unfusable


class Evaluator:
    """Prices groups of one graph on one target.

    Args:
        launch_us: of a generated kernel; None: the target's `replay_us`.
    """

    def __init__(
        self,
        index: Index,
        target: Target,
        hints: Hints,
        resources: Resources | None = None,
        launch_us: float | None = None,
    ) -> None:
        self.index = index
        self.target = target
        self.hints = hints
        self.fused = 0
        self._resources = resources
        self.launch_us = target.replay_us if launch_us is None else launch_us
        self._closing = Closing(index.nests)
        self._memo: dict[Hashable, _Entry] = {}
        self._static: dict[str, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._nodes = {n.name: n for n in index.graph.nodes}
        self._bytes: dict[str, int] = {}

    def value_bytes(self, name: str) -> int:
        """Bytes of a value at the hints."""
        found = self._bytes.get(name)
        if found is None:
            found = self._bytes[name] = self._size(self.index.type_of(name))
        return found

    def _size(self, kind: TensorType) -> int:
        elements = smaller(kind.numel, kind.storage_elements, self.hints)
        return number(elements, self.hints) * kind.dtype.itemsize

    def price(self, atoms: tuple[int, ...], stored: Names) -> Priced | Unfusable:
        """The price of a group that stores these values."""
        first = self.index.atoms[atoms[0]]
        if not first.generated:
            return self.library(first)
        members = self.index.members(atoms)
        key, names = self.structure(members, frozenset(stored))
        entry = self._memo.get(key)
        if entry is None:
            nest = self.nest(atoms, stored)
            found = nest if isinstance(nest, Unfusable) else self.price_nest(nest)
            entry = self._memo[key] = _Entry(names, found)
        return _renamed(entry, names)

    def nest(self, atoms: tuple[int, ...], stored: Names) -> Nest | Unfusable:
        """The nest of a group."""
        self.fused += 1
        return fuse(
            self.index.members(atoms),
            self.index.nests,
            frozenset(stored),
            self._closing,
            bounded=len(atoms) > 1,
        )

    def library(self, atom: Atom) -> Priced:
        """The price of a library call: every operand read once, every output written once."""
        reads: dict[str, int] = {}
        for v in atom.node.values:
            base = self.index.base(v.name)
            reads[base] = max(reads.get(base, 0), self.value_bytes(v.name))
        writes = tuple((v.name, self.value_bytes(v.name)) for v in atom.node.outputs)
        cost = library_cost(atom.node, tuple(reads.items()), writes, self.target, hints=self.hints)
        return Priced(cost, None, False)

    def price_nest(self, nest: Nest) -> Priced:
        """The price of the kernel generated for a nest."""
        needs = need(nest, self.target, self.hints, self._resources)
        cost = kernel_cost(
            nest,
            traffic(nest, self.hints),
            work(nest),
            needs,
            self.target,
            hints=self.hints,
            launch_us=self.launch_us,
        )
        return Priced(cost, needs, not nest.reductions and not nest.scans)

    # -------------------------------------------------------------- structure

    def structure(self, members: Names, stored: frozenset[str]) -> tuple[Hashable, Names]:
        """A key equal for groups that differ in names only, and the names in its order."""
        local = {name: k for k, name in enumerate(members)}
        external: dict[str, int] = {}
        rows: list[Hashable] = []
        for name in members:
            node = self._nodes[name]
            wires: list[Hashable] = []
            for v in node.values:
                if v.name in local:
                    wires.append(local[v.name])
                    continue
                known = external.setdefault(v.name, len(external))
                wires.append((known, self._kind(v.type)))
            rows.append((self._node_kind(node), tuple(wires), name in stored))
        return tuple(rows), (*members, *external)

    def _node_kind(self, node: Node) -> int:
        found = self._static.get(node.name)
        if found is None:
            numbers = tuple(key_of(x.value) for x in node.inputs if isinstance(x, Scalar))
            places = tuple(isinstance(x, Scalar) for x in node.inputs)
            types = tuple(v.type for v in node.outputs)
            parts = (node.op, key_of(node.attrs), numbers, places, types)
            found = self._static[node.name] = self._kind(parts)
        return found

    def _kind(self, form: Hashable) -> int:
        return self._kinds.setdefault(form, len(self._kinds))


def _renamed(entry: _Entry, names: Names) -> Priced | Unfusable:
    """The outcome with the names of another group of the same structure."""
    if entry.names == names:
        return entry.outcome
    new = dict(zip(entry.names, names, strict=True))
    if isinstance(entry.outcome, Unfusable):
        detail = entry.outcome.detail
        values = tuple(new.get(v, v) for v in entry.outcome.values)
        for old in sorted(entry.outcome.values, key=len, reverse=True):
            detail = detail.replace(old, new.get(old, old))
        return replace(entry.outcome, detail=detail, values=values)
    cost = entry.outcome.cost
    reads = tuple((new[n], size) for n, size in cost.reads)
    writes = tuple((new[n], size) for n, size in cost.writes)
    return replace(entry.outcome, cost=replace(cost, reads=reads, writes=writes))
