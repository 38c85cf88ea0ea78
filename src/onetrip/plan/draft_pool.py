"""A pool whose groups are also taken apart: their order is kept, and closures are not.

A pool of a search only merges, and says by closures at once what lies between two groups. Closures
of thousands of groups take long to make anew when one is cut; an order of the groups takes a
few milliseconds, and what lies between two groups is found between their places in it.
Must not know prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from .index import Index
from .order import near_graph_order
from .pool import Part, Pool, bits

Form = tuple[tuple[int, ...], tuple[int, ...]]
"""A group: its atoms, and those of them that it owns."""
Grouping = tuple[Form, ...]
Mark = Mapping[str, Any]
_CHANGING = ("parts", "owner", "homes", "touched", "_order", "_place", "_sources", "_stores")
"""What changes with the groups; all else is known of a group by its key, and no key comes twice."""


class DraftPool(Pool):
    """Groups that are merged and cut.

    Attributes:
        touched: keys of groups whose reads, stores or sources may have changed; emptied by whom
            remembers something of them.
    """

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._order: list[Part] | None = None
        self._place: dict[int, int] = {}
        self._sources: dict[int, set[int]] = {}
        self._forms: dict[int, Form] = {}
        self.touched: set[int] = set()

    @property
    def grouping(self) -> Grouping:
        """All groups; those that stand as before are the same objects as before."""
        return tuple(sorted(map(self.form, self.parts.values())))

    def form(self, part: Part) -> Form:
        """A group's atoms, and those that it owns."""
        found = self._forms.get(part.key)
        if found is None:
            found = part.atoms, tuple(k for k in part.atoms if part.mask >> k & 1)
            self._forms[part.key] = found
        return found

    # -------------------------------------------------------------- order

    @property
    def ordered(self) -> list[Part]:
        """The groups as `assemble.execution_order` has them; fewer than there are in a circle."""
        if self._order is None:
            for key in self._sources.keys() - self.parts.keys():
                del self._sources[key]
            for key in self.parts.keys() - self._sources.keys():
                self._waits(self.parts[key])
            places = {key: part.atoms for key, part in self.parts.items()}
            self._order = [self.parts[key] for key in near_graph_order(places, self._sources)]
            self._place = {p.key: k for k, p in enumerate(self._order)}
        return self._order

    @property
    def places(self) -> dict[int, int]:
        """The place of each group in the order, by its key."""
        self.ordered  # noqa: B018 - makes the places
        return self._place

    def _waits(self, part: Part) -> set[int]:
        """`waits_for`, remembered until a source or the group itself changes."""
        found = self._sources.get(part.key)
        if found is None:
            named = (self.index.maker.get(n, -1) for n in self.reads(part))
            makers = {k for k in (*named, *bits(part.clones)) if k >= 0}
            found = {self.owner[k] for k in makers} - {part.key, -1}
            self._sources[part.key] = found
        return found

    def _moved(self, atoms: Iterable[int]) -> None:
        """Forgets the order, and what is remembered of groups at these atoms and beside them."""
        self._order = None
        for k in atoms:
            atom = self.index.atoms[k]
            makers = (self.index.maker[n] for n in atom.reads if n in self.index.maker)
            readers = (r for v in atom.node.outputs for r in self.index.readers.get(v.name, ()))
            for near in (k, *makers, *readers):
                self.touched |= self.homes[near]
        for key in self.touched:
            self._sources.pop(key, None)
            self._stores.pop(key, None)

    # -------------------------------------------------------------- what lies between

    def between(self, parts: Sequence[Part]) -> int:
        """Atoms of the groups on paths that leave the parts and come back; 0 when there is none."""
        place = self.places
        inside = {p.key for p in parts}
        low, high = min(place[k] for k in inside), max(place[k] for k in inside)

        def reached(step: Callable[[Part], Iterable[int]]) -> set[int]:
            found: set[int] = set()
            open_ = list(parts)
            while open_:
                for key in step(open_.pop()):
                    if key not in found and key not in inside and low < place[key] < high:
                        found.add(key)
                        open_.append(self.parts[key])
            return found

        above = reached(self._waits)
        below = reached(lambda p: (r.key for r in self.readers_of(p))) if above else set()
        mask = 0
        for key in above & below:
            mask |= self.parts[key].mask
        return mask

    # -------------------------------------------------------------- changes

    def merge(self, parts: Sequence[Part]) -> Part:
        """Makes one group of several, without closures."""
        mask = clones = 0
        for p in parts:
            mask, clones = mask | p.mask, clones | p.clones
        made = Part(self._take_key(), self.union(parts), mask, 0, 0, clones & ~mask)
        self._replace(parts, made)
        self._moved(made.atoms)
        return made

    def exchange(self, gone: Iterable[int], groups: Sequence[Form]) -> None:
        """Puts groups in the place of the parts of these keys, and of no other part.

        Whether the groups can still run one after the other is `has_order`.
        """
        taken: set[int] = set()
        for key in gone:
            part = self.parts.pop(key)
            taken.update(part.atoms)
            for k in part.atoms:
                self.homes[k] = self.homes[k] - {key}
                if self.owner[k] == key:
                    self.owner[k] = -1
        for atoms, owned in groups:
            mask = sum(1 << k for k in owned)
            key = self._take_key()
            self.parts[key] = Part(
                key, atoms, mask, 0, 0, clones=sum(1 << k for k in atoms) & ~mask
            )
            taken.update(atoms)
            for k in atoms:
                self.homes[k] = self.homes[k] | {key}
            for k in owned:
                self.owner[k] = key
        self._moved(taken)

    @property
    def has_order(self) -> bool:
        """Whether no groups wait for each other in a circle."""
        return len(self.ordered) == len(self.parts)

    # -------------------------------------------------------------- back to what was

    def mark(self) -> Mark:
        """What `back` needs to make the groups those of now again."""
        return {name: copy(getattr(self, name)) for name in _CHANGING}

    def back(self, mark: Mark) -> None:
        """The groups of a mark, the same objects under the same keys."""
        for name, kept in mark.items():
            setattr(self, name, copy(kept))
