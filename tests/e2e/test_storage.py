"""Calls that count from the start of a storage see the storage that eager sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from checks import compiled
from torch import Tensor

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "of an input that begins later": lambda x: x.as_strided((2, 2), (1, 2), 0) + 1,
    "of an input, from its own start": lambda x: x.as_strided((2, 2), (1, 2)) + 1,
    "of a view of an input": lambda x: x[2:].as_strided((2, 2), (1, 2), 1) * 2,
    "of a view of a result": lambda x: x.sin()[2:].as_strided((2, 2), (1, 2), 1) + 1,
    "of a view, from its own start": lambda x: x.sin()[2:].as_strided((2, 2), (1, 2)) + 1,
    "of a transposed result": lambda x: x.sin().view(3, 5).t().as_strided((2, 2), (1, 2), 1) + 1,
    "of a reversed copy": lambda x: x.sin().flip(0)[2:].as_strided((2, 2), (1, 2), 1) + 1,
    "copied": lambda x: torch.as_strided_copy(x.sin()[1:], (2, 2), (3, 1), 3) * 2,
    "scattered into a result": lambda x: (
        torch.as_strided_scatter(x.sin() + x, x[:4].view(2, 2), (2, 2), (3, 1), 3) * 2
    ),
    "scattered into a view": lambda x: (
        torch.as_strided_scatter((x.sin() + x)[2:], x[:4].view(2, 2), (2, 2), (3, 1), 3) * 2
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:onetrip runs a graph:RuntimeWarning")
def test_strided_access(case: str) -> None:
    x = torch.arange(18.0)[3:]
    ours_fn = compiled(CASES[case], strict=False)
    for _ in range(2):
        torch.testing.assert_close(ours_fn(x), CASES[case](x))
    elsewhere = torch.arange(25.0)[7:22]
    torch.testing.assert_close(ours_fn(elsewhere), CASES[case](elsewhere))


def test_gradient_that_scatters_into_planned_memory() -> None:
    """The squeeze in place of adaptive_avg_pool1d makes its gradient an as_strided_scatter."""

    def fn(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x.sin().transpose(1, 2), 1).flatten(1)

    x = torch.randn(2, 4, 16, requires_grad=True)
    (ours,) = torch.autograd.grad(compiled(fn, strict=False)(x).square().sum(), x)
    (eager,) = torch.autograd.grad(fn(x).square().sum(), x)
    assert eager.abs().max() > 0
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("size", [1, 2])
def test_a_view_with_a_size_of_one_has_the_strides_of_eager(size: int) -> None:
    def pooled(x: Tensor) -> Tensor:
        return torch.flatten(F.adaptive_avg_pool1d(x, 1), 1)

    x = torch.randn(size, 16, 24).transpose(1, 2)
    assert compiled(pooled)(x).stride() == pooled(x).stride()
