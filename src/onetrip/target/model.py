"""The facts about a chip that a plan depends on.

Knows nothing of graphs, kernels or costs: it states figures and where each comes from. A figure is
read from the chip's data file and never assumed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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


def fact(unit: str, about: str) -> Any:
    """A field that the chip's data file must state, with its unit."""
    return field(metadata={"unit": unit, "about": about})


@dataclass(frozen=True)
class Cores:
    """How a CPU's figures follow from its number of cores; see `fact` for each."""

    standard: int = fact("count", "cores when none are asked for")
    most: int = fact("count", "most cores that the figures hold for")
    vector_bits: int = fact("bits", "width of one vector register")
    l1_bytes: int = fact("bytes", "level-1 data cache of one core")
    l2_bytes: int = fact("bytes", "level-2 cache of one core")
    socket_dram_bandwidth: float = fact("bytes/s", "memory of all cores together")
    socket_copy_bandwidth: float = fact("bytes/s", "large copy by all cores, read + write")


@dataclass(frozen=True)
class Target:
    """One chip: a GPU, or a CPU told in the same words.

    On a CPU a multiprocessor is a core, a thread is a 32-bit lane of its vector registers, a warp
    is all lanes of one register, shared memory is the level-1 cache, L2 the last level of cache.

    Each `fact` says its unit and meaning; the rest:

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
    multiprocessors: int = fact("count", "multiprocessors (cores on a CPU)")
    warp_size: int = fact("threads", "threads of a warp")
    dram_bytes: int = fact("bytes", "device memory")
    dram_bandwidth: float = fact("bytes/s", "device memory, datasheet")
    copy_bandwidth: float = fact("bytes/s", "large copy, bytes read + bytes written")
    l2_bytes: int = fact("bytes", "last level of cache")
    l2_bandwidth: float = fact("bytes/s", "last level of cache, read")
    matrix_share: float = fact("share", "of the matrix rate that a large library product reaches")
    special_rate: float = fact("operations/s", "special functions such as exp2, f32")
    integer_rate: float = fact("operations/s", "32-bit integer operations")
    registers_per_multiprocessor: int = fact("32-bit registers", "register file")
    registers_per_thread: int = fact("32-bit registers", "most of one thread")
    shared_per_multiprocessor: int = fact("bytes", "shared memory")
    shared_per_block: int = fact("bytes", "most shared memory of one block")
    threads_per_block: int = fact("threads", "most of one block")
    threads_per_multiprocessor: int = fact("threads", "most resident")
    warps_per_multiprocessor: int = fact("warps", "most resident")
    blocks_per_multiprocessor: int = fact("blocks", "most resident")
    launch_us: float = fact("us", "one kernel launched as eager does")
    replay_us: float = fact("us", "one kernel inside a replayed graph or one native call")
    spill_bandwidth: float = fact("bytes/s", "registers spilled to local memory")
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
        return self.peak_flops(unit, dtype) * (self.matrix_share if unit == "matrix" else 1.0)

    def source(self, name: str) -> str:
        """Where the figure of a fact comes from; `matrix.bf16` names a rate."""
        return dict(self.sources)[name]
