"""On a CPU whose library loops over products of 16 bits they are computed in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onetrip.api.pipeline import analyze
from onetrip.base.options import Options
from onetrip.frontend.ahead import capture_graphs
from onetrip.ir.graph import Graph
from onetrip.passes.cpu_library import PRODUCTS
from onetrip.target import load

LOOPED = "cpu:2-bf16-f16"
Program = Callable[..., Any]


def graphs(program: Program, *args: Tensor, target: str = LOOPED, training: bool = False,
           **options: Any) -> list[Graph]:  # fmt: skip
    found = capture_graphs(program, args, device=torch.device("cpu"), training=training)
    return [analyze(g, load(target), Options(**options)).graph for g in found]


def computed_in(graph: Graph) -> list[str]:
    """The dtypes of the graph's products: of their operands and results together."""
    products = [n for n in graph.nodes if n.op in PRODUCTS]
    assert products
    return ["/".join(sorted({v.type.dtype.name for v in (*n.values, *n.outputs)
                             if v.type.dtype.is_float})) for n in products]  # fmt: skip


def matrices(dtype: torch.dtype, *rows: int) -> list[Tensor]:
    return [torch.randn(n, 64, dtype=dtype) for n in rows]


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x + 1) @ w.t()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_is_converted_and_rounded_once(dtype: torch.dtype) -> None:
    (graph,) = graphs(product, *matrices(dtype, 64, 64))
    assert computed_in(graph) == ["f32"]
    assert graph.outputs[0].type.dtype.torch_name == str(dtype).removeprefix("torch.")


def test_convolutions_and_their_gradients_are() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).bfloat16()
    x = torch.randn(4, 8, 12, 12, dtype=torch.bfloat16)
    for graph in graphs(model, x, training=True):
        assert computed_in(graph) == ["f32", "f32"]


@pytest.mark.parametrize(
    ("rows", "dtype", "options"),
    [
        ((64, 64), torch.bfloat16, {"target": "cpu:2"}),
        ((64, 64), torch.bfloat16, {"target": "cpu:2-f16"}),
        ((64, 64), torch.bfloat16, {"numerics": "bitwise"}),
        ((1, 64), torch.bfloat16, {}),
        ((64, 64), torch.float32, {}),
    ],
    ids=["instructions", "of this dtype", "bitwise", "a single row", "f32"],
)
def test_what_gains_nothing_stays(
    rows: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any]
) -> None:
    (graph,) = graphs(product, *matrices(dtype, *rows), **options)
    assert computed_in(graph) == ["f32" if dtype is torch.float32 else "bf16"]
