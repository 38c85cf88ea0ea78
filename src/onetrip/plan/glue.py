"""A region with fewer units: what its readers always compute again is never a group's result.

    p inlined in every reader   when it is cheap, nothing outside needs it, and it reads no
                                more bytes than it makes

Cutting below such a unit is never better than cutting above it. Where it reads a few bytes more, as
vectors beside a matrix do, the loss is bounded, and `slack_us` says by what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..cost.roofline import Cost
from .enumerate import Column
from .pool import bits
from .regions import Region

LEAST_SHARE = 1e-5
"""Bytes of the region's floor that one unit may cost more when it is never stored."""
CHEAP = 0.1
"""Arithmetic of a unit that is computed again / its time on memory."""
SMALL = 64
"""A unit so many times smaller than the region's largest is cheap whatever it computes."""


@dataclass(frozen=True)
class Glued:
    """A smaller region, and what its columns are in the region that it stands for."""

    region: Region
    slack_us: float
    inside: tuple[int, ...]
    own: tuple[int, ...]

    def column(self, column: Column) -> Column:
        """A column of the smaller region as one of the whole."""
        units = sum_of(self.inside, column.units)
        return Column(units, sum_of(self.own, column.stored))


def sum_of(masks: Sequence[int], units: int) -> int:
    """The union of some masks."""
    total = 0
    for k in bits(units):
        total |= masks[k]
    return total


def glue(
    region: Region, costs: Sequence[Cost | None], size: Callable[[str], int], us_per_byte: float
) -> Glued:
    """The region without the units that are computed again in every reader.

    Args:
        costs: of each unit as a kernel of its own.
        size: bytes of a value.
    """
    largest = max(u.numel for u in region.units)
    allowed = LEAST_SHARE * sum(
        size(n) for k in bits(region.escapes) for n in region.units[k].makes
    )
    reads = [dict.fromkeys(u.reads) for u in region.units]
    inside = [1 << k for k in range(len(region.units))]
    gone, slack = 0, 0.0
    maker = {n: k for k, u in enumerate(region.units) for n in u.makes}
    for k, unit in enumerate(region.units):
        for name in unit.reads:
            source = maker.get(name)
            if source is not None and gone >> source & 1:
                del reads[k][name]
                reads[k].update(reads[source])
                inside[k] |= inside[source]
        if not _may_vanish(region, k, costs[k], largest):
            continue
        more = sum(map(size, reads[k])) - sum(map(size, unit.makes))
        excess = max(0, more) * region.consumers[k].bit_count()
        if excess <= allowed:
            gone |= 1 << k
            slack += excess * us_per_byte
    return _without(region, gone, reads, inside, slack, maker)


def _may_vanish(region: Region, k: int, cost: Cost | None, largest: int) -> bool:
    unit, readers = region.units[k], region.consumers[k]
    if unit.outer or unit.alone or region.escapes >> k & 1 or not readers or cost is None:
        return False
    if not all(region.inlinable[c] >> k & 1 for c in bits(readers)):
        return False
    light = not cost.special and cost.compute_us <= CHEAP * cost.memory_us
    return light or unit.numel * SMALL <= largest


def _without(
    region: Region,
    gone: int,
    reads: Sequence[Mapping[str, None]],
    inside: Sequence[int],
    slack: float,
    maker: Mapping[str, int],
) -> Glued:
    kept = [k for k in range(len(region.units)) if not gone >> k & 1]
    place = {k: i for i, k in enumerate(kept)}

    def moved(mask: int) -> int:
        return sum(1 << place[k] for k in bits(mask & ~gone))

    inlinable: list[int] = []
    for k in range(len(region.units)):
        through = [inlinable[q] for q in bits(region.inlinable[k] & gone)]
        inlinable.append(region.inlinable[k] & ~gone | sum_of(through, (1 << len(through)) - 1))
    producers = [
        moved(sum(1 << m for m in {maker[n] for n in reads[k] if n in maker})) for k in kept
    ]
    units = tuple(
        replace(region.units[k], atoms=region.atoms_of(inside[k]), reads=tuple(reads[k]))
        for k in kept
    )
    small = Region(
        units,
        tuple(producers),
        tuple(moved(inlinable[k]) for k in kept),
        tuple(moved(region.above[k]) for k in kept),
        tuple(moved(region.outside[k]) for k in kept),
        moved(region.escapes),
    )
    return Glued(small, slack, tuple(inside[k] for k in kept), tuple(1 << k for k in kept))
