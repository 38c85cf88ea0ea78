"""Microseconds of a kernel or a library call: a roofline with rounded corners.

    t       = launches x launch + latency + sum over phases of t_phase + spilled bytes / their rate
    t_phase = (memory^p + wait^p + arithmetic^p)^(1/p)        p = 1 + (CORNER - 1) (1 - 1/rounds)

    memory     = bytes / copy bandwidth + cached bytes / the cache's, of the chip's busy part
    wait       = rounds x latency: what runs at a time must hide the time of a load
    arithmetic = the slower of ordinary and special-function instructions, of the busy part

Where all programs run at once they load together, compute together and store together: times add
up. The more rounds there are, the more they hide each other; infinite p is the plain roofline
(Williams, Waterman and Patterson, 2009). Must not know which groups exist or what is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..base.sym import Dim
from ..ir.graph import Node
from ..ir.nest import Nest
from ..ops.opaque import out_variant
from ..ops.schema import Kind, Op, Opaque
from ..ops.table import OPS
from ..target import Target
from .access import wastes
from .grid import Grid, grid_of
from .mixed import partial_bytes
from .occupancy import Need
from .phases import Cache, Phase, online, phases
from .sizes import NO_HINTS, Hints, number
from .traffic import Region, Traffic, Work, stages

BoundBy = Literal["memory", "compute", "launch"]
CORNER = 4.0
"""p of very many rounds: how far units that work side by side hide each other's time."""
JOINED = 3
"""Waits of the launch that joins the parts of a split reduction."""
ALONE = 2.0
"""Bandwidth of a multiprocessor among idle ones, against its share when all are busy."""
FRESH_BYTES = 1 << 25
"""Size from which the C library gets memory from the system at each allocation."""
ANCHOR_WORDS = ("attention", "conv", "matmul", "linear", "mm", "bmm", "baddbmm", "addmm", "einsum")
"""Words in the name of a library call that does matrix products."""


@dataclass(frozen=True)
class Cost:
    """What one launch costs.

    Attributes:
        us: the estimate; the other times are its parts, in microseconds.
        reads, writes: regions of device memory, in bytes at the hints.
        again_bytes: device memory read again because rows do not stay on chip.
        l2_bytes: bytes that the cache serves.
        flops, special: operations.
        spill_bytes: bytes written and read back for values that did not fit into registers.
        utilisation: share of the chip that the tiles keep busy.
    """

    us: float
    memory_us: float
    compute_us: float
    launch_us: float
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]
    l2_bytes: int
    flops: int
    special: int
    spill_bytes: int
    utilisation: float
    again_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes read and written in device memory, registers spilled to it counted."""
        named = sum(size for _, size in (*self.reads, *self.writes))
        return named + self.again_bytes + self.spill_bytes

    @property
    def bound_by(self) -> BoundBy:
        """What the time is mostly spent on."""
        if self.launch_us >= max(self.memory_us, self.compute_us):
            return "launch"
        return "compute" if self.compute_us > self.memory_us else "memory"

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0


def kernel_cost(
    nest: Nest,
    moved: Traffic,
    done: Work,
    needs: Need,
    target: Target,
    *,
    hints: Hints = NO_HINTS,
    resident: frozenset[str] = frozenset(),
) -> Cost:
    """The cost of the kernel generated for a nest.

    Args:
        resident: buffers that the last level of cache still holds from the kernel before.
    """
    passes = stages(nest)
    if target.device == "cuda" and not needs.persistent:
        passes = online(nest, passes)
    grid = grid_of(nest, passes, needs, number(moved.bytes, hints), target, hints)
    cache = Cache(target.l2_bytes, resident, wastes(nest, target.line_bytes))
    found = phases(
        nest,
        passes,
        moved,
        grid,
        cache,
        held=needs.persistent,
        device=target.device,
        hints=hints,
        partials=partial_bytes(nest, target, hints),
    )
    times = [_times(p, grid, target) for p in found]
    corners = [_corner(p) for p in found]
    spilled = int(2 * needs.spill_bytes * grid.programs * needs.threads)
    spill_us = 1e6 * spilled / target.spill_bandwidth
    launch = grid.launches * target.replay_us
    if target.cores is not None and grid.programs > 1:
        launch += target.cores.region_us
    waits = JOINED * (grid.launches - 1) + any(p.memory for p in found)
    fixed = spill_us + waits * target.latency_us
    written = _numbers(moved.writes, hints)
    reads = _numbers(tuple(r for r in moved.reads if r.buffer not in resident), hints)
    return Cost(
        1e6 * sum(map(_rounded, times, corners)) + fixed + launch,
        1e6 * sum(_rounded(t[:2], c) for t, c in zip(times, corners, strict=True)) + fixed,
        1e6 * sum(t[2] for t in times),
        launch,
        reads,
        written,
        int(sum(p.cached for p in found)),
        number(done.all_flops, hints),
        number(done.special, hints),
        spilled,
        grid.share(target),
        int(sum(p.again for p in found)),
    )


Times = tuple[float, float, float]
"""Seconds of memory, waiting and arithmetic of a phase."""


def _times(p: Phase, grid: Grid, target: Target) -> Times:
    busy = min(1.0, grid.resident / target.multiprocessors)
    drawn = min(1.0, ALONE * busy)
    memory = p.memory / target.copy_bandwidth + p.cached / target.l2_bandwidth
    double = p.issued.double / (vector_rate(target, "f64") / 2)
    plain = p.issued.plain / (vector_rate(target, "f32") / 2)
    special = p.issued.special / target.special_rate
    waiting = 1e-6 * (p.rounds - 1) * target.latency_us if p.rounds else 0.0
    return memory / drawn, waiting, max(plain + double, special) / busy


def _corner(p: Phase) -> float:
    """The exponent of a phase: 1 where all programs do alike at the same time."""
    return CORNER - (CORNER - 1) / p.rounds if p.rounds else CORNER


def _rounded(times: Sequence[float], corner: float) -> float:
    """The norm that lies between the largest (units overlap) and the sum (they do not)."""
    most = max(times)
    return most * sum((t / most) ** corner for t in times) ** (1 / corner) if most else 0.0


def _numbers(regions: tuple[Region, ...], hints: Hints) -> tuple[tuple[str, int], ...]:
    return tuple((r.buffer, number(r.bytes, hints)) for r in regions)


def vector_rate(target: Target, dtype: str) -> float:
    """FLOP/s of the vector units; that of f32 where the chip has no rate for the dtype."""
    return target.reached_flops("vector", dtype if target.supports("vector", dtype) else "f32")


# ------------------------------------------------------------------ library calls


def is_anchor(node: Node) -> bool:
    """Whether a library call does matrix products: contraction, convolution or attention."""
    op = OPS.get(node.op)
    if op is not None and op.kind is Kind.CONTRACTION:
        return True
    name = str(node.attr.get("target", "")) if node.op == "extern" else node.op
    words = name.replace(".", "_").split("_")
    return any(
        w == a or (a in ("conv", "attention") and a in w) for w in words for a in ANCHOR_WORDS
    )


def library_flops(node: Node) -> Dim:
    """FLOPs of a library call: 0 where its entry, or the lack of one, does not tell."""
    op: Op | None = OPS.get(node.op)
    return op.body.flops(node) if op is not None and isinstance(op.body, Opaque) else 0


def library_special(node: Node) -> Dim:
    """Special functions that a library call computes on its result."""
    op: Op | None = OPS.get(node.op)
    return op.body.special(node) if op is not None and isinstance(op.body, Opaque) else 0


def library_cost(
    node: Node,
    reads: tuple[tuple[str, int], ...],
    writes: tuple[tuple[str, int], ...],
    target: Target,
    *,
    hints: Hints = NO_HINTS,
    rate: Callable[[Target, str], float] | None = None,
) -> Cost:
    """The cost of a library call that reads its inputs once and writes its outputs once.

    Special functions come after its products, not beside them.

    Args:
        rate: FLOP/s for a dtype; default: what a large library product reaches.
    """
    flops = number(library_flops(node), hints)
    seconds = flops / (rate or matrix_rate)(target, call_dtype(node)) if flops else 0.0
    special = number(library_special(node), hints)
    seconds += special / target.special_rate
    memory_us = 1e6 * sum(n for _, n in (*reads, *writes)) / target.copy_bandwidth
    memory_us += _fresh_us(node, writes, target)
    compute_us = 1e6 * seconds
    launch = target.launch_us
    us = max(memory_us, compute_us) + launch
    return Cost(us, memory_us, compute_us, launch, reads, writes, 0, flops, special, 0, 1.0)


def _fresh_us(node: Node, writes: tuple[tuple[str, int], ...], target: Target) -> float:
    """On a CPU: for pages that the system gives to the results that a library call allocates."""
    if target.cores is None or out_variant(node) is not None:
        return 0.0
    large = sum(n for _, n in writes if n >= FRESH_BYTES)
    return 1e6 * large / target.cores.fresh_bandwidth


def pays_to_pad(node: Node, moved: int, target: Target) -> bool:
    """Whether aligning the rows of a 16-bit product is worth moving `moved` bytes for."""
    lost = 1 / target.unaligned_share - 1
    seconds = number(library_flops(node)) / matrix_rate(target, call_dtype(node)) * lost
    return 1e6 * seconds > 1e6 * moved / target.copy_bandwidth + 2 * target.launch_us


def pays_to_widen(node: Node, moved: int, target: Target, hints: Hints = NO_HINTS) -> bool:
    """Whether a product runs so much faster in f32 that converting `moved` bytes is worth it."""
    flops = number(library_flops(node), hints)
    lost = flops / matrix_rate(target, call_dtype(node)) - flops / matrix_rate(target, "f32")
    return 1e6 * lost > 1e6 * moved / target.copy_bandwidth + 2 * target.launch_us


def call_dtype(node: Node) -> str:
    """The dtype of the first floating-point operand: that of the product."""
    floats = [v.type.dtype.name for v in (*node.values, *node.outputs) if v.type.dtype.is_float]
    return floats[0] if floats else "f32"


def matrix_rate(target: Target, dtype: str) -> float:
    """FLOP/s that a large library product reaches; the vector units' where there is no other."""
    if target.supports("matrix", dtype):
        return target.reached_flops("matrix", dtype)
    return vector_rate(target, dtype)


def matrix_peak(target: Target, dtype: str) -> float:
    """FLOP/s that no library product exceeds: for lower bounds."""
    if target.supports("matrix", dtype):
        return target.peak_flops("matrix", dtype)
    return vector_rate(target, dtype)
