"""The small functions that generated Triton code calls, as text, by dialect.

The texts lie in `prelude/triton_*.txt`: `common` for every GPU, and what a dialect spells
otherwise, each part over those before it. Between dialects nothing of a kernel differs but these
bodies. Imports no triton.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ..base.errors import UsageError
from ..target import Target

DIALECTS = {
    "nvidia": ("common", "nvidia"),
    "nvidia89": ("common", "nvidia", "nvidia89"),
    "amd": ("common", "amd"),
    "interpreter": ("common", "interpreter"),
}
"""The parts of each dialect."""
_NAME = re.compile(r"\bot_\w+")
_HEADS = {
    "hardware": "import triton\nimport triton.language as tl\n"
    "from triton.language.extra import libdevice\n",
    "interpreter": "import math\n\nimport numpy as np\n"
    "import triton\nimport triton.language as tl\n"
    "from triton.runtime.interpreter import TensorHandle\n",
}


def head(dialect: str) -> str:
    """The imports of a generated module."""
    return _HEADS["interpreter" if dialect == "interpreter" else "hardware"]


def dialect_of(target: Target) -> str:
    """What a GPU's kernels are written in."""
    if target.vendor == "amd":
        return "amd"
    return "nvidia89" if int(re.sub(r"\D", "", target.arch)) >= 89 else "nvidia"


@cache
def functions(dialect: str) -> dict[str, str]:
    """Every prelude function of a dialect by name.

    Raises:
        UsageError: there is no such dialect.
    """
    if dialect not in DIALECTS:
        raise UsageError(
            "unknown Triton dialect", expected=f"one of {', '.join(DIALECTS)}", found=dialect
        )
    found: dict[str, str] = {}
    for part in DIALECTS[dialect]:
        found.update(_read(part))
    return found


def collect(text: str, dialect: str) -> str:
    """The functions that `text` calls and those that they call, callees first."""
    known = functions(dialect)
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in known and name not in order:
            for callee in dict.fromkeys(_NAME.findall(known[name])):
                if callee != name:
                    visit(callee)
            order[name] = None

    for name in dict.fromkeys(_NAME.findall(text)):
        visit(name)
    return "\n\n\n".join(known[name] for name in order)


def _read(part: str) -> dict[str, str]:
    path = files("onetrip.codegen").joinpath("prelude", f"triton_{part}.txt")
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    found: dict[str, str] = {}
    last = ""
    for block in blocks:
        text = block.strip("\n")
        made = re.match(r"(?:@triton\.jit\n)?def (\w+)", text)
        if made:
            last = made.group(1)
            found[last] = text
        elif last and text.startswith(" "):
            found[last] += "\n\n" + text
    return found
