"""The best groups of one region: greedily first, then by an integer program, and how good they are.

    floor reached by the greedy groups      nothing is left to search                    exact
    one group, cheaper than two may be      the same                                     exact
    every column enumerated                 the cheapest cover, its bound                exact
    too many, but few of glued units        the cheapest cover of those                  floor
    too many of them too                    runs of greedy groups as one, and a pool     floor
                                            of columns around these if not too many

That units are glued loses nothing in any region where both were tried, which is no proof: so the
bound of such a search does not count.

The answer is in local positions, so it holds for every region of equal structure. Must not know
the rest of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..base.lazy import cached_property
from ..cost.roofline import Cost
from ..passes.close import Unfusable
from .cover import Cover, cheapest_cover, covers, find_circle
from .enumerate import Column, enumerate_columns
from .evaluate import Evaluator
from .glue import Glued, glue, sum_of
from .improve import MOST_REPEATS, neighbours
from .least import Least
from .legality import Legality
from .peak import Divide
from .pool import bits
from .regions import Region
from .runs import Judge, best_runs, computed_again, in_order

BYTE_SHARE = 1e-6
"""Of two plans of equal time the one with fewer bytes: their time counts this share."""
MOST_UNITS = 128
"""Units of a region whose columns may be few enough to be listed."""
MOST_DIRECT = 48
"""Units of a region that is listed as it is, if its columns are few enough; else, and a larger one,
it is listed with its units glued."""
MOST_AGAIN = 24
"""Units of a region that another search for less memory looks at as thoroughly as the first."""
MOST_BOTH = 4000
"""Units of a region that is grouped greedily in two ways."""
MOST_POOLED = 160
"""Units of a region whose groups a pool of columns may improve."""


@dataclass(frozen=True)
class Answer:
    """The groups of a region.

    Attributes:
        bound_us: no groups of this region are faster; 0 where that was not asked.
        moved_us: its bytes at full bandwidth: what its groups take at least when their launches are
            shared with others.
    """

    columns: tuple[Column, ...]
    bound_us: float
    kind: Literal["exact", "floor"]
    moved_us: float = 0.0


class Prices:
    """What columns of one region cost: a lower bound at once, the truth when it is asked for."""

    def __init__(self, region: Region, evaluator: Evaluator, legality: Legality) -> None:
        self.region = region
        self.evaluator = evaluator
        self.legality = legality
        self._known: dict[Column, float | None] = {}

    def weight(self, column: Column) -> float | None:
        """Microseconds and a trace of the bytes; None when the column is no kernel."""
        if column not in self._known:
            cost = self._cost(column)
            bandwidth = self.evaluator.target.copy_bandwidth
            weight = None if cost is None else cost.us + BYTE_SHARE * 1e6 * cost.bytes / bandwidth
            self._known[column] = weight
        return self._known[column]

    def _cost(self, column: Column) -> Cost | None:
        """What a column costs; a single unit is a kernel whatever it needs."""
        atoms, stored = self.region.atoms_of(column.units), self.stored(column)
        if column.units.bit_count() > 1:
            priced = self.legality.group(atoms, stored)
            return None if priced is None else priced.cost
        alone = self.evaluator.price(atoms, stored)
        return None if isinstance(alone, Unfusable) else alone.cost

    def stored(self, column: Column) -> tuple[str, ...]:
        """The values that a column writes to memory, in graph order."""
        units = [self.region.units[k] for k in bits(column.stored)]
        names = [n for u in units for n in u.makes if len(u.makes) == 1 or self._leaves(n, column)]
        return tuple(sorted(names, key=self.evaluator.index.maker.__getitem__))

    def _leaves(self, name: str, column: Column) -> bool:
        """Whether one of several values of a unit is read outside a column."""
        index = self.evaluator.index
        readers = index.readers.get(name, (-1,))
        return name in index.needed or not set(self.region.atoms_of(column.units)) >= set(readers)

    def at_least(self, column: Column) -> float:
        """A lower bound of `weight`: a launch, each slice read once, each result written once.

        What moves at all is waited for once.
        """
        moved = self.moved_us(column)
        waits = self.evaluator.target.latency_us if moved else 0.0
        return moved * (1 + BYTE_SHARE) + self.evaluator.target.replay_us + waits

    def moved_us(self, column: Column) -> float:
        """The microseconds that what it must move takes at full bandwidth."""
        moved = self._least.read_bytes(column)
        moved += sum(map(self.evaluator.value_bytes, self.stored(column)))
        return 1e6 * moved / self.evaluator.target.copy_bandwidth

    @cached_property
    def _least(self) -> Least:
        return Least(self.region, self.evaluator, self._reads)

    @cached_property
    def _reads(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """What each unit reads when it is a kernel of its own, in bytes."""
        found = []
        for k in range(len(self.region.units)):
            cost = self._cost(Column(1 << k, 1 << k))
            found.append(() if cost is None else cost.reads)
        return tuple(found)

    def glued(self) -> Glued:
        """The region with fewer units."""
        evaluator = self.evaluator
        alone = [self._cost(Column(1 << k, 1 << k)) for k in range(len(self.region.units))]
        us_per_byte = 1e6 / evaluator.target.copy_bandwidth
        return glue(self.region, alone, evaluator.value_bytes, us_per_byte)

    @property
    def whole(self) -> Column:
        """The whole region as one group."""
        return Column((1 << len(self.region.units)) - 1, self.region.escapes)

    def floor(self) -> float:
        """A lower bound of the whole region: its inputs once, its results once, and launches."""
        return self.at_least(self.whole) + (self._least.fewest - 1) * self._launch_us

    def raised(self, floor: float) -> float:
        """A higher one: as one group the region has a price, and more groups take a launch more."""
        if self._least.fewest > 1:
            return floor
        alone = self.weight(self.whole)
        more = floor + self._launch_us
        return max(floor, more if alone is None else min(alone, more))

    @property
    def _launch_us(self) -> float:
        """What each group takes that moves anything."""
        return self.evaluator.target.replay_us + self.evaluator.target.latency_us

    def total(self, columns: Sequence[Column]) -> float | None:
        """The weight of all columns; None when one of them is no kernel."""
        found = 0.0
        for c in columns:
            weight = self.weight(c)
            if weight is None:
                return None
            found += weight
        return found

    def us(self, columns: Sequence[Column]) -> float:
        """The time of columns, of which each is a kernel."""
        costs = (self._cost(c) for c in columns)
        return sum(c.us for c in costs if c is not None)


def best_groups(
    prices: Prices,
    known: Sequence[Column],
    other: Callable[[], Sequence[Column]],
    *,
    thorough: bool = True,
) -> Answer:
    """The best groups of a region.

    Args:
        known: a grouping found already.
        other: makes a second one, for a region that is too large to be searched.
        thorough: whether more than the floor of what is known is looked at.
    """
    floor, cost = prices.floor(), prices.total(known)
    if cost is None:  # the user forced what may not be
        return _answer(prices, known, min(prices.us(known), floor), "floor")
    if cost <= floor * (1 + 1e-9):
        return _answer(prices, known, floor, "exact")
    if not thorough:
        return _answer(prices, known, floor, "floor")
    if tuple(known) == (prices.whole,) and cost <= prices.raised(floor) * (1 + 1e-9):
        return _answer(prices, known, cost, "exact")
    found = _directly(prices, known)
    if found is not None and found.finished:
        best = _better(prices, found, known)
        return _answer(prices, best, max(floor, found.bound), "exact")
    floor = max(prices.raised(floor), 0.0 if found is None else found.bound)
    glued = None if found is not None else _glued(prices, known)
    if glued is not None and glued.finished:
        return _answer(prices, _better(prices, glued, known), floor, "floor")
    best = known
    if len(prices.region.units) <= MOST_BOTH:
        second = other()
        best = second if (prices.total(second) or cost) < cost else best
        best = _with_runs(prices, best)
    if len(prices.region.units) <= MOST_POOLED:
        best = _improved(prices, best)
    return _answer(prices, best, floor, "floor")


def _answer(
    prices: Prices, best: Sequence[Column], bound: float, kind: Literal["exact", "floor"]
) -> Answer:
    us, moved = prices.us(best), prices.moved_us(prices.whole)
    if bound >= (prices.total(best) or us) * (1 - 2 * BYTE_SHARE):
        return Answer(tuple(best), us, "exact", moved)
    return Answer(tuple(best), bound / (1 + BYTE_SHARE), kind, moved)


def _directly(prices: Prices, known: Sequence[Column]) -> Cover | None:
    """The cheapest cover by all columns; None where they are too many to list."""
    columns = _listed(prices.region)
    return None if columns is None else _search(prices, columns, known)


def _listed(region: Region) -> list[Column] | None:
    """All columns of a region: of one that was joined those of its members."""
    if not region.members:
        return None if len(region.units) > MOST_DIRECT else enumerate_columns(region)
    place = {u.atoms: 1 << k for k, u in enumerate(region.units)}
    found: list[Column] = []
    for member in region.members:
        columns = _listed(member)
        if columns is None:
            return None
        own = [place[u.atoms] for u in member.units]
        found += [Column(sum_of(own, c.units), sum_of(own, c.stored)) for c in columns]
    return found


def is_small(region: Region, most: int) -> bool:
    """Whether a region has so many columns at most, and is searched exactly."""
    return len(region.units) <= MOST_DIRECT and enumerate_columns(region, most) is not None


def _glued(prices: Prices, known: Sequence[Column]) -> Cover | None:
    """The cheapest cover by all columns of glued units; None where they are too many to list."""
    if len(prices.region.units) > MOST_UNITS:
        return None
    small = prices.glued()
    columns = enumerate_columns(small.region)
    if columns is None:
        return None
    whole = {c: small.column(c) for c in columns}
    cost = prices.total(known)
    assert cost is not None
    costs = [prices.at_least(w) for w in whole.values()]
    found = cheapest_cover(small.region, columns, costs, lambda c: prices.weight(whole[c]), cost)
    chosen = None if found.columns is None else tuple(whole[c] for c in found.columns)
    return replace(found, columns=chosen, bound=found.bound - small.slack_us)


def _search(prices: Prices, columns: Sequence[Column], best: Sequence[Column]) -> Cover:
    costs = [prices.at_least(c) for c in columns]
    known = prices.total(best)
    assert known is not None
    return cheapest_cover(prices.region, columns, costs, prices.weight, known)


def _better(prices: Prices, found: Cover, best: Sequence[Column]) -> Sequence[Column]:
    """What was found, where it is sound and faster than what was known."""
    if found.columns is None or not _is_sound(prices.region, found.columns):
        return best
    return found.columns if prices.us(found.columns) < prices.us(best) else best


def _is_sound(region: Region, columns: Sequence[Column]) -> bool:
    """Whether every stored value is wanted, and the columns cover the region in some order."""
    wanted = region.escapes
    for c in columns:
        for k in bits(c.units):
            wanted |= region.producers[k] & ~c.units
    needed = all(not c.stored & ~wanted for c in columns)
    return needed and covers(region, columns) and find_circle(region, columns) is None


def _improved(prices: Prices, best: Sequence[Column]) -> Sequence[Column]:
    for _ in range(MOST_REPEATS):
        columns = neighbours(prices.region, best)
        found = _better(prices, _search(prices, columns, best), best)
        if found is best:
            break
        best = found
    return best


def _with_runs(prices: Prices, best: Sequence[Column]) -> Sequence[Column]:
    """The groups, of which some are computed in their readers and runs of others are one."""
    ordered = in_order(prices.region, best)
    if ordered is None:
        return best
    judge = Judge(prices.weight, prices.at_least)
    found = best_runs(computed_again(ordered, judge), judge).groups
    sound = _is_sound(prices.region, found)
    return found if sound and prices.us(found) < prices.us(best) else best


# ------------------------------------------------------------------ equal regions


def region_form(region: Region, evaluator: Evaluator) -> Hashable:
    """Equal for regions that have the same answer where no two atoms must be apart."""
    index = evaluator.index
    rows, _ = evaluator.structures.group(region.atoms, frozenset())
    place = {k: i for i, k in enumerate(region.atoms)}
    units = tuple(tuple(place[k] for k in u.atoms) for u in region.units)
    wanted = tuple(
        (n in index.needed, frozenset(place.get(r, -1) for r in index.readers.get(n, ())))
        for u in region.units
        for n in u.makes
    )
    shape = (units, region.above, region.outside, region.inlinable, region.escapes, wanted)
    return rows, shape


def apart(region: Region, rivals: Sequence[Divide]) -> Hashable:
    """What must be apart in a region, by the places of its atoms.

    Args:
        rivals: sets of atoms of which no two may share a kernel.
    """
    mask = sum(1 << k for k in region.atoms)
    within = [(low & mask, high & mask) for low, high in rivals if low & mask and high & mask]
    place = {k: i for i, k in enumerate(region.atoms)} if within else {}
    return tuple((_local(low, place), _local(high, place)) for low, high in within)


def _local(mask: int, place: Mapping[int, int]) -> int:
    return sum(1 << place[k] for k in bits(mask))
