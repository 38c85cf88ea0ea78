"""A pool whose groups are also taken apart: their order is kept, and closures are not.

A pool of a search only merges, and says by closures at once what lies between two groups. Closures
of thousands of groups take long to make anew when one is cut; an order of the groups takes a
few milliseconds, and what lies between two groups is found between their places in it.
Must not know prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .index import Index
from .order import near_graph_order
from .pool import Part, Pool, bits

Grouping = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Groups: their atoms, and those of them that they own."""


class DraftPool(Pool):
    """Groups that are merged and cut."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._order: list[Part] | None = None
        self._place: dict[int, int] = {}
        self._makers: dict[int, tuple[int, ...]] = {}

    # -------------------------------------------------------------- order

    @property
    def ordered(self) -> list[Part]:
        """The groups as `assemble.execution_order` has them; fewer than there are in a circle."""
        if self._order is None:
            sources = {key: self._waits(part) for key, part in self.parts.items()}
            self._order = near_graph_order(self.parts, sources)
            self._place = {p.key: k for k, p in enumerate(self._order)}
        return self._order

    @property
    def places(self) -> dict[int, int]:
        """The place of each group in the order, by its key."""
        self.ordered  # noqa: B018 - makes the places
        return self._place

    def _waits(self, part: Part) -> set[int]:
        """`waits_for`, from what is remembered of the group."""
        makers = self._makers.get(part.key)
        if makers is None:
            named = (self.index.maker.get(n, -1) for n in self.reads(part))
            makers = tuple({k for k in (*named, *bits(part.clones)) if k >= 0})
            self._makers[part.key] = makers
        return {self.owner[k] for k in makers} - {part.key, -1}

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
        self._order = None
        return made

    def regroup(self, groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
        """Puts groups in the place of parts that hold one of their atoms; False: in a circle."""
        taken = {k for atoms, _ in groups for k in atoms}
        gone = {home for k in taken for home in self.homes[k]}
        computed_again = any(self.parts[key].clones for key in gone)
        for key in gone:
            del self.parts[key]
        for k in taken:
            self.homes[k] -= gone
            if self.owner[k] in gone:
                self.owner[k] = -1
        for atoms, owned in groups:
            mask = sum(1 << k for k in owned)
            clones = sum(1 << k for k in atoms) & ~mask
            key = self._take_key()
            self.parts[key] = Part(key, atoms, mask, 0, 0, clones)
            computed_again = computed_again or bool(clones)
            for k in atoms:
                self.homes[k].add(key)
            for k in owned:
                self.owner[k] = key
        if computed_again:
            self._stores.clear()  # what is computed again need not be stored elsewhere
        self._order = None
        return len(self.ordered) == len(self.parts)
