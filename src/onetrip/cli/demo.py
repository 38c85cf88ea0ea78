"""`onetrip demo`: what onetrip is for, on this machine, in about a minute."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table

from onetrip.base.errors import UsageError
from onetrip.base.text import bytes_text, counted
from onetrip.cli.main import DIFFERS, OK

if TYPE_CHECKING:
    from onetrip.api.verify import Verification
    from onetrip.bench.record import RowResult

GPU = "h200"
SECONDS = 4.0
NAMES = {"eager": "eager", "default": "torch.compile", "onetrip": "onetrip"}
"""Variants that are timed, and what the table calls them."""


def _norm(console: Console) -> None:
    """The smallest example: what eager moves and what one kernel moves."""
    from onetrip import api
    from onetrip.bench import demo

    rows, width = demo.NORM_SIZE
    model, x = demo.bias_dropout_norm(rows, width)
    size = rows * width * 4
    title = f"norm(dropout(x + bias)), training, x of M = {bytes_text(size)}, planned for {GPU}"
    table = Table("plan", "kernels", "traffic", "in M", "estimated us", box=box.SIMPLE_HEAD)
    for name in ("eager", "best"):
        made = api.plan(model, x, target=GPU, search=name, training=True)
        moved = made.traffic_bytes
        cells = (bytes_text(moved), f"{moved / size:.2f}", f"{made.estimated_us:.1f}")
        table.add_row(name, str(made.kernels), *cells)
    console.print(title, table)


def _block(device: str, size: str, console: Console) -> Verification:
    """A transformer block: its plan for this machine, and its values."""
    from onetrip import api
    from onetrip.api.devices import target_here
    from onetrip.bench import demo

    work = demo.BLOCK.work(device, size)
    target = target_here(device)
    made = api.plan(work.fn, work.args, target=target.name)
    shape = "x".join(map(str, work.args[0].shape))
    console.print(f"A transformer block ({demo.BLOCK.about}, {shape}), planned for {target.name}")
    console.print(made)
    found = api.verify(work.fn, work.args)
    console.print(f"verified against eager and float64\n{found}\n", markup=False)
    return found


def _timed(device: str, size: str) -> RowResult:
    """The block beside eager and torch.compile, interleaved in this process."""
    from onetrip.bench import demo, engine

    row = demo.BLOCK
    options = engine.Options(device, size, seconds=SECONDS, against=tuple(NAMES))
    return engine.run_row(row, options, 1.0, {row.dtype_on(device): 1.0}, lambda _: None)


def _print_times(result: RowResult, console: Console) -> None:
    table = Table("", "median ms", "speed-up", "first call s", "ulp from float64", "values",
                  box=box.SIMPLE_HEAD)  # fmt: skip
    base = result.variants["eager"].median_us
    for name, shown in NAMES.items():
        v = result.variants[name]
        if v.median_us is None or base is None:
            table.add_row(shown, v.status, "", "", "", v.note)
            continue
        ulp = "" if v.worst_ulp is None else f"{v.worst_ulp:.2f}"
        first = f"{v.first_call_s or 0.0:.1f}"
        speed = f"{base / v.median_us:.2f}x"
        table.add_row(shown, f"{v.median_us / 1e3:.2f}", speed, first, ulp, v.status)
    console.print(
        f"One call, {counted(result.variants['eager'].rounds, 'round')} interleaved", table
    )


@click.command("demo")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--size", type=click.Choice(["cuda", "cpu", "tiny"]), help="Default: the device's.")
def command(device: str, size: str | None) -> None:
    """Plan a norm and a transformer block, compile and verify the block, time it beside eager.

    The block has random weights from a fixed seed; nothing is downloaded. Exit status 1: a value
    left the accuracy rule.
    """
    from onetrip.bench import engine

    console = Console()
    try:
        engine.check_device(device)
        _norm(console)
        found = _block(device, size or device, console)
    except ModuleNotFoundError as error:
        raise UsageError(
            "the demo's model comes from the package transformers",
            expected="transformers 5 or newer",
            found=str(error),
            next_step="pip install transformers",
        ) from error
    result = _timed(device, size or device)
    _print_times(result, console)
    ours = result.variants["onetrip"].status
    sys.exit(OK if found.ok and ours == "ok" else DIFFERS)
