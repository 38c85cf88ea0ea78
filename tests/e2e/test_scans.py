"""Scans through the whole compiler: eager's precision, along any axis, among pointwise stages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: (x * 2).cumsum(-1) + 1,
    "columns": lambda x: (x * 2).cumsum(0) + 1,
    "from the end": lambda x: x.flip(-1).cumsum(-1).flip(-1),
    "both": lambda x: x.cumsum(-1) + x.cumsum(0),
    "products": lambda x: (1 + x / 100).cumprod(-1),
    "maxima": lambda x: x.cummax(-1).values - x.cummin(-1).indices,
    "gradient": lambda x: torch.func.grad(lambda v: v.cumsum(-1).square().sum())(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_long_scans_have_the_bits_of_eager(name: str) -> None:
    x = torch.randn(5, 3000)
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], backend="onetrip")
    assert torch.equal(compiled(x), CALLS[name](x))
