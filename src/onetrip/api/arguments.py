"""What the public functions are given: every kind of argument in one table, checked on entry.

A wrong one is found where the user wrote it, not at the first call of what was compiled. Must not
know what is done with an argument.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from torch import Tensor

from ..base.errors import UsageError
from ..base.options import Options
from ..target import load


@dataclass(frozen=True)
class Argument:
    """What an argument may be: a test, the same in words, and what to do where it is not."""

    right: Callable[[Any], bool]
    expected: str
    next_step: str


def _of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _none_or(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _is_model(value: Any) -> bool:
    from torch.export import ExportedProgram

    return callable(value) and not isinstance(value, ExportedProgram)


_TRUTH = Argument(_of(bool), "True or False", "pass one of the two")
ARGUMENTS: Mapping[str, Argument] = {
    "model": Argument(
        _is_model,
        "a module or a function",
        "pass the model itself, of an exported program its `.module()`; `onetrip plan "
        "file.py:factory` takes one by its name",
    ),
    "args": Argument(
        _of(Tensor, tuple, list),
        "a tuple of positional arguments, or one tensor",
        "put the arguments of one call into a tuple",
    ),
    "kwargs": Argument(
        _none_or(_of(Mapping)),
        "a dict of keyword arguments, or None",
        "name each argument: kwargs={'mask': mask}",
    ),
    "training": _TRUTH,
    "fullgraph": _TRUTH,
    "dynamic": Argument(
        _none_or(_of(bool)), "True, False or None", "pass one of the three; None is torch's own way"
    ),
    "dynamic_shapes": Argument(
        _none_or(_of(bool, Mapping, tuple, list)),
        "True, False, None, or a dict from argument names to {axis: torch.export.Dim}",
        "name each argument with the dimensions of it that change",
    ),
    "path": Argument(_of(str, os.PathLike), "the path of a file", "pass a str or a pathlib.Path"),
}
"""By name; a name means the same in every function."""


def check_arguments(**given: Any) -> None:
    """Raises UsageError for the first argument that is not what its row of the table says."""
    for name, value in given.items():
        row = ARGUMENTS[name]
        if not row.right(value):
            raise UsageError(
                f"the argument {name} has a value of the wrong type",
                expected=row.expected,
                found=f"{shortened(value)} ({type(value).__name__})",
                next_step=row.next_step,
            )


def check_options(options: Options) -> None:
    """What of options can be wrong although each has the right type, before anything compiles.

    Raises:
        UsageError: an unknown target, or a folder for generated text that cannot be written.
    """
    if options.target is not None:
        load(options.target)
    if options.dump_dir is not None:
        dump_folder(options.dump_dir)


def dump_folder(name: str | os.PathLike[str]) -> Path:
    """The folder for generated text, made where it is not there and known to take a file.

    Raises:
        UsageError: it cannot be made or written.
    """
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> UsageError:
    """The error of generated text that could not be written."""
    return UsageError(
        "generated text cannot be written",
        expected="dump_dir: a folder that can be made and written",
        found=str(error),
        where=str(folder),
        next_step="name another folder or leave out dump_dir",
    )
