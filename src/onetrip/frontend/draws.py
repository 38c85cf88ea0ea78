"""Seeds: where each call that draws random numbers gets the key of its stream from.

On a CPU a seed is drawn from the default generator. That of a GPU is a seed s and a count n of what
it has given, so the host can say what comes next and no kernel need draw it:

    seed(s, n) = mixed(s) + n / 4 * STEP   mod 2^64;   n grows by 4

Consecutive keys make independent streams (Salmon et al. 2011, Philox), and a recorded graph can
count on what is a sum: `Recorded` holds the next seed in the device's memory. Whoever sets or forks
the generator finds the same seeds again, recorded or not.

Where a stream is captured by someone else the host is not asked at each replay: there torch's own
kernel draws.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

STEP = 0xD1342543DE82EF95
"""Odd, and of no pattern in either half (a multiplier of Steele and Vigna, 2021)."""
COUNTED = 4
"""What a seed adds to the generator's count, which must stay a multiple of it."""
_BITS = 64
_lock = threading.Lock()
_here = threading.local()


class Generator(Protocol):
    """A generator that counts, as CUDA's do."""

    def initial_seed(self) -> int:
        """What it was seeded with."""
        ...

    def get_offset(self) -> int:
        """How much it has given since."""
        ...

    def set_offset(self, offset: int, /) -> None:
        """Sets that."""
        ...


def draw(device: torch.device) -> Tensor:
    """A new seed: int64, 0-d, on the device."""
    recorded: Recorded | None = getattr(_here, "recorded", None)
    if recorded is not None:
        return recorded.draw()
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=device)
    _, (seed, count) = _taken(_generator_of(device), 1)
    return torch.full((), number(seed, count), dtype=torch.int64, device=device)


def recorded_on(device: torch.device) -> Recorded:
    """The seeds of a graph that a GPU is about to record."""
    return Recorded(_generator_of(device), torch.empty((), dtype=torch.int64, device=device))


def number(seed: int, count: int) -> int:
    """The seed that a generator gives, as int64."""
    return _signed(_mixed(seed) + count // COUNTED * STEP)


class Recorded:
    """The seeds of a recorded graph, which reads and advances the next one on the device.

    Args:
        generator: of the device that records.
        start: int64, 0-d, on that device; it must stay where it is while the graph lives.
    """

    def __init__(self, generator: Generator, start: Tensor) -> None:
        self._generator = generator
        self._start = start
        self._drawn = 0
        self._next: tuple[int, int] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within, this thread's seeds come from here; its end counts on to the next replay's."""
        before = getattr(_here, "recorded", None)
        _here.recorded = self
        try:
            yield
            if self._drawn:
                self._start.add_(_signed(self._drawn * STEP))
        finally:
            _here.recorded = before

    def draw(self) -> Tensor:
        """The next seed of the graph that is recorded."""
        self._drawn += 1
        return self._start + _signed((self._drawn - 1) * STEP)

    def prepare(self) -> None:
        """Before each replay, on its queue: what the device holds is the generator's next seed."""
        if not self._drawn:
            return
        after, taken = _taken(self._generator, self._drawn)
        if taken != self._next:
            self._start.fill_(number(*taken))
        self._next = after


def _generator_of(device: torch.device) -> Any:
    index: int | None = device.index
    return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]


def _taken(generator: Generator, seeds: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Takes seeds from a generator: its seed and count after it, and before."""
    with _lock:
        seed, count = generator.initial_seed(), generator.get_offset()
        generator.set_offset(count + COUNTED * seeds)
    return (seed, count + COUNTED * seeds), (seed, count)


def _mixed(seed: int) -> int:
    """A bijection of 64 bits whose results look random (SplitMix64's finalizer)."""
    x = seed % (1 << _BITS)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % (1 << _BITS)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % (1 << _BITS)
    return x ^ (x >> 31)


def _signed(value: int) -> int:
    value %= 1 << _BITS
    return value - (1 << _BITS) if value >> (_BITS - 1) else value
