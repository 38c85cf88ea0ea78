"""A region too large to be searched whole: groups that follow one another become one.

    order     the groups, each behind those that it waits for
    run       groups that follow one another in it, as one group
    chosen    a shortest path over the places between groups, of which each run is a step

No path leads out of a run through other groups and back into it, since these stand before or behind
it: so groups that can run one after the other still can. Must not know prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_

from ..base.lazy import cached_property
from .cover import reads_of, waits_of
from .enumerate import Column
from .improve import is_closed
from .legality import MOST_MEMBERS
from .order import near_graph_order
from .regions import Region

MOST_RUNS = 768
"""Runs of several groups that are priced, short ones first."""


@dataclass(frozen=True)
class Ordered:
    """The groups of a region in an order in which they can run."""

    region: Region
    groups: tuple[Column, ...]

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Of each group, the units that it reads."""
        return tuple(reads_of(self.region, g) for g in self.groups)

    @cached_property
    def _before(self) -> list[int]:
        """What the groups before each place read."""
        return list(accumulate(self.reads, or_, initial=0))

    @cached_property
    def _behind(self) -> list[int]:
        """What the groups from each place on read."""
        return list(accumulate(reversed(self.reads), or_, initial=0))[::-1]

    def wanted(self, first: int, end: int) -> int:
        """Units whose values something outside of a run reads."""
        return self.region.escapes | self._before[first] | self._behind[end]

    def run(self, first: int, end: int) -> Column:
        """A run as one group."""
        units = stored = 0
        for g in self.groups[first:end]:
            units, stored = units | g.units, stored | g.stored
        return Column(units, stored & self.wanted(first, end))


def in_order(region: Region, groups: Sequence[Column]) -> Ordered | None:
    """The groups in an order near that of the graph; None when some wait for each other."""
    places = {k: (g.units & -g.units).bit_length() for k, g in enumerate(groups)}
    order = near_graph_order(places, dict(enumerate(waits_of(region, groups))))
    if len(order) < len(groups):
        return None
    return Ordered(region, tuple(groups[k] for k in order))


# ------------------------------------------------------------------ judged


@dataclass(frozen=True)
class Judge:
    """What columns cost.

    Attributes:
        weight: of a column; None when it is no kernel.
        at_least: a lower bound of it.
    """

    weight: Callable[[Column], float | None]
    at_least: Callable[[Column], float]

    def total(self, columns: Sequence[Column]) -> float:
        """The weight of all; infinite when one is no kernel."""
        weights = [self.weight(c) for c in columns]
        return math.inf if None in weights else sum(w for w in weights if w is not None)


# ------------------------------------------------------------------ computed again


def computed_again(ordered: Ordered, judge: Judge) -> Ordered:
    """The groups without those that each of their readers rather computes than reads."""
    place = 0
    while place < len(ordered.groups):
        readers = _readers(ordered, place)
        source, old = ordered.groups[place], [ordered.groups[k] for k in readers]
        made = [Column(g.units | source.units, g.stored) for g in old]
        closed = all(is_closed(ordered.region, c) for c in made)
        if made and closed and judge.total(made) < judge.total([source, *old]):
            groups = list(ordered.groups)
            for k, column in zip(readers, made, strict=True):
                groups[k] = column
            ordered = Ordered(ordered.region, (*groups[:place], *groups[place + 1 :]))
        else:
            place += 1
    return ordered


def _readers(ordered: Ordered, place: int) -> list[int]:
    """Places of the groups that read what a group stores; none where something else does."""
    stored = ordered.groups[place].stored
    if stored & ordered.region.escapes:
        return []
    return [k for k, mask in enumerate(ordered.reads) if mask & stored]


# ------------------------------------------------------------------ runs


def best_runs(ordered: Ordered, judge: Judge) -> Ordered:
    """The groups, of which runs are one where that is cheaper: the cheapest such choice among the
    runs that are priced."""
    costs = _priced(ordered, judge)
    best = [0.0]
    came: list[int] = []
    for end in range(1, len(ordered.groups) + 1):
        ways = (
            (best[first] + costs[first, end], first)
            for first in range(end)
            if (first, end) in costs
        )
        cost, first = min(ways)
        best.append(cost)
        came.append(first)
    chosen: list[Column] = []
    end = len(ordered.groups)
    while end:
        first = came[end - 1]
        chosen.append(ordered.groups[first] if end == first + 1 else ordered.run(first, end))
        end = first
    return Ordered(ordered.region, tuple(reversed(chosen)))


def _priced(ordered: Ordered, judge: Judge) -> dict[tuple[int, int], float]:
    """What groups and runs of them cost, by where they begin and end: short runs first, and none
    around one that is no kernel."""
    count = len(ordered.groups)
    costs = {(k, k + 1): judge.weight(g) or 0.0 for k, g in enumerate(ordered.groups)}
    upto = list(accumulate(costs.values(), initial=0.0))
    firsts, left = set(range(count)), MOST_RUNS
    for length in range(2, count + 1):
        # A run holds two that are shorter by one: it is left out where one of them was refused.
        firsts = {k for k in firsts if k + 1 in firsts}
        for first in sorted(firsts):
            end = first + length
            run = ordered.run(first, end)
            if run.units.bit_count() > MOST_MEMBERS:
                firsts.discard(first)
            elif left and _may_gain(ordered, run, judge, upto[end] - upto[first]):
                left -= 1
                cost = judge.weight(run)
                if cost is None:
                    firsts.discard(first)
                else:
                    costs[first, end] = cost
    return costs


def _may_gain(ordered: Ordered, run: Column, judge: Judge, apart: float) -> bool:
    """Whether groups may be one, and cheaper than apart."""
    return bool(run.stored) and judge.at_least(run) < apart and is_closed(ordered.region, run)
