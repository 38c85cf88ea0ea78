"""One thread-safe interning constructor: equal trees are one object, so equality and hash are O(1).

A class that names `Interned` as its metaclass must be a frozen dataclass with `eq=False`. Its
fields are keyed by identity when they are interned, by type and bit pattern when they are numbers:
`0.0` is not `-0.0` and `1` is not `True`.
"""

from __future__ import annotations

import dataclasses
import struct
import threading
import weakref
from typing import Any, TypeVar

_lock = threading.RLock()
_table: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
T = TypeVar("T")


def key_of(value: Any) -> Any:
    """A hashable key that tells numbers apart by type and bit pattern."""
    kind = type(value)
    if kind is float:
        return ("f", struct.pack("<d", value))
    if kind is bool or kind is int:
        return (kind.__name__, value)
    if kind is complex:
        return ("c", struct.pack("<dd", value.real, value.imag))
    if kind is tuple:
        return tuple(key_of(v) for v in value)
    return value


class Interned(type):
    """Metaclass whose instances are unique for equal field values."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """The one instance with these field values."""
        made = super().__call__(*args, **kwargs)
        key = (cls, *(key_of(getattr(made, f.name)) for f in dataclasses.fields(made)))
        with _lock:
            found = _table.get(key)
            if found is None:
                _table[key] = found = made
            return found
