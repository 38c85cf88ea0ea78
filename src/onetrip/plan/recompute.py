"""Which values a finished pool computes more than once, and what storing them would have cost.

Must not know how the choice came about: it reads the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..passes.close import Unfusable
from .evaluate import Evaluator
from .pool import Part, Pool


@dataclass(frozen=True)
class Recomputed:
    """A choice made: `name` and the atoms with it are computed in each reader, not read.

    homes: the groups that compute them again.
    apart_us: the time of all groups concerned with the values stored; together_us: as planned.
    """

    name: str
    values: tuple[str, ...]
    homes: tuple[int, ...]
    apart_us: float
    together_us: float


def recomputed(pool: Pool, evaluator: Evaluator) -> tuple[Recomputed, ...]:
    """Every set of atoms that the same groups compute again, in graph order."""
    sets: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for k, owner in enumerate(pool.owner):
        homes = tuple(sorted(pool.homes[k] - {owner}))
        if homes and len(pool.homes[k]) > 1:
            sets.setdefault((owner, homes), []).append(k)
    found = (_choice(pool, evaluator, owner, homes, k) for (owner, homes), k in sets.items())
    return tuple(found)


def _choice(
    pool: Pool, evaluator: Evaluator, owner: int, homes: Sequence[int], atoms: Sequence[int]
) -> Recomputed:
    index = pool.index
    parts = [pool.parts[h] for h in homes]
    inside = set(atoms)
    values = tuple(
        v.name
        for k in atoms
        for v in index.atoms[k].node.outputs
        if v.name in index.needed or not inside.issuperset(index.readers.get(v.name, ()))
    )
    together = sum(_us(evaluator, p.atoms, pool.stores(p)) for p in parts)
    apart = sum(_without(pool, evaluator, p, inside) for p in parts)
    if owner < 0:
        apart += _us(evaluator, tuple(atoms), values)
    name = index.atoms[atoms[-1]].name
    return Recomputed(name, values, tuple(homes), apart, together)


def _without(pool: Pool, evaluator: Evaluator, part: Part, atoms: Iterable[int]) -> float:
    left = tuple(k for k in part.atoms if k not in set(atoms))
    return _us(evaluator, left, pool.stores(part))


def _us(evaluator: Evaluator, atoms: tuple[int, ...], stored: tuple[str, ...]) -> float:
    """The time of a group; of its atoms one by one where it cannot be one kernel."""
    priced = evaluator.price(atoms, stored)
    if not isinstance(priced, Unfusable):
        return priced.cost.us
    nodes = evaluator.index.atoms
    alone = (evaluator.price((k,), tuple(v.name for v in nodes[k].node.outputs)) for k in atoms)
    return sum(p.cost.us for p in alone if not isinstance(p, Unfusable))
