"""Microseconds of a kernel or a library call: the roofline, with launches, spills and few tiles.

    t = max(DRAM bytes / bandwidth, L2 bytes / its bandwidth, operations / their rate) / u + launch
    u = min(1, tiles / (multiprocessors x tiles that keep one busy))

(Williams, Waterman and Patterson, 2009.) Must not know which groups exist or what is searched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..base.sym import Dim, product
from ..ir.graph import Node
from ..ir.nest import Nest
from ..ops.schema import Kind, Op, Opaque
from ..ops.table import OPS
from ..passes.collapse import collapse
from ..target import Target
from .occupancy import Need
from .sizes import NO_HINTS, Hints, number
from .tiles import SQUARE, is_columns
from .traffic import Region, Traffic, Work, stages, total

BoundBy = Literal["memory", "compute", "launch"]
TILES_TO_FILL = 2
"""Tiles in flight that a multiprocessor of a GPU needs to draw its share of the bandwidth."""
LINE = 1024
"""Elements of a pointwise program that is not made smaller to spread over the chip."""
SPLIT_TILE = 4096
"""Elements of one part of a reduction that is split over several programs."""
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
        spill_bytes: bytes moved for values that did not fit into registers.
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
        """Bytes read and written in device memory."""
        return sum(size for _, size in (*self.reads, *self.writes)) + self.again_bytes

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
    launch_us: float | None = None,
) -> Cost:
    """The cost of the kernel generated for a nest.

    Args:
        resident: buffers that the last level of cache still holds from the kernel before.
        launch_us: default: the target's `replay_us`.
    """
    cached = total(r.bytes for r in moved.reads if r.buffer in resident)
    again = 0 if needs.persistent else number(total(r.bytes for r in moved.rereads), hints)
    on_chip = number(cached, hints)
    if _row_set(again, nest, target, hints) <= target.l2_bytes:
        on_chip, again = on_chip + again, 0
    reads = _numbers(tuple(r for r in moved.reads if r.buffer not in resident), hints)
    writes = _numbers(moved.writes, hints)
    dram = sum(n for _, n in (*reads, *writes)) + again
    threads = number(_points(nest), hints) / max(1, needs.elements)
    spilled = int(2 * needs.spill_bytes * threads)
    share = _utilisation(nest, needs, target, hints)
    memory = max(
        dram / target.copy_bandwidth,
        on_chip / target.l2_bandwidth,
        spilled / target.spill_bandwidth,
    )
    compute = _compute_seconds(done, target, hints)
    launch = target.replay_us if launch_us is None else launch_us
    memory_us, compute_us = (1e6 * t / share for t in (memory, compute))
    return Cost(
        max(memory_us, compute_us) + launch,
        memory_us,
        compute_us,
        launch,
        reads,
        writes,
        on_chip,
        number(done.all_flops, hints),
        number(done.special, hints),
        spilled,
        share,
        again,
    )


def _numbers(regions: tuple[Region, ...], hints: Hints) -> tuple[tuple[str, int], ...]:
    return tuple((r.buffer, number(r.bytes, hints)) for r in regions)


def _row_set(size: int, nest: Nest, target: Target, hints: Hints) -> float:
    """Bytes of the rows that are worked on at the same time."""
    rows = number(product([a.extent for a in nest.space]), hints)
    return size * min(1.0, target.multiprocessors / max(1, rows))


def _points(nest: Nest) -> Dim:
    inner = [sum(product([a.extent for a in w]) for w in s.walks) for s in stages(nest)]
    over = max(inner, key=number) if inner else 1
    return product([a.extent for a in nest.space]) * over


def _utilisation(nest: Nest, needs: Need, target: Target, hints: Hints) -> float:
    passes = stages(nest)
    if any(len(s.walks) > 1 for s in passes):
        passes = stages(collapse(nest))  # there equal walks are the same axes
    tile = needs.threads * needs.elements
    count = number(_points(nest), hints)
    if not passes:
        programs = -(-count // (tile if target.device == "cpu" else LINE))
    elif len(passes) == 1 and frozenset.intersection(*passes[0].walks):
        programs = -(-count // min(tile, SPLIT_TILE))
    else:
        rows = number(product([a.extent for a in nest.space]), hints)
        together = target.device == "cuda" and is_columns(nest, stages(nest))
        programs = -(-rows // (SQUARE if together else 1))
    full = target.multiprocessors * (1 if target.device == "cpu" else TILES_TO_FILL)
    return min(1.0, max(1, programs) / full)


def _compute_seconds(done: Work, target: Target, hints: Hints) -> float:
    """Units work side by side; operations of one unit add up."""
    vector = sum(number(n, hints) / vector_rate(target, name) for name, n in done.flops)
    special = number(done.special, hints) / target.special_rate
    integer = number(done.integer, hints) / target.integer_rate
    return max(vector, special, integer)


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
    compute_us = 1e6 * seconds
    launch = target.launch_us
    us = max(memory_us, compute_us) + launch
    return Cost(us, memory_us, compute_us, launch, reads, writes, 0, flops, special, 0, 1.0)


def pays_to_pad(node: Node, moved: int, target: Target) -> bool:
    """Whether aligning the rows of a 16-bit product is worth moving `moved` bytes for."""
    lost = 1 / target.unaligned_share - 1
    seconds = number(library_flops(node)) / matrix_rate(target, call_dtype(node)) * lost
    return 1e6 * seconds > 1e6 * moved / target.copy_bandwidth + 2 * target.launch_us


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
