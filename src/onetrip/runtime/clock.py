"""The clocks: one for CPU calls, one for CUDA events, interleaved rounds of rivals; and on what.

Knows callables without arguments and nothing of what they compute.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
Clock = Callable[[Call, int], float]

MIN_SAMPLE_US = 2_000.0
MAX_CALLS = 1_000
WARM_CALLS = 3


def cpu_clock(call: Call, count: int) -> float:
    """Microseconds of one call, over `count` calls in a row."""
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - start) / count / 1e3


def cuda_clock(call: Call, count: int) -> float:
    """Microseconds of one call on the device, launch gaps included, over `count` calls in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / count * 1e3


CLOCKS: dict[str, Clock] = {"cpu": cpu_clock, "cuda": cuda_clock}


@dataclass(frozen=True)
class Samples:
    """Microseconds of one call, one figure a round; each figure is a mean of `calls` calls."""

    us: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.us)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """A quarter of the rounds lies below the first figure, half of them below the second."""
        ordered = sorted(self.us)
        last = len(ordered) - 1
        return ordered[round(last * 0.25)], self.median, ordered[round(last * 0.75)]


def calls_per_sample(us: float) -> int:
    """So many calls that one sample is long beside the clock's own error."""
    return min(MAX_CALLS, max(1, math.ceil(MIN_SAMPLE_US / max(us, 1e-3))))


def interleaved(
    calls: Mapping[str, Call], clock: Clock, rounds: int, seconds: float
) -> dict[str, Samples]:
    """Time several calls side by side: every round times each once, each round in another order.

    Args:
        calls: the rivals by name, already warm.
        clock: `CLOCKS[device]`.
        rounds: the most rounds; at least three are run.
        seconds: about how long all rounds together may take.

    Drift of the machine (clock rates, other load) then falls on all rivals alike.
    """
    first = {name: clock(call, 1) for name, call in calls.items()}
    counts = {name: calls_per_sample(us) for name, us in first.items()}
    one_round_us = sum(first[name] * counts[name] for name in calls)
    planned = min(rounds, max(3, int(seconds * 1e6 / max(one_round_us, 1.0))))
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(planned):
        shift = turn % len(names) if names else 0
        for name in names[shift:] + names[:shift]:
            found[name].append(clock(calls[name], counts[name]))
    return {name: Samples(tuple(us), counts[name]) for name, us in found.items()}


def card_name(device: str) -> str:
    """The name of the card, or of the processor."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1] for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()
