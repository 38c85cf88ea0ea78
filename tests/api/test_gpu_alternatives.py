"""Alternatives of a GPU: kernels of ours in Triton's interpreter, library calls in their steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onetrip.api.backend import runner
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import Analyzed, analyze, build
from onetrip.base.options import Options
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.plan import choose
from onetrip.runtime.accuracy import judge
from onetrip.target import load

pytest.importorskip("triton")


class Block(nn.Module):
    """Two convolutions with norms, a residual between them; a product with an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=b) for b in (False, True))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.last = nn.Conv2d(8, 8, 1)
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        y = self.last(torch.relu(self.norms[1](self.second(y)) + x))
        made: Tensor = self.outer(
            nn.functional.gelu(self.inner(y.mean((2, 3))), approximate="tanh")
        )
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LEAST_SAVING", -1e9)
    torch.manual_seed(0)
    model: Any = Block().eval()
    for norm in model.norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    model = model.to(dtype).to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 4, 4, dtype=dtype).to(memory_format=torch.channels_last)
    seen: list[Analyzed] = []

    def compile_graph(captured: CapturedGraph) -> Any:
        seen.append(analyze(captured, load("h200"), Options()))
        return runner(build(seen[-1], interpreted(), Options()))

    torch._dynamo.reset()
    fast = torch.compile(model, backend=make_backend(compile_graph), dynamic=False)
    with torch.no_grad():
        ours, eager = fast(x), model(x)
        exact = Block().eval().double()
        exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()}, strict=False)
        verdict = judge((ours,), (eager,), (exact(x.double()),))
    assert verdict.ok, verdict
    (analyzed,) = seen
    calls = [n.op for n in analyzed.plan.graph.nodes if n.op.endswith("_epilogue")]
    assert calls.count("convolution_epilogue") == 2
    assert calls.count("linear_epilogue") == (dtype is torch.bfloat16)
