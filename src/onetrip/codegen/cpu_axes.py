"""Which axis of a nest the lanes walk along, and how much work there is.

Must not know: statements, text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..base.affine import coefficient
from ..base.sym import Dim, Opaque, Var, add, atoms, mul, product
from ..ir.expr import Apply, Expr, Load, Rng, walk
from ..ir.nest import Combine, Nest, Store
from ..ops.scalar import SCALAR_OPS, Unit
from .cpp_index import MOST_LANES, walk_of
from .cpp_ops import has_array

UNKNOWN_EXTENT = 256
"""Iterations that a symbolic extent is taken for when axes are compared."""

STORE_WEIGHT = 2
"""A store that does not walk along the lanes costs more than such a load."""


@dataclass(frozen=True)
class Access:
    """One load or store: its offset, and the bytes it moves over the whole nest."""

    offset: Dim
    weight: int


def count(d: Dim) -> int:
    """The extent, or a guess where it is symbolic."""
    return d if isinstance(d, int) else UNKNOWN_EXTENT


def iterations(axes: Iterable[Var]) -> Dim:
    """The number of points of the axes."""
    return product([a.extent for a in axes])


def flat(axes: Sequence[Var]) -> Dim:
    """Row-major number of a point of the axes."""
    place: Dim = 0
    for v in axes:
        place = add(mul(place, v.extent), v)
    return place


def axes_in(free: Iterable[object]) -> frozenset[Var]:
    """The axes among the names on which something depends."""
    return frozenset(a for a in free if isinstance(a, Var))


def vars_of(d: Dim) -> frozenset[Var]:
    """The axes on which an index depends, those of run-time values included."""
    found: set[Var] = set()
    for a in atoms(d):
        if isinstance(a, Var):
            found.add(a)
        elif isinstance(a, Opaque):
            found |= {v for v in a.payload.free if isinstance(v, Var)}
    return frozenset(found)


def accesses(nest: Nest) -> list[Access]:
    """Every load and store of a nest."""
    out = [_access(s.index[0], STORE_WEIGHT * nest.buffer(s.buffer).type.dtype.itemsize)
           for s in nest.stores]  # fmt: skip
    return out + [_access(e.index[0], e.dtype.itemsize) for e in nest.loads]


def _access(offset: Dim, size: int) -> Access:
    points = count(product([min(count(v.extent), 1 << 20) for v in vars_of(offset)]))
    return Access(offset, size * points)


def pick_lane(axes: Sequence[Var], found: Sequence[Access]) -> Var | None:
    """The axis along which most bytes are contiguous; the last longest one when none is.

    An axis shorter than a vector counts for the share of the lanes that it fills.
    """
    best: tuple[float, Var] | None = None
    for v in axes:
        gain = score(v, found)
        if best is None or gain >= best[0]:
            best = (gain, v)
    if best is None:
        return None
    if best[0] > 0:
        return best[1]
    longest = max(axes, key=lambda v: count(v.extent))
    return longest if count(longest.extent) >= MOST_LANES else None


def score(v: Var, found: Sequence[Access]) -> float:
    """Bytes that a vector along v moves with full-width accesses."""
    contiguous = sum(a.weight for a in found if _unit_stride(a.offset, v))
    return contiguous * min(1.0, count(v.extent) / MOST_LANES)


def _unit_stride(offset: Dim, v: Var) -> bool:
    if any(isinstance(a, Opaque) and v in a.payload.free for a in atoms(offset)):
        return False
    walk = walk_of(offset, v)
    return walk is not None and walk.stride == 1


def by_stride(axes: Sequence[Var], found: Sequence[Access]) -> tuple[Var, ...]:
    """Axes by falling stride in the accesses that move the most bytes."""

    def stride(v: Var) -> float:
        total = 0.0
        for a in found:
            step = coefficient(a.offset, v)
            total += a.weight * (abs(step) if isinstance(step, int) else 1 << 12)
        return total

    return tuple(sorted(axes, key=stride, reverse=True))


def is_special(e: Expr) -> bool:
    """Whether e is worth keeping rather than computing again: a special function or random."""
    if isinstance(e, Rng):
        return True
    return isinstance(e, Apply) and e.op in SCALAR_OPS and SCALAR_OPS[e.op].unit is Unit.SPECIAL


def array_calls(roots: Sequence[Expr], lane: Var) -> tuple[Apply, ...]:
    """Operators that one call computes for many vectors at a time."""
    return tuple(e for e in walk(tuple(roots))
                 if isinstance(e, Apply) and has_array(e) and lane in e.free)  # fmt: skip


def is_heavy(roots: Sequence[Expr]) -> bool:
    """Whether computing takes longer than reading, so that more vectors at a time do not help."""
    nodes = list(walk(tuple(roots)))
    return any(map(is_special, nodes)) or len(nodes) > 24


def in_order(stores: Sequence[Store]) -> bool:
    """Whether stores may meet in one element, so that only one thread may make them."""
    return any(
        s.combine is not Combine.SET or any(isinstance(a, Opaque) for a in atoms(s.index[0]))
        for s in stores
    )


def traffic(nest: Nest) -> Dim:
    """Bytes of all buffers of the nest."""
    total: Dim = 0
    for b in nest.buffers:
        total = total + b.type.numel * b.type.dtype.itemsize
    return total


def strided_loads(roots: Sequence[Expr], lane: Var) -> tuple[Load, ...]:
    """Loads that jump from lane to lane, contiguous along another axis instead."""
    out = []
    for e in walk(tuple(roots)):
        if isinstance(e, Load) and e.guard is None:
            step = coefficient(e.index[0], lane)
            plain = not any(isinstance(a, Opaque) for a in atoms(e.index[0]))
            if plain and isinstance(step, int) and step > MOST_LANES:
                out.append(e)
    return tuple(out)
