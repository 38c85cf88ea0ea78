"""Convolutions with what follows them: what is found, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onetrip.frontend import layout
from onetrip.ir.graph import Graph
from onetrip.passes.conv_norm import find

from .captured import found, graph_of

FOLDED = "norm folded into the weights"


class Net(nn.Module):
    """A convolution with its norm, what a program makes of them, and what reads that."""

    def __init__(self, program: Callable[..., Any], **window: Any) -> None:
        super().__init__()
        kind = nn.ConvTranspose2d if window.pop("transposed", False) else nn.Conv2d
        self.conv, self.norm = kind(8, 8, 3, padding=1, **window), nn.BatchNorm2d(8)
        self.last, self.program = nn.Conv2d(8, 4, 1), program

    def forward(self, x: Tensor) -> Any:
        return self.program(self, x)


def graph(program: Callable[..., Any], device: str = "cpu", **more: Any) -> Graph:
    dtype, batch = more.pop("dtype", torch.float32), more.pop("batch", 2)
    last = more.pop("channels_last", False)
    net = Net(program, **more).eval().to(dtype)
    x = torch.randn(batch, 8, 6, 7, dtype=dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    return graph_of(net, x, device=device)


def ends(act: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda net, x: net.last(act(net.norm(net.conv(x))))


def test_an_activation_that_follows_nan_is_admitted_by_default() -> None:
    made, declined = found(find, graph(ends(functional.silu)))
    assert made == [f"silu reassociates: {FOLDED}, silu in the library's convolution"]
    assert not declined


@pytest.mark.parametrize(
    ("device", "exactness"), [("cpu", "finite-only"), ("cuda", "reassociates")]
)
def test_relu_on_a_cpu_loses_nan(device: str, exactness: str) -> None:
    made, _ = found(find, graph(ends(functional.relu), device), device)
    assert made == [f"relu {exactness}: {FOLDED}, relu in the library's convolution"]


def test_a_half_weight_may_leave_its_range() -> None:
    made, _ = found(find, graph(ends(functional.silu), dtype=torch.float16))
    assert made[0].startswith("silu finite-only")


def test_without_a_norm_nothing_is_folded() -> None:
    made, _ = found(find, graph(lambda net, x: net.last(functional.silu(net.conv(x)))))
    assert made == ["silu reassociates: silu in the library's convolution"]


def test_a_norm_alone_becomes_the_bias() -> None:
    made, _ = found(find, graph(lambda net, x: net.norm(net.conv(x))))
    assert made == [f"multiply_add reassociates: {FOLDED} in the library's convolution"]


def residual(net: Net, x: Tensor) -> Tensor:
    made: Tensor = net.last(functional.relu(net.norm(net.conv(x)) + x))
    return made


def test_a_residual_is_in_the_gpus_call_alone() -> None:
    made, declined = found(find, graph(residual, "cuda", channels_last=True), "cuda")
    note = f"{FOLDED}, residual, relu in the library's convolution"
    assert made == [f"relu reassociates: {note}"] and not declined
    made, declined = found(find, graph(residual, channels_last=True))
    assert not made and "copies a residual" in declined[0]


LOOKS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "batch statistics": (
        lambda net, x: net.last(functional.silu(
            functional.batch_norm(net.conv(x), None, None, training=True))), "", {}),
    "convolution read elsewhere": (
        lambda net, x: (net.last(functional.silu(net.norm(y := net.conv(x)))), y), "", {}),
    "transposed": (ends(functional.silu), "transposed", {"transposed": True}),
    "another dtype": (ends(functional.silu), "float64", {"dtype": torch.float64}),
    "a small image": (ends(functional.silu), "without oneDNN", {"batch": 1}),
    "read by kernels alone": (
        lambda net, x: functional.silu(net.norm(net.conv(x))).sum(1), "need not be stored", {}),
    "residual that is broadcast": (
        lambda net, x: net.last(functional.silu(net.norm(net.conv(x)) + x[:, :, :1])),
        "need not be stored", {}),
    "another activation": (ends(functional.softplus), "need not be stored", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_look_alikes(name: str) -> None:
    program, reason, more = LOOKS[name]
    made, declined = found(find, graph(program, **more))
    assert not made
    assert reason in "".join(declined) and bool(declined) == bool(reason), declined


def test_a_norm_read_twice_is_stored_once() -> None:
    def twice(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        z = net.norm(net.conv(x))
        return net.last(functional.silu(z)), net.last(z)

    made, _ = found(find, graph(twice))
    assert made == [f"multiply_add reassociates: {FOLDED} in the library's convolution"]


@pytest.mark.parametrize("channels_last", [False, True])
def test_sixteen_bits_on_a_gpu_lie_channels_last(
    channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_FASTER", {"cpu": frozenset()})  # images lie as they are given
    given = graph(ends(functional.relu), "cuda", dtype=torch.bfloat16, channels_last=channels_last)
    made, declined = found(find, given, "cuda")
    assert len(made) == channels_last and len(declined) == (not channels_last)


def test_what_no_gpu_call_ends_in() -> None:
    made, declined = found(find, graph(ends(functional.silu), "cuda"), "cuda")
    assert not made and declined == ["the library has no fused convolution that ends in silu"]


def test_a_shared_weight_is_folded_for_each() -> None:
    def both(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(net.last(functional.silu(net.norm(net.conv(v)))) for v in (x, x + 1))

    made, declined = found(find, graph(both))
    assert len(made) == 2 and not declined
