"""Unsigned integers of 16, 32 and 64 bits: kept with the library, in graphs that are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from checks import compiled, tensors
from torch import Tensor

DTYPES = (torch.uint16, torch.uint32, torch.uint64)
SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
CASES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "arithmetic": lambda u, x: (u * 3, u * u),
    "bits": lambda u, x: (u & u, u ^ 5),
    "comparison": lambda u, x: (u == u, u != 3, (u == u.clone()).all()),
    "conversion to floats": lambda u, x: u.to(torch.float32) * x + u.double(),
    "conversion to integers": lambda u, x: (u.to(torch.int64) * 3, u.to(torch.int8), u.bool()),
    "conversion from floats": lambda u, x: ((x.abs() * 100).to(u.dtype), x.sin()),
    "sums": lambda u, x: (u.sum(), u.sum(-1), u.float().mean()),
    "a choice between them": lambda u, x: torch.where(x > 0, u, torch.zeros_like(u)),
    "bits as signed": lambda u, x: (u.view(SIGNED[u.itemsize]) ^ 7).view(u.dtype),
    "movement": lambda u, x: (torch.cat([u, u]), u.t().contiguous(), u[1:, :2]),
    "creation": lambda u, x: (torch.full_like(u, 3), torch.ones_like(u), x * 2),
}


def numbers(dtype: torch.dtype) -> Tensor:
    """Both ends of the range and what lies between, the upper half included."""
    bits = torch.tensor([[0, 1, 2, 3, 100, 255], [-1, -2, -3, -100, -128, 7]])
    return bits.to(SIGNED[dtype.itemsize]).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_eager(case: str, dtype: torch.dtype) -> None:
    fn, x = CASES[case], torch.linspace(-3, 3, 12).view(2, 6)
    ours_fn = compiled(fn, strict=False, dynamic=False)
    for u in (numbers(dtype), numbers(dtype).t().contiguous().t(), numbers(dtype)[:, ::2]):
        at = x[:, : u.shape[1]]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="onetrip runs a graph")
            ours, eager = tensors(ours_fn(u, at)), tensors(fn(u, at))
        assert len(ours) == len(eager)
        for mine, theirs in zip(ours, eager, strict=True):
            assert mine.dtype == theirs.dtype
            if theirs.is_floating_point():
                torch.testing.assert_close(mine, theirs)
            else:
                assert mine.tolist() == theirs.tolist()
