"""Random numbers of every distribution that becomes ours: moments, ranges, seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

COUNT = 1 << 15
DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "randn": (lambda x: torch.randn(COUNT) + 0 * x, 0.0, 1.0),
    "randn_like": (lambda x: torch.randn_like(x) * 2, 0.0, 2.0),
    "normal_": (lambda x: (x * 0).normal_(3.0, 0.5), 3.0, 0.5),
    "normal": (lambda x: torch.normal(x * 0 + 1, 2.0), 1.0, 2.0),
    "exponential_": (lambda x: (x * 0).exponential_(0.5), 2.0, 2.0),
    "randint": (lambda x: torch.randint(3, 9, (COUNT,)).float() + 0 * x, 5.5, math.sqrt(35 / 12)),
    "randint_like": (lambda x: torch.randint_like(x, 6), 2.5, math.sqrt(35 / 12)),
    "rand": (lambda x: torch.rand(COUNT) + 0 * x, 0.5, math.sqrt(1 / 12)),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.25), 0.25, math.sqrt(3) / 4),
}
"""Each draw with its mean and its standard deviation."""


@pytest.mark.parametrize("name", DRAWS)
def test_moments_are_those_of_the_distribution(name: str) -> None:
    """Within 5 standard errors, as 32768 independent numbers have them."""
    draw, mean, deviation = DRAWS[name]
    torch._dynamo.reset()
    compiled = torch.compile(draw, backend="onetrip")
    torch.manual_seed(7)
    first = compiled(torch.ones(COUNT))
    torch.manual_seed(7)
    again = compiled(torch.ones(COUNT))
    other = compiled(torch.ones(COUNT))
    error = deviation / math.sqrt(COUNT)
    assert first.dtype == draw(torch.ones(COUNT)).dtype
    assert abs(float(first.double().mean()) - mean) < 5 * error
    assert abs(float(first.double().std()) - deviation) < 20 * error
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_ranges_are_eagers() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="onetrip")
    def draw(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.randint_like(x, 3, 7), (x * 0).exponential_()

    whole, positive = draw(torch.ones(COUNT))
    assert set(whole.unique().tolist()) == {3.0, 4.0, 5.0, 6.0}
    assert bool((positive > 0).all()) and bool(positive.isfinite().all())


def test_a_gradient_saves_the_seed_and_sees_the_same_numbers() -> None:
    torch._dynamo.reset()
    x = torch.ones(COUNT, requires_grad=True)
    y = torch.compile(lambda v: v * torch.randn_like(v), backend="onetrip")(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g, y.detach())
