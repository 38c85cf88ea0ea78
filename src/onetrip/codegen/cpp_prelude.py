"""The C++ prelude: the vocabulary of vectors that generated kernels are written in.

It knows no compiler, no cache and no kernel; it hands out text.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

PARTS = ("lanes", "memory", "arith", "float8", "math", "reduce", "random", "kernel")
"""The prelude's files in the order in which each needs those before it."""


@cache
def prelude_text() -> str:
    """The whole prelude as one header; a kernel includes it before anything else."""
    folder = files("onetrip.codegen").joinpath("prelude")
    parts = [folder.joinpath(f"{part}.hpp").read_text(encoding="utf-8") for part in PARTS]
    return "\n".join(parts)


@cache
def exactness() -> dict[str, dict[str, str]]:
    """Spelling without `ot::` -> dtype name -> `matched`, `ulp(n)`, `bounded` or `unfit`.

    cpp_exactness.toml says what the words mean.
    """
    text = files("onetrip.codegen").joinpath("cpp_exactness.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
