"""Columns around a grouping that is known: what a region too large to enumerate is searched by.

    the groups; each alone taken apart; two groups as one; a group with a neighbour more or a member
    less; a group cut in two at each place of its order; groups that compute a neighbour again

Must not know prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .enumerate import Column
from .pool import bits
from .regions import Region, may_share, may_store

MOST_REPEATS = 3
"""Rounds of improvement, each around the best grouping so far."""


def neighbours(region: Region, groups: Sequence[Column]) -> list[Column]:
    """The columns, each once, in a fixed order."""
    found: dict[Column, None] = dict.fromkeys(groups)
    for units, again in _unit_sets(region, groups):
        column = column_of(region, units, again)
        if column.stored and is_closed(region, column):
            found[column] = None
    return list(found)


def column_of(region: Region, units: int, again: int = 0) -> Column:
    """Units as one group that stores all that is wanted elsewhere, but what it computes again."""
    stored = 0
    for k in bits(units & ~again):
        if region.escapes >> k & 1 or region.consumers[k] & ~units:
            stored |= 1 << k
    return Column(units, stored)


def _unit_sets(region: Region, groups: Sequence[Column]) -> Iterator[tuple[int, int]]:
    """Units of a column, and those that it computes without storing them."""
    for k in range(len(region.units)):
        yield 1 << k, 0
    for i, a in enumerate(groups):
        again = a.units & ~a.stored
        yield from _pairs(region, a, groups[i + 1 :])
        yield from _one_more(region, a)
        for k in bits(a.units):
            yield a.units & ~(1 << k), 0
            yield a.units & ~(1 << k), _used_elsewhere(region, a.units) & again
        yield from _halves(a.units)


def _pairs(region: Region, a: Column, others: Sequence[Column]) -> Iterator[tuple[int, int]]:
    for b in others:
        if _touch(region, a.units, b.units):
            both = a.units | b.units
            yield both, 0
            yield both, _used_elsewhere(region, both) & ~(a.stored | b.stored)


def _one_more(region: Region, a: Column) -> Iterator[tuple[int, int]]:
    again = _used_elsewhere(region, a.units) & ~a.stored
    around = above = 0
    for k in bits(a.units):
        above |= region.producers[k]
        around |= region.producers[k] | region.consumers[k] | region.beside[k]
    for k in bits(around & ~a.units):
        yield a.units | 1 << k, again
        if above >> k & 1:
            yield a.units | 1 << k, again | 1 << k


def _halves(units: int) -> Iterator[tuple[int, int]]:
    low = 0
    for k in bits(units):
        low |= 1 << k
        if units & ~low:
            yield low, 0
            yield units & ~low, 0


def _used_elsewhere(region: Region, units: int) -> int:
    return sum(
        1 << k for k in bits(units) if region.escapes >> k & 1 or region.consumers[k] & ~units
    )


def _touch(region: Region, a: int, b: int) -> bool:
    return any((region.consumers[k] | region.producers[k] | region.beside[k]) & b for k in bits(a))


def is_closed(region: Region, column: Column) -> bool:
    """Whether nothing that it reads depends on what it stores, and shapes allow one kernel."""
    kinds = [region.units[k] for k in bits(column.units)]
    folds = [u for u in kinds if u.outer or u.alone]
    if any(not may_share(u, f) for f in folds for u in kinds if u is not f):
        return False
    if any(not may_store(region.units[k], f) for f in folds for k in bits(column.stored)):
        return False
    for k in bits(column.units):
        if region.producers[k] & column.units & ~region.inlinable[k]:
            return False
        outside = 0
        for entry in bits(region.outside[k]):
            outside |= region.above[entry] | 1 << entry
        for p in bits(region.producers[k] & ~column.units):
            outside |= region.above[p] | 1 << p
        if outside & column.stored:
            return False
    return True
