"""Gradients of norms and sums over unlike axes: one kernel that reads each input once.

The kernels run in Triton's interpreter, planned for a chip with few multiprocessors, so that small
inputs are walked in parts too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

pytest.importorskip("triton")

from onetrip.api.backend import runner
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import Built, analyze, build
from onetrip.api.plans import analyze_model
from onetrip.base.options import Options
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.plan.plan import GraphPlan
from onetrip.runtime.accuracy import judge
from onetrip.target import load

F32, BF16 = torch.float32, torch.bfloat16
H200 = load("h200")
SMALL = dataclasses.replace(H200, multiprocessors=3)
Program = Callable[..., Any]


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w) + b


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A bias and an activation: its gradient is a column of what the input's gradient is."""
    return F.gelu(x + b) * w


def three_kinds(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Sums of all, of rows and of columns, and the largest of all."""
    y = x.float() * w
    return y.sum(), y.amax(), y.sum(0), y.sum(1)


def compiled(run: Program) -> Any:
    """A program whose kernels run in Triton's interpreter."""
    torch._dynamo.reset()

    def compile_one(captured: CapturedGraph) -> Any:
        made: Built = build(analyze(captured, SMALL, Options()), interpreted(), Options())
        return runner(made)

    return torch.compile(run, backend=make_backend(compile_one), dynamic=False)


def inputs(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(rows * width)
    made = [torch.randn(s, generator=draw) for s in ((rows, width), (width,), (width,))]
    return tuple(t.to(dtype).requires_grad_() for t in made)


def trained(run: Program, given: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What a program returns and the gradients of its inputs, in a dtype."""
    own = tuple(t.detach().to(dtype).requires_grad_() for t in given)
    out = run(*own)
    torch.autograd.backward(out, torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype))
    return (out.detach(), *(t.grad for t in own if t.grad is not None))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", [(67, 31), (1, 40), (97, 130)])
@pytest.mark.parametrize("run", [layer_norm, rms_norm, biased])
def test_gradients_stand(run: Program, shape: tuple[int, int], dtype: torch.dtype) -> None:
    given = inputs(*shape, dtype)
    ours = trained(compiled(run), given, dtype)
    verdict = judge(ours, trained(run, given, dtype), trained(run, given, torch.float64))
    assert verdict.ok, verdict


@pytest.mark.parametrize("shape", [(67, 31), (1, 40), (300, 130), (0, 8)])
def test_sums_of_three_kinds_stand(shape: tuple[int, int]) -> None:
    given = tuple(t.detach() for t in inputs(*shape, F32))
    run = three_kinds if shape[0] else lambda *g: three_kinds_of_none(*g)
    ours = compiled(run)(*given)
    verdict = judge(ours, run(*given), run(*(t.double() for t in given)))
    assert verdict.ok, verdict


def three_kinds_of_none(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Those that have a value where there is no row."""
    y = x.float() * w
    return y.sum(), y.sum(0), y.sum(1)


def planned(run: Program, rows: int, width: int, *, training: bool) -> list[GraphPlan]:
    """The plans of a program for an H200, whose inputs take no memory."""
    given = [torch.empty(s, dtype=BF16, device="meta") for s in ((rows, width), width, width)]
    args = tuple(t.requires_grad_(training) for t in given)
    return [a.plan for a in analyze_model(run, args, None, H200, Options(), training=training)]


@pytest.mark.parametrize("run", [layer_norm, rms_norm])
def test_a_backward_pass_of_a_norm_is_one_group_that_reads_once(run: Program) -> None:
    forward, backward = planned(run, 8192, 4096, training=True)
    assert (forward.kernels, backward.kernels) == (1, 1)
    sizes = [size for _, size in backward.groups[0].cost.reads]
    assert sizes.count(8192 * 4096 * 2) == 2  # the input and the gradient of the output


def test_sums_of_three_kinds_are_one_group_that_reads_once() -> None:
    (plan,) = planned(three_kinds, 8192, 4096, training=False)
    (group,) = plan.groups
    assert [size for _, size in group.cost.reads].count(8192 * 4096 * 2) == 1
