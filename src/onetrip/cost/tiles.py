"""The tile that a schedule gives one program, supposed from extents and dtype widths alone.

    pointwise   a line of wide accesses for each thread
    row         the reduced axis is contiguous: held in registers where `holds`, else walked
    column      the reduced axis is strided: tiles [reduced x SQUARE]
    mixed       rows and columns in one walk: whole rows are held (mixed.py)

The figures below are the schedules' own. Must not know codegen: what it says of a nest is a guess
at the choice that a schedule makes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..base.affine import coefficient
from ..base.sym import Dim, Var, atoms, product
from ..ir.nest import Nest
from ..target import Target
from .held import LANES, VECTOR, held_warps, is_light, rows_of
from .mixed import mixed_of
from .pressure import live_words
from .sizes import NO_HINTS, Hints, number
from .traffic import Stage

HELD = 16384
"""Most elements of one program's tile: 32 for each of 512 threads."""
MOST_HELD = 2 * HELD
"""Those of a row of one value and little arithmetic: nothing works while its program waits."""
WALK = 4096
"""Elements of one step of a walked reduction: 16 for each of 256 threads."""
MOST_WIDER = 4
"""Times that a step is wider where a row of unknown length is walked again."""
STEPS_AGAIN = 4
"""Steps of a row that is walked again, at least: few of them hide what they wait for."""
SHORT = 2048
"""Short rows share a program until its tile has this many elements."""
SQUARE = 64
"""Side of a tile that is read along one axis and reduced or written along another."""

Family = Literal["pointwise", "row", "column", "mixed"]


@dataclass(frozen=True)
class Tile:
    """One program's tile.

    Attributes:
        threads: of the program, in the chip's warps.
        elements: of the tile that a thread holds, 1 at least.
        held: whether whole rows are on chip between dependent reductions.
    """

    family: Family
    threads: int
    elements: int
    held: bool


def wider(elements: int | None, width: int, target: Target) -> int:
    """How many times wider a step is where a row is walked again.

    A quarter of a row, but no more than a third of a multiprocessor's shared memory: two such steps
    on their way leave room for one program, so that the last cache has room for the rows of all.
    Measured on an H200 for rows of 64 KiB to 512 KiB.

    Args:
        elements: of a row, None where that is not known; width: bytes of one.
    """
    if elements is None:
        return MOST_WIDER
    step = min(target.shared_per_block // 3, elements * width // STEPS_AGAIN)
    return 1 << (max(1, step // (width * WALK)).bit_length() - 1)


def holds(nest: Nest, inner: int, whole: int, target: Target, hints: Hints = NO_HINTS) -> bool:
    """Whether a program holds its row in registers.

    Args:
        inner: elements of a row; whole: of the tile that covers it.
    """
    if whole <= HELD:
        return True
    return whole <= MOST_HELD and is_light(nest, rows_of(nest, inner, 1, whole), target, hints)


def tile_of(nest: Nest, passes: Sequence[Stage], target: Target, hints: Hints) -> Tile:
    """The supposed tile of a nest.

    Args:
        passes: `stages(nest)`.
    """
    if target.device == "cpu":
        return Tile("row" if passes else "pointwise", target.threads_per_block, 1, False)
    points = number(product([a.extent for a in nest.space]), hints)
    if not passes:
        return _tile("pointwise", *_line(nest, points, target), target, False)
    mixed = mixed_of(nest, target, hints)
    if mixed is not None:
        return _tile("mixed", mixed.rows * mixed.lanes, mixed.warps, target, True)
    inner = max(number(product(w), hints) for w in _walks(passes))
    if is_columns(nest, passes):
        budget, each = (WALK // 2, 8) if nest.scans else (WALK, 16)
        lanes = min(SQUARE, _cover(points)) * min(budget // SQUARE, _cover(inner))
        return _tile("column", lanes, max(1, min(8, lanes // (LANES * each))), target, False)
    whole = _cover(inner)
    if not holds(nest, inner, whole, target, hints):
        return _tile("row", WALK, WALK // 512, target, False)
    rows = _rows(points, whole, target)
    found = rows_of(nest, inner, rows, rows * whole)
    threads = held_warps(nest, found, target, hints) * target.warp_size
    return Tile("row", threads, found.elements(threads), True)


def is_columns(nest: Nest, passes: Sequence[Stage]) -> bool:
    """Whether the reductions run along strided axes, so that a program takes several columns."""
    types = {b.name: b.type for b in nest.buffers}
    offsets = [types[e.buffer].offset(e.index) for e in nest.loads]
    axes = [{a for a in atoms(d) if isinstance(a, Var)} for d in offsets]
    most = max(map(len, axes), default=0)
    widest = [(d, own) for d, own in zip(offsets, axes, strict=True) if len(own) == most]
    unit = {a for d, own in widest for a in own if coefficient(d, a) == 1}
    inner = {a for s in passes for a in s.axes}
    return not unit & inner and any(a.var in unit for a in nest.space)


def _walks(passes: Sequence[Stage]) -> list[list[Dim]]:
    """Extents of the axes of each walk."""
    return [[a.extent for a in w] for p in passes for w in p.walks]


def _tile(family: Family, lanes: int, warps: int, target: Target, held: bool) -> Tile:
    threads = warps * target.warp_size
    return Tile(family, threads, max(1, lanes // threads), held)


def thread_elements(nest: Nest, target: Target) -> int:
    """Elements of a line that a thread holds: two wide accesses, one where buffers are many.

    Fewer where so many values of one element live together that a thread has no registers for as
    many elements: compilers compute elements beside each other where they branch.
    """
    widths = [b.type.dtype.itemsize for b in nest.buffers] or [4]
    each = VECTOR // min(widths)
    each = min(16, each * 2 if len(widths) <= 3 else each)
    if len(nest.expressions) * each <= target.registers_per_thread:
        return each
    live = live_words(nest.expressions, nest.roots)
    while each > 1 and live * each > target.registers_per_thread:
        each //= 2
    return each


def _line(nest: Nest, points: int, target: Target) -> tuple[int, int]:
    """(lanes, warps) of a line: two wide accesses per thread and buffer, one for many buffers."""
    each = thread_elements(nest, target)
    lanes, warps = each * LANES * 4, 4
    while lanes > 128 and points < lanes * target.multiprocessors:
        lanes //= 2
        warps = max(1, min(4, lanes // (LANES * min(each, 4))))
    return min(lanes, _cover(points)), warps


def _rows(points: int, whole: int, target: Target) -> int:
    """Rows of one program: as many as fill its tile and still feed every multiprocessor."""
    rows = min(_cover(points), max(1, SHORT // whole))
    while rows > 1 and points < rows * 2 * target.multiprocessors:
        rows //= 2
    return rows


def _cover(extent: int) -> int:
    """The least power of two that covers an extent."""
    return 1 << max(0, extent - 1).bit_length()
