"""`onetrip bench model`: predicted beside measured time of every generated kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table

from onetrip.base.text import us_text

if TYPE_CHECKING:
    from onetrip.bench.cost_record import Costs
    from onetrip.bench.engine import Step

SECONDS = 120.0


def measured(
    device: str,
    target: str | None,
    size: str | None,
    only: str,
    seconds: float | None,
    show: Callable[[Step], None],
) -> Costs:
    """One run; `target` is by default that of the device."""
    from onetrip import api
    from onetrip.api.devices import target_here
    from onetrip.bench import costs, engine

    engine.check_device(device)
    name = target or target_here(device).name
    options = costs.Options(device, name, size or "", only, seconds or SECONDS)
    return costs.run(api, options, show)


def predicted_again(path: Path, target: str | None) -> Costs:
    """A record's kernels as the model prices them now; `target` is by default the record's."""
    from onetrip.api.kernels import priced
    from onetrip.bench import cost_record as record
    from onetrip.target import load

    costs = record.decode(record.FILE.read(path), str(path))
    name = target or costs.target
    chip = load(name)

    def price(nest: str) -> tuple[float, float]:
        cold, warm = priced(nest, chip)
        return cold.us, warm.us

    return record.repriced(costs, name, price)


def write(costs: Costs, out: Path | None, as_json: bool) -> None:
    """The tables or the record on standard output, and the record into a folder."""
    from onetrip.bench import cost_record as record

    if as_json:
        click.echo(record.encode(costs))
    else:
        print_costs(costs, Console())
    if out is not None:
        click.echo(f"written: {record.write(costs, out)}", err=True)


def print_costs(costs: Costs, console: Console) -> None:
    """The spread of the errors, the ten worst kernels, and how plans rank."""
    from onetrip.bench import cost_record as record

    title = f"error of the cost model of {costs.target} on {costs.card}"
    table = Table("part", "regime", "kernels", "median", "p90", box=box.SIMPLE_HEAD, title=title)
    for s in costs.spreads:
        table.add_row(s.part, s.regime, str(s.kernels), f"{s.median:.1%}", f"{s.p90:.1%}")
    console.print(table)
    worst = Table(
        "worst kernel", "program", "regime", "predicted", "measured", "ratio", box=box.SIMPLE_HEAD
    )
    for kernel, regime, time in record.worst(costs.kernels):
        times = (us_text(time.predicted_us), us_text(time.measured_us), f"{time.ratio:.2f}")
        worst.add_row(kernel.name, kernel.program, regime, *times)
    console.print(worst)
    r = costs.ranking
    console.print(f"plans: {r.agree} of {r.pairs} pairs in the order of their estimates")
    for name, reason in costs.left_out.items():
        console.print(f"left out: {name}: {reason}", markup=False)
