"""`onetrip explore`: the page on which a user draws fusion boundaries, or the file of it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onetrip.base.errors import UsageError
from onetrip.base.options import NUMERICS
from onetrip.report import budget as budgets
from onetrip.report.budget import Budget

if TYPE_CHECKING:
    from onetrip.api.workshop import ModelWorkshop

TARGET = "h100"
"""Of a page on a model of one's own."""


@click.command("explore")
@click.argument("model", default="demo")
@click.option(
    "--target", help=f"A chip of `onetrip targets`; default: the demo's own, or {TARGET}."
)
@click.option(
    "--numerics", type=click.Choice(NUMERICS), help="Default: that of the budget, or eager."
)
@click.option("--training", is_flag=True, help="Forward and backward.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any free one.")
@click.option("--open/--no-open", "opened", default=True, help="Open the page in a browser.")
@click.option("--measure", is_flag=True, help="Let the page run kernels on the device at hand.")
@click.option("--budget", "limits", type=click.Path(dir_okay=False, path_type=Path),
              help="Show how far the figures are from those of a budget.")  # fmt: skip
@click.option("--export", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the page as one file instead of serving it.")  # fmt: skip
@click.option("--redact", is_flag=True, help="Without modules, lines and source, for --export.")
def command(
    model: str,
    target: str | None,
    numerics: str | None,
    training: bool,
    port: int,
    opened: bool,
    measure: bool,
    limits: Path | None,
    export: Path | None,
    redact: bool,
) -> None:
    """Open MODEL's graph: see every fusion boundary with its reason, cut and fuse, save the plan.

    MODEL is as for `onetrip plan`, or one of the demos: demo, pressure, dropout, siblings, conv,
    attention, bert. No GPU and no network are needed.
    """
    if redact and export is None:
        raise UsageError("--redact is for files", expected="--export FILE beside it")
    budget = None if limits is None else _budget(limits, numerics, training)
    workshop, begins_with = _workshop(model, training, numerics, measure, budget)
    target = target or begins_with
    if export is not None:
        _write(workshop, target, export, redact)
        return
    from onetrip.api.workshop import server

    def announce(url: str) -> None:
        click.echo(f"onetrip explore {model}: {url}\nCtrl-C ends it.")
        if opened:
            webbrowser.open(url)

    server().serve(workshop, target, port, announce)


def _workshop(
    name: str, training: bool, numerics: str | None, measure: bool, budget: Budget | None
) -> tuple[ModelWorkshop, str]:
    """The workshop of a model or a demo, and the target that its page begins with."""
    from onetrip.api.models import load_model
    from onetrip.api.workshop import ModelWorkshop
    from onetrip.bench import gallery

    demo = gallery.DEMOS.get(name)
    if demo is not None:
        programs, chips, target = demo.programs(), gallery.made_up_chips(), demo.target
    else:
        found = load_model(name)
        programs, chips = {"as given": lambda: (found.model, found.args, found.kwargs)}, {}
        target = TARGET
    workshop = ModelWorkshop(
        name,
        programs,
        training=budget.training if budget else training,
        numerics=budget.numerics if budget else numerics or "eager",
        measure=measure,
        made_up=chips,
        budget=budget,
    )
    return workshop, next(iter(budget.target if budget else ()), target)


def _budget(path: Path, numerics: str | None, training: bool) -> Budget:
    """The budget of a file, which says how the model is planned."""
    found = budgets.read(path)
    if numerics not in (None, found.numerics) or training > found.training:
        raise UsageError(
            "how a model is planned stands in the budget",
            expected=f"numerics {found.numerics}, {'' if found.training else 'no '}training",
            found="other --numerics or --training",
            where=str(path),
            next_step="leave them out, or write the budget again: onetrip check --write",
        )
    for target in list(found.target)[:1]:  # what the page begins with
        budgets.limits_for(found, target, path)
    return found


def _write(workshop: ModelWorkshop, target: str, path: Path, redact: bool) -> None:
    from onetrip.explore import export
    from onetrip.explore.boards import Boards
    from onetrip.explore.session import Session

    session = Session(Boards(workshop), target)
    session.preset("best")
    html = export.page(session, redact=redact)
    export.FILE.write(path, html)
    click.echo(f"written: {path} ({len(html) / 1e6:.1f} MB)", err=True)
