"""Fits the few figures of a target that nothing else measures, to measured kernels.

    python benchmarks/fit_costs.py RECORD.json [--target NAME] [--out FILE.toml]
    python benchmarks/fit_costs.py --blocks results/blocks-cuda-h200.json

RECORD is what `onetrip bench model --out` wrote. The fit sees its calibration part alone, and both
parts are judged before and after. Needs no GPU: a record holds what each kernel computes.

`--blocks` compares plans with whole blocks: results/checks/costs-blocks-DEVICE.json. It holds
nothing out, and what a call costs beside its kernels is in what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from onetrip import api
from onetrip.api.kernels import priced
from onetrip.bench import cost_record
from onetrip.bench import record as blocks_record
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.cost_rows import Program
from onetrip.bench.costs import expected
from onetrip.target import Target, load, profile

FITTED = ("replay_us", "latency_us", "vector_share", "l2_bandwidth", "special_rate")
"""Facts that the fit may move, each within FACTOR of where it starts."""
FACTOR = 2.0
STEPS = (1.25, 1.1, 1.03)
SHARES = frozenset({"vector_share"})
VARIANTS = ("onetrip+graph", "onetrip")
"""Of ours, the first that was measured is compared: on a GPU a replayed graph."""


def price_of(target: Target) -> cost_record.Price:
    """Text of a nest to its cold and warm microseconds."""

    def price(nest: str) -> tuple[float, float]:
        cold, warm = priced(nest, target)
        return cold.us, warm.us

    return price


def badness(costs: cost_record.Costs, target: Target) -> float:
    """Mean distance of the calibration part from its measurement, in logarithms."""
    found = cost_record.repriced(costs, target.name, price_of(target))
    times = [t for r in cost_record.REGIMES for _, t in cost_record.times(
        found.kernels, "calibration", r)]  # fmt: skip
    return statistics.fmean(abs(math.log(t.ratio)) for t in times)


def fitted(start: Target, judge: Callable[[Target], float]) -> Target:
    """Coordinate descent: each figure up and down by ever smaller steps while that helps."""
    best, least = start, judge(start)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in FITTED:
                for factor in (step, 1 / step):
                    tried = _moved(best, start, name, factor)
                    found = math.inf if tried is None else judge(tried)
                    if tried is not None and found < least - 1e-4:
                        best, least, moved = tried, found, True
    return best


def _moved(target: Target, start: Target, name: str, factor: float) -> Target | None:
    value = getattr(target, name) * factor
    away = value / getattr(start, name)
    if not 1 / FACTOR <= away <= FACTOR or (name in SHARES and value > 1):
        return None
    return dataclasses.replace(target, **{name: value})


def spread_text(costs: cost_record.Costs) -> str:
    """Median and p90 of each part and regime, one line each."""
    return "\n".join(
        f"  {s.part:12} {s.regime:5} {s.kernels:4} kernels, median {s.median:.1%}, p90 {s.p90:.1%}"
        for s in costs.spreads
    )


def fit(path: Path, name: str, out: Path | None) -> None:
    """Fits to the calibration part of a record, prints both parts, writes a target's file."""
    costs = cost_record.decode(path.read_bytes(), str(path))
    kernels = [k for k in costs.kernels if k.part == "calibration"]
    sample = dataclasses.replace(start := load(name or costs.target), name="fitted")
    only = cost_record.with_kernels(costs, kernels)
    found = fitted(sample, lambda t: badness(only, t))
    for title, target in (("before", start), ("after", found)):
        print(title)
        print(spread_text(cost_record.repriced(costs, target.name, price_of(target))))
    words = f"measured: fitted to {len(kernels)} kernels on {costs.card}, {costs.date[:10]}"
    changed = {n: (getattr(found, n), words) for n in FITTED}
    for fact, (value, source) in changed.items():
        print(f'{fact} = [{value:.4g}, "{source}"]')
    if out is not None:
        out.write_text(profile(start, out.stem, changed))


def compare_blocks(path: Path, target: str, folder: Path) -> None:
    """Plans of measured blocks beside their times; writes what it finds."""
    measured = blocks_record.decode(path.read_bytes(), str(path))
    rows = {row.name: row for row in BLOCKS}
    found: list[Mapping[str, object]] = []
    for result in measured.rows:
        ours = next((result.variants[v] for v in VARIANTS if v in result.variants), None)
        if ours is None or ours.median_us is None:
            continue
        program = Program(rows[result.name], tuple(result.size), result.dtype, "calibration")
        work = program.work()
        plan = api.plan(work.fn, work.args, target=target, training=bool(work.sources))
        time = cost_record.Time(expected(plan), ours.median_us)
        found.append(
            {"block": result.name, "kernels": plan.kernels,
             "generated": sum(g.generated for g in plan.groups),
             "predicted_us": round(time.predicted_us, 2), "measured_us": round(time.measured_us, 2),
             "ratio": round(time.ratio, 3)}
        )  # fmt: skip
        print(
            f"{result.name:28} {time.predicted_us:9.1f} {time.measured_us:9.1f} {time.ratio:6.2f}"
        )
    errors = sorted(abs(float(str(r["ratio"])) - 1) for r in found)
    summary = {
        "what": "whole blocks beside their present plans, which may not be those that ran; figures "
        "of the target were fitted to some of them, so nothing here is held out",
        "target": target, "card": measured.card, "measured": measured.date,
        "blocks": len(found), "median_error": round(statistics.median(errors), 3),
        "p90_error": round(errors[round(0.9 * (len(errors) - 1))], 3), "rows": found,
    }  # fmt: skip
    print(f"median error {summary['median_error']}, p90 {summary['p90_error']}")
    name = f"costs-blocks-{measured.device}.json"
    (folder / name).write_text(json.dumps(summary, indent=1) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path, nargs="?")
    parser.add_argument("--blocks", type=Path)
    parser.add_argument("--target", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.blocks is not None:
        folder = given.out or Path(__file__).parent / "results" / "checks"
        compare_blocks(given.blocks, given.target or "h200", folder)
    elif given.record is not None:
        fit(given.record, given.target, given.out)
    else:
        parser.error("a record, or --blocks and a results file")


if __name__ == "__main__":
    main()
