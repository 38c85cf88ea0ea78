"""Resampling, pooling and padding through the whole compiler, forward and backward.

`strict` makes every call that stays with the library an error.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checks import check
from torch import Tensor
from torch.nn import functional

LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "nearest, uneven": lambda x: functional.interpolate(x, size=(7, 13)),
    "nearest-exact": lambda x: functional.interpolate(x, scale_factor=1.5, mode="nearest-exact"),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, smaller": lambda x: functional.interpolate(x, size=(3, 5), mode="bilinear"),
    "bilinear, aligned": lambda x: functional.interpolate(
        x, size=(17, 11), mode="bilinear", align_corners=True
    ),
    "bilinear, other scale": lambda x: functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bicubic": lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "area": lambda x: functional.interpolate(x, size=(4, 5), mode="area"),
    "max_pool": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max_pool, cut off": lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
    "avg_pool": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "lp_pool": lambda x: functional.lp_pool2d(x.abs() + 1, 2, 3, 2),
    "adaptive_avg_pool": lambda x: functional.adaptive_avg_pool2d(x, (3, 7)),
    "adaptive_max_pool": lambda x: functional.adaptive_max_pool2d(x, (3, 5)),
    "reflect": lambda x: functional.pad(x, (1, 2, 3, 1), mode="reflect"),
    "replicate": lambda x: functional.pad(x, (1, 2, 0, 4), mode="replicate"),
    "circular": lambda x: functional.pad(x, (1, 2, 3, 1), mode="circular"),
    "unfold": lambda x: functional.unfold(x, (3, 2), padding=1, stride=2),
    "fold": lambda x: functional.fold(x.reshape(2, 36, 10), (4, 7), 3),
    "windows": lambda x: x.unfold(2, 3, 2).unfold(3, 4, 1).mean((-1, -2)),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x[..., :8, :8], 2),
    "channel_shuffle": lambda x: functional.channel_shuffle(x, 2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_half_precision_fuse_with_their_neighbours(name: str) -> None:
    x = torch.randn(2, 4, 9, 10).bfloat16()
    check(lambda v: LAYERS[name](v * 2) + 1, x, calls=1)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_stand(name: str) -> None:
    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            v = x.detach().requires_grad_()
            y = LAYERS[name](v)
            weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).cos()
            (g,) = torch.autograd.grad((y * weights).sum(), v)
        return g

    x = torch.randn(2, 4, 9, 10)
    torch._dynamo.reset()
    compiled = torch.compile(LAYERS[name], backend="onetrip", options={"strict": True})
    v = x.clone().requires_grad_()
    y = compiled(v)
    weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).cos()
    (mine,) = torch.autograd.grad((y * weights).sum(), v)
    eager, exact = gradient(x), gradient(x.double())
    step = torch.finfo(torch.float32).eps * float(exact.abs().max())
    allowed = 2 * float((eager - exact).abs().max()) + 4 * step
    assert float((mine - exact).abs().max()) <= allowed
    assert mine.stride() == eager.stride()
