"""`onetrip bench`: measure beside eager and torch.compile, show progress, write JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onetrip.cli import bench_model
from onetrip.cli.main import DIFFERS, OK

if TYPE_CHECKING:
    from onetrip.bench.engine import Step
    from onetrip.bench.record import Results

OURS = "onetrip"
SECONDS = 3.0
MODEL = "model"


def _print_table(results: Results, console: Console) -> None:
    from onetrip.bench import record

    unit, scale = ("ms", 1e3) if results.suite == "models" else ("us", 1.0)
    names = list(dict.fromkeys(name for row in results.rows for name in row.variants))
    title = f"{results.suite} on {results.card}, {unit}"
    table = Table("row", "dtype", "floor", *names, box=box.SIMPLE_HEAD, title=title)
    for row in results.rows:
        floor = "" if row.floor_us is None else record.figure(row.floor_us / scale)
        cells = (record.cell(row.variants.get(name), scale) for name in names)
        table.add_row(row.name, row.dtype, floor, *cells)
    console.print(table)
    for row in results.rows:
        for name, result in row.variants.items():
            if result.status != "ok":
                console.print(f"{row.name}, {name}: {result.status}: {result.note}", markup=False)


def ours_failed(results: Results) -> bool:
    """Whether a variant of ours failed or left the accuracy rule."""
    return any(
        result.status != "ok"
        for row in results.rows
        for name, result in row.variants.items()
        if name.startswith(OURS)
    )


@click.command("bench")
@click.argument("suite", type=click.Choice(["blocks", "models", MODEL]))
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--only", default="", metavar="TEXT", help="Rows whose name contains TEXT.")
@click.option("--against", default="", metavar="NAMES", help="Variants, separated by commas.")
@click.option("--dtype", type=click.Choice(["bf16", "f16", "f32"]), help="In place of each row's.")
@click.option("--size", type=click.Choice(["cuda", "cpu", "tiny"]), help="Default: the device's.")
@click.option("--rounds", type=click.IntRange(3), default=21, show_default=True)
@click.option("--seconds", type=float, help="Of timing a row [3]; in all, for model [120].")
@click.option("--target", help="Whose cost model `model` judges. Default: the device's.")
@click.option(
    "--record",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measured costs that `model` predicts again, instead of measuring.",
)
@click.option("--backend", default=OURS, show_default=True, help="What is timed as onetrip.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
def command(
    suite: str,
    device: str,
    only: str,
    against: str,
    dtype: str | None,
    size: str | None,
    rounds: int,
    seconds: float | None,
    target: str | None,
    record: Path | None,
    backend: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure SUITE beside eager and torch.compile, interleaved in one process.

    `model` measures the cost model instead: each generated kernel of blocks and models by itself,
    and some blocks under several plans, beside what was predicted.

    Exit status 1: onetrip failed on a row, or its values left the accuracy rule.
    """
    from onetrip.bench import engine

    if suite == MODEL and record is not None:
        bench_model.write(bench_model.predicted_again(record, target), out, as_json)
        sys.exit(OK)
    if suite == MODEL:
        with _progress(suite) as show:
            costs = bench_model.measured(device, target, size, only, seconds, show)
        bench_model.write(costs, out, as_json)
        sys.exit(OK)
    options = engine.Options(
        device=device,
        size=size or "",
        dtype=dtype,
        only=only,
        rounds=rounds,
        seconds=seconds or SECONDS,
        against=tuple(filter(None, against.split(","))),
        backend=backend,
    )
    with _progress(suite) as show:
        results = engine.run_suite(suite, options, show)
    _write(results, out, as_json)
    sys.exit(DIFFERS if ours_failed(results) else OK)


@contextmanager
def _progress(suite: str) -> Iterator[Callable[[Step], None]]:
    """A bar on standard error, so that standard output is the result alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(suite, total=None)

        def show(step: Step) -> None:
            progress.update(task, completed=step.done, total=step.total, description=step.text)

        yield show


def _write(results: Results, out: Path | None, as_json: bool) -> None:
    from onetrip.bench import record

    if as_json:
        click.echo(record.encode(results))
    else:
        _print_table(results, Console())
    if out is not None:
        click.echo(f"written: {record.write(results, out)}", err=True)
