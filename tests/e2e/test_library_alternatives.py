"""Fused library calls through the whole compiler, taken whatever they cost: values as eager's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks import check
from torch import Tensor, nn
from zoo import build, stir

from onetrip.passes import alternatives, conv_norm, library_epilogues, sibling_products
from onetrip.passes.alternatives import Alternative
from onetrip.plan import choose

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "hardtanh": lambda: nn.Hardtanh(-0.5, 0.7),
    "leaky": lambda: nn.LeakyReLU(0.2), "silu": nn.SiLU, "gelu_tanh": lambda: nn.GELU("tanh"),
}  # fmt: skip
FAST_ALONE = {"relu", "hardtanh"}
"""Activations with which oneDNN does not follow NaN or infinity."""
DTYPES = [torch.float32, torch.bfloat16]
HERE = "cpu:2"
"""A CPU with instructions for 16 bits, whatever runs this: others compute such products in f32."""


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Alternative]:
    """What is taken, at any price."""
    chosen: list[Alternative] = []

    def remember(graph: Any, given: list[Alternative]) -> Any:
        chosen.extend(given)
        return alternatives.taken(graph, given)

    monkeypatch.setattr(choose, "LEAST_SAVING", -1e9)
    monkeypatch.setattr(choose, "taken", remember)
    return chosen


def stirred(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    with torch.no_grad():
        stir(model)
    return model.eval().to(dtype)


def image(dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    x = torch.randn(2, 8, 9, 10, generator=torch.Generator().manual_seed(1)).to(dtype)
    return x.to(memory_format=torch.channels_last) if channels_last else x


def norm_between(activation: nn.Module, **window: Any) -> nn.Module:
    """Convolution, norm, activation; the last convolution ends in its norm."""
    return nn.Sequential(
        nn.Conv2d(8, 12, 3, **window), nn.BatchNorm2d(12), activation,
        nn.Conv2d(12, 8, 1, bias=False), nn.BatchNorm2d(8),
    )  # fmt: skip


class Scaled(nn.Module):
    """An input of its own for a branch: products over one input would be siblings."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def products(activation: nn.Module, factor: float) -> nn.Module:
    """An activation behind a bias, and behind none."""
    return nn.Sequential(
        Scaled(factor), nn.Linear(10, 16), activation, nn.Linear(16, 8, bias=False), activation,
        nn.Linear(8, 4),
    )  # fmt: skip


class Branches(nn.Module):
    """Several networks over one input: one compilation tries them all."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [branch(x) for branch in self.branches]


@pytest.mark.parametrize(
    ("numerics", "dtype"),
    [("eager", torch.bfloat16), ("fast", torch.bfloat16), ("fast", torch.float32)],
    ids=str,
)
def test_activations(numerics: str, dtype: torch.dtype, taken: list[Any]) -> None:
    made = [make() for make in ACTIVATIONS.values()]
    linear = [products(act, 1 + k / 8) for k, act in enumerate(made)]
    model = stirred(Branches(*map(norm_between, made), *linear), dtype)
    check(model, image(dtype, channels_last=True), calls=1, numerics=numerics, target=HERE)
    follow = [name for name in ACTIVATIONS if numerics == "fast" or name not in FAST_ALONE]
    assert Counter(a.kind for a in taken) == {
        conv_norm.KIND: len(follow) + len(ACTIVATIONS),
        library_epilogues.KIND: 2 * len(follow),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_siblings(dtype: torch.dtype, taken: list[Any]) -> None:
    class Heads(nn.Module):
        """Columns that kernels read, that a product reads, that the caller gets as a view."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(12, n) for n in (8, 8, 6, 4))
            self.last = nn.Linear(6, 5, bias=False)

        def forward(self, x: Tensor) -> Any:
            a, b, c, d = (layer(x) for layer in self.layers)
            return torch.tanh(a) * b.sum(-1, keepdim=True), self.last(c), d.transpose(0, 1)

    check(stirred(Heads(), dtype), torch.randn(3, 5, 12).to(dtype), calls=1, target=HERE)
    assert [a.kind for a in taken] == [sibling_products.KIND]


def test_windows(taken: list[Any]) -> None:
    dtype = torch.bfloat16
    windows: list[dict[str, Any]] = [
        {"stride": 2}, {"dilation": 2, "padding": 2}, {"groups": 4}, {"padding": (1, 0)},
    ]  # fmt: skip
    model = Branches(*(norm_between(nn.SiLU(), **window) for window in windows))
    check(stirred(model, dtype), image(dtype, True), calls=1, target=HERE)
    assert len(taken) == 2 * len(windows)


def test_statistics_that_change_are_seen(taken: list[Any]) -> None:
    model = stirred(norm_between(nn.SiLU()), torch.float32)
    convolution = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    ours = check(model, image(torch.float32, channels_last=True))
    for change in (lambda: stir(model), lambda: convolution.weight.data.mul_(2)):
        with torch.no_grad():
            change()
            x = image(torch.float32, channels_last=True)
            torch.testing.assert_close(ours(x), model(x))
    assert len(taken) == 2


class Looks(nn.Module):
    """Networks that look like a convolution with its norm and are not, or not alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.turned = nn.ConvTranspose2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        if self.kind == "transposed":
            return self.last(nn.functional.silu(self.norm(self.turned(x))))
        y = self.conv(x)
        z = self.norm(y)
        if self.kind == "norm read twice":
            return self.last(nn.functional.silu(z)), self.last(z)
        if self.kind == "convolution read elsewhere":
            return self.last(nn.functional.silu(z)), y
        if self.kind == "batch statistics":
            z = nn.functional.batch_norm(y, None, None, training=True)
        if self.kind == "another activation":
            return self.last(nn.functional.softplus(z))
        if self.kind == "residual":
            return self.last(nn.functional.silu(z + x))
        if self.kind == "residual that is broadcast":
            return self.last(nn.functional.silu(z + x[:, :, :1]))
        if self.kind == "shared weight":
            return self.last(nn.functional.silu(z)), torch.tanh(self.conv(x + 1))
        assert self.kind == "read by kernels alone" or self.kind == "batch statistics"
        return (nn.functional.silu(z) * 2).sum(1)


LOOKS = {
    "transposed": 0, "norm read twice": 1, "convolution read elsewhere": 0, "batch statistics": 0,
    "another activation": 0, "residual": 0, "residual that is broadcast": 0, "shared weight": 2,
    "read by kernels alone": 0,
}  # fmt: skip
"""How many convolutions of each have another way."""


def test_look_alikes(taken: list[Any]) -> None:
    dtype = torch.bfloat16
    check(stirred(Branches(*map(Looks, LOOKS)), dtype), image(dtype, True), calls=1, target=HERE)
    assert len(taken) == sum(LOOKS.values()), taken


class Logits(nn.Module):
    """A classifier's first result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        made: Tensor = self.model(pixels).logits
        return made


@pytest.mark.parametrize(
    ("numerics", "dtype"), [("fast", torch.bfloat16), ("fast", torch.float32)], ids=str
)
def test_resnet(numerics: str, dtype: torch.dtype, taken: list[Any]) -> None:
    model, inputs = build("resnet", dtype)
    check(Logits(model), inputs["pixel_values"], calls=1, numerics=numerics, target=HERE)
    assert len(taken) > 4
