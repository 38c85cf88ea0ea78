"""Operators compiled for the CPU beside eager, where samples of random numbers show nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


def compiled(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="onetrip", dynamic=False, options={"strict": True})


def every(dtype: torch.dtype) -> Tensor:
    """All values of a 16-bit dtype."""
    return torch.arange(1 << 16).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_sinc_rounds_once(dtype: torch.dtype) -> None:
    """Eager's kernel multiplies by pi, takes the sine and divides in float32."""
    x = every(dtype)
    found, eager = compiled(torch.sinc)(x), torch.sinc(x)
    assert torch.equal(found.nan_to_num(), eager.nan_to_num())
    assert torch.equal(found.isnan(), eager.isnan())


@pytest.mark.parametrize("fn", [torch.fmax, torch.fmin])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_of_two_zeros_fmax_and_fmin_choose_as_eager(
    fn: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    a = torch.tensor([0.0, -0.0, 0.0, -0.0] * 16, dtype=dtype)
    b = torch.tensor([-0.0, 0.0, 0.0, -0.0] * 16, dtype=dtype)
    assert torch.equal(compiled(fn)(a, b).signbit(), fn(a, b).signbit())
