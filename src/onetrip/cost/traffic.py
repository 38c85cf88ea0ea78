"""Bytes that a nest moves and the arithmetic it does.

    bytes read of a buffer    = min(its bytes, sum over distinct index maps of their image)
    image of an index map     <= min(product of its axes' extents, product of its ranges)
    operations of an operator = its cost x product of the extents of the axes it depends on

So a broadcast operand is counted once, and what depends on a row only is computed once a row.
All figures are Dims: they stay formulas of the symbolic sizes. Which of two formulas is the smaller
one is decided at the hints where it cannot be proved.
Must not know targets: bytes and operations are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..base.dtype import DType
from ..base.sym import Dim, Opaque, Sym, Var, atoms, lower_bound, product, upper_bound
from ..ir.expr import (
    Apply,
    Cast,
    Expr,
    Load,
    Local,
    Reduced,
    Rng,
    children,
    walk,
)
from ..ir.monoid import MONOIDS
from ..ir.nest import Combine, Nest, Store
from ..ops.scalar import SCALAR_OPS, Unit
from .sizes import NO_HINTS, Hints, smaller

PHILOX_INTEGER_OPS = 3
"""Integer operations of a uniform number a round: some ten give four words."""


@dataclass(frozen=True)
class Region:
    """The part of a buffer that a nest touches, in bytes."""

    buffer: str
    bytes: Dim


@dataclass(frozen=True)
class Traffic:
    """What a nest moves.

    Attributes:
        reads, writes: one region for each buffer; an accumulating store counts in both.
        rereads: what is read again when rows are not kept on chip between dependent reductions.
    """

    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    rereads: tuple[Region, ...] = ()

    @property
    def bytes_read(self) -> Dim:
        """Bytes of all regions read."""
        return total(r.bytes for r in self.reads)

    @property
    def bytes_written(self) -> Dim:
        """Bytes of all regions written."""
        return total(r.bytes for r in self.writes)

    @property
    def bytes(self) -> Dim:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Work:
    """Operations of a nest by functional unit; a special function counts in `flops` as well."""

    flops: tuple[tuple[str, Dim], ...]
    special: Dim
    integer: Dim

    @property
    def all_flops(self) -> Dim:
        """Floating-point operations of every dtype together."""
        return total(count for _, count in self.flops)


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of dims; 0 for none."""
    result: Dim = 0
    for d in dims:
        result = result + d
    return result


def axes_of(e: Iterable[Sym]) -> tuple[Var, ...]:
    """The axes among the free symbols, sorted by name."""
    return tuple(sorted((a for a in set(e) if isinstance(a, Var)), key=lambda v: v.name))


def points(free: Iterable[Sym]) -> Dim:
    """How many combinations of axis values there are."""
    return product([v.extent for v in axes_of(free)])


# ------------------------------------------------------------------ bytes


def traffic(nest: Nest, hints: Hints = NO_HINTS) -> Traffic:
    """Bytes read and written by a nest that reads each region once."""
    writes = [(s.buffer, _stored(nest, s, hints)) for s in nest.stores]
    reads = list(_read(nest, nest.loads, hints).items())
    reads += [
        (s.buffer, size)
        for s, (_, size) in zip(nest.stores, writes, strict=True)
        if s.combine is not Combine.SET
    ]
    return Traffic(_regions(reads), _regions(writes), _rereads(nest, hints))


def _regions(pairs: Iterable[tuple[str, Dim]]) -> tuple[Region, ...]:
    sums: dict[str, Dim] = {}
    for name, size in pairs:
        sums[name] = sums.get(name, 0) + size
    return tuple(Region(name, size) for name, size in sums.items())


def _read(nest: Nest, loads: Iterable[Load], hints: Hints) -> dict[str, Dim]:
    maps: dict[str, dict[tuple[Dim, ...], None]] = {}
    for load in loads:
        maps.setdefault(load.buffer, {})[load.index] = None
    found: dict[str, Dim] = {}
    for name, indices in maps.items():
        kind = nest.buffer(name).type
        whole = smaller(kind.numel, kind.storage_elements, hints)
        seen = {_shape_of_map(i): i for i in indices}
        distinct = total(image(i, hints) for i in seen.values())
        found[name] = smaller(distinct, whole, hints) * kind.dtype.itemsize
    return found


def _shape_of_map(index: tuple[Dim, ...]) -> tuple[object, ...]:
    """Equal for maps that differ only in which axes of the same extents they run over.

    Two reductions that walk one row by axes of their own read the same elements.
    """
    axes = [d for d in index if isinstance(d, Var)]
    if len(set(axes)) < len(axes) or not all(isinstance(d, int | Var) for d in index):
        return index
    return tuple(("axis", d.extent) if isinstance(d, Var) else d for d in index)


def image(index: tuple[Dim, ...], hints: Hints = NO_HINTS) -> Dim:
    """An upper bound of the number of distinct elements that an index map reaches."""
    free: set[Sym] = set()
    spans: list[Dim] = []
    for d in index:
        free |= _axes_below(d)
        low, high = lower_bound(d), upper_bound(d)
        if low is not None and high is not None:
            spans.append(high - low + 1)
    counted = points(free)
    return smaller(counted, product(spans), hints) if len(spans) == len(index) else counted


def _axes_below(d: Dim) -> set[Sym]:
    found: set[Sym] = set()
    for a in atoms(d):
        found |= set(a.payload.free) if isinstance(a, Opaque) else {a}
    return found


def _stored(nest: Nest, store: Store, hints: Hints) -> Dim:
    kind = nest.buffer(store.buffer).type
    over = product([a.extent for a in nest.space]) * product([a.extent for a in store.axes])
    return smaller(over, kind.numel, hints) * kind.dtype.itemsize


# ------------------------------------------------------------------ passes over a row


@dataclass(frozen=True)
class Stage:
    """One pass over inner axes: the reductions and stores that can share it.

    Attributes:
        axes: all of them.
        walks: the axes of each reduction and store, each set once; walks that share no axis are
            made one after the other.
    """

    axes: tuple[Var, ...]
    roots: tuple[Expr, ...]
    walks: tuple[frozenset[Var], ...]


def stages(nest: Nest) -> tuple[Stage, ...]:
    """The passes over inner axes, a reduction one pass after those that it depends on."""
    level = _levels(nest)
    found: dict[int, list[tuple[tuple[Var, ...], tuple[Expr, ...]]]] = {}
    for r in nest.reductions:
        found.setdefault(max(level[id(e)] for e in r.lift), []).append((r.axes, r.lift))
    for s in nest.stores:
        if s.axes:
            found.setdefault(level[id(s.value)], []).append((s.axes, s.roots))
    return tuple(_stage(found[k]) for k in sorted(found))


def _stage(parts: list[tuple[tuple[Var, ...], tuple[Expr, ...]]]) -> Stage:
    axes = tuple(dict.fromkeys(a for group, _ in parts for a in group))
    walks = tuple(dict.fromkeys(frozenset(group) for group, _ in parts))
    return Stage(axes, tuple(e for _, roots in parts for e in roots), walks)


def _levels(nest: Nest) -> Mapping[int, int]:
    """How many reductions stand one inside the other below each expression, by identity."""
    level: dict[int, int] = {}
    for e in nest.expressions:
        below = max((level[id(c)] for c in children(e)), default=0)
        level[id(e)] = below + isinstance(e, Reduced)
    return level


def within_stage(roots: tuple[Expr, ...]) -> Iterator[Expr]:
    """Every distinct expression of a pass, operands first; results of reductions are leaves."""
    return walk(roots, lambda e: () if isinstance(e, Reduced) else children(e))


def pass_reads(
    nest: Nest, passes: Sequence[Stage], hints: Hints = NO_HINTS
) -> tuple[dict[str, Dim], ...]:
    """What each pass reads of each buffer along its inner axes, in bytes."""
    found = []
    for one in passes:
        inner = frozenset(one.axes)
        loads = [e for e in within_stage(one.roots) if isinstance(e, Load) and e.free & inner]
        found.append(_read(nest, loads, hints))
    return tuple(found)


def _rereads(nest: Nest, hints: Hints) -> tuple[Region, ...]:
    """Regions read in more than one pass, once for each pass after the first."""
    seen: set[str] = set()
    again: list[tuple[str, Dim]] = []
    for read in pass_reads(nest, stages(nest), hints):
        again += [(name, size) for name, size in read.items() if name in seen]
        seen |= set(read)
    return _regions(again)


# ------------------------------------------------------------------ operations


def work(nest: Nest) -> Work:
    """Operations of a nest that computes each distinct expression once for each point."""
    flops: dict[str, Dim] = {}
    counts: dict[str, Dim] = {"special": 0, "integer": 0}
    for e in nest.expressions:
        _count(e, points(e.free), flops, counts)
    for e, over in combinations(nest):
        _count(e, over, flops, counts)
    return Work(tuple(sorted(flops.items())), counts["special"], counts["integer"])


def combinations(nest: Nest) -> Iterator[tuple[Expr, Dim]]:
    """The expressions that join states of reductions and scans, with how often each is computed."""
    for r in nest.reductions:
        for leaf in _combination(r.monoid, tuple(e.dtype for e in r.lift)):
            yield leaf, points((*r.free, *r.axes))
    for s in nest.scans:
        for leaf in _combination(s.monoid, tuple(e.dtype for e in s.lift)):
            yield leaf, points(s.free)


def _count(e: Expr, over: Dim, flops: dict[str, Dim], counts: dict[str, Dim]) -> None:
    if isinstance(e, Rng):
        counts["integer"] = counts["integer"] + over * e.rounds * PHILOX_INTEGER_OPS
    elif isinstance(e, Cast):
        counts["integer"] = counts["integer"] + over
    elif isinstance(e, Apply):
        leaf = SCALAR_OPS[e.op]
        operand = e.args[-1].dtype if e.args else e.dtype
        if operand.is_float:
            flops[operand.name] = flops.get(operand.name, 0) + over * leaf.flops
        else:
            counts["integer"] = counts["integer"] + over * leaf.flops
        if leaf.unit is Unit.SPECIAL:
            counts["special"] = counts["special"] + over


@lru_cache(maxsize=256)
def _combination(monoid: str, dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    """The expressions of one combination of two states."""
    earlier, later = (
        tuple(Local(f"{side}{k}", d) for k, d in enumerate(dtypes)) for side in ("a", "b")
    )
    return tuple(walk(MONOIDS[monoid].combine(earlier, later)))
