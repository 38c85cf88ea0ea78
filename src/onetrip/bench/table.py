"""What a row of a benchmark is: a program, its inputs, its floor; and where its inputs come from.

Knows nothing of clocks, rivals or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onetrip.base import dtype as dtypes

SIZE_NAMES = ("cuda", "cpu", "tiny")
SEED = 20


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of a short name: bf16 -> torch.bfloat16."""
    known = {d.name: d.torch_name for d in dtypes.ALL}
    found = getattr(torch, known[name])
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True)
class Work:
    """One program with the inputs of one call.

    Attributes:
        fn: called as fn(*args); returns a tensor or a tuple of tensors.
        args: its inputs; those of a training row that require a gradient are marked so.
        sources: what a training row differentiates by; empty for inference.
        writes: inputs that the call changes; they are results as well.
        reads: tensors read that are not among args (a module's parameters).
    """

    fn: Callable[..., Any]
    args: tuple[Tensor, ...]
    sources: tuple[Tensor, ...] = ()
    writes: tuple[int, ...] = ()
    reads: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Draw:
    """Reproducible inputs on one device, in the row's dtype unless told otherwise."""

    device: str
    dtype: torch.dtype
    generator: torch.Generator

    @staticmethod
    def start(device: str, dtype: torch.dtype) -> Draw:
        """The same inputs each time, whatever ran before."""
        return Draw(device, dtype, torch.Generator(device=device).manual_seed(SEED))

    def normal(self, *shape: int, scale: float = 1.0, grad: bool = False) -> Tensor:
        """Normally distributed numbers times `scale`."""
        wide = torch.randn(*shape, generator=self.generator, device=self.device)
        return (wide * scale).to(self.dtype).requires_grad_(grad)

    def weight(self, *shape: int) -> Tensor:
        """A matrix that keeps the size of what it is multiplied with: last dimension is summed."""
        return self.normal(*shape, scale=shape[-1] ** -0.5)

    def positive(self, *shape: int) -> Tensor:
        """Numbers from 0.5 to 1.5, such as variances and scales."""
        wide = torch.rand(*shape, generator=self.generator, device=self.device)
        return (wide + 0.5).to(self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers below `high`, int64."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)


@dataclass(frozen=True)
class Row:
    """One line of a suite.

    Attributes:
        name: as given to `--only`.
        about: one line for a reader.
        make: make(draw, *size) builds the work; sizes are the row's own words, see its function.
        sizes: by device, and `tiny` for tests.
        dtypes: by device; a device that is not named uses the first.
        flops: matrix FLOPs of one call, by size; None where bytes alone bound it.
        rereads: how often all inputs must be read once more, where statistics of a whole tensor
            come before its first result.
        random: values depend on a seed, so only form and finiteness can be compared.
        bounded: whether inputs and outputs bound the time; a whole model has no such floor.
    """

    name: str
    about: str
    make: Callable[..., Work]
    sizes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str] = field(default_factory=lambda: {"cuda": "bf16", "cpu": "f32"})
    flops: Callable[..., int] | None = None
    rereads: int = 0
    random: bool = False
    bounded: bool = True

    def dtype_on(self, device: str) -> str:
        """Short name of the dtype that the row uses on a device."""
        return self.dtypes.get(device, next(iter(self.dtypes.values())))

    def work(self, device: str, size: str, dtype: str | None = None) -> Work:
        """The row's program and inputs, the same each time; `dtype` takes the place of its own."""
        draw = Draw.start(device, torch_dtype(dtype or self.dtype_on(device)))
        return self.make(draw, *self.sizes[size])


def tensors_of(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result, in order, whatever holds them."""
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, tuple | list):
        return tuple(t for item in result for t in tensors_of(item))
    return ()


def size_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements: an expanded tensor counts once."""
    return sum(t.untyped_storage().nbytes() if 0 in t.stride() else t.nbytes for t in tensors)


def floor_bytes(row: Row, work: Work, outputs: tuple[Tensor, ...]) -> int:
    """The fewest bytes that a call can move: each input read once, each output written once.

    Args:
        row: for `rereads`.
        work: for the inputs.
        outputs: of the forward pass alone.

    A training step reads its inputs and the outputs' gradients again and writes the gradients,
    since the loss stands between the two passes.
    """
    inputs = size_bytes((*work.args, *work.reads))
    written = size_bytes(outputs) + size_bytes(tuple(work.args[i] for i in work.writes))
    total = inputs * (1 + row.rereads) + written
    if work.sources:
        total += inputs + size_bytes(outputs) + size_bytes(work.sources)
    return total
