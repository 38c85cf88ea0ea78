"""Plans of seven models for a GPU that need not be here. Writes results/checks/planner-h200.json.

    python benchmarks/planner.py [--target NAME] [--only MODELS] [--layers] [--out FOLDER]

Models and shapes are those of the rows of `onetrip bench models`, with weights that take no memory.
For each model, inference and training, and for three searches: kernels, bytes moved, the estimate
and the processor's seconds; for the search that proves its plans also the bound, its kind and the
gap. The searches plan the same graph, with the same alternatives taken and the same legality.

`--layers` plans a language model of few layers and of many instead, and writes the processor's
seconds under `layers`: capture and reading grow with the graph; the plan is made once for each
distinct region.

Exit status 1 when a greedy search is better than `best` in any row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onetrip.api.pipeline import Analyzed, analyze
from onetrip.base.collector import collector_at_rest
from onetrip.base.options import parse_options
from onetrip.bench import models
from onetrip.bench.engine import versions
from onetrip.frontend.ahead import capture_graphs
from onetrip.plan.choose import plan_problem
from onetrip.plan.plan import GraphPlan
from onetrip.plan.search import Search, plan_graph
from onetrip.target import load

HERE = Path(__file__).parent
LANGUAGE = ("bert", "gpt2", "llama", "t5")
IMAGES = ("vit", "resnet", "convnext")
DEPTHS = (2, 96)
"""Layers of the model that is planned at two depths."""
ROUNDS = 5
"""Of which the median is taken."""
SEARCHES: tuple[Search, ...] = ("best", "greedy-bytes", "greedy-time")
Record = dict[str, Any]


def model_and_input(
    name: str, training: bool, layers: int | None = None
) -> tuple[nn.Module, Tensor]:
    """A model of the suite at its shapes for a GPU, on the meta device, in bf16.

    Args:
        layers: of a language model, where it is not as deep as the suite's.
    """
    row = next(r for r in models.MODELS if r.name == name)
    batch, side, *sizes = row.sizes["cuda"]
    if layers is not None:
        sizes[0] = layers
    build = getattr(models, name)
    given = (*sizes, side) if name == "vit" else sizes
    with torch.device("meta"):
        model = models.First(build(*given)).to(torch.bfloat16).eval()
        if name in LANGUAGE:
            x = torch.zeros(batch, side, dtype=torch.int64)
        else:
            x = torch.zeros(batch, 3, side, side, dtype=torch.bfloat16)
    for weight in model.parameters():
        weight.requires_grad_(training)
    return model, x


def record_of(name: str, training: bool, target_name: str) -> Record:
    """What the three searches make of one model."""
    target = load(target_name)
    model, x = model_and_input(name, training)
    device = torch.device(target.device)
    graphs = capture_graphs(model, (x,), None, device=device, training=training)
    options = parse_options(None, {"search": "best"})
    analyzed = [analyze(g, target, options) for g in graphs]
    found: Record = {
        "model": name,
        "mode": "training" if training else "inference",
        "nodes": sum(len(a.graph.nodes) for a in analyzed),
    }
    for search in SEARCHES:
        found[search] = summed([planned(a, search) for a in analyzed], search)
    return found


def depth_record(layers: int, target_name: str) -> Record:
    """The processor's seconds for the inference graph of Llama with so many layers.

    `total` is what a user waits for after capture: the graph is read (imported, brought into its
    normal form and verified), and planned.
    """
    target = load(target_name)
    model, x = model_and_input("llama", False, layers)
    device = torch.device(target.device)
    options = parse_options(None, {"search": "best"})
    began = time.process_time()
    (captured,) = capture_graphs(model, (x,), None, device=device, training=False)
    read = time.process_time()
    rounds = []
    for _ in range(ROUNDS):
        with collector_at_rest():  # as behind the public interface
            start = time.process_time()
            analyzed = analyze(captured, target, options)
            middle = time.process_time()
            plan_problem(analyzed.problem)
            rounds.append((middle - start, time.process_time() - middle))
    total, plan = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "model": "llama",
        "layers": layers,
        "nodes": len(analyzed.graph.nodes),
        "kernels": analyzed.plan.kernels,
        "estimated_us": round(analyzed.plan.estimated_us, 3),
        "capture_seconds": round(read - began, 2),
        "read_seconds": round(total - plan, 2),
        "plan_seconds": round(plan, 2),
        "total_seconds": round(total, 2),
    }


def planned(analyzed: Analyzed, search: Search) -> tuple[GraphPlan, float]:
    """The plan of a graph by one search, and the processor's seconds that it took."""
    nests = analyzed.problem.lower(analyzed.graph)
    began = time.process_time()
    plan = plan_graph(analyzed.graph, nests, analyzed.target, search=search, hints=analyzed.hints)
    return plan, time.process_time() - began


def summed(plans: Sequence[tuple[GraphPlan, float]], search: Search) -> Record:
    """The figures of a model's graphs together."""
    us = sum(p.estimated_us for p, _ in plans)
    found: Record = {
        "kernels": sum(p.kernels for p, _ in plans),
        "traffic_bytes": sum(p.traffic_bytes for p, _ in plans),
        "estimated_us": round(us, 3),
        "seconds": round(sum(s for _, s in plans), 2),
    }
    if search == "best":
        bound = sum(p.bound_us for p, _ in plans)
        exact = all(p.totals.bound_kind == "exact" for p, _ in plans)
        found["bound_us"] = round(bound, 3)
        found["bound_kind"] = "exact" if exact else "floor"
        found["gap_percent"] = round(100 * (us / bound - 1), 3)
    return found


def line(found: Mapping[str, Any]) -> str:
    """A row in one line of the terminal."""
    best = found["best"]
    rivals = " ".join(f"{s} {found[s]['estimated_us']:.1f}" for s in SEARCHES[1:])
    return (
        f"{found['model']:9}{found['mode']:10} {best['kernels']:4} kernels "
        f"{best['estimated_us']:9.1f} us bound {best['bound_us']:9.1f} {best['bound_kind']} "
        f"gap {best['gap_percent']:.3f} % in {best['seconds']} s; {rivals}"
    )


def is_best(found: Mapping[str, Any]) -> bool:
    """Whether no greedy search is better."""
    us = found["best"]["estimated_us"]
    return all(us <= found[s]["estimated_us"] for s in SEARCHES)


def write(path: Path, rows: Sequence[Record], layers: Sequence[Record] = ()) -> None:
    """Rows of other models that the file holds are kept, and so are depths where none are given."""
    fresh = {r["model"] for r in rows}
    old = json.loads(path.read_text()) if path.exists() else {}
    names = [*LANGUAGE, *IMAGES]
    kept = [r for r in old.get("models", []) if r["model"] not in fresh]
    ordered = sorted([*kept, *rows], key=lambda r: names.index(r["model"]))
    report = {
        "date": date.today().isoformat(),
        "versions": versions(),
        "models": ordered,
        "layers": [*layers] or old.get("layers", []),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """Plans the models that are asked for and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="h200")
    parser.add_argument("--only", help="models, with commas")
    parser.add_argument("--layers", action="store_true", help="few layers and many, and no rows")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "checks")
    chosen = parser.parse_args()
    path = chosen.out / f"planner-{chosen.target}.json"
    if chosen.layers:
        depths = [depth_record(n, chosen.target) for n in DEPTHS]
        print(json.dumps(depths, indent=1))
        write(path, (), depths)
        return 0
    names = chosen.only.split(",") if chosen.only else [*LANGUAGE, *IMAGES]
    rows: list[Record] = []
    for name in names:
        for training in (False, True):
            rows.append(record_of(name, training, chosen.target))
            print(line(rows[-1]), flush=True)
            write(path, rows)
    return 0 if all(map(is_best, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
