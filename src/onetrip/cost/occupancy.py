"""What a nest needs on the chip: registers, spills, shared memory, and the occupancy that follows.

    registers of a thread = base + elements x (moved + kept + state) + temporaries, each weighed
    blocks of a multiprocessor = min over registers, shared memory, threads: all / need of a block

The estimate weighs the words that live together (`pressure.py`) in the tile that a schedule would
choose (`tiles.py`). A `Resources` from above (the real assembler) replaces it; every figure says
which of the two it is. Must not know codegen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ..ir.nest import Nest
from ..target import Target
from .mixed import mixed_of
from .pressure import Pressure, live_words, pressure
from .sizes import NO_HINTS, Hints
from .tiles import SQUARE, Tile, tile_of
from .traffic import Stage, stages, within_stage

CPU_BASE_REGISTERS = 2
"""Addresses and masks of a vector loop."""
NEAR = 0.75
"""Share of a limit from which on the real assembler is asked."""


@dataclass(frozen=True)
class Weights:
    """What a compiler makes of the words of a `Pressure`, in registers.

    Attributes:
        base: addresses, counters and masks.
        packed: whether narrow values share registers.
        moved, kept, state: for each word of each element; temporaries: for each word.
        branch: for each word that is moved or temporary, of each element, where the code branches:
            what lives across the branch lives for all elements at once.
    """

    base: float
    packed: bool
    moved: float
    kept: float
    state: float
    temporaries: float
    branch: float


WEIGHTS: dict[str, Weights] = {
    "nvidia": Weights(9.7, True, 0.35, 0.67, 0.92, 2.7, 0.14),
    "amd": Weights(1.2, False, 0.47, 0.65, 1.67, 2.0, 0.28),
}
"""By vendor; the least absolute relative error over the kernels of the project's own programs, see
`benchmarks/registers.py`, which fits them and states their error."""


@dataclass(frozen=True)
class Assembled:
    """An assembler's answer for the nest's kernel: per thread, per thread, per block."""

    registers: int
    spill_bytes: int
    shared_bytes: int

    @staticmethod
    def most(kernels: Iterable[Assembled]) -> Assembled:
        """The need of a group of kernels: of each figure the largest."""
        rows = [(k.registers, k.spill_bytes, k.shared_bytes) for k in kernels]
        return Assembled(*(max(column) for column in zip(*rows, strict=True)))


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
        worst: registers wanted if all that moves, and temporaries across branches, lived at once.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    elements: int
    persistent: bool
    occupancy: float
    source: Literal["estimated", "assembled"] = "estimated"
    worst: int = 0


def need(
    nest: Nest, target: Target, hints: Hints = NO_HINTS, resources: Resources | None = None
) -> Need:
    """The on-chip need of a nest, assembled where `resources` has an answer."""
    found = estimate(nest, target, hints)
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


def register_limit(target: Target, threads: int) -> int:
    """Most registers of a thread, where a block has so many threads."""
    return min(target.registers_per_thread, target.registers_per_multiprocessor // max(1, threads))


def near_limit(found: Need, target: Target) -> bool:
    """Whether an estimate leaves open that the kernel goes beyond a limit of the chip."""
    most = register_limit(target, found.threads)
    return max(found.registers, found.worst) >= NEAR * most or (
        found.shared_bytes >= NEAR * target.shared_per_block
    )


# ------------------------------------------------------------------ the estimate


def estimate(nest: Nest, target: Target, hints: Hints = NO_HINTS) -> Need:
    """The on-chip need of a nest, from what lives together in it."""
    passes = stages(nest)
    if target.device == "cpu":
        return _vectors(nest, passes, target)
    tile = tile_of(nest, passes, target, hints)
    weights = WEIGHTS[target.vendor]
    mixed = mixed_of(nest, target, hints)
    found = pressure(nest, passes, tile.held, () if mixed is None else mixed.walk.columns)
    wanted = _registers(found, tile, weights)
    worst = _registers(found, tile, replace(weights, moved=1, branch=1))
    most = register_limit(target, tile.threads)
    registers = min(wanted, most)
    shared = _shared(nest, passes, tile, target) + (0 if mixed is None else mixed.staged)
    return Need(
        registers,
        4 * (wanted - registers),
        shared,
        tile.threads,
        tile.elements,
        tile.held,
        occupancy(target, registers, shared, tile.threads),
        worst=max(wanted, worst),
    )


def _registers(found: Pressure, tile: Tile, w: Weights) -> int:
    moved = found.packed if w.packed else found.moved
    each = w.moved * moved + w.kept * found.kept + w.state * found.state
    if found.branches:
        each += w.branch * (moved + found.temporaries)
    return round(w.base + tile.elements * each + w.temporaries * found.temporaries)


def _shared(nest: Nest, passes: Sequence[Stage], tile: Tile, target: Target) -> int:
    """Where warps exchange the states of a reduction; one after the other, in the same bytes."""
    warps = tile.threads // target.warp_size
    if not passes or warps == 1:
        return 0
    state = max((e.dtype.itemsize for r in nest.reductions for e in r.lift), default=4)
    columns = SQUARE if tile.family == "column" else 1
    return max(4, state) * columns * warps


def _vectors(nest: Nest, passes: Sequence[Stage], target: Target) -> Need:
    """A CPU: one vector register for each live value."""
    inner = frozenset(a for p in passes for a in p.axes)
    found = [live_words(tuple(within_stage(p.roots)), p.roots, inner) for p in passes]
    live = max(found) if found else live_words(nest.expressions, nest.roots)
    wanted = CPU_BASE_REGISTERS + live
    most, threads = target.registers_per_thread, target.threads_per_block
    shared = 4 * (threads // target.warp_size) * len(nest.reductions)
    registers = min(wanted, most)
    occupied = occupancy(target, registers, shared, threads)
    return Need(registers, 4 * (wanted - registers), shared, threads, 1, False, occupied)
