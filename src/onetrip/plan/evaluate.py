"""The price of a group, or why it cannot be one nest; groups of equal structure are priced once.

Identical layers differ in names only, so the fuse() attempt, the nest and the cost of a group are
shared by all of its copies (structure.py). Must not know which groups are being tried or why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..base.cancel import checkpoint
from ..cost.mixed import most_held, too_long, ways
from ..cost.occupancy import Need, Resources, need
from ..cost.roofline import Cost, kernel_cost, library_cost
from ..cost.sizes import Hints, number, smaller
from ..cost.traffic import traffic, work
from ..ir.nest import Combine, Nest
from ..ir.types import TensorType
from ..ops.table import OPS
from ..passes.anonymize import renamed
from ..passes.close import Closing, Unfusable
from ..passes.fuse import fuse
from ..target import Target
from .index import Atom, Index
from .structure import Names, Once, Structures


@dataclass(frozen=True)
class Priced:
    """What a group is, costs and needs; a library call needs nothing that is known here."""

    kind: str
    cost: Cost
    need: Need | None


class Evaluator:
    """Prices groups of one graph on one target.

    Args:
        structures: of the same graph, where they are known.
    """

    def __init__(
        self,
        index: Index,
        target: Target,
        hints: Hints,
        resources: Resources | None = None,
        structures: Structures | None = None,
    ) -> None:
        self.index = index
        self.target = target
        self.hints = hints
        self.fused = 0
        self._resources = resources
        self._closing = Closing(index.nests)
        self.structures = structures or Structures(index)
        self._prices: Once[Priced | Unfusable] = Once(_price_renamed)
        self._nests: Once[Nest | Unfusable] = Once(_nest_renamed)
        self._calls: dict[int, Priced] = {}
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
        key, names = self.structures.group(atoms, frozenset(stored))
        return self._prices.get(key, names, lambda: self._priced(atoms, stored))

    def has_nest(self, atoms: tuple[int, ...], stored: Names) -> bool:
        """Whether generated atoms can be one nest."""
        key, names = self.structures.group(atoms, frozenset(stored))
        _, found = self._prices.known(key, names, lambda: self._priced(atoms, stored))
        return not isinstance(found, Unfusable)

    def _priced(self, atoms: tuple[int, ...], stored: Names) -> Priced | Unfusable:
        checkpoint()
        nest = self._fuse(atoms, stored)
        return nest if isinstance(nest, Unfusable) else self.price_nest(nest)

    def nest(self, atoms: tuple[int, ...], stored: Names) -> Nest | Unfusable:
        """The nest of a group."""
        key, names = self.structures.exact(atoms, frozenset(stored))
        return self._nests.get(key, names, lambda: self._fuse(atoms, stored))

    def form(self, atoms: tuple[int, ...], stored: Names) -> tuple[Nest, Names]:
        """The nest of the first group that differs in names only, and what its buffers are here."""
        key, names = self.structures.exact(atoms, frozenset(stored))
        first, nest = self._nests.known(key, names, lambda: self._fuse(atoms, stored))
        assert not isinstance(nest, Unfusable), f"a group of the plan has no nest: {nest}"
        here = dict(zip(first, names, strict=True))
        return nest, tuple(here[b.name] for b in nest.buffers)

    def _fuse(self, atoms: tuple[int, ...], stored: Names) -> Nest | Unfusable:
        self.fused += 1
        made = fuse(
            self.index.members(atoms),
            self.index.nests,
            frozenset(stored),
            self._closing,
            bounded=len(atoms) > 1,
            mixed=lambda nest: bool(ways(nest, self.target)),
        )
        long = None if isinstance(made, Unfusable) else too_long(made, self.target)
        if long is None:
            return made
        most = most_held(self.target)
        detail = f"rows of {long} elements, at most {most}"
        return Unfusable("held-rows", detail, count=(long, most))

    def library(self, atom: Atom) -> Priced:
        """The price of a library call: every operand read once, every output written once."""
        found = self._calls.get(atom.number)
        if found is None:
            found = self._calls[atom.number] = self._call(atom)
        return found

    def _call(self, atom: Atom) -> Priced:
        reads: dict[str, int] = {}
        for v in atom.node.values:
            base = self.index.base(v.name)
            reads[base] = max(reads.get(base, 0), self.value_bytes(v.name))
        writes = tuple((v.name, self.value_bytes(v.name)) for v in atom.node.outputs)
        cost = library_cost(atom.node, tuple(reads.items()), writes, self.target, hints=self.hints)
        return Priced(_library_kind(atom.node.op), cost, None)

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
        )
        return Priced(_kind(nest), cost, needs)


def _kind(nest: Nest) -> str:
    if any(s.combine is not Combine.SET for s in nest.stores):
        return "scatter"
    return "scan" if nest.scans else "reduction" if nest.reductions else "pointwise"


def _library_kind(op: str) -> str:
    return OPS[op].kind.value if op in OPS else "extern"


def _price_renamed(outcome: Priced | Unfusable, new: Mapping[str, str]) -> Priced | Unfusable:
    if isinstance(outcome, Unfusable):
        return _unfusable(outcome, new)
    cost = outcome.cost
    reads = tuple((new[n], size) for n, size in cost.reads)
    writes = tuple((new[n], size) for n, size in cost.writes)
    return replace(outcome, cost=replace(cost, reads=reads, writes=writes))


def _unfusable(reason: Unfusable, new: Mapping[str, str]) -> Unfusable:
    detail = reason.detail
    for old in sorted(reason.values, key=len, reverse=True):
        detail = detail.replace(old, new.get(old, old))
    return replace(reason, detail=detail, values=tuple(new.get(v, v) for v in reason.values))


def _nest_renamed(nest: Nest | Unfusable, new: Mapping[str, str]) -> Nest | Unfusable:
    return _unfusable(nest, new) if isinstance(nest, Unfusable) else renamed(nest, new)
