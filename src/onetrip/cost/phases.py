"""The phases of a kernel: what each pass over its rows moves, issues and waits for.

    a program holds its rows  -> one phase: each region once, each expression once
    a program walks its rows  -> one phase a pass: what was read before comes from the cache as far
                                 as the rows in work fit into it, and is computed again; a CPU keeps
                                 what is dear to compute in a row of working memory

Passes of one program follow one another, and programs that run side by side are in the same one, so
phases add up. Must not know what a phase takes: rates are the target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..base.sym import Dim
from ..ir.expr import Expr
from ..ir.nest import Nest
from ..passes.one_walk import partner
from .grid import Grid
from .instructions import Issued, combined, computed_once, issued, shares_of
from .sizes import NO_HINTS, Hints, number
from .traffic import Region, Stage, Traffic, pass_reads, within_stage


@dataclass(frozen=True)
class Phase:
    """What one pass costs.

    Attributes:
        memory: bytes from and to memory; again: those of them that an earlier pass read too.
        cached: bytes that the cache serves.
        rounds: times that the chip's programs wait for what they load.
    """

    memory: float
    again: float
    cached: float
    issued: Issued
    rounds: int


@dataclass(frozen=True)
class Cache:
    """The last level of cache, and what a kernel finds in it.

    Attributes:
        resident: buffers that it holds already.
        wastes: bytes that come along with each byte asked for, by buffer; see `access.py`.
    """

    bytes: int
    resident: frozenset[str] = frozenset()
    wastes: Mapping[str, float] = field(default_factory=dict)

    def cost(self, regions: Sequence[tuple[str, Dim]], hints: Hints) -> tuple[float, float]:
        """(bytes of memory, bytes of the cache) of regions that are touched for the first time."""
        both = [0.0, 0.0]
        for name, size in regions:
            both[name in self.resident] += number(size, hints) * self.wastes.get(name, 1.0)
        return both[0], both[1]


def phases(
    nest: Nest,
    passes: Sequence[Stage],
    moved: Traffic,
    grid: Grid,
    cache: Cache,
    *,
    held: bool,
    device: str,
    hints: Hints = NO_HINTS,
    partials: int = 0,
) -> tuple[Phase, ...]:
    """The phases of a nest.

    Args:
        passes: `stages(nest)`.
        held: whether rows stay in registers between passes.
        partials: bytes that parts of a walk write and another kernel joins, out of the cache.
    """
    rounds = grid.waves * grid.steps
    if held or len(passes) < 2:
        memory, cached = cache.cost(_pairs((*moved.reads, *moved.writes)), hints)
        computed = (*computed_once(nest.expressions, shares_of(nest)), *combined(nest))
        walk = Phase(memory, 0.0, cached, issued(computed, device, hints), rounds)
        join = Phase(partials, partials, partials, issued((), device, hints), 0)
        return (walk, join) if partials else (walk,)
    return tuple(_walked(nest, passes, moved, grid, cache, device, hints))


def online(nest: Nest, passes: Sequence[Stage]) -> tuple[Stage, ...]:
    """The passes where pairs of reductions are found in one walk (passes/one_walk.py)."""
    pairs = ((partner(r), r) for r in nest.reductions)
    second = {first.lift[0]: r.lift[0] for first, r in pairs if first is not None}
    found: list[Stage] = []
    for one in passes:
        before = found[-1] if found else None
        if before and all(second.get(e) in one.roots for e in before.roots):
            axes = tuple(dict.fromkeys((*before.axes, *one.axes)))
            walks = tuple(dict.fromkeys((*before.walks, *one.walks)))
            found[-1] = Stage(axes, (*before.roots, *one.roots), walks)
        else:
            found.append(one)
    return tuple(found)


def _pairs(regions: Sequence[Region]) -> list[tuple[str, Dim]]:
    return [(r.buffer, r.bytes) for r in regions]


def _walked(
    nest: Nest,
    passes: Sequence[Stage],
    moved: Traffic,
    grid: Grid,
    cache: Cache,
    device: str,
    hints: Hints,
) -> Iterator[Phase]:
    """One phase a pass; what belongs to no pass is done in the first, or stored in the last."""
    reads = pass_reads(nest, passes, hints)
    inner = {name for read in reads for name in read}
    values = [set(p.roots) for p in passes]
    at = {s.buffer: next((k for k, v in enumerate(values) if s.value in v), len(passes) - 1)
          for s in nest.stores}  # fmt: skip
    seen: set[str] = set()
    kept: set[Expr] = set()
    for k, (one, read) in enumerate(zip(passes, reads, strict=True)):
        first = [(name, size) for name, size in read.items() if name not in seen]
        again = sum(number(size, hints) for name, size in read.items() if name in seen)
        touched = first + [(r.buffer, r.bytes) for r in moved.writes if at[r.buffer] == k]
        fresh = [e for e in within_stage(one.roots) if e not in kept]
        kept |= set(fresh) if device == "cpu" else set()
        computed = list(computed_once(fresh, {}))
        if k == 0:
            touched += [(r.buffer, r.bytes) for r in moved.reads if r.buffer not in inner]
            computed += combined(nest)
        memory, cached = cache.cost(touched, hints)
        near = min(1.0, cache.bytes / max(1.0, again * grid.rows))
        far = again * (1 - near)
        seen |= set(read)
        done = issued(computed, device, hints)
        yield Phase(memory + far, far, cached + again * near, done, grid.waves * grid.steps)


__all__ = ["Cache", "Phase", "online", "phases"]
