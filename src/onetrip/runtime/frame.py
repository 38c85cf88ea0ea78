"""What one call of a program owns, and what a backend does for it: the seam between the executor
and the code that builds and launches kernels. Knows neither programs nor devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..ir.kernel import Kernel
from .resolve import Sizes


@dataclass(eq=False)
class Frame:
    """The state of one call in flight.

    Attributes:
        pointers: addresses by slot; kernels take their buffers from here.
        tensors: tensors by slot, where a library call, an alias or the caller needs one.
        sizes: symbolic sizes, in the program's order.
        arena: the scratch memory behind values with an offset; None when there is none.
        queue: where all work of the call is issued: a stream's handle.
    """

    pointers: Any
    tensors: list[Any]
    sizes: Sizes
    arena: Tensor | None = None
    base: int = 0
    queue: int = 0


@dataclass(frozen=True)
class BoundLaunch:
    """A kernel with the slots of its buffers and the positions of its sizes."""

    kernel: Kernel
    slots: tuple[int, ...]
    sizes: tuple[int, ...]


Action = Callable[[Frame], None]


class Backend(Protocol):
    """Builds runs of kernels and provides memory."""

    @property
    def device(self) -> torch.device:
        """Where values lie."""
        ...

    def build(self, segments: Sequence[Sequence[BoundLaunch]]) -> list[Action]:
        """One action for each run of consecutive launches; all are built at once."""
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
