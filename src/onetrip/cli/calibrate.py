"""`onetrip calibrate`: measure the machine at hand and write a target's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table

from onetrip.target import Target, load, profile
from onetrip.target.load import FILE

if TYPE_CHECKING:
    from onetrip.bench.calibrate import Figure

Measured = dict[str, tuple[float, str]]
DIRECT = (
    "replay_us", "launch_us", "copy_bandwidth", "l2_bandwidth", "cores.region_us",
    "cores.fresh_bandwidth",
)  # fmt: skip
"""Facts that are measured as they stand."""


def facts(figures: Mapping[str, Figure], target: Target) -> Measured:
    """The facts that follow from measured figures."""
    found = {name: (f.value, f"measured: {f.how}") for name, f in figures.items() if name in DIRECT}
    for derive in (_matrix, *_DERIVED[target.device]):
        found |= derive(figures, target)
    return found


def _matrix(figures: Mapping[str, Figure], target: Target) -> Measured:
    made = figures["product_rate"]
    dtype = "f32" if target.device == "cpu" else "bf16"
    peak = target.peak_flops("matrix", dtype)
    words = f"measured: {made.how}"
    rates = {f"matrix.{dtype}": (made.value, words)} if made.value > peak else {}
    return rates | {"matrix_share": (min(1.0, made.value / peak), words)}


def _vector(figures: Mapping[str, Figure], target: Target) -> Measured:
    made = figures.get("rate.mul")
    if made is None:
        return {}
    words = f"measured: multiplications in {made.how}, two FLOPs each"
    return {"vector.f32": (2 * made.value, words), "vector.f64": (made.value, words)}


def _special(figures: Mapping[str, Figure], target: Target) -> Measured:
    made = figures.get("rate.exp")
    return {} if made is None else {"special_rate": (made.value, f"measured: exp in {made.how}")}


def _share(figures: Mapping[str, Figure], target: Target) -> Measured:
    """The rate of one instruction is measured, so nothing is lost from it."""
    return {"vector_share": (1.0, "measured: in the rate")} if "rate.mul" in figures else {}


_DERIVED: dict[str, tuple[Callable[[Mapping[str, Figure], Target], Measured], ...]] = {
    "cpu": (_vector, _special, _share),
    "cuda": (),
}


@click.command("calibrate")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The file.")
def command(device: str, output: Path | None) -> None:
    """Measure bandwidths, launches and rates here, and write them as a target's file.

    `target=FILE` then stands for this machine wherever a target is named. What is not measured is
    taken from the listed target that is nearest.
    """
    from onetrip import api
    from onetrip.api.devices import target_here
    from onetrip.bench import calibrate

    name = target_here(device).name
    target = load(name)
    machine = calibrate.Machine(api, device, name, target.l2_bytes)
    figures = {f.name: f for f in calibrate.measured(machine)}
    table = Table("figure", "measured", "how", box=box.SIMPLE_HEAD, title=f"as {name}")
    for f in figures.values():
        table.add_row(f.name, f"{f.value:.4g}", f.how)
    Console().print(table)
    if output is not None:
        found = facts(figures, target)
        others = [f"# {n} = {f.value:.6g}: {f.how}" for n, f in figures.items() if n not in found]
        text = profile(target, output.stem, found)
        FILE.write(output, text + "\n".join(["", "# Also measured:", *others, ""]))
        load(str(output))
        click.echo(f"written: {output}", err=True)
