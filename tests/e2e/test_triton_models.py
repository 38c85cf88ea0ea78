"""The Triton of BERT and ResNet: right in the interpreter, assembled for four chips, no spills."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import tensors, wide
from test_models import bert, resnet

from onetrip.api.backend import runner
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import Analyzed, analyze, build, schedule_groups
from onetrip.base.options import Options
from onetrip.codegen.triton import emit
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.runtime.accuracy import judge
from onetrip.target import load

pytest.importorskip("triton")
CHIPS = ("a100", "h100", "b200", "mi300x")
OPTIONS = Options(strict=True)


def model_and_inputs(name: str, dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    if name == "bert":
        return bert(dtype), torch.randint(0, 101, (2, 9))
    return resnet(dtype), torch.randn(1, 3, 16, 16).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_right_in_the_interpreter(name: str, dtype: torch.dtype) -> None:
    model, inputs = model_and_inputs(name, dtype)

    def compile_graph(captured: CapturedGraph) -> Any:
        analyzed = analyze(captured, load("h100"), OPTIONS)
        return runner(build(analyzed, interpreted(), OPTIONS))

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=make_backend(compile_graph))
    with torch.no_grad():
        ours, eager = tensors(compiled(inputs)), tensors(model(inputs))
        exact = tensors(wide(model)(wide(inputs)))
    verdict = judge(ours, eager, exact)
    assert verdict.ok, verdict


def planned(name: str, chip: str) -> tuple[Analyzed, ...]:
    model, inputs = model_and_inputs(name, torch.bfloat16)
    graphs = capture_graphs(model, (inputs,), device=torch.device("cuda"), training=False)
    return tuple(analyze(g, load(chip), OPTIONS) for g in graphs)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_assembles_without_spills(name: str, chip: str) -> None:
    from onetrip.runtime.triton_assemble import assemble_all

    target = load(chip)
    dialect = "amd" if target.vendor == "amd" else "nvidia"
    kernels = [
        kernel
        for analyzed in planned(name, chip)
        for made in schedule_groups(analyzed.plan, target, interpreted(), OPTIONS).values()
        for kernel in made.kernels
    ]
    assert len(kernels) > 3
    found = assemble_all([emit(k, dialect) for k in {k.name: k for k in kernels}.values()], target)
    assert [a.spill_bytes for a in found] == [0] * len(found)
    assert all(0 < a.registers <= target.registers_per_thread for a in found)
