"""A property that is computed once for each object.

As `functools.cached_property`, which until Python 3.12 takes a lock for the whole class while it
computes: two threads that each need what the other computes wait forever. Two threads may compute
one value twice here; both get the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801  named as what it stands for
    """`name = cached_property(fn)`: fn(self) at the first reading, kept in the object's dict."""

    def __init__(self, fn: Callable[[Any], T]) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.__doc__ = fn.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        """The value, from the object's dict from the second reading on."""
        if instance is None:
            return self
        value = self.fn(instance)
        return instance.__dict__.setdefault(self.name, value)  # type: ignore[no-any-return]
