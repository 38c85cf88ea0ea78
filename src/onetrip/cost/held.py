"""Warps of a program that holds whole rows in registers.

    repetition   what all threads of a program load at once: one wide access each
    elements     of a thread = repetitions that a row needs x elements of an access
    instructions = threads x (those of a program + elements x those of an element)
    time         ~ max(arithmetic, memory) + SHADOW x min(arithmetic, memory)

Tiles are powers of two and rows are not: compilers drop repetitions that lie wholly beyond the row,
so 5120 elements cost 5 repetitions of 4 warps but 2 of 16, each of 4096. Fewer warps also do what
threads do once for a row fewer times.

The figures below were read off the machine code of sm_90 and set by hand beside the times of 16 and
of 32 elements a thread for 61 nests on an H200. Must not know codegen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.sym import product
from ..ir.nest import Nest
from ..target import Target
from .instructions import computed_once, issued
from .mixed import BASE, MOST_WARPS
from .sizes import NO_HINTS, Hints, number
from .traffic import traffic

LANES = 32
"""Threads of a warp that schedules begin with, whatever the chip has."""
EACH = 16
"""Elements of a thread to begin with."""
MOST_EACH = 56
"""Most of them, of all values together that are held: 64 take 170 registers."""
VECTOR = 16
"""Bytes of the widest access of one thread."""
OWN, JOIN = 100.0, 90.0
"""Instructions of a thread once for a row: addresses and masks; and for each reduction."""
HELD_REGISTERS = 1.2
"""Registers of each held element."""
SHADOW = 0.15
"""Share of the shorter of arithmetic and memory that does not hide behind the longer."""
ALONE = 1.5
"""Times longer where a multiprocessor has room for one program: none works while one waits."""
LIGHT = 0.4
"""Share of memory's time that arithmetic may take where nothing hides it."""
PAYS = 0.96
"""Of the time of more warps, at most, that fewer must take to be chosen."""


@dataclass(frozen=True)
class Rows:
    """The rows of one program.

    Attributes:
        width: elements of a row; rows: of the program; lanes: those of the tile, padded.
        values: values of an element that a thread holds.
        vector: elements of one access.
    """

    width: int
    rows: int
    lanes: int
    values: int
    vector: int

    def elements(self, threads: int) -> int:
        """Elements of a thread that are computed: whole repetitions."""
        padded = self.lanes // self.rows
        step = min(padded, threads * self.vector)
        needed = -(-self.width // step) * step
        return max(1, self.rows * needed // threads)


def rows_of(nest: Nest, width: int, rows: int, lanes: int) -> Rows:
    """The rows of a nest: what is loaded for each of their elements decides."""
    most = max((len(e.free) for e in nest.loads), default=0)
    widest = [e.dtype.itemsize for e in nest.loads if len(e.free) == most] or [4]
    aligned = math.gcd(width, VECTOR)
    return Rows(width, rows, lanes, len(widest), max(1, min(aligned, VECTOR // min(widest))))


@dataclass(frozen=True)
class _Work:
    """What the rows of a nest take: elements in all, instructions of one; seconds of memory for all
    of them; instructions a second of the chip."""

    points: int
    each: float
    memory: float
    rate: float


def _work(nest: Nest, width: int, target: Target, hints: Hints) -> _Work:
    done = issued(computed_once(nest.expressions, {}), target.device, hints)
    points = max(1, width * number(product([a.extent for a in nest.space]), hints))
    memory = number(traffic(nest, hints).bytes, hints) / target.copy_bandwidth
    rate = target.reached_flops("vector", "f32") / 2
    return _Work(points, done.plain / points, memory, rate)


def is_light(nest: Nest, found: Rows, target: Target, hints: Hints = NO_HINTS) -> bool:
    """Whether a thread holds one value of an element, and computes little beside its memory."""
    if found.values > 1:
        return False
    work = _work(nest, found.width, target, hints)
    return work.points * work.each / work.rate <= LIGHT * work.memory


def held_warps(nest: Nest, found: Rows, target: Target, hints: Hints = NO_HINTS) -> int:
    """The warps: EACH elements a thread, or fewer warps where they take less time."""
    begin = max(1, min(MOST_WARPS, found.lanes // (LANES * EACH)))
    if begin == 1:
        return 1
    work = _work(nest, found.width, target, hints)
    points, each, memory, rate = work.points, work.each, work.memory, work.rate
    once = OWN + JOIN * len(nest.reductions)
    programs = points / (found.width * found.rows)

    def time(warps: int) -> float:
        threads = warps * target.warp_size
        elements = found.elements(threads)
        arithmetic = programs * threads * (once + each * elements) / rate
        registers = BASE + HELD_REGISTERS * elements * found.values
        alone = target.registers_per_multiprocessor < 2 * registers * threads
        taken = max(arithmetic, memory) + SHADOW * min(arithmetic, memory)
        return taken * (ALONE if alone else 1.0)

    best, took = begin, time(begin)
    warps = begin // 2
    while warps and found.elements(warps * target.warp_size) * found.values <= MOST_EACH:
        if time(warps) < PAYS * took:
            best, took = warps, time(warps)
        warps //= 2
    return best
