"""Live ranges to offsets in one arena.

    buffer ::= name, bytes, first step, last step          alive in both and between them
    plan   : two buffers alive at the same step share no byte

Numbers: every buffer goes to the lowest gap that holds it, in several orders; the smallest arena
wins. Symbolic sizes: buffers share a *slot* only when the larger one is provable, and the offset
of a slot is the sum of the slots before it, a formula that the runtime evaluates; so the plan holds
for every size, and only its order is chosen at the hints.
Must not know kernels or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..base.lazy import cached_property
from ..base.sym import Dim, ceildiv, mul
from ..cost.sizes import NO_HINTS, Hints, at_most, number

ALIGNMENT = 64
"""Bytes; a cache line, and more than any vector access needs."""
Where = Literal["arena", "output", "library", "input"]


@dataclass(frozen=True)
class Range:
    """A buffer to be placed.

    Attributes:
        first, last: steps between which it is alive, both included.
        where: `arena`; or memory of its own: an output, or what a library call allocates; or the
            memory of an input that the program changes, which is the caller's and counts nowhere.
        reuses: the buffer or input whose memory it takes over at step `first`, in place.
    """

    name: str
    bytes: Dim
    first: int
    last: int
    where: Where = "arena"
    reuses: str | None = None


@dataclass(frozen=True)
class Placed:
    """A buffer with its offset in the arena (bytes); None: memory of its own."""

    range: Range
    offset: Dim | None


@dataclass(frozen=True)
class MemoryPlan:
    """Where every buffer lies.

    Attributes:
        arena_bytes: reserved for the whole call.
        peak_bytes: most bytes of buffers and outputs alive at once, those that share counted once.
        unplanned_peak_bytes: the same without reuse in place.
        total_bytes: what separate, never freed buffers would take.
    """

    buffers: tuple[Placed, ...]
    arena_bytes: Dim
    peak_bytes: int
    unplanned_peak_bytes: int
    total_bytes: int

    def offset(self, name: str) -> Dim | None:
        """The arena offset of a buffer; None when it has memory of its own."""
        return self._offsets[name]

    def inside(self, name: str) -> str | None:
        """The input in whose memory a value is to lie; None: not in that of an input."""
        return self._inside.get(name)

    @cached_property
    def _inside(self) -> dict[str, str]:
        ranges = (p.range for p in self.buffers)
        return {r.name: r.reuses for r in ranges if r.where == "input" and r.reuses is not None}

    @cached_property
    def _offsets(self) -> dict[str, Dim | None]:
        return {p.range.name: p.offset for p in self.buffers}


def aligned(size: Dim) -> Dim:
    """Size rounded up to the alignment."""
    return mul(ceildiv(size, ALIGNMENT), ALIGNMENT)


def plan_memory(ranges: Sequence[Range], hints: Hints = NO_HINTS) -> MemoryPlan:
    """Offsets for all arena buffers and the bytes that they need."""
    blocks, root = _blocks([r for r in ranges if r.where == "arena"])
    fixed = all(isinstance(b.bytes, int) for b in blocks)
    offsets, arena = _pack(blocks) if fixed else _slots(blocks, hints)
    placed = tuple(Placed(r, offsets[root[r.name]] if r.name in root else None) for r in ranges)
    ranges = [r for r in ranges if r.where != "input"]
    own = [r for r in ranges if r.where != "arena"]
    return MemoryPlan(
        placed,
        arena,
        peak([*blocks, *own], hints),
        peak(ranges, hints),
        sum(number(r.bytes, hints) for r in ranges),
    )


def peak(ranges: Iterable[Range], hints: Hints = NO_HINTS) -> int:
    """Most bytes alive at one step."""
    change: dict[int, int] = {}
    for r in ranges:
        size = number(r.bytes, hints)
        change[r.first] = change.get(r.first, 0) + size
        change[r.last + 1] = change.get(r.last + 1, 0) - size
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most


# ------------------------------------------------------------------ reuse in place


def _blocks(ranges: Sequence[Range]) -> tuple[list[Range], dict[str, str]]:
    """Buffers that take over another's memory joined with it: one block, one longer range.

    With it the name of the block that each buffer lies in.
    """
    found: dict[str, Range] = {}
    root: dict[str, str] = {}
    for r in ranges:
        if r.reuses is None or r.reuses not in root:
            root[r.name] = r.name
            found[r.name] = r
            continue
        first = root[r.name] = root[r.reuses]
        old = found[first]
        found[first] = Range(old.name, old.bytes, old.first, max(old.last, r.last))
    return list(found.values()), root


# ------------------------------------------------------------------ known sizes


def _size(r: Range) -> int:
    assert isinstance(r.bytes, int)
    return -(-r.bytes // ALIGNMENT) * ALIGNMENT


_ORDERS: tuple[Callable[[Range], tuple[int, int, str]], ...] = (
    lambda r: (-_size(r), r.first, r.name),
    lambda r: (r.first, -_size(r), r.name),
    lambda r: (-_size(r) * (1 + r.last - r.first), r.first, r.name),
    lambda r: (r.first - r.last, -_size(r), r.name),
)


def _pack(blocks: Sequence[Range]) -> tuple[dict[str, Dim], int]:
    """The smallest arena over several orders; none is asked after one that wastes nothing."""
    least = peak(replace(b, bytes=_size(b)) for b in blocks)
    best: tuple[dict[str, Dim], int] | None = None
    for order in _ORDERS:
        packed = _first_fit(sorted(blocks, key=order))
        best = packed if best is None or packed[1] < best[1] else best
        if best[1] <= least:
            break
    assert best is not None
    return best


def _first_fit(blocks: Sequence[Range]) -> tuple[dict[str, Dim], int]:
    """Each block at the lowest offset where no block alive at the same time lies.

    Only blocks alive at its first step, or made while it lives, are looked at.
    """
    alive: dict[int, list[tuple[int, int]]] = {}
    made: dict[int, list[tuple[int, int]]] = {}
    offsets: dict[str, Dim] = {}
    top = 0
    for block in blocks:
        size, at = _size(block), 0
        later = (p for s in range(block.first + 1, block.last + 1) for p in made.get(s, ()))
        for start, end in sorted({*alive.get(block.first, ()), *later}):
            if start < at + size and at < end:
                at = end
        offsets[block.name] = at
        if size:
            made.setdefault(block.first, []).append((at, at + size))
            for step in range(block.first, block.last + 1):
                alive.setdefault(step, []).append((at, at + size))
        top = max(top, at + size)
    return offsets, top


# ------------------------------------------------------------------ symbolic sizes


def _slots(blocks: Sequence[Range], hints: Hints) -> tuple[dict[str, Dim], Dim]:
    """Slots one after the other; a slot is as large as its largest buffer, which is provable."""
    slots: list[tuple[Dim, list[Range]]] = []
    for block in sorted(blocks, key=lambda r: (-number(r.bytes, hints), r.first, r.name)):
        for k, (size, inside) in enumerate(slots):
            free = all(o.last < block.first or block.last < o.first for o in inside)
            if free and at_most(block.bytes, size):
                inside.append(block)
                break
            if free and at_most(size, block.bytes):
                slots[k] = (block.bytes, [*inside, block])
                break
        else:
            slots.append((block.bytes, [block]))
    offsets: dict[str, Dim] = {}
    start: Dim = 0
    for size, inside in slots:
        offsets.update((r.name, start) for r in inside)
        start = start + aligned(size)
    return offsets, start
