"""The group of commands: one table, each command's module loaded when it is called.

So `onetrip targets` answers without loading torch. A new command is a new row.
"""

from __future__ import annotations

import traceback
from importlib import import_module

import click

from onetrip.base.errors import OnetripError

OK, DIFFERS, NO_ANSWER = 0, 1, 2
"""Exit statuses. A command that was asked a question answers with the first two alone: whatever
keeps it from an answer, be it wrong use, a model that raises or a fault of ours, is the third."""

# Command: (module, one line for the list of commands). The module holds it under `command`.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("onetrip.cli.demo", "Plan, compile, verify and time a transformer block here."),
    "plan": ("onetrip.cli.plan", "Show which operators of a model share a kernel, and why."),
    "explain": ("onetrip.cli.explain", "Show the plan of a model with its generated source."),
    "explore": ("onetrip.cli.explore", "Open a page to see, cut and fuse a model's kernels."),
    "check": ("onetrip.cli.check", "Hold a model's plans against a budget, for CI."),
    "diff": ("onetrip.cli.diff", "Compare two plans, models or revisions, group by group."),
    "targets": ("onetrip.cli.targets", "List the chips that plans can be made for, with sources."),
    "calibrate": ("onetrip.cli.calibrate", "Measure this machine and write a target's file."),
    "bench": ("onetrip.cli.bench", "Measure beside eager and torch.compile, in one run."),
}


class Commands(click.Group):
    """Loads a command at its first use and turns onetrip's errors into exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None where the table has none."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone: nothing is loaded for `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an error of onetrip is printed, any other one is traced."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OnetripError as error:
            click.echo(f"error: {error}", err=True)
        except Exception:
            click.echo(traceback.format_exc(), err=True, nl=False)
        raise click.exceptions.Exit(NO_ANSWER)


@click.group(cls=Commands)
@click.version_option(package_name="onetrip")
def main() -> None:
    """Decide which operators of a PyTorch model share a kernel, and say why."""
