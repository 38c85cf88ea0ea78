"""What one call of a program owns, and what a backend does for it: the seam between the executor
and the code that builds and launches kernels. Knows neither programs nor devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..ir.kernel import Launched
from .resolve import Sizes
from .scratch import Block


@dataclass(eq=False)
class Frame:
    """The state of one call in flight.

    Attributes:
        pointers: addresses by slot; kernels take their buffers from here.
        tensors: by slot, those that lie in the frame's own memory and stay; None elsewhere.
        sizes: symbolic sizes, in the program's order.
        arena: the scratch memory behind values with an offset; None when there is none.
        queue: where all work of the call is issued: a stream's handle.
        single: whether the frame serves this call alone.
        block: what holds the arena for the call, where programs share it; None between calls.
        places: addresses of `pointers` and `sizes` themselves.
    """

    pointers: Any
    tensors: list[Any]
    sizes: Sizes
    arena: Tensor | None = None
    base: int = 0
    queue: int = 0
    single: bool = False
    block: Block | None = None
    places: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.places = (ctypes.addressof(self.pointers), ctypes.addressof(self.sizes))


@dataclass(frozen=True)
class BoundLaunch:
    """A kernel with the slots of its buffers, the positions of its sizes and what calls of it read
    where an index says."""

    kernel: Launched
    slots: tuple[int, ...]
    sizes: tuple[int, ...]
    lookups: tuple[str, ...] = ()


Action = Callable[[Frame], None]


@dataclass(frozen=True)
class Native:
    """An action that is one function of the frame's tables and the number of threads: a program
    may call it by itself.

    Attributes:
        function: (address of pointers, address of sizes, threads) -> error code.
        each: (pointer, ..., threads) -> error code, where no size is symbolic; None where pointers
            cannot be given one by one.
        fault: raises what an error code other than 0 means.
    """

    function: Callable[..., int]
    each: Callable[..., int] | None
    fault: Callable[[int], None]

    def __call__(self, frame: Frame) -> None:
        """Runs it."""
        code = self.function(*frame.places, torch.get_num_threads())
        if code:
            self.fault(code)


class Backend(Protocol):
    """Builds runs of kernels and provides memory."""

    @property
    def device(self) -> torch.device:
        """Where values lie."""
        ...

    def build(self, segments: Sequence[Sequence[BoundLaunch]]) -> list[Action]:
        """One action for each run of consecutive launches; all are built at once."""
        ...

    @property
    def immediate(self) -> bool:
        """Whether work is done at once: there is one queue, 0, and nothing records it."""
        ...

    def queue(self) -> int:
        """The queue work is issued on now: a stream's handle; 0 where work is done at once."""
        ...

    def capturing(self) -> bool:
        """Whether work issued now is recorded for later replays instead of done."""
        ...

    def arena(self, size: int) -> Tensor:
        """`size` bytes of scratch memory (uint8)."""
        ...

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An output tensor, uninitialized."""
        ...

    def maker(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> Callable[[], Tensor]:
        """What makes output tensors of one form: as `empty`, with all decided beforehand."""
        ...
