"""How a nest's kernels lie on the chip: programs, how many run at a time, rounds, launches.

    resident = min(programs, multiprocessors x blocks that fit on one)
    waves    = ceil(programs / resident)
    rounds   = waves x steps in which one program waits for what it loads

A reduction of too few programs is split into parts: one more launch joins them, and one more reads
again where values are stored that need the result. Must not know codegen: like `tiles.py` it
supposes what a schedule will choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.sym import product
from ..ir.nest import Nest
from ..target import Target
from .mixed import join_launches, mixed_of
from .occupancy import Need
from .sizes import Hints, number
from .tiles import SQUARE, WALK, is_columns, wider
from .traffic import Stage

FULL = 2
"""Programs on each multiprocessor below which a reduction is split."""
SERIAL_BYTES = 1 << 16
"""Traffic of a kernel below which one core of a CPU does it."""
PARTS = 4
"""Programs on each multiprocessor that a split makes."""


@dataclass(frozen=True)
class Grid:
    """The launches of a nest.

    Attributes:
        programs: of the largest launch; resident: those that run at the same time.
        steps: tiles that a program takes one after the other, in each pass.
        launches: kernels.
        rows: rows that are worked on at the same time, of all rows.
    """

    programs: int
    resident: int
    steps: int
    launches: int
    rows: float

    @property
    def waves(self) -> int:
        """Times that the chip is filled."""
        return -(-self.programs // self.resident)

    def share(self, target: Target) -> float:
        """Share of the chip that has a program."""
        return min(1.0, self.programs / (FULL * target.multiprocessors))


def grid_of(
    nest: Nest, passes: Sequence[Stage], needs: Need, moved: int, target: Target, hints: Hints
) -> Grid:
    """The supposed launches of a nest.

    Args:
        passes: `stages(nest)`.
        needs: threads and elements of its tile.
        moved: bytes read and written.
    """
    rows = number(product([a.extent for a in nest.space]), hints)
    if target.device == "cpu":
        cores = target.multiprocessors if moved >= SERIAL_BYTES else 1
        return Grid(cores, cores, 0, 1, min(1.0, cores / max(1, rows)))
    mixed = mixed_of(nest, target, hints)
    if mixed is not None:
        launches = 1 + join_launches(mixed)
        return _laid(rows * mixed.parts, mixed.waits, launches, rows, needs, target)
    tile = needs.threads * needs.elements
    inner = max((_extent(p, hints) for p in passes), default=1)
    if not passes or needs.persistent:
        programs = -(-rows // max(1, tile // max(1, inner)))
        return _laid(max(1, programs), 1, 1, rows, needs, target)
    if is_columns(nest, passes):
        programs, step = max(1, -(-rows // SQUARE)), max(1, tile // SQUARE)
    else:
        programs, step = max(1, rows), WALK
    again = len(passes) > 1
    if again and step == WALK:
        width = max((e.dtype.itemsize for e in nest.loads), default=4)
        times = wider(inner, width, target)
        step, needs = times * step, replace(needs, threads=times * needs.threads)
    steps = max(1, -(-inner // step))
    parts = _parts(programs, steps, again, target)
    launches = (3 if again else 2) if parts > 1 else 1
    return _laid(programs * parts, -(-steps // parts), launches, rows, needs, target)


def _extent(p: Stage, hints: Hints) -> int:
    return max(number(product([a.extent for a in w]), hints) for w in p.walks)


def _parts(programs: int, steps: int, again: bool, target: Target) -> int:
    enough = target.multiprocessors * (1 if again else FULL)
    wanted = min(-(-PARTS * target.multiprocessors // programs), steps // 2)
    return wanted if programs < enough and wanted >= 2 else 1


def _laid(programs: int, steps: int, launches: int, rows: int, needs: Need, target: Target) -> Grid:
    blocks = max(1, round(needs.occupancy * target.threads_per_multiprocessor / needs.threads))
    resident = min(programs, target.multiprocessors * blocks)
    worked = 1.0 if launches > 1 else min(1.0, resident / max(1, rows))
    return Grid(programs, resident, steps, launches, worked)


def _cover(extent: int) -> int:
    """The least power of two that covers an extent."""
    return 1 << max(0, extent - 1).bit_length()
