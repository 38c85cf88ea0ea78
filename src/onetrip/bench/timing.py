"""What is timed beside plain calls: recorded ones, and the machine's own rates.

The clocks themselves are the runtime's. Knows nothing of what a call computes.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from onetrip.runtime.clock import (
    CLOCKS,
    MIN_SAMPLE_US,
    WARM_CALLS,
    Call,
    Samples,
    calls_per_sample,
    cpu_clock,
    interleaved,
)


def synchronize(device: str) -> None:
    """Wait for the device; nothing to wait for on a CPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def captured(call: Call, times: int = 1) -> Call:
    """The call recorded into a CUDA graph; the new call replays it and returns the same outputs.

    The graph launches kernels of what was recorded, so the replay keeps that alive. Where a graph
    holds the call several `times`, what every replay takes once weighs as much less.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            outputs = call()

    def replay(recorded: Call = call) -> Any:
        del recorded
        graph.replay()
        return outputs

    return replay


def copy_bandwidth(device: str) -> float:
    """Bytes/s of a large warm copy, read + write, measured now."""
    count = 1 << (28 if device == "cuda" else 23)
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    clock = CLOCKS[device]
    clock(lambda: target.copy_(source), WARM_CALLS)
    best = min(clock(lambda: target.copy_(source), 3) for _ in range(5))
    return 2 * source.nbytes / (best / 1e6)


def product_rate(device: str, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product, measured now on random data."""
    width = 8192 if device == "cuda" else 512
    if device == "cuda" and dtype == torch.float32:
        width = 4096
    a, b = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    clock = CLOCKS[device]
    clock(lambda: a @ b, WARM_CALLS)
    middle = statistics.median(clock(lambda: a @ b, 3) for _ in range(5))
    return 2 * width**3 / (middle / 1e6)


__all__ = [
    "CLOCKS", "MIN_SAMPLE_US", "WARM_CALLS", "Call", "Samples", "calls_per_sample", "captured",
    "copy_bandwidth", "cpu_clock", "interleaved", "product_rate", "synchronize",
]  # fmt: skip
