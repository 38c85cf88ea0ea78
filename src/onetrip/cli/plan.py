"""`onetrip plan`: the groups of a model, why others do not fuse, and what it costs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onetrip.cli.model import MODEL
from onetrip.cli.wanted import Wanted, takes_wanted, unless_given

if TYPE_CHECKING:
    from onetrip.api.models import Model


@click.command("plan")
@click.argument("model", type=MODEL)
@takes_wanted
@click.option("--plan", "given", type=click.Path(dir_okay=False, path_type=Path),
              help="Honour the lines of this plan; its target and the like hold too.")  # fmt: skip
@click.option("--boundaries", is_flag=True, help="Every boundary, not only the largest ones.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan file instead of the tables.")
def command(
    model: Model,
    wanted: Wanted,
    given: Path | None,
    boundaries: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Plan MODEL for a chip that need not be here; nothing is run.

    MODEL is file.py:factory, a function that returns (model, args) or (model, args, kwargs), or a
    .pt2 file. Where a line of --plan cannot be honoured, each such line is named with its reason.
    """
    from onetrip import api
    from onetrip.report import text

    saved = None if given is None else api.load_plan(given)
    if saved is not None:
        wanted = unless_given(wanted, saved.document)
    made = api.plan(model.model, model.args, model.kwargs, plan=saved, **wanted.keywords())
    if out is not None:
        made.save(out)
    if as_json:
        sys.stdout.write(made.json())
    else:
        click.echo(text.shown(made.document, all_boundaries=boundaries))
