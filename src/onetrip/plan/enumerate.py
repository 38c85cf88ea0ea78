"""Every group that a region may be cut into, as columns of a covering problem.

    column ::= units computed, units stored
    grow    : take in a producer, stored or not; add one more result, a consumer or a sibling of a
              unit inside, or what is made from such a one: its producers are taken in until the two
              meet

A column is kept when no value that it reads depends on a value that it stores. What is computed and
not stored is either used up inside or computed again elsewhere. Must not know prices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..base.lazy import cached_property
from .pool import bits
from .regions import Region, may_share, may_store

MOST_COLUMNS = 4000
"""Columns of one region that is searched exactly."""
STATES = 11.25
"""Groups looked at for each column that may be kept: those that are and those that lead to them."""


@dataclass(frozen=True)
class Column:
    """A group: the units that it computes and those that it stores, as bits."""

    units: int
    stored: int


State = tuple[int, int, int]
"""Units, stored units, and those that do not meet the others yet."""


def enumerate_columns(region: Region, most: int = MOST_COLUMNS) -> list[Column] | None:
    """Every column, in the order of growth; None where there are more, or too many on the way."""
    units = region.units
    shares = tuple(
        sum(1 << j for j, b in enumerate(units) if j == k or may_share(a, b))
        for k, a in enumerate(units)
    )
    stores = tuple(sum(1 << j for j, b in enumerate(units) if may_store(a, b)) for a in units)
    found = _columns(
        _Growth(
            region.producers,
            region.consumers,
            region.inlinable,
            region.above,
            region.outside,
            region.beside,
            region.escapes,
            shares,
            stores,
        ),
        most,
    )
    return None if found is None else list(found)


@lru_cache(maxsize=64)
def _columns(growth: _Growth, most: int) -> tuple[Column, ...] | None:
    """Layers of unlike sizes have the same columns: they are listed once."""
    start: list[State] = [(1 << k, 1 << k, 0) for k in range(len(growth.producers))]
    seen = set(start)
    waiting = deque(start)
    found: list[Column] = []
    while waiting:
        state = waiting.popleft()
        units, stored, apart = state
        between = growth.between(units, stored)
        if between is None or not growth.is_wanted(units, stored, stored):
            continue
        if not between and not apart:
            found.append(Column(units, stored))
        for following in growth.moves(state, between):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
        if len(seen) > STATES * most or len(found) > most:
            return None
    return tuple(found)


@dataclass(frozen=True)
class _Growth:
    """How columns of one region grow: its masks, of which equal ones have equal columns.

    Attributes:
        shares: of each unit, those that may be in one kernel with it.
        stores: of each unit, those beside which it may be stored.
    """

    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    inlinable: tuple[int, ...]
    above: tuple[int, ...]
    outside: tuple[int, ...]
    beside: tuple[int, ...]
    escapes: int
    shares: tuple[int, ...]
    stores: tuple[int, ...]

    @cached_property
    def _all(self) -> int:
        return (1 << len(self.producers)) - 1

    @cached_property
    def _outside(self) -> Joined:
        """Of each unit, those from which a path leads to it that runs outside the region."""
        found: list[int] = []
        for k, entries in enumerate(self.outside):
            through = entries | _any(self.above, entries)
            found.append(through | _any(found, self.producers[k]))
        return Joined(found)

    @cached_property
    def _refused(self) -> Joined:
        """Of each unit, those beside which it may not be stored."""
        return Joined([self._all & ~mask for mask in self.stores])

    @cached_property
    def _made_from(self) -> Joined:
        return Joined(self.producers)

    @cached_property
    def _read_by(self) -> Joined:
        return Joined(self.consumers)

    @cached_property
    def _beside(self) -> Joined:
        return Joined(self.beside)

    @cached_property
    def _below(self) -> Joined:
        """Of each unit, the unit and all that are made from it."""
        return Joined([1 << k | mask for k, mask in enumerate(transposed(self.above))])

    @cached_property
    def _around(self) -> Joined:
        """Of each unit, the unit and all inside which it may be computed, through others."""
        cones: list[int] = []
        for k, mask in enumerate(self.inlinable):
            cones.append(1 << k | _any(cones, mask))
        return Joined(transposed(cones))

    @cached_property
    def _stored_before(self) -> tuple[int, ...]:
        """Of each unit, the producers that may not be computed inside its kernel."""
        return tuple(p & ~i for p, i in zip(self.producers, self.inlinable, strict=True))

    @cached_property
    def _strange(self) -> tuple[int, ...]:
        """Of each unit, those that may not be in one kernel with it."""
        return transposed([self._all & ~mask for mask in self.shares])

    @cached_property
    def _barred_above(self) -> Joined:
        """Of each unit, those that may not be taken in where it is, but as what it reads."""
        return Joined([a | b for a, b in zip(self._stored_before, self._strange, strict=True)])

    @cached_property
    def _barred_below(self) -> Joined:
        """Of each unit, those that may not be taken in where it is, but as its readers."""
        after = transposed(self._stored_before)
        return Joined([a | b for a, b in zip(after, self._strange, strict=True)])

    def between(self, units: int, stored: int) -> int | None:
        """Units that must be taken in, since they lie between; None when no larger group is one.

        That is when a library call lies between, or a result is too small for a reduction inside.
        """
        if self._outside(units) & stored or self._refused(stored) & units:
            return None
        return self._made_from(units) & ~units & self._below(stored)

    def is_wanted(self, units: int, stored: int, asked: int) -> bool:
        """Whether each unit that is asked for has a reader elsewhere: also one inside that is
        repeated, since what is computed and not stored here may be computed again elsewhere, from
        what is stored.

        If not, it has none in a larger group either: growth takes readers in and stores more.
        """
        found, fresh = 0, (self.escapes | self._made_from(self._all & ~units)) & units
        while fresh:
            found |= fresh
            if not asked & ~found:
                return True
            fresh = self._made_from(fresh & ~stored) & units & ~found
        return False

    def moves(self, state: State, between: int) -> Iterator[State]:
        """The next larger groups."""
        units, stored, apart = state
        if apart:
            yield from self._towards(state)
            return
        made_from = self._made_from(units)
        for p in bits((between or made_from) & ~units & ~self._barred_above(units)):
            yield from self._with_producer(state, p, 0)
        if between:
            return
        tops = units & ~made_from
        near = self._near(units, tops)
        barred = units | self._barred_below(units) | self._read_by(tops)
        for c in bits(self._around(near) & ~barred):
            yield units | 1 << c, stored | 1 << c, 0 if near >> c & 1 else 1 << c

    def _towards(self, state: State) -> Iterator[State]:
        """The part that stands apart takes in producers on the way to the others."""
        units, _, apart = state
        rest = units & ~apart
        # Units that none of the others reads: results, of which a larger group begins with one.
        tops = rest & ~self._made_from(rest)
        near = self._near(rest, tops)
        barred = units | self._barred_above(units) | self._read_by(tops)
        for p in bits(self._made_from(apart) & self._around(near) & ~barred):
            yield from self._with_producer(state, p, 0 if near >> p & 1 else apart | 1 << p)

    def _with_producer(self, state: State, p: int, apart: int) -> Iterator[State]:
        units, stored, _ = state
        units |= 1 << p
        yield units, stored, apart
        if self.is_wanted(units, stored, 1 << p):
            yield units, stored | 1 << p, apart

    def _near(self, units: int, tops: int) -> int:
        """Units that read what these read, or a value of these that is used inside already."""
        return self._read_by(units & ~tops) | self._beside(units)


class Joined:
    """What stands in the masks of some units, of which each has one; eight are one look-up."""

    def __init__(self, masks: Sequence[int]) -> None:
        self._tables: list[list[int]] = []
        for start in range(0, len(masks), 8):
            table = [0]
            for mask in masks[start : start + 8]:
                table += [found | mask for found in table]
            self._tables.append(table)

    def __call__(self, units: int) -> int:
        """The masks of these units, joined."""
        total = 0
        for table in self._tables:
            total |= table[units & 255]
            units >>= 8
        return total


def transposed(masks: Sequence[int]) -> tuple[int, ...]:
    """Of each unit, those in whose mask it stands."""
    found = [0] * len(masks)
    for k, mask in enumerate(masks):
        for j in bits(mask):
            found[j] |= 1 << k
    return tuple(found)


def _any(masks: Sequence[int], units: int) -> int:
    total = 0
    for k in bits(units):
        total |= masks[k]
    return total
