"""`onetrip diff`: what of two plans differs, by bytes, with the reasons."""

from __future__ import annotations

import sys

import click

from onetrip.base.options import NUMERICS, SEARCHES
from onetrip.cli import source
from onetrip.cli.main import DIFFERS, OK

MOST = 20
"""Changes that are shown unless all are asked for."""


@click.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--target", default="h200", show_default=True, help="A chip of `onetrip targets`.")
@click.option("--search", type=click.Choice(SEARCHES), default="best", show_default=True)
@click.option("--numerics", type=click.Choice(NUMERICS), default="eager", show_default=True)
@click.option("--training", is_flag=True, help="Forward and backward.")
@click.option("--all", "everything", is_flag=True, help=f"Every change, not only {MOST}.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def command(
    before: str,
    after: str,
    target: str,
    search: str,
    numerics: str,
    training: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Compare the plans of BEFORE and AFTER: groups added, removed and changed.

    Each is a plan file, a model as for `onetrip plan`, or a model in a revision of git, as in
    `onetrip diff HEAD~1:model.py:factory model.py:factory`. The options hold for models.

    Exit status 1: the plans differ.
    """
    from onetrip.report import compare

    wanted = source.Wanted(target, search, numerics, training)
    found = compare.compare(source.document(before, wanted), source.document(after, wanted))
    if as_json:
        click.echo(compare.encode(found), nl=False)
    else:
        click.echo(compare.text(found, None if everything else MOST))
    sys.exit(OK if found.same else DIFFERS)
