"""Norms of a reduced input with float32 parameters, as autocast makes them on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        (2, 3, 9, 9),
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.InstanceNorm1d(8, affine=True)),
        (2, 3, 20),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), (5, 8)),
    "group norm": (lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8)), (5, 8)),
    "group norm of an image": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 1)
        ),
        (2, 3, 9, 9),
    ),
}


def gradients(net: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Of a sum with unlike weights, in float64."""
    y = run(x)
    weights = torch.arange(y.numel(), dtype=torch.float64).sin().view(y.shape)
    wide = torch.float64 if y.dtype is torch.float64 else torch.float32
    (y.to(wide) * weights.to(wide)).sum().backward()
    return [p.grad.double() for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NETS)
def test_training_under_autocast_is_as_exact_as_eager(name: str, dtype: torch.dtype) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape)

    def twin() -> nn.Module:
        other = make()
        other.load_state_dict(net.state_dict())
        return other

    eager, ours, true = twin(), twin(), twin().double()
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="onetrip")
    with torch.autocast("cpu", dtype=dtype), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        theirs, mine = gradients(eager, eager, x), gradients(ours, compiled, x)
    for a, b, c in zip(mine, theirs, gradients(true, true, x.double()), strict=True):
        ulps = 4 * torch.finfo(torch.float32).eps * c.abs().max()
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + ulps


def test_statistics_of_a_mixed_norm_are_not_rounded() -> None:
    x, w = torch.randn(2, 8, 39).bfloat16(), torch.randn(8)

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.native_group_norm(x, w, w, 2, 8, 39, 8, 1e-5)

    found, want = torch.compile(f, backend="onetrip")(x, w), f(x, w)
    assert [t.dtype for t in found] == [t.dtype for t in want]
    torch.testing.assert_close(found[1], want[1])
    torch.testing.assert_close(found[2], want[2])
