"""What the host computes once a call from sizes and constants: numbers that are no `Dim`, dicts.

    Computed ::= function(argument...)      argument ::= constant | Dim | Computed | tuple

A kernel never reads one: it reads a tensor that holds the number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .intern import Interned
from .sym import Dim, Sym, atoms


@dataclass(frozen=True, eq=False)
class Computed(metaclass=Interned):
    """A function of `HOST`, by name, applied to arguments."""

    function: str
    arguments: tuple[Any, ...]


def _dict(*parts: Any) -> dict[Any, Any]:
    """A dict from its keys and values in turn."""
    return dict(zip(parts[::2], parts[1::2], strict=True))


_PLAIN: tuple[Callable[..., Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.neg, operator.pos, operator.abs, operator.and_, operator.or_),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(math.floor, math.ceil, math.trunc, round),
)
_MATH = ("sqrt", "exp", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")

HOST: Mapping[str, Callable[..., Any]] = {
    **{f.__name__: f for f in _PLAIN},
    **{f"_sym_{name}": getattr(math, name) for name in _MATH},
    "sym_float": float,
    "sym_int": int,
    "sym_max": max,
    "sym_min": min,
    "sym_not": operator.not_,
    "sym_ite": lambda condition, a, b: a if condition else b,
    "sym_sum": sum,
    "given": lambda x: x,
    "dict": _dict,
}
"""Functions by the name that the framework's symbolic numbers have for them."""


def sizes_of(x: Any) -> Iterator[Sym]:
    """The sizes that the host reads to compute a number."""
    if isinstance(x, Computed | tuple):
        for part in x.arguments if isinstance(x, Computed) else x:
            yield from sizes_of(part)
    elif isinstance(x, Sym):
        yield from atoms(x)


def evaluated(x: Any, dim: Callable[[Dim], int]) -> Any:
    """What the host computes, given the value of each `Dim`."""
    if isinstance(x, Computed):
        return HOST[x.function](*(evaluated(a, dim) for a in x.arguments))
    if isinstance(x, tuple):
        return tuple(evaluated(a, dim) for a in x)
    return dim(x) if isinstance(x, Sym) else x
