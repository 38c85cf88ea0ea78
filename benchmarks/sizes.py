"""Memory-bound programs over dtypes, widths and row counts on a GPU: is there a cliff?

    python benchmarks/sizes.py [--seconds 0.1] [--out FOLDER]

writes results/checks/sizes-CARD.json, which docs/generate.py draws.
Each point is judged against float64 and timed in a CUDA graph of RECORDED calls, so that neither
launches nor what a replay does once (new seeds, for one) hide what the kernels take.
Kernels are compiled beforehand by as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from onetrip.bench import engine, timing, variants
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.table import Row
from onetrip.runtime.clock import card_name

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("rmsnorm", "softmax", "bias_dropout_norm", "layernorm_training")
DTYPES = ("bf16", "f16", "f32")
WIDTHS = (768, 1600, 2560, 5120, 14336)
ROWS = (1, 64, 4096, 65536)
OURS = f"{variants.OURS}+graph"
RECORDED = 8
LARGE = 16 << 20
"""Bytes of all operands and results above which a kernel is judged by its floor."""
CLIFF = 1.5
Point = tuple[str, str, int, int]
Record = dict[str, Any]


def points() -> Iterator[Point]:
    """Program, dtype, width, rows."""
    return itertools.product(PROGRAMS, DTYPES, WIDTHS, ROWS)


def row_of(point: Point) -> Row:
    """The row of the block suite with this point's size."""
    name, dtype, width, rows = point
    row = next(r for r in BLOCKS if r.name == name)
    return dataclasses.replace(row, sizes={"cuda": (rows, width)}, dtypes={"cuda": dtype})


def build(point: Point) -> None:
    """Compiles a point's kernels into the cache on disk; what fails is told when it is timed."""
    torch.compiler.reset()  # a process builds many sizes of one program
    work = row_of(point).work("cuda", "cuda")
    ours = next(v for v in variants.on_device("cuda") if v.name == OURS)
    try:
        variants.call_of(variants.compiled(ours, work))()
    except Exception as error:
        print(point, error, file=sys.stderr)
    del work
    torch.cuda.empty_cache()


def measure(point: Point, options: engine.Options, bandwidth: float) -> Record:
    """The record of a point."""
    found = engine.run_row(row_of(point), options, bandwidth, {point[1]: 1.0}, lambda _: None)
    ours = found.variants[OURS]
    return {
        **dict(zip(("program", "dtype", "width", "rows"), point, strict=True)),
        "bytes": found.bytes, "floor_us": found.floor_us,
        "status": ours.status, "us": ours.median_us, "times_floor": ours.times_floor,
        **({"note": ours.note} if ours.status != "ok" else {}),
    }  # fmt: skip


def run(folder: Path, seconds: float) -> int:
    """Measures all points; exit status 1 where a result is wrong or a large one is a cliff."""
    engine.check_device("cuda")
    jobs = max(1, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(build, points(), chunksize=1))
    options = engine.Options("cuda", rounds=7, seconds=seconds, against=(OURS,), recorded=RECORDED)
    bandwidth = timing.copy_bandwidth("cuda")
    found = []
    for point in points():
        found.append(measure(point, options, bandwidth))
        print(*(f"{v:.2f}" if isinstance(v, float) else v for v in found[-1].values()), flush=True)
    card = card_name("cuda")
    report = {
        "card": card, "versions": engine.versions(), "date": date.today().isoformat(),
        "copy_bandwidth": bandwidth, "recorded": RECORDED, "points": found,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"sizes-{card.split()[-1].lower()}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    bad = [p for p in found if p["status"] != "ok" or is_cliff(p)]
    print(f"{len(found)} points, {len(bad)} of them wrong or above {CLIFF} of the floor")
    return 1 if bad else 0


def is_cliff(point: Record) -> bool:
    """Whether a large point takes more than CLIFF times its floor."""
    return point["bytes"] > LARGE and (point["times_floor"] or 0.0) > CLIFF


def main() -> int:
    """The script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.1, help="about how long a point takes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "checks")
    chosen = parser.parse_args()
    return run(chosen.out, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
