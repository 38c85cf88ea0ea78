"""`onetrip explain`: a model's plan with the source generated for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onetrip.base.options import NUMERICS, SEARCHES
from onetrip.cli.model import MODEL

if TYPE_CHECKING:
    from onetrip.api.models import Model


@click.command("explain")
@click.argument("model", type=MODEL)
@click.option("--target", default="h200", show_default=True, help="A chip of `onetrip targets`.")
@click.option("--search", type=click.Choice(SEARCHES), default="best", show_default=True)
@click.option("--numerics", type=click.Choice(NUMERICS), default="eager", show_default=True)
@click.option("--training", is_flag=True, help="Forward and backward.")
@click.option("--group", default="", metavar="NAME", help="The source of this group alone.")
def command(
    model: Model, target: str, search: str, numerics: str, training: bool, group: str
) -> None:
    """Show the plan of MODEL and its generated source: Triton for a GPU, C++ for a CPU.

    Neither a GPU nor a compiler is needed. MODEL is as for `onetrip plan`.
    """
    from onetrip import api

    made = api.explain(
        model.model,
        model.args,
        model.kwargs,
        target=target,
        search=search,
        training=training,
        numerics=numerics,
    )
    click.echo(made.source(group).text if group else str(made))
