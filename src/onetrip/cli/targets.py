"""`onetrip targets`: the chips and where each of their figures comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from onetrip import target as chips
from onetrip.target import Target

# Column: (heading, what a row shows of a target).
SUMMARY: dict[str, Callable[[Target], str]] = {
    "target": lambda t: t.name,
    "arch": lambda t: t.arch,
    "units": lambda t: str(t.multiprocessors),
    "copy": lambda t: scaled(t.copy_bandwidth, "B/s"),
    "matrix bf16": lambda t: scaled(t.peak_flops("matrix", "bf16"), "FLOP/s"),
    "vector f32": lambda t: scaled(t.peak_flops("vector", "f32"), "FLOP/s"),
    "last cache": lambda t: scaled(t.l2_bytes, "B"),
    "launch": lambda t: f"{t.launch_us:g} us",
}
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# How a unit of the facts is shown; any other is shown in full, without a prefix.
SHORT = {"bytes": "B", "bytes/s": "B/s", "FLOP/s": "FLOP/s", "operations/s": "op/s"}
RATES = ("matrix", "vector")


def scaled(value: float, unit: str) -> str:
    """A figure with three or four digits and a prefix: 4.25e12 B/s -> 4.25 TB/s."""
    for size, prefix in PREFIXES:
        if value >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def shown(value: float | None, unit: str) -> str:
    """A figure as the table of one target shows it."""
    if value is None:
        return "unsupported"
    return scaled(value, SHORT[unit]) if unit in SHORT else f"{value:g} {unit}"


def figures(target: Target) -> list[dict[str, Any]]:
    """Every figure of a target: name, value, unit, source; the value is None where unsupported."""
    facts = [
        (name, getattr(target, name), fact.unit) for name, fact in chips.facts_of(Target).items()
    ]
    rates = [
        (f"{table}.{dtype}", rate, chips.RATE_UNIT)
        for table in RATES
        for dtype, rate in getattr(target, table)
    ]
    cores = [
        (f"cores.{name}", getattr(target.cores, name), fact.unit)
        for name, fact in chips.facts_of(chips.Cores).items()
        if target.cores
    ]
    return [
        {"fact": name, "value": value, "unit": unit, "source": target.source(name)}
        for name, value, unit in (*facts, *rates, *cores)
    ]


def _summary() -> Table:
    table = Table(*SUMMARY, box=box.SIMPLE_HEAD)
    for name in chips.names():
        target = chips.load(name)
        table.add_row(*(show(target) for show in SUMMARY.values()))
    return table


def _details(target: Target) -> Table:
    table = Table("fact", "value", "source", box=box.SIMPLE_HEAD, title=target.name)
    for row in figures(target):
        table.add_row(row["fact"], shown(row["value"], row["unit"]), row["source"])
    return table


@click.command("targets")
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List the chips that plans can be made for; with NAMES, every figure and its source.

    `cpu:16` is the CPU with 16 cores.
    """
    chosen = [chips.load(name) for name in names or chips.names()]
    if as_json:
        header = ("name", "vendor", "arch", "device")
        records = [
            {key: getattr(target, key) for key in header} | {"figures": figures(target)}
            for target in chosen
        ]
        click.echo(json.dumps(records, indent=2))
        return
    console = Console()
    for table in [_details(target) for target in chosen] if names else [_summary()]:
        console.print(table)
