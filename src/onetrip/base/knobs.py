"""Every environment variable that onetrip reads, with its type and meaning: no other is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """An environment variable: its name, how to read it, its default and its meaning."""

    name: str
    read: Callable[[str], T]
    default: T
    doc: str

    def get(self) -> T:
        """The value now; raises UsageError when the variable's text does not parse."""
        text = os.environ.get(self.name)
        if text is None or text == "":
            return self.default
        try:
            return self.read(text)
        except ValueError as error:
            raise UsageError(
                f"{self.name} has a value that cannot be read",
                expected=self.doc,
                found=repr(text),
                next_step=f"unset {self.name} or give it a valid value",
            ) from error


DEBUG = Knob(
    "ONETRIP_DEBUG", int, 0, "1 summary, 2 decisions, 3 costs, 4 kernels, 5 IR after passes"
)
CACHE_DIR = Knob(
    "ONETRIP_CACHE_DIR", str, "", "folder of compiled kernels; default: the user cache"
)
CXX = Knob(
    "ONETRIP_CXX", str, "", "C++ compiler; default: the first of c++, g++, clang++ that runs"
)
POOL_BYTES = Knob("ONETRIP_POOL_BYTES", int, 1 << 31, "most bytes of output pages kept for reuse")
JOBS = Knob("ONETRIP_JOBS", int, 0, "compiler processes at a time; 0: one for each core")

ALL: tuple[Knob[int] | Knob[str], ...] = (DEBUG, CACHE_DIR, CXX, POOL_BYTES, JOBS)
