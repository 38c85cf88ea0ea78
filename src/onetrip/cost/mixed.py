"""How a nest of reductions over unlike axes lies on the chip (passes/mixed.py says what it is).

    tile      rows x held: whole rows in registers, short ones together
    parts     a few for each multiprocessor; each walks its share of the rows
    partials  parts x what the columns leave free, written by the walk and read by what joins them

Schedules and prices read the same numbers here. Must not know codegen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.affine import coefficient
from ..base.sym import Dim, Var, atoms, product
from ..ir.expr import Load, Reduction
from ..ir.nest import Nest
from ..passes.mixed import Walk, is_mixed, is_nested, walks
from ..target import Target
from .sizes import NO_HINTS, Hints, number

HELD_ROW = 16384
"""Most elements of the rows that one program holds: 32 for each of 512 threads."""
TOGETHER = 2048
"""Short rows are walked together until a tile has this many elements."""
SIDE = 64
"""Neighbours that are walked together where memory is contiguous along the walk."""
EACH = 16
"""Elements that a thread holds of each live value, up to MOST_WARPS."""
MOST_WARPS = 16
WORDS = 96
"""Words of loaded and summed values beyond which a thread spills, and half the warps no more."""
BASE = 44
"""Registers of a thread beside those of elements."""
RESIDENT = 16
"""Warps on each multiprocessor that the parts make: more would write more partial sums."""
FEW = 3
"""Values of one element that a thread holds, loaded or summed, at most, for twice as many warps."""
LEAST_STEPS = 4
"""Steps of a part, at least: its partial sums are one row, and it reads several."""
ROW_BYTES = 32
"""Bytes of a level-2 cache for each element of a row that a CPU holds."""
PIECES = 64
"""Most parts on a CPU: a fair share for each of many threads."""
LEAST_ROWS = 32
"""Rows of a part on a CPU, at least."""
AHEAD = 3
"""Most tiles of a program on chip: one in work, the others on their way."""


@dataclass(frozen=True)
class Tiled:
    """A walk with its numbers.

    Attributes:
        rows: rows that are walked together; lanes: of the held axes, whole.
        warps: of LANES threads.
        parts: programs for each point of the space.
        steps: tiles of a part, one after the other.
        stages: tiles of a part on chip, that in work counted; staged: bytes of the others.
        reload: each step loads what all steps share: registers have no room for it.
    """

    walk: Walk
    rows: int
    lanes: int
    warps: int
    parts: int
    steps: int
    stages: int
    staged: int
    reload: bool = False

    @property
    def waits(self) -> int:
        """Times that a part waits for what it loads: tiles on their way come together."""
        return -(-self.steps // max(1, self.stages - 1))


def most_held(target: Target) -> int:
    """Most elements of the rows that are held together.

    On a CPU they are held in the level-2 cache, where a row of each of a few operands, and of what
    is summed, has room.
    """
    return HELD_ROW if target.cores is None else target.cores.l2_bytes // ROW_BYTES


def ways(nest: Nest, target: Target) -> tuple[Walk, ...]:
    """The walks of a nest that a target can make: a core takes a row in loops inside each other."""
    found = walks(nest)
    return tuple(w for w in found if target.device != "cpu" or is_nested(w, nest))


def mixed_of(nest: Nest, target: Target, hints: Hints = NO_HINTS) -> Tiled | None:
    """The walk of a nest of reductions over unlike axes; None for any other, or a row too long."""
    if not is_mixed(nest):
        return None
    tiled = [_tiled(w, nest, target, hints) for w in ways(nest, target)]
    fitting = [t for t in tiled if t.rows * t.lanes <= most_held(target)]
    return max(fitting, key=lambda t: _along(nest, t.walk.held), default=None)


def too_long(nest: Nest, target: Target) -> int | None:
    """Elements that the shortest walk of a nest holds, when they are too many; else None."""
    if not is_mixed(nest) or mixed_of(nest, target) is not None:
        return None
    tiled = (_tiled(w, nest, target, NO_HINTS) for w in ways(nest, target))
    return min((t.rows * t.lanes for t in tiled), default=None)


def join_launches(tiled: Tiled) -> int:
    """Kernels that join the parts: one for each set of axes that columns leave free."""
    if tiled.parts == 1:
        return 0
    return len(dict.fromkeys(frozenset(s.axes) for s in tiled.walk.late))


def partial_bytes(nest: Nest, target: Target, hints: Hints) -> int:
    """Bytes of what the parts of a nest leave to be joined; 0 for a nest that is not mixed."""
    tiled = mixed_of(nest, target, hints)
    if tiled is None or tiled.parts == 1:
        return 0
    points = number(product([a.extent for a in nest.space]), hints) * tiled.parts
    return points * sum(_state_bytes(r, nest, hints) for r in tiled.walk.columns)


def _state_bytes(r: Reduction, nest: Nest, hints: Hints) -> int:
    space = {a.var for a in nest.space}
    free = [a.extent for a in r.free if isinstance(a, Var) and a not in space]
    return number(product(free), hints) * sum(e.dtype.itemsize for e in r.lift)


def _tiled(walk: Walk, nest: Nest, target: Target, hints: Hints) -> Tiled:
    lay = _on_cores if target.device == "cpu" else _on_multiprocessors
    return lay(walk, nest, target, hints)


def _on_cores(walk: Walk, nest: Nest, target: Target, hints: Hints) -> Tiled:
    """Row by row; all rows together where memory is contiguous from row to row."""
    del target
    lanes = number(product([a.extent for a in walk.held]), hints)
    length = number(product([a.extent for a in walk.walked]), hints)
    across = _along(nest, walk.walked) > _along(nest, walk.held)
    points = number(product([a.extent for a in nest.space]), hints)
    cut = number(longest(walk.walked).extent, hints)
    parts = max(1, min(length // LEAST_ROWS, cut, PIECES // max(1, points)))
    return Tiled(walk, length if across else 1, lanes, 1, parts, -(-length // parts), 1, 0)


def longest(axes: Sequence[Var]) -> Var:
    """The axis that is cut into parts; one of unknown extent is long."""
    return max(axes, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 62)


def _on_multiprocessors(walk: Walk, nest: Nest, target: Target, hints: Hints) -> Tiled:
    lanes = 1
    for a in walk.held:
        assert isinstance(a.extent, int)
        lanes *= cover(a.extent)
    length = product([a.extent for a in walk.walked])
    most = cover(walk.walked[-1].extent) if isinstance(walk.walked[-1].extent, int) else SIDE
    least = SIDE if _along(nest, walk.walked) > _along(nest, walk.held) else 1
    rows = min(max(TOGETHER // lanes, least, 1), most)
    warps = max(1, min(MOST_WARPS, rows * lanes // (EACH * 32)))
    points = number(product([a.extent for a in nest.space]), hints)
    sums = sum(len(r.lift) for r in walk.columns)
    values = len(_streams(nest, walk)) + sums
    held = sums + sum(not e.free.isdisjoint(walk.held) for e in _streams(nest, walk))
    resident = max(1, RESIDENT * (2 if values <= FEW else 1) // warps)
    parts = _parts(length, rows, resident, points, target)
    steps = max(1, -(-number(length, hints) // (rows * parts)))
    if warps == MOST_WARPS and rows * lanes * held > WORDS * warps * 32:
        warps //= 2
    own = target.registers_per_multiprocessor // (warps * 32)
    free = min(own, target.registers_per_thread) - BASE
    reload = rows * lanes // (warps * 32) * _words(nest, walk) > free
    tile = rows * _step_bytes(nest, walk, lanes, reload)
    stages = min(AHEAD, 1 + target.shared_per_multiprocessor // resident // max(1, tile), steps)
    staged = tile * (stages - 1)
    return Tiled(walk, rows, lanes, warps, parts, steps, stages, staged, reload)


def _words(nest: Nest, walk: Walk) -> float:
    """Registers of an element: of its sums, of what a step loads, of what all steps share."""
    sums = sum(len(r.lift) for r in walk.columns)
    loads = [e for e in nest.loads if not e.free.isdisjoint(walk.held)]
    return sums + sum(1 if e.free.isdisjoint(walk.walked) else e.dtype.itemsize / 4 for e in loads)


def _step_bytes(nest: Nest, walk: Walk, lanes: int, reload: bool) -> int:
    """Bytes that the walk loads for each row; with what all steps share where it is loaded anew."""
    shared = [e for e in nest.loads if e.free.isdisjoint(walk.walked)] if reload else []
    return sum(
        e.dtype.itemsize * (1 if e.free.isdisjoint(walk.held) else lanes)
        for e in [*_streams(nest, walk), *shared]
    )


def _streams(nest: Nest, walk: Walk) -> list[Load]:
    """What is loaded anew for each row."""
    return [e for e in nest.loads if not e.free.isdisjoint(walk.walked)]


def _parts(length: Dim, rows: int, programs: int, points: int, target: Target) -> int:
    """Programs for each point of the space: so many of a multiprocessor, while each has some
    steps."""
    wanted = target.multiprocessors * programs // max(1, points)
    if isinstance(length, int):
        wanted = min(wanted, length // (rows * LEAST_STEPS))
    return max(1, wanted)


def _along(nest: Nest, axes: tuple[Var, ...]) -> int:
    """Loads over the most axes that are contiguous along one of some axes."""
    types = {b.name: b.type for b in nest.buffers}
    offsets = [types[e.buffer].offset(e.index) for e in nest.loads]
    over = [sum(isinstance(a, Var) for a in set(atoms(d))) for d in offsets]
    widest = [d for d, n in zip(offsets, over, strict=True) if n == max(over)]
    return sum(any(coefficient(d, a) == 1 for a in axes) for d in widest)


def cover(extent: int) -> int:
    """The least power of two that covers an extent."""
    return 1 << max(0, extent - 1).bit_length()
