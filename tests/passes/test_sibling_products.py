"""Products over one input: which are joined, and which may not be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onetrip.passes.sibling_products import find

from .captured import found, graph_of


def products(program: Callable[..., Any], count: int = 3, bias: bool = True) -> Any:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 4 + 2 * (k % 2), bias=bias) for k in range(count)]
    graph = graph_of(partial(program, layers), torch.randn(2, 5, 8))
    return found(find, graph)


def each(layers: list[nn.Linear], x: Tensor) -> list[Tensor]:
    return [torch.tanh(layer(x)) for layer in layers]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [2, 24])
def test_siblings(count: int, bias: bool) -> None:
    made, _ = products(each, count, bias)
    op = "addmm" if bias else "mm"
    assert made == [f"{op} reassociates: {count} products over one input as one"]


def test_only_so_many_as_one_kernel_reads() -> None:
    made, _ = products(each, 70, bias=False)
    assert [m.split(": ")[1].split()[0] for m in made] == ["64", "6"]


def test_one_that_needs_another_stays_apart() -> None:
    def chained(layers: list[nn.Linear], x: Tensor) -> Any:
        first, second = layers[0](x), layers[1](x)
        other = x.flatten(0, 1) @ (layers[2].weight.t() * first.sum())
        return first, second, other

    made, _ = products(chained, bias=False)
    assert made == ["mm reassociates: 2 products over one input as one"]


@pytest.mark.parametrize(
    "program",
    [
        lambda layers, x: [layers[0](x), layers[1](x + 1)],
        lambda layers, x: [layers[0](x)],
        lambda layers, x: [torch.addmm(torch.ones(10, 4), x.view(10, 8), layers[0].weight.t()),
                           torch.addmm(torch.ones(10, 4), x.view(10, 8), layers[2].weight.t())],
    ],
    ids=["two inputs", "one product", "a matrix added"],
)  # fmt: skip
def test_look_alikes(program: Callable[..., Any]) -> None:
    assert products(program)[0] == []
