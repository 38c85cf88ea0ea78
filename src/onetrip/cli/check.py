"""`onetrip check`: the plans of a model against a budget, for CI."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from onetrip.base.errors import UsageError
from onetrip.base.options import NUMERICS, SEARCHES
from onetrip.cli import source
from onetrip.cli.main import DIFFERS, OK
from onetrip.cli.wanted import Wanted
from onetrip.report import budget as budgets
from onetrip.report.verdict import FORMATS


@click.command("check")
@click.argument("model")
@click.option("--budget", "path", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--target", "targets", multiple=True, help="Default: those of the budget.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="text",
              show_default=True)  # fmt: skip
@click.option("--write", is_flag=True, help="Write what the plans come to now as the budget.")
@click.option(
    "--search", type=click.Choice(SEARCHES), help="For --write; default that of the file, or best."
)
@click.option(
    "--numerics",
    type=click.Choice(NUMERICS),
    help="For --write; default that of the file, or eager.",
)
@click.option("--training", is_flag=True, help="For --write: forward and backward.")
def command(
    model: str,
    path: Path,
    targets: tuple[str, ...],
    form: str,
    write: bool,
    search: str | None,
    numerics: str | None,
    training: bool,
) -> None:
    """Plan MODEL as BUDGET says and compare: kernels, traffic, peak, kernels that must stay whole.

    MODEL is as for `onetrip plan`. No GPU is needed and nothing is run.

    Exit status 1: over budget; the boundary that causes it is named with the model's line.
    """
    settings = {"search": search, "numerics": numerics, "training": training or None}
    given = {name: value for name, value in settings.items() if value is not None}
    if write:
        _write(model, path, targets, given)
        sys.exit(OK)
    if given:
        raise UsageError(
            "how a model is planned stands in the budget",
            expected="--search, --numerics and --training beside --write alone",
            next_step=f"change {path}, or write it again",
        )
    budget = budgets.read(path)
    verdicts = []
    for target in targets or budget.target:
        limits = budgets.limits_for(budget, target, path)
        made = source.planned(model, _wanted(budget, target))
        verdicts.append(budgets.judge(made, limits))
    click.echo(FORMATS[form](verdicts, located(model)))
    sys.exit(DIFFERS if any(v.violations for v in verdicts) else OK)


def _wanted(budget: budgets.Budget, target: str) -> Wanted:
    return Wanted(target, budget.search, budget.numerics, budget.training)


def _write(model: str, path: Path, targets: tuple[str, ...], given: Mapping[str, Any]) -> None:
    """The budget that today's plans keep; other targets of a file that is there stay.

    Args:
        given: how to plan, where that is not as the file has it.
    """
    old = budgets.read(path) if path.exists() else budgets.Budget(budgets.FORMAT, {})
    now = msgspec.structs.replace(old, **given)
    chosen = targets or tuple(old.target) or ("h200",)
    kept = [name for name in old.target if name not in chosen]
    if kept and now != old:
        raise UsageError(
            "a budget has one way to plan for all of its targets",
            expected=f"{_way(old)}, as {path} has it for {', '.join(kept)}",
            found=_way(now),
            next_step="write all targets anew (leave out --target), or another file",
        )
    limits = {t: budgets.limits_of(source.planned(model, _wanted(now, t))) for t in chosen}
    made = msgspec.structs.replace(now, target={**old.target, **limits})
    budgets.FILE.write(path, budgets.encode(made))
    click.echo(f"written: {path}", err=True)


def _way(budget: budgets.Budget) -> str:
    training = ", training" if budget.training else ""
    return f"search {budget.search}, numerics {budget.numerics}{training}"


def located(model: str) -> Located:
    """Paths of the files that a model's code stands in."""
    return Located(Path(model.rpartition(":")[0] or model))


class Located:
    """The path of a file by its name: the model's own, or one that was imported for it."""

    def __init__(self, model: Path) -> None:
        self.model = model

    def __call__(self, name: str) -> str:
        """The path as seen from here where it lies below, the name alone where none is known."""
        files = (getattr(m, "__file__", None) for m in list(sys.modules.values()))
        paths = [self.model, *(Path(f) for f in files if f)]
        here = Path.cwd()
        found = [p.resolve() for p in paths if p.name == name]
        below = [p for p in found if p.is_relative_to(here)]
        return str(below[0].relative_to(here)) if below else str(found[0]) if found else name
