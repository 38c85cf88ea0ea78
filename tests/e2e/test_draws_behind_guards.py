"""Random numbers that are needed in a part of a result only, as in gradients of joined pieces."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor


def reparametrized(x: Tensor) -> tuple[Tensor, Tensor]:
    """A draw around the first half of the rows, as far away as the second half says."""
    mean, width = x.chunk(2, -1)
    width = (width * 0.5).exp()
    return mean + torch.randn_like(mean) * width, width


@pytest.mark.parametrize("columns", [6, 8, 16, 64, 130])
def test_the_gradient_draws_what_the_forward_drew(columns: int) -> None:
    torch._dynamo.reset()
    x = torch.randn(5, columns, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z, width = torch.compile(reparametrized, backend="onetrip")(x)
        (found,) = torch.autograd.grad(z.sum(), x)
    mean, _ = x.detach().chunk(2, -1)
    drawn = (z.detach() - mean) / width.detach()
    want = torch.cat([torch.ones_like(mean), 0.5 * drawn * width.detach()], -1)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
