"""8-bit floats, and results without elements, through torch.compile on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0,
           2.0**-9, 2.0**-10, 3 * 2.0**-11, 2.0**-17, 1e-30, 1e30)  # fmt: skip


def samples(dtype: torch.dtype) -> torch.Tensor:
    """Every size of number, ties among them."""
    drawn = torch.randn(3000, generator=torch.Generator().manual_seed(3))
    sized = drawn * 10.0 ** torch.linspace(-6, 6, 3000)
    ties = torch.arange(-600, 600).float() / 8
    return torch.cat([torch.tensor(SPECIAL), sized, ties]).to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    """Bytes, every NaN as one."""
    return torch.where(x.float().isnan(), 0x7F, x.view(torch.uint8))


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_conversions_are_eagers(wide: torch.dtype, narrow: torch.dtype) -> None:
    torch._dynamo.reset()

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to(narrow), y.to(wide)

    x = samples(wide)
    every = torch.arange(256, dtype=torch.uint8).view(narrow)
    strict = torch.compile(both, backend="onetrip", options={"strict": True})
    (there, back), (mine, own) = both(x, every), strict(x, every)
    assert mine.dtype == narrow and own.dtype == wide
    assert torch.equal(bits(mine), bits(there))
    assert torch.equal(own.nan_to_num(), back.nan_to_num())
    assert torch.equal(own.isnan(), back.isnan())


def test_a_scaled_row_is_quantized() -> None:
    torch._dynamo.reset()

    def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
        return (x / scale).to(torch.float8_e4m3fn), scale

    x = torch.randn(5, 70, generator=torch.Generator().manual_seed(1))
    strict = torch.compile(quantized, backend="onetrip", options={"strict": True})
    for mine, eager in zip(strict(x), quantized(x), strict=True):
        assert torch.equal(mine.float(), eager.float())


def test_the_gradient_of_extremes_of_nothing() -> None:
    torch._dynamo.reset()
    x = torch.randn(5, 0, 5, requires_grad=True)
    low, high = torch.compile(lambda v: v.aminmax(dim=0), backend="onetrip", dynamic=False)(x)
    (low.sum() + high.sum()).backward()
    assert low.shape == (0, 5) and x.grad is not None and x.grad.shape == x.shape
