"""Autograd without its engine gives what the engine gives, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.offdevice import device_at_hand, gradients_without_engine
from onetrip.frontend.torch_fx import import_graph


class Doubled(torch.autograd.Function):
    """Two outputs, a constant argument and an input without gradient."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        ctx.factor = factor
        ctx.save_for_backward(other)
        return x * factor, x + other

    @staticmethod
    def backward(ctx: Any, left: Tensor, right: Tensor) -> tuple[None, Tensor, None]:
        (other,) = ctx.saved_tensors
        return None, left * ctx.factor + right * other.numel(), None


def broadcast(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x * w[0] + w.sum()]


def used_thrice(x: Tensor, w: Tensor) -> list[Tensor]:
    y = x.exp()
    return [y * x + y.sin(), (y @ w).relu()]


def mixed_dtypes(x: Tensor, w: Tensor) -> list[Tensor]:
    return [(x.double() @ w.double()).float() + x.to(torch.bfloat16)]


def complex_middle(x: Tensor, w: Tensor) -> list[Tensor]:
    return [(x * torch.complex(w, w)).abs()]


def several_outputs(x: Tensor, w: Tensor) -> list[Tensor]:
    first, second = x.chunk(2)
    values, _ = (w * first.sum()).sort(-1)
    return [functional.layer_norm(values, (4,)), second.cumsum(0)]


def own_function(x: Tensor, w: Tensor) -> list[Tensor]:
    left, _ = Doubled.apply(3.0, x * 2, w.detach())
    return [left @ w]


def output_is_input(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x, x * 2]


def views(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x[1:].t().reshape(-1) * w[0, 0], x.unfold(0, 2, 1)]


PROGRAMS = [
    broadcast,
    used_thrice,
    mixed_dtypes,
    complex_middle,
    several_outputs,
    own_function,
    output_is_input,
    views,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_same_calls_and_values_as_the_engine(fn: Callable[..., list[Tensor]]) -> None:
    torch.manual_seed(0)
    x, w, unused = torch.randn(4, 4), torch.randn(4, 4), torch.randn(3)
    tangents = [torch.randn_like(y) for y in fn(x, w)]

    def with_gradients(differentiate: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Tensor, w: Tensor, unused: Tensor, *tangents: Tensor) -> list[Any]:
            leaves = [t.requires_grad_() for t in (x, w, unused)]
            # Inputs that are no leaves are captured on the way, like leaves.
            inner = [leaf * 1 for leaf in leaves]
            return [*differentiate(fn(*inner[:2]), [*inner, *leaves], tangents)]

        return run

    def engine(outputs: Any, inputs: Any, tangents: Any) -> Any:
        return torch.autograd.grad(outputs, inputs, tangents, allow_unused=True)

    expected = with_gradients(engine)
    found = with_gradients(gradients_without_engine)
    arguments = [x, w, unused, *tangents]
    for a, b in zip(expected(*arguments), found(*arguments), strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)
    traced = [make_fx(f)(*(t.detach() for t in arguments)).code for f in (expected, found)]
    assert traced[0] == traced[1]


def test_nothing_is_patched_for_a_device_that_is_there() -> None:
    before = torch.autograd.grad
    with device_at_hand(torch.device("cpu")):
        assert torch.autograd.grad is before
    with device_at_hand(torch.device("cuda", 0)):
        changed = torch.autograd.grad is not before
    assert changed is not torch.cuda.is_available()
    assert torch.autograd.grad is before


def test_a_training_step_beside_a_capture_keeps_the_engine() -> None:
    with device_at_hand(torch.device("cuda", 0)):
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad((x * x).sum(), x)
    assert torch.equal(gradient, torch.full((3,), 2.0))


def test_a_constant_tensor_moves_to_a_device_that_is_not_there() -> None:
    """As a cache does that starts empty: torch computes small constants while it traces."""

    def model(x: Tensor) -> Tensor:
        empty = torch.tensor([], dtype=x.dtype, device=x.device)
        return torch.cat([empty, x * x]).sum()

    graphs = capture_graphs(
        model, torch.randn(3, requires_grad=True), device=torch.device("cuda", 0), training=True
    )
    assert [g.role for g in graphs] == ["forward", "backward"]
    calls = [n for g in graphs for n in import_graph(g.module).graph.nodes]
    assert not [n for n in calls if n.op == "extern"], "nothing moves where there is nothing"
