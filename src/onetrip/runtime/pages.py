"""Huge pages: one fault for 2 MiB instead of 512 of them, where the system grants it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

HUGE = 1 << 21
"""Bytes of a huge page."""

_MADV_HUGEPAGE = 14


def _madvise() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    found: Callable[..., int] = function
    return found


_advise = _madvise()


def advise_huge(pointer: int, nbytes: int) -> bool:
    """Ask for huge pages in the part of untouched memory that whole ones cover.

    Returns:
        Whether the system took the advice; a refusal costs speed only.
    """
    start = -(-pointer // HUGE) * HUGE
    length = (pointer + nbytes - start) // HUGE * HUGE
    if _advise is None or length <= 0:
        return False
    return _advise(start, length, _MADV_HUGEPAGE) == 0
