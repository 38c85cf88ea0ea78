"""`onetrip diff`: what of two plans differs, by bytes, with the reasons."""

from __future__ import annotations

import sys

import click

from onetrip.cli import source
from onetrip.cli.main import DIFFERS, OK
from onetrip.cli.wanted import Wanted, takes_wanted

MOST = 20
"""Changes that are shown unless all are asked for."""


@click.command("diff")
@click.argument("before")
@click.argument("after")
@takes_wanted
@click.option("--all", "everything", is_flag=True, help=f"Every change, not only {MOST}.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def command(
    before: str,
    after: str,
    wanted: Wanted,
    everything: bool,
    as_json: bool,
) -> None:
    """Compare the plans of BEFORE and AFTER: groups added, removed and changed.

    Each is a plan file, a model as for `onetrip plan`, or a model in a revision of git, as in
    `onetrip diff HEAD~1:model.py:factory model.py:factory`. The options hold for models.

    Exit status 1: the plans differ.
    """
    from onetrip.report import compare

    found = compare.compare(source.document(before, wanted), source.document(after, wanted))
    if as_json:
        click.echo(compare.encode(found), nl=False)
    else:
        click.echo(compare.text(found, None if everything else MOST))
    sys.exit(OK if found.same else DIFFERS)
