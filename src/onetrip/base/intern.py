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
from collections.abc import Callable
from functools import cache
from typing import Any

_lock = threading.RLock()
_table: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()


def key_of(value: Any) -> Any:
    """A hashable key that tells numbers apart by type and bit pattern."""
    make = _KEYS.get(type(value))
    return value if make is None else make(value)


_KEYS: dict[type, Callable[[Any], Any]] = {
    float: lambda x: ("f", struct.pack("<d", x)),
    bool: lambda x: ("bool", x),
    int: lambda x: ("int", x),
    complex: lambda x: ("c", struct.pack("<dd", x.real, x.imag)),
    tuple: lambda x: tuple(map(key_of, x)),
}


class Interned(type):
    """Metaclass whose instances are unique for equal field values."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """The one instance with these field values; TypeError when they are not its fields."""
        if kwargs or len(args) != len(_defaults(cls)):
            args = _complete(cls, args, kwargs)
        key = (cls, *map(key_of, args))
        with _lock:
            found = _table.get(key)
            if found is None:
                _table[key] = found = super().__call__(*args)
            return found


def _complete(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Every field's value: a look-up must not need an instance to know its key."""
    defaults = _defaults(cls)
    given = dict(zip(defaults, args, strict=False)) | kwargs
    values = tuple(given.get(name, default) for name, default in defaults.items())
    known = len(given) == len(args) + len(kwargs) and given.keys() <= defaults.keys()
    if not known or any(v is dataclasses.MISSING for v in values):
        raise TypeError(f"{cls.__name__} has the fields {[*defaults]}, not {args} and {kwargs}")
    return values


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """The fields in order, with their defaults."""
    return {f.name: f.default for f in dataclasses.fields(cls)}
