"""Text for people: sizes, times, names."""

from __future__ import annotations

import re

_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def bytes_text(count: float) -> str:
    """`1.50 MB` for 1500000 bytes (powers of ten, as bandwidths are quoted)."""
    for unit, size in _UNITS:
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def us_text(microseconds: float) -> str:
    """`12.3 us`, `1.20 ms`."""
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} us"


def counted(count: int, noun: str) -> str:
    """`1 kernel`, `3 kernels`, `2 boundaries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def slug(text: str) -> str:
    """`text` as a part of a file's name: `nvidia-h200` for `NVIDIA H200`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def identifier(text: str) -> str:
    """`text` as an identifier of C++ and Python."""
    name = re.sub(r"\W+", "_", text).strip("_")
    return name if name and not name[0].isdigit() else f"_{name}"
