"""Eight families of models, all dtypes and modes; writes results/checks/zoo-cpu.json.

    python benchmarks/zoo.py [--only bert,t5] [--out FOLDER]
    python benchmarks/zoo.py --triton [...]         writes results/checks/zoo-triton.json

- every output, cache, gradient and buffer lies within 2x eager's own distance from float64, plus
  4 ulp; which calls stay with a library, and how much of eager's traffic is generated
- --triton: the same in Triton's interpreter, and every distinct kernel assembled for four chips
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from onetrip.bench.engine import versions

HERE = Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
MODES = {"inference": False, "training": True}
PROCESSES = 2
DRAWS = {"inference": 1, "training": 4}
"""Draws of weights and inputs that a model is judged over at least: some gradients are zero but for
rounding, as those of a key's bias under softmax, and in one draw eager's noise there is no measure
of ours. A GPU's kernels moreover sum in float32 where the eager of a CPU, which stands beside them
here, sums in float64 at some places.
"""
Record = dict[str, Any]
Case = tuple[str, str, str]


def part(name: str) -> Any:
    """A module of the zoo, which stands with the tests that use it."""
    folder = str(HERE.parent / "tests" / "e2e")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def cpu_record(case: Case) -> Record:
    """One model on the CPU."""
    name, dtype, mode = case
    began = time.perf_counter()
    draws = draws_of(case)
    ours, found = part("zoo_runs").check(name, DTYPES[dtype], MODES[mode], deep=True, least=draws)
    return {
        **verdicts(found),
        "draws": draws,
        "share_generated": round(part("zoo_runs").share(ours.analyzed), 4),
        "graphs": len(ours.built),
        "kernels": sum(a.plan.kernels for a in ours.analyzed),
        "library": library(part("zoo_runs").library_calls(ours.analyzed)),
        "seconds_to_first_result": round(ours.first_seconds, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def draws_of(case: Case) -> int:
    """How many draws a case is judged over."""
    _, dtype, mode = case
    return max(int(part("zoo_runs").draws(DTYPES[dtype], MODES[mode])), DRAWS[mode])


def verdicts(found: Any) -> Record:
    """The judgement of all values of a call."""
    return {
        "right": not found.wrong,
        "values": len(found.by_name),
        "worst_ratio_to_rule": round(found.worst_ratio, 3),
        "wrong": {n: v.note for n, v in found.wrong.items()},
    }


def library(nodes: Iterable[Any]) -> Record:
    """Library calls beside products, with the reason of those without an entry."""
    words = (f"{n.attr['target']} {n.attr.get('reason', '')}".strip() for n in nodes)
    return dict(Counter(words))


def triton_record(case: Case) -> Record:
    """One model's Triton: values in the interpreter, and every kernel on every chip."""
    name, dtype, mode = case
    zoo = part("zoo_triton")
    draws = draws_of(case)
    _, found = zoo.check(name, DTYPES[dtype], MODES[mode], range(draws))
    return {
        **verdicts(found),
        "draws": draws,
        "chips": {c: chip_record(zoo, name, DTYPES[dtype], MODES[mode], c) for c in zoo.CHIPS},
    }


def chip_record(zoo: Any, name: str, dtype: torch.dtype, training: bool, chip: str) -> Record:
    """The kernels of one model on one chip."""
    made = zoo.assembled(name, dtype, training, chip)
    return {
        "kernels": made.kernels,
        "most_registers": made.most_registers,
        "spills": {s.kernel: s.bytes for s in made.spills if not s.expected},
        "spills_as_planned": {s.kernel: s.bytes for s in made.spills if s.expected},
    }


def attempt(job: tuple[Callable[[Case], Record], Case]) -> Record:
    """The record of a case, or what went wrong in it."""
    record, case = job
    try:
        found = record(case)
    except Exception as error:
        found = {"right": False, "error": f"{type(error).__name__}: {str(error)[:500]}"}
    return {"family": case[0], "dtype": case[1], "mode": case[2], **found}


def line(found: Record) -> str:
    """A record in one line of the terminal."""
    word = "right" if found["right"] else "WRONG"
    shown = {k: v for k, v in found.items() if k not in ("family", "dtype", "mode", "right")}
    named = f"{found['family']:9}{found['dtype']:5}{found['mode']:10}"
    return f"{named}{word} " + " ".join(f"{k}={v}" for k, v in shown.items())


def main() -> int:
    """Runs the cases that are asked for and merges them into the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--only", help="families, with commas")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "checks")
    chosen = parser.parse_args()
    families = chosen.only.split(",") if chosen.only else list(part("zoo").FAMILIES)
    record = triton_record if chosen.triton else cpu_record
    path = chosen.out / ("zoo-triton.json" if chosen.triton else "zoo-cpu.json")
    jobs = [(record, (f, d, m)) for f in families for d in DTYPES for m in MODES]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        found = []
        for row in pool.map(attempt, jobs):
            print(line(row), flush=True)
            found.append(row)
    write(path, found)
    return 0 if all(row["right"] for row in found) else 1


def write(path: Path, found: list[Record]) -> None:
    """Rows of other families that the file holds are kept."""
    fresh = {(r["family"], r["dtype"], r["mode"]) for r in found}
    old = json.loads(path.read_text())["models"] if path.exists() else []
    kept = [r for r in old if (r["family"], r["dtype"], r["mode"]) not in fresh]
    order = list(part("zoo").FAMILIES)
    rows = sorted([*kept, *found], key=lambda r: order.index(r["family"]))
    report = {"date": date.today().isoformat(), "versions": versions(), "models": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
