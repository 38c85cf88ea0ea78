"""How a command plans a model: its options and what they come to, for every command that does.

Must not know models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import click
from click.core import ParameterSource

from onetrip.base.options import NUMERICS, SEARCHES


@dataclass(frozen=True)
class Wanted:
    """How models are planned; plan files are taken as they are."""

    target: str
    search: str
    numerics: str
    training: bool

    def keywords(self) -> dict[str, Any]:
        """The same for `onetrip.plan` and `onetrip.explain`."""
        return asdict(self)

    def flags(self) -> list[str]:
        """The same for `onetrip plan`."""
        named = ("target", "search", "numerics")
        flags = [part for name in named for part in (f"--{name}", getattr(self, name))]
        return flags + (["--training"] if self.training else [])


OPTIONS = (
    click.option(
        "--target", default="h200", show_default=True, help="A chip of `onetrip targets`."
    ),
    click.option("--search", type=click.Choice(SEARCHES), default="best", show_default=True),
    click.option("--numerics", type=click.Choice(NUMERICS), default="eager", show_default=True),
    click.option("--training", is_flag=True, help="Forward and backward."),
)


def takes_wanted(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options, and the command what they come to as `wanted`."""

    @functools.wraps(command)
    def called(*, target: str, search: str, numerics: str, training: bool, **rest: Any) -> None:
        command(wanted=Wanted(target, search, numerics, training), **rest)

    return functools.reduce(lambda made, option: option(made), reversed(OPTIONS), called)


def unless_given(wanted: Wanted, plan: Any) -> Wanted:
    """How a plan was made, where the command line does not say otherwise."""
    named = click.get_current_context().get_parameter_source
    kept = (f.name for f in fields(Wanted) if named(f.name) is ParameterSource.DEFAULT)
    return replace(wanted, **{name: getattr(plan, name) for name in kept})
