"""Models by name: a factory in a Python file, or an exported program. Knows nothing of plans."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..base.errors import CaptureError, UsageError

FORMS = "file.py:factory, or a .pt2 file of torch.export.save"


@dataclass(frozen=True)
class Model:
    """A model with the arguments of one call."""

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def load_model(name: str) -> Model:
    """The model behind a name.

    Args:
        name: `file.py:factory`, where factory() returns (model, args) or (model, args, kwargs), or
            the path of a `.pt2`.

    Raises:
        UsageError: no such file or factory, or the factory returns something else.
        CaptureError: the file or the factory raises.
    """
    if name.endswith(".pt2"):
        return _exported(name)
    path, colon, factory = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"{name!r} names no model", expected=FORMS, found=name)
    return _checked(name, _called(_function(Path(path), factory, name), name))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(
            "the model's file does not exist", expected=FORMS, found=str(path), where=str(path)
        )
    return path


def _exported(name: str) -> Model:
    path = _existing(Path(name))
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        raise UsageError(
            "the exported program cannot be read",
            expected="a file written by torch.export.save",
            found=_first_line(error),
            where=name,
            next_step="write it again with this version of torch",
        ) from error
    args, kwargs = program.example_inputs or ((), {})
    return Model(name, program.module(), tuple(args), dict(kwargs))


def _function(path: Path, factory: str, name: str) -> Callable[[], Any]:
    spec = importlib.util.spec_from_file_location(path.stem, _existing(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _raised(f"{path} raises when it is imported", error, str(path)) from error
    finally:
        sys.path.pop(0)
    found = getattr(module, factory, None)
    if not callable(found):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UsageError(
            f"{path} has no function {factory!r}",
            expected=f"one of {', '.join(known)}" if known else "a function in that file",
            found=repr(found) if hasattr(module, factory) else "nothing of that name",
            where=name,
        )
    made: Callable[[], Any] = found
    return made


def _called(factory: Callable[[], Any], name: str) -> Any:
    try:
        return factory()
    except Exception as error:
        raise _raised("the model's factory raises", error, name) from error


def _raised(message: str, error: Exception, where: str) -> CaptureError:
    return CaptureError(
        message,
        expected="a function without arguments that returns (model, args)",
        found=f"{type(error).__name__}: {_first_line(error)}",
        where=where,
        next_step="run it in Python to see the whole trace",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _checked(name: str, made: Any) -> Model:
    form = isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])
    if not form:
        raise UsageError(
            "the model's factory returns something else",
            expected="(model, args) or (model, args, kwargs)",
            found=type(made).__name__,
            where=name,
        )
    model, args, *rest = made
    args = args if isinstance(args, tuple) else tuple(args) if isinstance(args, list) else (args,)
    return Model(name, model, args, dict(rest[0]) if rest else {})
