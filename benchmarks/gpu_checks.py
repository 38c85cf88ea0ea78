"""What must hold on a GPU before speed is worth a look; writes results/checks/gpu-checks.json.

    python benchmarks/gpu_checks.py [--out FOLDER]

- chains of bf16 operators have eager's bits in every element (fp fusion off, casts as IR nodes)
- functions of one bf16 that have a short spelling have eager's bits for every argument
- the graph planned without a GPU is the graph compiled on it
- BERT and ResNet lie within 2x eager's own distance from float64, plus 4 ulp
- of two ways whose estimates are near, both are timed, the plan's file holds what was measured, and
  what is compiled from the file is right
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import onetrip
from onetrip.api.backend import build_captured, runner
from onetrip.api.devices import target_here
from onetrip.base.options import Options
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.engine import versions
from onetrip.bench.table import tensors_of
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.frontend.torch_fx import import_graph
from onetrip.ir.printer import text
from onetrip.runtime.accuracy import judge
from onetrip.runtime.clock import card_name

CUDA = torch.device("cuda")
TIMED = ("swiglu", "rmsnorm_qkv")
"""Blocks with two ways of nearly the same estimate."""


def chain(length: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`length` rounding points: multiply, add and subtract in turn, then relu."""

    def fn(x: Tensor, s: Tensor, b: Tensor) -> Tensor:
        for k in range(length - 1):
            x = (x * s, x + b, x - s)[k % 3]
        return torch.relu(x)

    return fn


def special(x: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """Special functions whose spelling is meant to have eager's bits."""
    return torch.sigmoid(torch.tanh(x * s) + torch.exp(b - x)) * torch.log1p(x * x)


def equal_bits(fn: Callable[..., Tensor]) -> dict[str, Any]:
    """How many elements differ from eager on (8, 4096, 4096) bf16."""
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(8, 4096, 4096, device=CUDA, generator=generator).bfloat16()
    s, b = (torch.randn(4096, device=CUDA, generator=generator).bfloat16() for _ in range(2))
    torch._dynamo.reset()
    ours = torch.compile(fn, backend="onetrip", options={"strict": True})(x, s, b)
    eager = fn(x, s, b)
    same = (ours == eager) | (ours.isnan() & eager.isnan())
    return {"elements": x.numel(), "differ": int((~same).sum())}


def every_bf16(fn: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """How many of all bf16 arguments give other bits than eager."""
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32, device=CUDA).short()
    x = x.view(torch.bfloat16)
    torch._dynamo.reset()
    ours = torch.compile(fn, backend="onetrip", options={"strict": True})(x)
    eager = fn(x)
    same = (ours.view(torch.int16) == eager.view(torch.int16)) | (ours.isnan() & eager.isnan())
    return {"elements": x.numel(), "differ": int((~same).sum())}


def models() -> dict[str, tuple[Any, Tensor]]:
    """Small BERT and ResNet, bf16 and fp32, with inputs."""
    from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel

    made: dict[str, tuple[Any, Tensor]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        name = str(dtype).removeprefix("torch.")
        bert = BertModel(BertConfig(num_hidden_layers=2, return_dict=False))
        ids = torch.randint(0, 30000, (4, 128))
        made[f"bert {name}"] = (bert.eval().to(CUDA, dtype), ids.to(CUDA))
        resnet = ResNetModel(ResNetConfig(depths=[1, 1, 1, 1], return_dict=False))
        images = torch.randn(4, 3, 96, 96)
        made[f"resnet {name}"] = (resnet.eval().to(CUDA, dtype), images.to(CUDA, dtype))
    return made


def graph_texts(model: Any, inputs: Tensor) -> tuple[str, str, tuple[Tensor, ...]]:
    """The planned graph, the compiled graph, and the compiled model's results."""
    planned = capture_graphs(model.to("cpu"), (inputs.cpu(),), device=CUDA, training=False)
    seen: list[CapturedGraph] = []

    def compile_one(captured: CapturedGraph) -> Any:
        seen.append(captured)
        return runner(build_captured(captured, Options(strict=True)))

    torch._dynamo.reset()
    with torch.no_grad():
        fast: Any = torch.compile(model.to(CUDA), backend=make_backend(compile_one))
        results = fast(inputs)
    texts = ["\n".join(_text(g) for g in graphs) for graphs in (planned, seen)]
    return texts[0], texts[1], tuple(results)


def _text(captured: CapturedGraph) -> str:
    return text(import_graph(captured.module).graph)


def check_model(model: Any, inputs: Tensor) -> dict[str, Any]:
    """One model: equal graphs, right results."""
    planned, compiled, ours = graph_texts(model, inputs)
    with torch.no_grad():
        eager = tuple(model(inputs))
        wide = inputs.double() if inputs.is_floating_point() else inputs
        exact = tuple(model.double()(wide))
    verdict = judge(ours, eager, exact)
    return {
        "same_graph": planned == compiled,
        "right": verdict.ok,
        "worst_ulp": verdict.worst_ulp,
        "eager_ulp": verdict.eager_ulp,
        "note": verdict.note,
    }


def measured_choices(name: str) -> dict[str, Any]:
    """A row of the block suite: what was timed, and whether the saved plan's program is right."""
    row = next(r for r in BLOCKS if r.name == name)
    work = row.work("cuda", "cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan = onetrip.plan(work.fn, work.args, target=target_here("cuda").name, autotune=True)
        plan.save(path)
        kept = onetrip.load_plan(path).alternatives == plan.alternatives
        torch._dynamo.reset()
        ours = onetrip.compile(work.fn, plan=path)(*work.args)
    timed = [c for c in plan.alternatives if c.measured is not None]
    exact = work.fn(*(a.double() if a.is_floating_point() else a for a in work.args))
    verdict = judge(tensors_of(ours), tensors_of(work.fn(*work.args)), tensors_of(exact))
    return {
        "timed": [
            {
                "kind": c.kind, "taken": c.taken,
                "as_is_us": {"estimated": c.as_is_us, "measured": c.measured.as_is_us},
                "replaced_us": {"estimated": c.replaced_us, "measured": c.measured.replaced_us},
            }
            for c in timed if c.measured is not None
        ],
        "right": verdict.ok and kept and all(c.code == "measured" for c in timed) and bool(timed),
        "worst_ulp": verdict.worst_ulp, "eager_ulp": verdict.eager_ulp, "note": verdict.note,
    }  # fmt: skip


def attempt(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The check's result, or the error that stopped it."""
    try:
        return check()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> int:
    """Runs every check; exit status 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "checks"))
    folder = Path(parser.parse_args().out)
    chains = {f"chain of {n}": chain(n) for n in (3, 6, 12)} | {"special functions": special}
    started = time.time()
    results: dict[str, Any] = {
        name: attempt(partial(equal_bits, fn)) for name, fn in chains.items()
    }
    for each in (torch.sigmoid, torch.tanh, torch.nn.functional.silu):
        results[f"{each.__name__} of every bf16"] = attempt(partial(every_bf16, each))
    for name, (model, inputs) in models().items():
        results[name] = attempt(partial(check_model, model, inputs))
    for name in TIMED:
        results[f"measured choices of {name}"] = attempt(partial(measured_choices, name))
    failed = [
        name
        for name, r in results.items()
        if "error" in r
        or r.get("differ")
        or not (r.get("right", True) and r.get("same_graph", True))
    ]
    record = {
        "card": card_name("cuda"),
        "versions": versions(),
        "date": date.today().isoformat(),
        "seconds": round(time.time() - started, 1),
        "results": results,
        "failed": failed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu-checks.json").write_text(json.dumps(record, indent=1) + "\n")
    for name, r in results.items():
        print(f"{'FAILED' if name in failed else 'ok':7}{name:20}{r}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
