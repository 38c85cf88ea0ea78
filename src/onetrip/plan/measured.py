"""What the clock says of two ways that the cost model cannot tell apart.

Estimates that differ by less than the model's error say little about which way is faster. Where a
device is at hand it is asked then, and its answer is part of the plan. Must not know how a way is
built or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..cost.sizes import Hints
from .plan import GraphPlan, Measured

ERROR_BAND: Mapping[str, float] = {"cuda": 0.39, "cpu": 0.67}
"""The error of nine estimates in ten, as a share of what was measured, by device type: on an H200
over 108 times of kernels that the model was not fitted to, on a CPU over whole blocks
(benchmarks/results/checks/costs-cuda-h200.json and costs-blocks-cpu.json)."""

Timer = Callable[[GraphPlan, GraphPlan, Hints], Measured]
"""The nodes as they are, what would replace them, sizes to be timed at -> what both take.

It answers for whatever happens: a way that cannot be built or run has no time, and a reason."""


def is_open(as_is_us: float, replaced_us: float, device: str) -> bool:
    """Whether two estimates are so near that their order may be wrong on this device type."""
    low, high = sorted((as_is_us, replaced_us))
    return high <= low * (1 + ERROR_BAND[device])


Way = tuple[str, tuple[str, ...]]
"""An alternative by its kind and the nodes that it replaces."""
