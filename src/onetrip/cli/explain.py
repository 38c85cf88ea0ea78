"""`onetrip explain`: a model's plan with the source generated for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onetrip.cli.model import MODEL
from onetrip.cli.wanted import Wanted, takes_wanted

if TYPE_CHECKING:
    from onetrip.api.models import Model


@click.command("explain")
@click.argument("model", type=MODEL)
@takes_wanted
@click.option("--group", default="", metavar="NAME", help="The source of this group alone.")
def command(model: Model, wanted: Wanted, group: str) -> None:
    """Show the plan of MODEL and its generated source: Triton for a GPU, C++ for a CPU.

    Neither a GPU nor a compiler is needed. MODEL is as for `onetrip plan`.
    """
    from onetrip import api

    made = api.explain(
        model.model,
        model.args,
        model.kwargs,
        **wanted.keywords(),
    )
    click.echo(made.source(group).text if group else str(made))
