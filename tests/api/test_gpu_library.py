"""Library calls in the form in which a GPU's are fast, run under Triton's interpreter."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onetrip.api.backend import runner
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import analyze, build
from onetrip.base.options import Options
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.ir.graph import Graph
from onetrip.runtime.accuracy import judge
from onetrip.target import load

pytest.importorskip("triton")
TARGET = dataclasses.replace(load("h200"), unaligned_share=1e-9)
"""A chip on which any product of odd extents is worth padding."""


def compiled(program: Callable[..., Any]) -> tuple[list[Graph], Callable[..., Any]]:
    graphs: list[Graph] = []

    def compile_graph(captured: CapturedGraph) -> Any:
        analyzed = analyze(captured, TARGET, Options())
        graphs.append(analyzed.graph)
        return runner(build(analyzed, interpreted(), Options()))

    torch._dynamo.reset()
    return graphs, torch.compile(program, backend=make_backend(compile_graph), dynamic=False)


def run(program: Callable[..., Any], *args: Tensor) -> tuple[Tensor, ...]:
    """Result and gradients, from gradients of 1."""
    leaves = [a.detach().clone().requires_grad_() for a in args]
    result = program(*leaves)
    return (result.detach(), *torch.autograd.grad(result, leaves, torch.ones_like(result)))


def products(graph: Graph) -> list[tuple[Any, ...]]:
    """Shapes of the operands of every matrix product."""
    found = [n for n in graph.nodes if n.op in ("mm", "addmm")]
    return [d for n in found for v in n.values[-2:] for d in v.type.shape]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (lambda x, w: x @ w, ((8, 16), (16, 13))),
        (lambda x, w: functional.linear(x, w), ((8, 16), (13, 16))),
        (lambda x, w, b: functional.linear(x, w, b), ((8, 13), (16, 13), (16,))),
        (lambda x, w, b: torch.addmm(b, x, w), ((7, 13), (13, 9), (7, 9))),
        (lambda x, w: functional.gelu(x.t() @ w), ((11, 5), (11, 8))),
    ],
    ids=["columns", "weight_rows", "inner", "all", "turned"],
)
def test_products_of_odd_extents_are_padded(
    program: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    args = tuple(draw(*s) for s in shapes)
    graphs, fast = compiled(program)
    found = run(fast, *args)
    eager, exact = run(program, *args), run(program, *(a.double() for a in args))
    verdict = judge(found, eager, exact)
    assert verdict.ok, verdict
    assert [t.stride() for t in found] == [t.stride() for t in eager]
    padded = [n for g in graphs for n in g.nodes if n.op == "pad"]
    assert padded


def test_aligned_products_stay() -> None:
    graphs, fast = compiled(lambda x, w: x @ w)
    run(fast, draw(8, 16), draw(16, 24))
    assert not [n for g in graphs for n in g.nodes if n.op in ("pad", "slice")]


@pytest.mark.parametrize("transposed", [False, True])
def test_the_bias_of_a_convolution_is_an_addition_of_ours(transposed: bool) -> None:
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(3, 4, 3).to(torch.bfloat16)
    x = draw(2, 3, 6, 6)
    graphs, fast = compiled(layer)

    def step(layer: Any, call: Callable[..., Any], x: Tensor) -> tuple[Tensor, ...]:
        result = call(x)
        sources = tuple(layer.parameters())
        gradients = torch.autograd.grad(result, sources, torch.ones_like(result))
        return (result.detach(), *gradients)

    found, eager = step(layer, fast, x), step(layer, layer, x)
    wide = kind(3, 4, 3).double()
    wide.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})
    verdict = judge(found, eager, step(wide, wide, x.double()))
    assert verdict.ok, verdict
    forward, backward = (Counter(n.op for n in g.nodes) for g in graphs)
    assert forward["convolution"] == forward["add"] == 1
    assert backward["convolution_backward"] == 1
    assert [len(n.values) for n in graphs[0].nodes if n.op == "convolution"] == [2]
    assert not next(n for n in graphs[1].nodes if n.op == "convolution_backward").attr[
        "output_mask"
    ][2]
