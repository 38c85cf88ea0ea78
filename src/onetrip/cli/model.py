"""A model named on the command line: `file.py:factory` or a `.pt2`. Knows nothing of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from onetrip.api.models import Model


class ModelName(click.ParamType):  # type: ignore[type-arg]
    """Turns a name into a model with its arguments; a wrong name is wrong use (status 2)."""

    name = "model"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Model:
        """The model; loads torch, so only commands that need one take this type."""
        from onetrip.api.models import load_model

        return load_model(value)


MODEL = ModelName()
