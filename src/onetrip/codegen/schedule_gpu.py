"""A collapsed nest to the kernels of a GPU: which family, how many lanes, how many parts.

Every number follows from dtype widths, extents and the chip's figures. The loops are built by
`gpu_build`; nests are cut and rewritten by `gpu_split`.

    pointwise   one axis, or two where buffers are contiguous along different axes
    row         the reduced axis is contiguous: in registers where `holds`, else walked
    column      the reduced axis is strided: tiles [reduced x columns]
    split       too few programs for the chip: partial states, then a nest that joins them
    mixed       reductions over rows and over columns: one walk, see `gpu_mixed`
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ..base.affine import coefficient
from ..base.sym import Dim, Var
from ..cost.held import LANES, VECTOR, held_warps, rows_of
from ..cost.mixed import AHEAD, MOST_WARPS, Tiled, mixed_of
from ..cost.tiles import (
    SHORT,
    SQUARE,
    WALK,
    holds,
    wider,
)
from ..ir.kernel import Facts, Kernel
from ..ir.nest import AxisKind, Buffer, Nest
from ..passes.mixed import is_mixed
from ..target import Target
from .gpu_axes import on_common_axes, parts_apart
from .gpu_build import Tiling, build
from .gpu_mixed import in_parts, tiling_of
from .gpu_online import in_one_walk
from .gpu_pointwise import pointwise, power_of_two
from .gpu_split import (
    Pieces,
    Split,
    chunked,
    first_reductions,
    inner_axes,
    is_reduced,
    size,
    split,
    stores_apart,
)  # fmt: skip
from .scan_order import forward_scans
from .scheduled import Scheduled

MANY_WARPS = 8
"""Warps of a program that needs a second one beside it: none of its own work while one waits."""
LEAST_WIDE = 16
"""Columns of a program that reads whole sectors of each of its rows."""
STATE_WORDS = 64
"""Accumulators of a thread, at most."""
ALONE = 2.0
"""Bandwidth of a multiprocessor among idle ones, against its share when all are busy."""


def schedule(nest: Nest, target: Target, *, name: str, facts: Facts) -> Scheduled:
    """The launches of one group.

    Args:
        nest: collapsed: every index is one flat element offset, every buffer 1-D and dense.
        target: a GPU.
        name: of the kernel; several kernels get `_0`, `_1`, ... after it.
        facts: costs and origins, written into each kernel's head.

    Raises:
        Unsupported: no family can say the nest.
    """
    pieces, scratch = _pieces(_with_common_axes(_scans_inside(nest)), target, name)
    kernels = []
    for number, piece in enumerate(pieces):
        label = name if len(pieces) == 1 else f"{name}_{number}"
        kernels.append(_kernel(piece, target, label, facts))
    return Scheduled(tuple(kernels), scratch)


def _with_common_axes(nest: Nest) -> Nest:
    return nest if is_mixed(nest) else on_common_axes(nest)


def _scans_inside(nest: Nest) -> Nest:
    """Scanned axes lie inside each program: they move from the space to the stores."""
    scanned = tuple(a.var for a in nest.space if a.kind is AxisKind.SCAN)
    if not scanned:
        return nest
    space = tuple(a for a in nest.space if a.kind is not AxisKind.SCAN)
    stores = tuple(replace(s, axes=(*scanned, *s.axes)) for s in nest.stores)
    return replace(nest, space=space, stores=stores)


class Piece(NamedTuple):
    """A nest of one kernel; its tiling where that is known already; whether it reads again, from
    its end, what was read before."""

    nest: Nest
    tiling: Tiling | None = None
    again: bool = False


Made = tuple[tuple[Piece, ...], tuple[Buffer, ...]]
"""Kernels in order and the scratch between them."""


def _pieces(nest: Nest, target: Target, stem: str) -> Made:
    if not nest.reductions and not nest.scans:
        return tuple(Piece(parts_apart(n)) for n in stores_apart(nest)), ()
    if any(e.reverse for e in nest.scans) or len({e.axis for e in nest.scans}) > 1:
        return _joined(forward_scans(nest, stem), target, stem)
    tiled = mixed_of(nest, target)
    if tiled is not None:
        return _mixed(nest, tiled, target, stem)
    tiling = _reduction_tiling(nest, target)
    if _walked(nest, tiling):
        nest = in_one_walk(nest)
    cut = _cut(nest, tiling, target)
    if cut is None:
        return (Piece(nest),), ()
    pieces = split(nest, cut, stem)
    rest, scratch = _joined(Pieces(pieces.nests[2:], pieces.scratch), target, stem)
    again = tuple(p._replace(again=cut.turn is not None) for p in rest)
    return (*map(Piece, pieces.nests[:2]), *again), scratch


def _mixed(nest: Nest, tiled: Tiled, target: Target, stem: str) -> Made:
    """One walk over the rows, in parts where the chip has room for several."""
    if tiled.parts == 1:
        return (Piece(nest, tiling_of(nest, tiled, tiled.walk.walked)),), ()
    first, tiling, columns = in_parts(nest, tiled, stem)
    rest, scratch = _joined(columns, target, stem)
    return (Piece(first, tiling), *rest), scratch


def _joined(pieces: Pieces, target: Target, stem: str) -> Made:
    """The pieces of pieces."""
    done: list[Piece] = []
    scratch = pieces.scratch
    for number, rest in enumerate(pieces.nests):
        more, between = _pieces(rest, target, f"{stem}_then{number or ''}")
        done += more
        scratch += between
    return tuple(done), scratch


def _kernel(piece: Piece, target: Target, name: str, facts: Facts) -> Kernel:
    nest, tiling, again = piece
    if tiling is None and (nest.reductions or nest.scans):
        tiling = _reduction_tiling(nest, target)
    if tiling is None:
        nest, tiling = pointwise(nest, target)
    return replace(build(nest, tiling, name, facts), backwards=again)


# Reductions


def _reduction_tiling(nest: Nest, target: Target) -> Tiling:
    inner = inner_axes(nest)
    contiguous = _unit_axes(nest)
    space = [a.var for a in nest.space]
    columns = next((a for a in reversed(space) if a in contiguous), None)
    if columns is not None and not any(a in contiguous for a in inner):
        return _columns(nest, columns, target)
    return _rows(nest, contiguous, target)


def _points(axes: Iterable[Var]) -> int:
    return math.prod(a.extent for a in axes if isinstance(a.extent, int))


def _goes_again(nest: Nest) -> bool:
    """Whether inner axes are walked again after the first reductions are known."""
    late = any(s.axes and is_reduced(s) for s in nest.stores)
    return late or len(first_reductions(nest)) < len(nest.reductions)


def _rows(nest: Nest, contiguous: set[Var], target: Target) -> Tiling:
    space, inner = [a.var for a in nest.space], inner_axes(nest)
    whole = _whole(nest)
    row = max((_points(w) for w in _walks(nest)), default=1)
    if whole is not None and holds(nest, row, whole, target):
        lanes = {a: power_of_two(a.extent, whole) for a in inner}
        rows = _rows_together(space, whole, target)
        lanes |= {a: rows if space and a is space[-1] else 1 for a in space}
        found = rows_of(nest, row, rows, rows * whole)
        warps = held_warps(nest, found, target)
        return Tiling(lanes, warps, "row", resident=2 if warps >= MANY_WARPS else 1)
    width = max((e.dtype.itemsize for e in nest.loads), default=4)
    budget = WALK
    if _goes_again(nest):
        most = STATE_WORDS * MOST_WARPS * LANES // _states(nest)
        budget = min(most, WALK * wider(None if whole is None else row, width, target))
    lanes = _shared_lanes(nest, contiguous, budget)
    tile = max(math.prod(lanes[a] for a in axes) for axes in _walks(nest))
    near = [a for a in inner if a in contiguous and not nest.scans]
    together = {a: _neighbours(nest, lanes[a]) for a in near}
    alone = tile * width >= _step(target)
    stages = AHEAD if alone and _fits(nest, lanes, target) else 1
    most = 2 * MOST_WARPS if alone and stages == 1 else MOST_WARPS
    warps = max(1, min(most, budget // 512, tile // 256))
    return Tiling(dict.fromkeys(space, 1) | lanes, warps, "row", together, stages)


def _step(target: Target) -> int:
    """Bytes of the widest step of a walk."""
    return 1 << ((target.shared_per_block // 3).bit_length() - 1)


def _fits(nest: Nest, lanes: dict[Var, int], target: Target) -> bool:
    """Whether tiles on their way have room beside that in work."""
    tiles = (
        e.dtype.itemsize * math.prod(lanes[a] for a in lanes if a in e.free) for e in nest.loads
    )
    return (AHEAD - 1) * sum(tiles) <= target.shared_per_block


def _states(nest: Nest) -> int:
    """Accumulators of each lane of the first walk; neighbours share those of a softmax."""
    words = (
        1 if r.monoid == "online_softmax" else min(len(r.lift), 2) for r in first_reductions(nest)
    )
    return max(1, sum(words))


def _neighbours(nest: Nest, lanes: int) -> int:
    """Elements of one wide access, where a walk computes a softmax in one pass; else 1."""
    if all(r.monoid != "online_softmax" for r in nest.reductions):
        return 1
    each = VECTOR // min((e.dtype.itemsize for e in nest.loads), default=4)
    return each if lanes >= each * LANES else 1


def _shared_lanes(nest: Nest, contiguous: set[Var], budget: int) -> dict[Var, int]:
    """Lanes of inner axes: each walk has the budget, contiguous axes are served first."""
    lanes: dict[Var, int] = {}
    for axes in _walks(nest):
        order = sorted(axes, key=lambda a: (a in contiguous, axes.index(a)), reverse=True)
        left = budget // math.prod(lanes.get(a, 1) for a in axes)
        for a in order:
            if a not in lanes:
                lanes[a] = _fitting(a.extent, max(1, left), a in contiguous)
                left //= lanes[a]
    return lanes


def _fitting(extent: Dim, most: int, contiguous: bool) -> int:
    """The largest power of two up to `most` whose tiles waste little of a walk."""
    power = power_of_two(extent, most)
    if not isinstance(extent, int) or power >= extent:
        return power
    least = power // 4 if contiguous else 1
    fits = (p for p in _halves(power, least) if -extent % p * 8 <= extent)
    return next(fits, power)


def _halves(power: int, least: int) -> Iterable[int]:
    while power >= max(1, least):
        yield power
        power //= 2


def _walks(nest: Nest) -> list[tuple[Var, ...]]:
    """Inner axes that are tiled together: those of each reduction and of each store."""
    inner = inner_axes(nest)
    scopes = [set(r.axes) | set(r.free) for r in nest.reductions]
    scopes += [set(s.axes) for s in nest.stores]
    found = dict.fromkeys(tuple(a for a in inner if a in scope) for scope in scopes)
    return [axes for axes in found if axes]


def _rows_together(space: list[Var], whole: int, target: Target) -> int:
    """Rows of one program: as many as fill its tile and still feed every multiprocessor."""
    if not space:
        return 1
    rows = power_of_two(space[-1].extent, max(1, SHORT // whole))
    points = size(space)
    while isinstance(points, int) and rows > 1 and points < rows * 2 * target.multiprocessors:
        rows //= 2
    return rows


def _columns(nest: Nest, columns: Var, target: Target) -> Tiling:
    """Half as many elements a thread for scans: each component lies there twice, as prefix too."""
    space, inner = [a.var for a in nest.space], inner_axes(nest)
    budget, each = (WALK // 2, 8) if nest.scans else (WALK, 16)
    wide = power_of_two(columns.extent, SQUARE)

    def tiled(wide: int) -> Tiling:
        lanes = {a: wide if a is columns else 1 for a in space}
        lanes |= _share(list(reversed(inner)), budget // wide)
        tile = wide * math.prod(lanes[a] for a in inner)
        ahead = AHEAD if any(r.monoid == "welford" for r in nest.reductions) else 1
        return Tiling(lanes, max(1, min(8, tile // (LANES * each))), "column", stages=ahead)

    while not nest.scans and wide > LEAST_WIDE and _has_few(nest, tiled(wide), target):
        wide //= 2
    return tiled(wide)


def _has_few(nest: Nest, tiling: Tiling, target: Target) -> bool:
    """Whether the chip has room for more programs, and nothing splits what these reduce."""
    points = size(a.var for a in nest.space)
    if not isinstance(points, int) or _whole(nest) is None:
        return False
    each = math.prod(tiling.lanes[a.var] for a in nest.space)
    return points < target.multiprocessors * each and _cut(nest, tiling, target) is None


def _share(order: Iterable[Var], budget: int) -> dict[Var, int]:
    """Lanes for inner axes, the first in order served first."""
    lanes = {}
    for a in order:
        lanes[a] = power_of_two(a.extent, budget)
        budget = max(1, budget // lanes[a])
    return lanes


def _whole(nest: Nest) -> int | None:
    """Lanes that hold all axes of any walk; None when an extent is symbolic."""
    most = 1
    for axes in _walks(nest):
        total = 1
        for a in axes:
            if not isinstance(a.extent, int):
                return None
            total *= power_of_two(a.extent, 1 << 40)
        most = max(most, total)
    return most


def _walked(nest: Nest, tiling: Tiling) -> list[Var]:
    return [
        a
        for a in inner_axes(nest)
        if not (isinstance(a.extent, int) and tiling.lanes[a] >= a.extent)
    ]


def _cut(nest: Nest, tiling: Tiling, target: Target) -> Split | None:
    """Where to split a reduction so that every multiprocessor has work; None where it has."""
    programs = size(a.var for a in nest.space)
    if not isinstance(programs, int) or nest.scans:
        return None
    for a in nest.space:
        programs = -(-programs // tiling.lanes[a.var])
    first = first_reductions(nest)
    if any(set(inner_axes(nest)) & r.free for r in first):
        return None
    shared = [a for a in _walked(nest, tiling) if all(a in r.axes for r in first)]
    # A nest with a second pass pays for a split by reading from farther away.
    enough = target.multiprocessors * (1 if _goes_again(nest) else 2)
    if not shared or programs >= enough:
        return None
    axis = max(shared, key=lambda a: _steps(a, tiling))
    wanted = min(-(-4 * target.multiprocessors // programs), _steps(axis, tiling) // 2)
    if wanted < 2 or not _worth_launches(nest, tiling, target):
        return None
    cut = _even_cut(axis, wanted, tiling.lanes[axis])
    return _in_turn(cut, tiling.lanes[axis]) if _goes_again(nest) else cut


def _in_turn(cut: Split, lanes: int) -> Split:
    """Parts that take whole tiles in turn, so that another walk from the end meets what all of them
    read last."""
    whole = isinstance(cut.chunk, int) and cut.chunk % lanes == 0
    return replace(cut, turn=lanes) if whole else cut


def _even_cut(axis: Var, wanted: int, lanes: int) -> Split:
    """About `wanted` parts: equal ones of whole tiles if the extent has them, else guarded."""
    extent = axis.extent
    if isinstance(extent, int):
        even = [p for p in range(wanted // 2 + 1, wanted * 2) if extent % p == 0]
        whole = [p for p in even if extent // p % lanes == 0]
        if whole or even:
            parts = min(whole or even, key=lambda p: abs(p - wanted))
            return Split(axis, parts, extent // parts)
    return Split(axis, wanted, chunked(extent, wanted, lanes))


def _worth_launches(nest: Nest, tiling: Tiling, target: Target) -> bool:
    """Whether what one program would read alone takes longer than the launches of a split."""
    counts = [size(axes) for axes in _walks(nest)]
    if not all(isinstance(n, int) for n in counts):
        return True
    width = max((e.dtype.itemsize for e in nest.loads), default=4)
    elements = max(n for n in counts if isinstance(n, int)) * (1 + _goes_again(nest))
    elements *= math.prod(tiling.lanes[a.var] for a in nest.space)
    alone_us = elements * width / (ALONE * target.copy_bandwidth / target.multiprocessors) * 1e6
    extra = 2 if any(s.axes and is_reduced(s) for s in nest.stores) else 1
    return alone_us > extra * target.launch_us


def _steps(axis: Var, tiling: Tiling) -> int:
    """Steps of a walk; a symbolic extent counts as long."""
    return -(-axis.extent // tiling.lanes[axis]) if isinstance(axis.extent, int) else 1 << 20


# Accesses


def _unit_axes(nest: Nest) -> set[Var]:
    """Axes along which the widest loads of the nest are contiguous.

    A scan may store a wider tensor than any it reads; then its stores decide.
    """
    loads = [e.index[0] for e in nest.loads if e.index]
    stores = [s.index[0] for s in nest.stores if s.index and nest.scans]
    axes = [*(a.var for a in nest.space), *inner_axes(nest)]

    def varied(offset: Dim) -> int:
        return sum(coefficient(offset, a) != 0 for a in axes)

    most = max(map(varied, loads), default=0)
    widest = [o for o in loads if varied(o) == most]
    wider = max(map(varied, stores), default=0)
    if wider > most:
        widest = [o for o in stores if varied(o) == wider]
    return {a for a in axes for o in widest if coefficient(o, a) == 1}
