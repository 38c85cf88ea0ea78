"""Measures the figures of the machine at hand that the cost model uses.

    t(bytes) = launch + bytes / bandwidth    two sizes give both
    t(chain) = rest + length / rate          two lengths give a rate

Through generated kernels where the figure is about them, through torch where it is about the
library. The compiler comes from above. Knows no data file: a figure is a name, a value and words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from onetrip.bench import timing
from onetrip.bench.costs import CLOCKS, Compiler
from onetrip.bench.engine import check_device

COPIED = {"cuda": (1 << 28, 1 << 30), "cpu": (1 << 26, 1 << 28)}
"""Bytes of a tensor that is read while another is written, far beyond the last cache."""
CURVE = {"cuda": tuple(1 << k for k in range(14, 29, 2)), "cpu": tuple(range(0))}
CHAINED = {"cuda": 1 << 22, "cpu": 1 << 15}
"""f32 elements of a chain of operations: they stay in the cache, and fill the chip."""
LENGTHS = {"cuda": (4, 12, 60), "cpu": (8, 24, 120)}
"""Steps of the chains of an operation: what is not the operation is in all of them."""
SHOWS = 0.2
"""Share of its time by which a chain outlasts the shortest one, else memory hides the operation."""
ROUNDS = 5
PAGES = 1 << 26
SMALL = 64
SHARED = 1 << 14
"""f32 elements of a kernel that is just large enough for all cores of a CPU."""


@dataclass(frozen=True)
class Figure:
    """A measured figure and how it was measured; the name is that of a fact, or of a curve."""

    name: str
    value: float
    how: str


@dataclass(frozen=True)
class Machine:
    """What measures on one device."""

    compiler: Compiler
    device: str
    target: str
    cache_bytes: int

    def kernel_us(self, fn: Callable[..., Any], *args: Tensor, cold: bool) -> float:
        """Microseconds of the one kernel of a program, launches of a replayed graph on a GPU."""
        (alone,) = self.compiler.kernels(fn, args, device=self.device, target=self.target)
        copies = max(3, min(64, 4 * self.cache_bytes // alone.footprint)) if cold else 1
        runs = [alone.place() for _ in range(copies)]
        flush = self.cache_bytes if cold else 0
        return CLOCKS[self.device](runs if cold else runs * 32, flush)


def measured(machine: Machine) -> Iterator[Figure]:
    """Every figure that can be measured here.

    Raises:
        UsageError: no such device.
    """
    check_device(machine.device)
    for step in (launches, _copies, _cache, _rates, _products, *_ON[machine.device]):
        yield from step(machine)


def _form(count: int) -> Tensor:
    return torch.empty(count, device="meta")


def _scaled(x: Tensor) -> Tensor:
    return x * 1.5


def launches(m: Machine) -> Iterator[Figure]:
    """The time of a launch of ours and of eager's."""
    us = m.kernel_us(_scaled, _form(SMALL), cold=False)
    yield Figure("replay_us", us, f"a generated kernel on {SMALL} elements, one after another")
    x = torch.ones(SMALL, device=m.device)
    us = median(timing.CLOCKS[m.device](lambda: x * 1.5, 1000) for _ in range(ROUNDS))
    yield Figure("launch_us", us, f"an eager operator on {SMALL} elements, over 1000 in a row")


def _copies(m: Machine) -> Iterator[Figure]:
    low, high = COPIED[m.device]
    times = [m.kernel_us(_scaled, _form(n // 4), cold=True) for n in (low, high)]
    rate = 2 * (high - low) / (times[1] - times[0]) * 1e6
    sizes = f"{low >> 20} and {high >> 20} MiB"
    yield Figure("copy_bandwidth", rate, f"generated copies of {sizes}, read + write")
    for size in CURVE[m.device]:
        us = m.kernel_us(_scaled, _form(size // 4), cold=True)
        yield Figure(f"curve.{size}", us, "us of a generated copy from memory, by bytes")


def _cache(m: Machine) -> Iterator[Figure]:
    sizes = m.cache_bytes // 16, m.cache_bytes // 4
    times = [m.kernel_us(_scaled, _form(n // 4), cold=False) for n in sizes]
    rate = 2 * (sizes[1] - sizes[0]) / (times[1] - times[0]) * 1e6
    yield Figure("l2_bandwidth", rate, "generated copies between buffers in the last cache")


# An operation of f32, and how it is chained so that values stay in range.
CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "mul": lambda x: x * 1.0001,
    "div": lambda x: 1.5 / x,
    "exp": lambda x: torch.exp(-x),
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "rsqrt": torch.rsqrt,
    "log1p": torch.log1p,
    "sin": torch.sin,
}


def _rates(m: Machine) -> Iterator[Figure]:
    """Operations a second, by operator; none of one that the longest chain does not show."""
    count, (short, *longer) = CHAINED[m.device], LENGTHS[m.device]
    for name, step in CHAINS.items():
        low = _chain(m, step, short)
        times = ((long, _chain(m, step, long)) for long in longer)
        shown = next(((long, us) for long, us in times if us - low > SHOWS * us), None)
        if shown is not None:
            rate = count * (shown[0] - short) / (shown[1] - low) * 1e6
            how = f"chains of {short} and {shown[0]} on {count} elements"
            yield Figure(f"rate.{name}", rate, how)


def _chain(m: Machine, step: Callable[[Tensor], Tensor], length: int) -> float:
    def chained(x: Tensor) -> Tensor:
        for _ in range(length):
            x = step(x)
        return x

    return m.kernel_us(chained, _form(CHAINED[m.device]), cold=False)


def _products(m: Machine) -> Iterator[Figure]:
    dtype = {"cuda": torch.bfloat16, "cpu": torch.float32}[m.device]
    rate = timing.product_rate(m.device, dtype)
    yield Figure("product_rate", rate, f"torch's product of large square {dtype} matrices")


def _regions(m: Machine) -> Iterator[Figure]:
    """The least kernel that all cores share, less what one core does alone in its share."""
    cores = torch.get_num_threads()
    shared = m.kernel_us(_scaled, _form(SHARED), cold=False)
    alone = m.kernel_us(_scaled, _form(SHARED // 4), cold=False)
    us = max(0.05, shared - alone * 4 / cores)
    yield Figure("cores.region_us", us, f"a kernel on {SHARED} elements, less its cores' work")


def _fresh_pages(m: Machine) -> Iterator[Figure]:
    def first_touch() -> None:
        torch.empty(PAGES, dtype=torch.uint8).fill_(1)

    touched = torch.zeros(PAGES, dtype=torch.uint8)
    first = median(timing.cpu_clock(first_touch, 1) for _ in range(ROUNDS))
    again = median(timing.cpu_clock(lambda: touched.fill_(1), 1) for _ in range(ROUNDS))
    rate = PAGES / max(first - again, 1e-3) * 1e6
    yield Figure("cores.fresh_bandwidth", rate, "filling fresh pages, less filling touched ones")


_ON: dict[str, tuple[Callable[[Machine], Iterator[Figure]], ...]] = {
    "cpu": (_regions, _fresh_pages),
    "cuda": (),
}
