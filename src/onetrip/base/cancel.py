"""Work that whoever asked for it may cancel: it looks between its steps whether that was done.

Must not know what the work is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import OnetripError

_ASKED: ContextVar[threading.Event | None] = ContextVar("cancelled_by", default=None)


class Cancelled(OnetripError):  # noqa: N818 - says what was done, not what went wrong
    """Work that was ended before it was done, since nobody wants its result any more."""


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """Ends the work of the block soon after the event is set, with `Cancelled`."""
    token = _ASKED.set(event)
    try:
        yield
    finally:
        _ASKED.reset(token)


def checkpoint() -> None:
    """A step of some work begins.

    Raises:
        Cancelled: nobody wants it any more.
    """
    event = _ASKED.get()
    if event is not None and event.is_set():
        raise Cancelled("cancelled", next_step="ask again")
