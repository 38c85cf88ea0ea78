"""Merges worth trying, and the bytes that each would save.

    producer and consumer   the value is not read again, nor written when nobody else reads it
    siblings                a common input is read once
    recompute               a pointwise group is computed in each of its readers and never stored

Siblings are paired within a window of neighbouring readers, so that a value read by every layer
gives a number of pairs that grows with the layers and not with their square.
Must not know legality or time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .evaluate import Evaluator
from .pool import Part, Pool

WINDOW = 4
"""Readers of one value that a reader is paired with, after itself in graph order."""
MOST_READERS = 8
"""Readers into which a group may be recomputed."""
MOST_RECOMPUTED = 12
"""Operators of a group that is recomputed: each is one more in every reader to be compiled."""


@dataclass(frozen=True)
class Candidate:
    """Groups by key; for `recompute` the producer comes first, then all its readers."""

    kind: Literal["merge", "recompute"]
    keys: tuple[int, ...]


class Candidates:
    """Finds candidates in a pool.

    Attributes:
        within: atoms, as bits, outside which no group is looked at.
    """

    def __init__(self, pool: Pool, evaluator: Evaluator) -> None:
        self.pool = pool
        self.evaluator = evaluator
        self.within = -1

    def around(self, part: Part, *, recompute: bool) -> Iterator[Candidate]:
        """Every candidate that has the part in it."""
        if not self._takes_part(part):
            return
        sources = [p for p in self.pool.sources_of(part) if self._takes_part(p)]
        readers = [p for p in self.pool.readers_of(part) if self._takes_part(p)]
        partners = dict.fromkeys(p.key for p in (*sources, *readers, *self._siblings(part)))
        for key in partners:
            yield self.merge(part, self.pool.parts[key])
        if recompute:
            for producer in (part, *sources):
                found = self.recompute(producer)
                if found is not None:
                    yield found

    def merge(self, a: Part, b: Part) -> Candidate:
        """The merge of two groups, the earlier one first."""
        first, second = (a, b) if (a.atoms, a.key) <= (b.atoms, b.key) else (b, a)
        return Candidate("merge", (first.key, second.key))

    def recompute(self, producer: Part) -> Candidate | None:
        """The producer computed in each of its readers; None when something needs it stored."""
        if len(producer.atoms) > MOST_RECOMPUTED:
            return None
        index = self.pool.index
        stored = self.pool.stores(producer)
        readers = self.pool.readers_of(producer)
        if not 2 <= len(readers) <= MOST_READERS or any(n in index.needed for n in stored):
            return None
        if not all(map(self._takes_part, (producer, *readers))):
            return None
        return Candidate("recompute", (producer.key, *(r.key for r in readers)))

    def bytes(self, candidate: Candidate) -> int:
        """Bytes that need not move with a candidate; an estimate for ordering."""
        first, *others = (self.pool.parts[k] for k in candidate.keys)
        if candidate.kind == "merge":
            return self._merged(first, others[0])
        size = sum(map(self.evaluator.value_bytes, self.pool.stores(first)))
        return size * (1 + len(others))

    def _takes_part(self, part: Part) -> bool:
        inside = not part.mask & ~self.within
        return inside and not part.frozen and self.pool.is_generated(part)

    def _siblings(self, part: Part) -> Iterator[Part]:
        """Groups near this one among the readers of each value that it reads."""
        for name in self.pool.reads(part):
            homes = {home for r in self._near(name, part) for home in self.pool.homes[r]} - {
                part.key
            }
            near = [self.pool.parts[h] for h in homes]
            yield from sorted(filter(self._takes_part, near), key=lambda p: (p.atoms, p.key))

    def _near(self, name: str, part: Part) -> list[int]:
        """Readers of a value within the window around each of the part's own."""
        readers = self.pool.index.readers.get(name, ())
        if len(readers) <= 2 * WINDOW:
            return list(readers)
        inside = set(part.atoms)
        places = [k for k, r in enumerate(readers) if r in inside]
        ends = (places[0], places[-1]) if places else ()
        near = {j for k in ends for j in range(k - WINDOW, k + WINDOW + 1)}
        return [readers[j] for j in sorted(near) if 0 <= j < len(readers)]

    def _merged(self, a: Part, b: Part) -> int:
        own, other = set(self.pool.reads(a)), set(self.pool.reads(b))
        size = sum(map(self.evaluator.value_bytes, own & other))
        for producer, reads in ((a, other), (b, own)):
            for name in self.pool.stores(producer):
                again = (name in reads) + (not self.pool.stays(name, (a, b)))
                size += again * self.evaluator.value_bytes(name)
        return size
