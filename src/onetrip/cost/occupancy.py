"""What a nest needs on the chip: registers, spills, shared memory, and the occupancy that follows.

    registers of a thread = base + live tile values x elements of a thread x words of a value
    blocks of a multiprocessor = min over registers, shared memory, threads: all / need of a block

The estimate counts live values along one order of the expressions. A `Resources` from above (the
real assembler) replaces it; every figure says which of the two it is.
Must not know codegen: it supposes the tiles that a schedule would choose, it does not choose them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..base.sym import Var, product
from ..ir.expr import Const, Expr, Position, children
from ..ir.nest import Nest
from ..target import Target
from .sizes import NO_HINTS, Hints, number
from .traffic import stages, within_stage

BASE_REGISTERS = 20
"""Addresses, loop counters and masks of a kernel."""
WANTED_REGISTERS = 128
"""Above it a schedule takes smaller tiles before it takes more registers."""
ELEMENTS = (8, 4, 2, 1)
"""Elements of a thread that a schedule may choose, the widest access first."""
STANDARD_THREADS = 128


@dataclass(frozen=True)
class Assembled:
    """An assembler's answer for the nest's kernel: per thread, per thread, per block."""

    registers: int
    spill_bytes: int
    shared_bytes: int


class Resources(Protocol):
    """Asks the real assembler; None where it has no answer (no kernel, no such chip)."""

    def __call__(self, nest: Nest, target: Target) -> Assembled | None:
        """The need of the kernel that would be generated for `nest`."""
        ...


@dataclass(frozen=True)
class Need:
    """On-chip need of a nest.

    Attributes:
        registers: 32-bit registers of a thread (of a lane on a CPU), at most what the chip has.
        spill_bytes: bytes of a thread that do not fit into them.
        shared_bytes: shared memory of a block.
        threads: threads of a block.
        elements: elements that a thread holds of each live value.
        persistent: whether rows stay on chip between dependent reductions.
        occupancy: resident threads / most resident threads.
        source: where registers, spills and shared memory come from.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    elements: int
    persistent: bool
    occupancy: float
    source: Literal["estimated", "assembled"] = "estimated"


def need(
    nest: Nest, target: Target, hints: Hints = NO_HINTS, resources: Resources | None = None
) -> Need:
    """The on-chip need of a nest, assembled where `resources` has an answer."""
    found = _estimate(nest, target, hints)
    answer = None if resources is None else resources(nest, target)
    if answer is None:
        return found
    occupied = occupancy(target, answer.registers, answer.shared_bytes, found.threads)
    return Need(
        answer.registers,
        answer.spill_bytes,
        answer.shared_bytes,
        found.threads,
        found.elements,
        found.persistent,
        occupied,
        "assembled",
    )


def occupancy(target: Target, registers: int, shared_bytes: int, threads: int) -> float:
    """Resident threads / most resident threads; 0.0 when not one block fits."""
    blocks = min(
        target.registers_per_multiprocessor // max(1, registers * threads),
        target.shared_per_multiprocessor // max(1, shared_bytes),
        target.threads_per_multiprocessor // threads,
        target.blocks_per_multiprocessor,
    )
    return min(1.0, blocks * threads / target.threads_per_multiprocessor)


# ------------------------------------------------------------------ live values


def live_words(
    order: Sequence[Expr], roots: Iterable[Expr], inner: frozenset[Var] | None = None
) -> int:
    """Most 32-bit words of tile values alive at once when `order` is computed in sequence.

    Values are tiles when they vary over `inner` (None: over any axis); others count nothing.
    """
    last: dict[int, int] = {}
    for place, e in enumerate(order):
        for c in children(e):
            last[id(c)] = place
    end = len(order)
    last.update((id(r), end) for r in roots)
    dying: dict[int, int] = {}
    live = peak = 0
    for place, e in enumerate(order):
        live -= dying.pop(place, 0)
        words = _words(e, inner)
        if words and id(e) in last:
            live += words
            peak = max(peak, live)
            dying[last[id(e)]] = dying.get(last[id(e)], 0) + words
    return peak


def _words(e: Expr, inner: frozenset[Var] | None) -> int:
    if isinstance(e, Const | Position):
        return 0
    tile = any(isinstance(a, Var) for a in e.free) if inner is None else bool(e.free & inner)
    return max(1, e.dtype.bits // 32) if tile else 0


# ------------------------------------------------------------------ the estimate


def _estimate(nest: Nest, target: Target, hints: Hints) -> Need:
    passes = stages(nest)
    inner = frozenset(a for stage in passes for a in stage.axes)
    if not inner:
        return _tiled(target, live_words(nest.expressions, _store_roots(nest)), 0)
    extent = max(number(product([a.extent for a in s.axes]), hints) for s in passes)
    threads = _row_threads(extent, target)
    kept = live_words(nest.expressions, _store_roots(nest), inner)
    shared = 4 * (threads // target.warp_size) * max(1, len(nest.reductions))
    elements = -(-max(1, extent) // threads)
    registers = BASE_REGISTERS + kept * elements
    if target.device != "cpu" and registers <= target.registers_per_thread:
        occupied = occupancy(target, registers, shared, threads)
        return Need(registers, 0, shared, threads, elements, True, occupied)
    looped = max(live_words(tuple(within_stage(s.roots)), s.roots, inner) for s in passes)
    return _tiled(target, looped, shared)


def _store_roots(nest: Nest) -> tuple[Expr, ...]:
    return tuple(s.value for s in nest.stores)


def _row_threads(extent: int, target: Target) -> int:
    """A power of two of threads with some eight elements of the row each."""
    if target.device == "cpu":
        return target.threads_per_block
    wanted = 1 << max(0, (max(1, extent) // ELEMENTS[0]).bit_length() - 1)
    return max(target.warp_size, min(wanted, target.threads_per_block))


def _tiled(target: Target, live: int, shared: int) -> Need:
    """Tiles of a free choice: the widest that needs no more than the wanted registers."""
    cpu = target.device == "cpu"
    base, widths = (2, (1,)) if cpu else (BASE_REGISTERS, ELEMENTS)
    threads = target.threads_per_block if cpu else STANDARD_THREADS
    most = target.registers_per_thread
    fits = [w for w in widths if base + live * w <= min(WANTED_REGISTERS, most)]
    elements = fits[0] if fits else 1
    wanted = base + live * elements
    registers = min(wanted, most)
    spill = 4 * (wanted - registers)
    occupied = occupancy(target, registers, shared, threads)
    return Need(registers, spill, shared, threads, elements, False, occupied)
