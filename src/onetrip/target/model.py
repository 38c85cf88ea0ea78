"""The facts about a chip that a plan depends on.

Knows nothing of graphs, kernels or costs: it states figures and where each comes from. A figure is
read from the chip's data file and never assumed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from onetrip.base.errors import UsageError

Unit = Literal["matrix", "vector"]
Rates = tuple[tuple[str, float | None], ...]

# The key under which a rate is kept for a dtype that has no rate of its own.
RATE_KEY: dict[str, dict[str, str]] = {
    "matrix": {"f8e4m3": "f8", "f8e5m2": "f8"},
    "vector": {"bf16": "f32", "f16": "f32", "tf32": "f32", "f8e4m3": "f32", "f8e5m2": "f32"},
}
MATRIX_DTYPES = ("bf16", "f16", "tf32", "f32", "f64", "f8")
VECTOR_DTYPES = ("f32", "f64")


class Fact(NamedTuple):
    """What a figure in a chip's data file means."""

    unit: str
    about: str


@dataclass(frozen=True)
class Cores:
    """How a CPU's figures follow from its number of cores; see each `Fact`."""

    standard: Annotated[int, Fact("count", "cores when none are asked for")]
    most: Annotated[int, Fact("count", "most cores that the figures hold for")]
    vector_bits: Annotated[int, Fact("bits", "width of one vector register")]
    l1_bytes: Annotated[int, Fact("bytes", "level-1 data cache of one core")]
    l2_bytes: Annotated[int, Fact("bytes", "level-2 cache of one core")]
    socket_dram_bandwidth: Annotated[float, Fact("bytes/s", "memory of all cores together")]
    socket_copy_bandwidth: Annotated[
        float, Fact("bytes/s", "large copy by all cores, read + write")
    ]
    region_us: Annotated[float, Fact("us", "all cores called upon and waited for")]
    fresh_bandwidth: Annotated[
        float, Fact("bytes/s", "first writing to pages that the system has just given out")
    ]
    looped_flops: Annotated[
        float, Fact("FLOP/s", "library products of one core that has no instructions for a dtype")
    ]


@dataclass(frozen=True)
class Target:
    """One chip: a GPU, or a CPU told in the same words.

    On a CPU a multiprocessor is a core, a thread is a 32-bit lane of its vector registers, a warp
    is all lanes of one register, shared memory is the level-1 cache, L2 the last level of cache.

    Each `Fact` says its unit and meaning; the rest:

    - name: as given to `load`.
    - vendor: `nvidia`, `amd` or `generic`; arch: `sm_90`, `gfx942` or `host`.
    - device: torch's device type, `cuda` (AMD as well) or `cpu`.
    - matrix, vector: FLOP/s by dtype, datasheet, dense; None where there is no such unit.
    - cores: how a CPU scales; None on a GPU.
    - sources: where each figure comes from, by the fact's name (`matrix.bf16` for a rate).
    """

    name: str
    vendor: str
    arch: str
    device: str
    multiprocessors: Annotated[int, Fact("count", "multiprocessors (cores on a CPU)")]
    warp_size: Annotated[int, Fact("threads", "threads of a warp")]
    dram_bytes: Annotated[int, Fact("bytes", "device memory")]
    dram_bandwidth: Annotated[float, Fact("bytes/s", "device memory, datasheet")]
    copy_bandwidth: Annotated[float, Fact("bytes/s", "large copy, bytes read + bytes written")]
    l2_bytes: Annotated[int, Fact("bytes", "last level of cache")]
    l2_bandwidth: Annotated[float, Fact("bytes/s", "last level of cache, read")]
    line_bytes: Annotated[int, Fact("bytes", "least that memory moves at once")]
    latency_us: Annotated[
        float, Fact("us", "from a load of memory to its value, the chip being busy")
    ]
    vector_share: Annotated[
        float, Fact("share", "of the vector rate that generated arithmetic reaches")
    ]
    matrix_share: Annotated[
        float, Fact("share", "of the matrix rate that a large library product reaches")
    ]
    unaligned_share: Annotated[
        float, Fact("share", "of that which a 16-bit product reaches whose rows are not aligned")
    ]
    special_rate: Annotated[float, Fact("operations/s", "special functions such as exp2, f32")]
    integer_rate: Annotated[float, Fact("operations/s", "32-bit integer operations")]
    registers_per_multiprocessor: Annotated[int, Fact("32-bit registers", "register file")]
    registers_per_thread: Annotated[int, Fact("32-bit registers", "most of one thread")]
    shared_per_multiprocessor: Annotated[int, Fact("bytes", "shared memory")]
    shared_per_block: Annotated[int, Fact("bytes", "most shared memory of one block")]
    threads_per_block: Annotated[int, Fact("threads", "most of one block")]
    threads_per_multiprocessor: Annotated[int, Fact("threads", "most resident")]
    warps_per_multiprocessor: Annotated[int, Fact("warps", "most resident")]
    blocks_per_multiprocessor: Annotated[int, Fact("blocks", "most resident")]
    launch_us: Annotated[float, Fact("us", "one kernel launched as eager does")]
    replay_us: Annotated[float, Fact("us", "one kernel inside a replayed graph or one native call")]
    spill_bandwidth: Annotated[float, Fact("bytes/s", "registers spilled to local memory")]
    matrix: Rates
    vector: Rates
    cores: Cores | None
    sources: tuple[tuple[str, str], ...] = field(repr=False)

    def peak_flops(self, unit: Unit, dtype: str) -> float:
        """FLOP/s that no kernel exceeds: for lower bounds.

        Args:
            unit: `matrix` or `vector`.
            dtype: short name of the operands' dtype, such as `bf16`; also `tf32`.

        Raises:
            UsageError: the chip has no such unit, or there is no such rate.
        """
        rates = dict(self.matrix if unit == "matrix" else self.vector)
        rate = rates.get(RATE_KEY[unit].get(dtype, dtype))
        if rate is None:
            known = [name for name, value in rates.items() if value is not None]
            raise UsageError(
                f"target {self.name} has no {unit} rate for {dtype}",
                expected=f"one of {', '.join(known)}",
                found=dtype,
                next_step=f"convert the operands, or add the fact to target/data/{self.name}.toml",
            )
        return rate

    def supports(self, unit: Unit, dtype: str) -> bool:
        """Whether the chip has a rate for operands of this dtype."""
        rates = dict(self.matrix if unit == "matrix" else self.vector)
        return rates.get(RATE_KEY[unit].get(dtype, dtype)) is not None

    def reached_flops(self, unit: Unit, dtype: str) -> float:
        """FLOP/s that good code reaches on large operands: for estimates."""
        shares = {"matrix": self.matrix_share, "vector": self.vector_share}
        return self.peak_flops(unit, dtype) * shares[unit]

    def source(self, name: str) -> str:
        """Where the figure of a fact comes from; `matrix.bf16` names a rate."""
        return dict(self.sources)[name]
