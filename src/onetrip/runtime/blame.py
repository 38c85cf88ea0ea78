"""Which step of a program an error comes from: the line of its function that was at work.

Knows no steps, only what their lines name.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any

from torch._ops import OpOverload

PROGRAM = "<onetrip program>"
"""The file name in which tracebacks show a program's function."""
_NAMED = re.compile(r"\bc\d+(?=\()")


def step_of(error: BaseException, text: str) -> str | None:
    """What the program whose function is `text` called when an error was raised: an operator's
    name, or a run of kernels; None where the error comes from elsewhere."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == PROGRAM:
            return _called(text.splitlines()[line - 1], frame.f_globals)
    return None


def _called(line: str, names: Mapping[str, Any]) -> str | None:
    if line.endswith("(f)"):
        return "a run of kernels"
    called = [names[name] for name in _NAMED.findall(line)]
    # What the runtime wraps around an operator's call stands before it.
    called.sort(
        key=lambda function: str(getattr(function, "__module__", "")).startswith(__package__)
    )
    if not called:
        return None
    overload = isinstance(called[0], OpOverload)
    return str(called[0]) if overload else getattr(called[0], "__name__", None)
