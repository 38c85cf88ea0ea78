"""The GPU backend of the executor: generated Triton kernels, launched one after the other.

Also runs under Triton's interpreter on CPU tensors, which is how generated kernels are tested on a
machine without a GPU. Knows no IR beyond a kernel's buffers; its text comes from above.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..base.dtype import DType, u8
from ..base.float8 import LAYOUTS
from ..base.sym import Sym, evaluate
from ..ir.kernel import Launched
from .cache import Cache
from .frame import Action, BoundLaunch, Frame
from .resolve import torch_dtype
from .triton_build import TritonLaunch, TritonModule, current_stream

Emit = Callable[[Launched], TritonModule]


@dataclass(frozen=True)
class GpuBackend:
    """Builds Triton for one device.

    Attributes:
        emit: kernel -> module text.
        device: where tensors lie; a CPU runs the kernels in Triton's interpreter.
    """

    emit: Emit
    cache: Cache
    device: torch.device

    def build(self, segments: Sequence[Sequence[BoundLaunch]]) -> list[Action]:
        """Raises ToolchainError when Triton rejects a text."""
        kernels = list({id(b.kernel): b.kernel for s in segments for b in s}.values())
        with ThreadPoolExecutor() as pool:
            made = list(pool.map(lambda k: TritonLaunch(self.emit(k), self.cache), kernels))
        launches = {id(k): launch for k, launch in zip(kernels, made, strict=True)}
        if self.device.type == "cpu":
            return [_interpreted([(b, launches[id(b.kernel)]) for b in s]) for s in segments]
        self._compile_ahead([(b, launches[id(b.kernel)]) for s in segments for b in s])
        return [_launched([(b, launches[id(b.kernel)]) for b in s], self.device) for s in segments]

    def _compile_ahead(self, bound: Sequence[tuple[BoundLaunch, TritonLaunch]]) -> None:
        """Kernels of fixed sizes are compiled now, in parallel, for aligned buffers."""
        fixed = {id(launch): launch for b, launch in bound if not b.sizes}
        index = self.device.index or 0
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda launch: launch.compile_aligned(index), fixed.values()))

    @property
    def immediate(self) -> bool:
        """A GPU's work waits in streams; the interpreter's is done at once."""
        return self.device.type == "cpu"

    def queue(self) -> int:
        """The current stream's handle."""
        return 0 if self.device.type == "cpu" else current_stream(self.device.index or 0)

    def capturing(self) -> bool:
        """Whether the current stream is captured into a CUDA graph."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def arena(self, size: int) -> Tensor:
        """`size` bytes of device memory."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An output from the framework's allocator."""
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=self.device)

    def maker(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> Callable[[], Tensor]:
        """What makes outputs of one form from the framework's allocator."""
        form = (tuple(shape), tuple(strides))
        return partial(torch.empty_strided, *form, dtype=dtype, device=self.device)


def _launched(bound: Sequence[tuple[BoundLaunch, TritonLaunch]], device: torch.device) -> Action:
    index = device.index or 0
    rows = [(launch.start, b.slots, b.sizes) for b, launch in bound]

    def run(frame: Frame) -> None:
        pointers, sizes, stream = frame.pointers, frame.sizes, frame.queue
        for start, slots, positions in rows:
            values = tuple([sizes[p] for p in positions]) if positions else ()
            start([pointers[s] or 0 for s in slots], values, index, stream)

    return run


def _interpreted(bound: Sequence[tuple[BoundLaunch, TritonLaunch]]) -> Action:
    def run(frame: Frame) -> None:
        for b, launch in bound:
            values = [frame.sizes[p] for p in b.sizes]
            known: dict[Sym, int] = dict(zip(b.kernel.sizes, values, strict=True))
            buffers = []
            for slot, buffer in zip(b.slots, b.kernel.buffers, strict=True):
                count = int(evaluate(buffer.type.numel, known.__getitem__))
                buffers.append(_tensor_at(frame.pointers[slot], count, buffer.type.dtype))
            launch(buffers, values)

    return run


def _tensor_at(address: int | None, count: int, dtype: DType) -> Tensor:
    """A flat tensor over memory that something else keeps alive."""
    if not address or not count:
        return torch.empty(0, dtype=torch_dtype(dtype))
    if dtype in LAYOUTS:  # the interpreter's kernels see bytes, as those of a chip do
        dtype = u8
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=torch_dtype(dtype), count=count)
