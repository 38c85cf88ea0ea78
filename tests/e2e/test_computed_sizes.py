"""Sizes that are no polynomial of the inputs' sizes: the host computes them once a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from torch import Tensor

import onetrip
from onetrip.base.dtype import f32
from onetrip.base.host import Computed
from onetrip.base.sym import Size
from onetrip.ir.graph import Graph, Node, Value
from onetrip.ir.parser import parse
from onetrip.ir.printer import text
from onetrip.ir.types import TensorType

SHAPES = ((2, 30, 8, 9), (2, 9, 7, 15), (3, 5, 4, 4), (1, 31, 6, 63))
"""None of which a scale of 1.3 or 0.7 leaves as it is: there eager copies, whatever the scale."""
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "a bilinear image of another size": lambda x: (
        F.interpolate(x, scale_factor=1.3, mode="bilinear") * 2
    ),
    "a nearest image of another size": lambda x: F.interpolate(x, scale_factor=0.7) + 1,
    "a diagonal": lambda x: torch.diagonal(x, 0, 2, 3).cos(),
    "the larger half": lambda x: x[:, : max(x.shape[2], x.shape[3]) // 2] * 2,
    "padded by a share": lambda x: F.pad(x, (0, int(x.shape[3] * 0.5))).exp(),
    "a root of elements": lambda x: x.topk(int(x.shape[3] ** 0.5)).values * 2,
    "at most five": lambda x: x.topk(min(5, x.shape[3])).values * 2,
    "as many as the larger": lambda x: x.sum() + torch.ones(torch.sym_max(*x.shape[2:])),
    "the least of three": lambda x: (
        x.flatten(1)[:, : torch.sym_min(torch.sym_min(x.shape[2] * 3, x.shape[3] * 2), 40)].sum(1)
        * torch.sym_max(x.shape[2], 7)
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("training", [False, True])
def test_one_program_serves_sizes_that_no_input_tells(name: str, training: bool) -> None:
    call = CALLS[name]
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="onetrip", dynamic=True)
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=training)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = compiled(x)
        want = call(x)
        torch.testing.assert_close(found, want)
        if training:
            given = torch.randn_like(want)
            (mine,) = torch.autograd.grad(found, x, given)
            (theirs,) = torch.autograd.grad(want, x, given)
            torch.testing.assert_close(mine, theirs)


def test_an_image_of_a_computed_size_needs_no_library_call() -> None:
    call = CALLS["a bilinear image of another size"]
    plan = onetrip.plan(call, (torch.randn(2, 3, 8, 9),), dynamic_shapes=True)
    assert all(g.generated for g in plan.groups), str(plan)


def test_the_bytes_of_a_symbolic_result_are_those_of_the_sizes_at_hand() -> None:
    plan = onetrip.plan(lambda x: x * 2, (torch.randn(3, 5),), dynamic_shapes=True)
    (graph,) = plan.document.graphs
    assert graph.output_bytes == plan.peak_bytes == 3 * 5 * 4


def test_a_graph_with_computed_sizes_is_read_back_as_printed() -> None:
    n, m, both = Size("n", 2), Size("m", 2), Size("computed0", 2)
    types = (TensorType.dense(f32, (n, m)), TensorType.dense(f32, (both,)))
    x, y = Value("x", types[0]), Value("y", types[1])
    node = Node("extern", (x,), (y,), (("target", "aten.diagonal.default"),))
    told = ((n, "x", 0), (m, "x", 1), (both, Computed("sym_min", (n, m)), -1))
    graph = Graph((x,), (node,), (y,), sizes=told)
    assert parse(text(graph)) == graph
