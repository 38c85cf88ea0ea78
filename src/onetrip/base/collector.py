"""Python's cyclic collector at rest, while much is made that stays.

Each full collection walks every object of the process, torch's too, and graphs make so many objects
that such walks took two fifths of planning a deep one. What planning drops are trees, which
reference counts free at once.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class _Rest:
    """How many blocks want rest, and whether the collector was on before the first of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: int = 0
    was_on: bool = False


_REST = _Rest()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No cyclic collection by itself within the block, nor in another thread meanwhile; after the
    last of several blocks the collector is as it was before the first."""
    with _REST.lock:
        if not _REST.blocks:
            _REST.was_on = gc.isenabled()
            gc.disable()
        _REST.blocks += 1
    try:
        yield
    finally:
        with _REST.lock:
            _REST.blocks -= 1
            if not _REST.blocks and _REST.was_on:
                gc.enable()
