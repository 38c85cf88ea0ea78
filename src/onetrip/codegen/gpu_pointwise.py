"""Pointwise nests of a GPU: tiles of one axis, or of two.

line     one axis, as many elements of it as a thread has wide accesses for
rows     whole short rows, where vectors are read once for all of them
square   two axes, where buffers are contiguous along different ones
"""

from __future__ import annotations

from dataclasses import replace

from ..base.affine import coefficient
from ..base.sym import Dim, Var
from ..cost.held import LANES, VECTOR
from ..cost.tiles import SQUARE, thread_elements
from ..ir.nest import Axis, Nest
from ..target import Target
from .gpu_build import Tiling
from .gpu_split import flattened, size


def pointwise(nest: Nest, target: Target) -> tuple[Nest, Tiling]:
    """The nest, its axes merged where that wastes less, and its tiling."""
    if not nest.space:
        return nest, Tiling({}, 1, "pointwise")
    nest = _by_stride(nest)
    axes = [a.var for a in nest.space]
    other = _second_axis(nest, axes)
    if other is not None:
        return nest, _square(axes, other)
    rows = _rows_of_line(nest, axes)
    if rows is not None:
        return nest, rows
    if len(axes) > 1 and not _long_rows(axes[-1], nest, target):
        static = all(isinstance(a.extent, int) for a in axes[1:])
        if static:
            nest = flattened(nest)
            axes = [a.var for a in nest.space]
    lanes, warps = _line(nest, size(axes), target)
    lanes = min(lanes, power_of_two(axes[-1].extent, lanes))
    return nest, Tiling({a: lanes if a is axes[-1] else 1 for a in axes}, warps, "pointwise")


def _by_stride(nest: Nest) -> Nest:
    """The space in the order in which the first store walks memory, contiguous axis last."""
    offset = nest.stores[0].index[0] if nest.stores[0].index else 0

    def step(axis: Axis) -> int:
        found = coefficient(offset, axis.var)
        return found if isinstance(found, int) else 1 << 62

    return replace(nest, space=tuple(sorted(nest.space, key=step, reverse=True)))


def _second_axis(nest: Nest, axes: list[Var]) -> Var | None:
    """An axis along which a buffer is contiguous that is strided along the last one."""
    last = axes[-1]
    for offset in _offsets(nest):
        if coefficient(offset, last) in (0, 1, None):
            continue
        for a in axes[:-1]:
            if coefficient(offset, a) == 1 and power_of_two(a.extent, SQUARE) >= 8:
                return a
    return None


def _square(axes: list[Var], other: Var) -> Tiling:
    sides = {
        axes[-1]: power_of_two(axes[-1].extent, SQUARE),
        other: power_of_two(other.extent, SQUARE),
    }
    lanes = {a: sides.get(a, 1) for a in axes}
    warps = max(1, min(8, sides[axes[-1]] * sides[other] // 512))
    return Tiling(lanes, warps, "pointwise")


def _rows_of_line(nest: Nest, axes: list[Var]) -> Tiling | None:
    """Whole short rows, where more is read once for all of them than for each of them."""
    last, outer = axes[-1], set(axes[:-1])
    narrow = min((b.type.dtype.itemsize for b in nest.buffers), default=4)
    line = 2 * VECTOR // narrow * LANES * 4
    extent = last.extent
    if (
        not outer
        or not isinstance(extent, int)
        or not LANES <= extent == power_of_two(extent, line)
    ):
        return None
    each = sum(e.dtype.itemsize for e in nest.loads if outer & e.free)
    shared = sum(e.dtype.itemsize for e in nest.loads if last in e.free and not outer & e.free)
    if shared <= each:
        return None
    return Tiling(dict.fromkeys(axes, 1) | {axes[-2]: line // extent, last: extent}, 4, "pointwise")


def _long_rows(last: Var, nest: Nest, target: Target) -> bool:
    """Whether tiles along the last axis alone waste nothing."""
    if not isinstance(last.extent, int):
        return False
    lanes, _ = _line(nest, size(a.var for a in nest.space), target)
    return last.extent % lanes == 0 or last.extent >= 8 * lanes


def _line(nest: Nest, points: Dim, target: Target) -> tuple[int, int]:
    """(lanes, warps) of a 1-D tile: two wide accesses per thread and buffer, fewer for many."""
    each = thread_elements(nest, target)
    lanes, warps = each * LANES * 4, 4
    while isinstance(points, int) and lanes > 128 and points < lanes * target.multiprocessors:
        lanes //= 2
        warps = max(1, min(4, lanes // (LANES * min(each, 4))))
    return lanes, warps


def _offsets(nest: Nest) -> list[Dim]:
    return [e.index[0] for e in nest.loads if e.index] + [
        s.index[0] for s in nest.stores if s.index
    ]


def power_of_two(extent: Dim, most: int) -> int:
    """The least power of two that covers the extent, at most `most`."""
    power = 1
    while power * 2 <= most and (not isinstance(extent, int) or power < extent):
        power *= 2
    return power
