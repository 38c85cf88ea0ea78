"""Faults put into the compiler on purpose, one at a time: a fuzzer that misses one is too weak.

Each is a function that changes the package in the process that calls it, which must be one that is
thrown away afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onetrip.api import pipeline
from onetrip.ops import element
from onetrip.passes import canonicalize, collapse
from onetrip.passes.relax import relax


def _replaced(where: Any, name: str, made: Any) -> None:
    assert hasattr(where, name), f"{where} has no {name} any more"
    object.__setattr__(where, name, made)


def nodes_merge_whatever_their_attributes() -> None:
    """x.sum(0) and x.sum(1) of a square are one."""
    key = canonicalize._key

    def short(node: Any) -> Any:
        found = key(node)
        return found if isinstance(found, int) else (*found[:2], found[3])

    _replaced(canonicalize, "_key", short)


def axes_merge_whatever_lies_between() -> None:
    """Rows of a strided operand are read as if they followed one another."""
    contiguous = collapse._contiguous

    def blind(outer: Any, inner: Any, dims: Any) -> bool:
        return contiguous(outer, inner, dims[:1])

    _replaced(collapse, "_contiguous", blind)


def roundings_are_lost() -> None:
    """Intermediates of 16-bit operators stay in f32."""
    _replaced(pipeline, "collapse", lambda nest: collapse.collapse(relax(nest)))


def operands_are_not_converted() -> None:
    """An operand of another dtype is taken as it is."""
    _replaced(element, "to", lambda e, dtype: e)


PLANTED: tuple[Callable[[], None], ...] = (
    nodes_merge_whatever_their_attributes,
    axes_merge_whatever_lies_between,
    roundings_are_lost,
    operands_are_not_converted,
)
