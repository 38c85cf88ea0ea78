"""Bytes alive while groups run one after the other, and the groups that hold more than eager does.

    alive at a step = values stored at it or before, and read at it or after, or returned

A merge of neighbours only removes values. One that reaches over other groups may make a value
earlier than eager does, or read one later: then something else is alive beside it. Sizes are those
without reuse of memory in place, which eager has none of either.
Must not know prices: a plan that needs more memory than eager is refused whatever it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..ops.opaque import may_alias
from .index import Atom, Index
from .pool import Part, Pool

Bytes = Callable[[str], int]
Divide = tuple[int, int]
"""Two sets of atoms, as bits, no two of which may be in one group."""
Divided = Mapping[Divide, tuple[int, int]]
"""Divides, each with the bytes alive at once in the plan that made it needed, and their limit."""
NO_DIVIDES: Divided = {}


@dataclass(frozen=True)
class Span:
    """The steps at which a value is alive, both included."""

    name: str
    bytes: int
    first: int
    last: int


def alive_at(spans: Iterable[Span]) -> dict[int, int]:
    """Bytes alive, at each step at which they change."""
    change: dict[int, int] = {}
    for s in spans:
        change[s.first] = change.get(s.first, 0) + s.bytes
        change[s.last + 1] = change.get(s.last + 1, 0) - s.bytes
    steps = sorted(change)
    return dict(zip(steps, accumulate(change[s] for s in steps), strict=True))


def highest(spans: Iterable[Span]) -> int:
    """The most bytes alive at one step."""
    return max(alive_at(spans).values(), default=0)


def eager_peak(index: Index, size: Bytes) -> int:
    """Most bytes of results alive at once in eager, which runs call after call."""
    steps: dict[int, int] = {}
    step = [steps.setdefault(_call(index, k), len(steps)) for k in range(len(index.atoms))]
    last = _last_reads(index)
    spans: list[Span] = []
    for name, maker in index.maker.items():
        until = step[last[name]] if last[name] < len(step) else len(steps)
        if until > step[maker] or name not in index.readers:  # else it never leaves its call
            spans.append(Span(name, size(name), step[maker], until))
    return highest(spans)


def _last_reads(index: Index) -> dict[str, int]:
    """The last atom at which eager holds each value; their number for what is returned.

    A call of which nothing is known may return a view: its operands stay as long as its results.
    """
    end = len(index.atoms)
    last: dict[str, int] = {}
    for name, maker in index.maker.items():
        last[name] = end if name in index.needed else max(index.readers.get(name, (maker,)))
    for atom in reversed(index.atoms):
        if may_alias(atom.node):
            _prolong(last, atom, atom.number)
    return last


def _prolong(last: dict[str, int], atom: Atom, step: int) -> None:
    until = max((last.get(v.name, step) for v in atom.node.outputs), default=step)
    for name in atom.reads:
        last[name] = max(last.get(name, step), until)


def _call(index: Index, atom: int) -> int:
    call = index.atoms[atom].node.call
    return call if call >= 0 else -1 - atom


def spans_of(pool: Pool, order: Sequence[Part], size: Bytes) -> list[Span]:
    """When each value that groups store is alive, by the place of its group in the order."""
    end = len(order)
    last = dict.fromkeys(pool.index.needed, end)
    for step, part in enumerate(order):
        for name in pool.reads(part):
            last[name] = max(last.get(name, step), step)
    for step, part in reversed(list(enumerate(order))):
        atom = pool.index.atoms[part.atoms[0]]
        if may_alias(atom.node):
            _prolong(last, atom, step)
    return [
        Span(name, size(name), step, last.get(name, step))
        for step, part in enumerate(order)
        for name in pool.stores(part)
    ]


def divides(
    pool: Pool,
    order: Sequence[Part],
    spans: Sequence[Span],
    limit: int,
    *,
    places: int = 1,
    everywhere: bool = False,
) -> Divided:
    """What to keep apart for a lower peak; none when it is within the limit.

    Args:
        spans: when each value is alive in this order.
        limit: bytes that may be alive at once.
        places: the most steps that are looked at, those with most alive first.
        everywhere: keep all atoms before a place from all after it. Groups become stretches of the
            graph, which hold what eager holds at their ends: no other group takes their place.
    """
    alive = alive_at(spans)
    above = sorted((s for s in alive if alive[s] > limit), key=lambda s: (-alive[s], s))
    last = _last_reads(pool.index)
    found: dict[Divide, tuple[int, int]] = {}
    for step in above[:places]:
        at = _Step(pool, order, step, [s for s in spans if s.first <= step <= s.last], last)
        chosen = at.everywhere() if everywhere else at.lightest(alive[step] - limit)
        found.update(dict.fromkeys(chosen, (alive[step], limit)))
    return found


@dataclass(frozen=True)
class _Step:
    """A step at which too much is alive.

    Attributes:
        alive: the values alive.
        last: the atom at which eager reads each value last.
    """

    pool: Pool
    order: Sequence[Part]
    step: int
    alive: Sequence[Span]
    last: Mapping[str, int]

    @property
    def part(self) -> Part:
        """The group that runs."""
        return self.order[min(self.step, len(self.order) - 1)]

    def lightest(self, excess: int) -> list[Divide]:
        """What to keep apart for so many bytes less."""
        place = min(self.part.atoms, key=self._strange_bytes)
        steps = {p.key: k for k, p in enumerate(self.order)}
        found: dict[Divide, int] = {}
        for s in self._strange(place):
            for home in _holders(self.pool, s, self.step, steps):
                divide = _divide(home, place)
                if divide is not None:
                    found[divide] = found.get(divide, 0) + s.bytes
        return _enough(found, excess) or _halves(self.part)

    def everywhere(self) -> list[Divide]:
        """The graph in two, in the middle of the group, where eager holds most of what is alive."""
        atoms = self.part.atoms
        third = len(atoms) // 3
        place = min(atoms[third : max(third + 1, 2 * third)], key=self._strange_bytes)
        low = (1 << place + 1) - 1
        return [(low, (1 << len(self.pool.index.atoms)) - 1 & ~low)]

    def _strange(self, place: int) -> list[Span]:
        """Values that eager does not hold when it is at an atom."""
        maker = self.pool.index.maker
        return [s for s in self.alive if not maker[s.name] <= place <= self.last[s.name]]

    def _strange_bytes(self, place: int) -> int:
        return sum(s.bytes for s in self._strange(place))


def _holders(pool: Pool, span: Span, at: int, step: Mapping[int, int]) -> list[Part]:
    """The groups that make a value too early or read it too late."""
    homes = {h for r in pool.index.readers.get(span.name, ()) for h in pool.homes[r]}
    late = [h for h in sorted(homes) if step[h] >= at]
    keys = dict.fromkeys((pool.owner[pool.index.maker[span.name]], *late))
    return [pool.parts[k] for k in keys]


def _divide(part: Part, place: int) -> Divide | None:
    """The atoms of a group up to a place in the graph and those after it."""
    low = sum(1 << k for k in part.atoms if k <= place)
    high = sum(1 << k for k in part.atoms if k > place)
    return (low, high) if low and high and not part.frozen else None


def _enough(found: Mapping[Divide, int], excess: int) -> list[Divide]:
    """Divides that together may remove the excess: the heaviest, and last the lightest that is
    enough for what is left."""
    chosen: list[Divide] = []
    heaviest = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    while excess > 0 and heaviest:
        enough = [item for item in heaviest if item[1] >= excess]
        divide, held = enough[-1] if enough else heaviest[0]
        heaviest.remove((divide, held))
        chosen.append(divide)
        excess -= held
    return chosen


def _halves(part: Part) -> list[Divide]:
    """A group in two, where the graph has most between its atoms."""
    gaps = list(zip(part.atoms, part.atoms[1:], strict=False))
    if not gaps:
        return []
    place = max(gaps, key=lambda pair: pair[1] - pair[0])[0]
    divide = _divide(part, place)
    return [] if divide is None else [divide]


def parting(atoms: Sequence[int], divided: Iterable[Divide]) -> Divide | None:
    """The first divide that a group of these atoms would hold both sides of."""
    mask = sum(1 << k for k in atoms)
    return next((d for d in divided if mask & d[0] and mask & d[1]), None)
