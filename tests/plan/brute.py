"""The cheapest plan by trying all of them: what the search is held against.

    group  ::= atoms and which of their values it stores
    allowed    joined by edges or common inputs; every atom leads to a stored value inside;
               no path from a stored value leaves the group and comes back; fuse() finds a nest
    plan   ::= groups one after the other, each reading only what is stored; a value that is
               computed and not stored is stored by no later group

The cheapest plan is a shortest path over sets of stored values. Shares with the planner only the
index of the graph and the price of a group.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from onetrip.passes.close import Unfusable
from onetrip.plan.evaluate import Evaluator
from onetrip.plan.index import Index

Atoms = frozenset[int]


@dataclass(frozen=True)
class Group:
    """Atoms computed, atoms stored, atoms whose values are read, and the time."""

    atoms: Atoms
    stored: Atoms
    reads: Atoms
    us: float


class Brute:
    """Every plan of one graph."""

    def __init__(self, index: Index, evaluator: Evaluator) -> None:
        self.index = index
        self.evaluator = evaluator
        self.count = len(index.atoms)
        self.makers = [
            frozenset(index.maker[n] for n in a.reads if n in index.maker) for a in index.atoms
        ]
        self.readers = [frozenset(index.readers.get(a.name, ())) for a in index.atoms]
        self.needed = frozenset(k for k, a in enumerate(index.atoms) if a.name in index.needed)
        self.later: dict[int, Atoms] = {}
        for k in reversed(range(self.count)):
            self.later[k] = frozenset({k}).union(*(self.later[r] for r in self.readers[k]))

    def cheapest(self) -> float:
        """The time of the cheapest plan, in microseconds."""
        start: tuple[Atoms, Atoms] = (frozenset(), frozenset())
        best = {start: 0.0}
        queue: list[tuple[float, int, tuple[Atoms, Atoms]]] = [(0.0, 0, start)]
        pushed = 0
        while queue:
            us, _, state = heapq.heappop(queue)
            if us > best[state]:
                continue
            stored, spent = state
            if self.needed <= stored:
                return us
            for g in self.groups:
                if not g.reads <= stored or g.stored & (stored | spent):
                    continue
                after = (stored | g.stored, spent | (g.atoms - g.stored - stored))
                if us + g.us < best.get(after, float("inf")):
                    best[after] = us + g.us
                    pushed += 1
                    heapq.heappush(queue, (us + g.us, pushed, after))
        raise AssertionError("no plan makes what the graph needs")

    @cached_property
    def groups(self) -> list[Group]:
        """Every allowed group, priced."""
        found: list[Group] = []
        for atoms in self._connected():
            for stored in _subsets(atoms):
                group = self._group(atoms, stored) if self._is_wanted(atoms, stored) else None
                if group is not None:
                    found.append(group)
        return found

    def _group(self, atoms: Atoms, stored: Atoms) -> Group | None:
        useful = set(stored)
        for k in sorted(atoms, reverse=True):
            if not useful.isdisjoint(self.readers[k]):
                useful.add(k)
        reads = frozenset().union(*(self.makers[k] for k in atoms)) - atoms
        if useful != atoms or any(self.later[s] & reads for s in stored):
            return None
        names = tuple(self.index.atoms[k].name for k in sorted(stored))
        priced = self.evaluator.price(tuple(sorted(atoms)), names)
        return (
            None if isinstance(priced, Unfusable) else Group(atoms, stored, reads, priced.cost.us)
        )

    # -------------------------------------------------------------- the graph

    def _is_wanted(self, atoms: Atoms, stored: Atoms) -> bool:
        """Whether each stored value is read elsewhere, be it by an atom that is repeated there."""
        wanted: set[int] = set()
        for k in sorted(atoms, reverse=True):
            readers = self.readers[k]
            if k in self.needed or readers - atoms or (readers & wanted) - stored:
                wanted.add(k)
        return stored <= wanted

    def _connected(self) -> Iterator[Atoms]:
        """Every set of atoms joined by edges or common reads; a library call stands alone."""
        atoms = self.index.atoms
        near: dict[int, set[int]] = {k: set() for k in range(self.count)}
        for a in atoms:
            for b in atoms[: a.number]:
                joined = set(a.reads) & set(b.reads) or b.number in self.makers[a.number]
                if joined and a.generated and b.generated:
                    near[a.number].add(b.number)
                    near[b.number].add(a.number)
        seen = {frozenset({k}) for k in range(self.count)}
        waiting = list(seen)
        while waiting:
            found = waiting.pop()
            yield found
            for k in sorted({n for m in found for n in near[m]} - found):
                grown = found | {k}
                if grown not in seen:
                    seen.add(grown)
                    waiting.append(grown)


def _subsets(atoms: Atoms) -> Iterator[Atoms]:
    """Every subset that is not empty."""
    ordered = sorted(atoms)
    for mask in range(1, 1 << len(ordered)):
        yield frozenset(k for i, k in enumerate(ordered) if mask >> i & 1)
