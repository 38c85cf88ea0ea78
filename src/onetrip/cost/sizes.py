"""Numbers for symbolic sizes: hints say what a size is expected to be at run time.

A result that holds for one hint only is never used for correctness, only for costs and choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ..base.sym import Dim, Opaque, Size, Sym, Var, add, evaluate, is_nonnegative, mul

Hints: TypeAlias = Mapping[Sym, int]
NO_HINTS: Hints = {}
ASSUMED_SIZE = 1024
"""A size of which nothing is known; at least its declared minimum."""


def number(dim: Dim, hints: Hints = NO_HINTS) -> int:
    """The value of `dim` at the hints; axes count with their largest value."""
    if isinstance(dim, int):
        return dim

    def value(atom: Sym) -> int:
        if atom in hints:
            return hints[atom]
        if isinstance(atom, Size):
            return max(atom.least, ASSUMED_SIZE)
        if isinstance(atom, Var | Opaque):
            return max(number(atom.extent, hints) - 1, 0)
        raise TypeError(f"{atom!r} is no atom")

    return int(evaluate(dim, value))


def at_most(a: Dim, b: Dim) -> bool:
    """Whether a <= b is provable for every value of the sizes."""
    return is_nonnegative(add(b, mul(a, -1)))


def smaller(a: Dim, b: Dim, hints: Hints = NO_HINTS) -> Dim:
    """min(a, b): exact for numbers and provable cases, else the smaller one at the hints."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if at_most(a, b):
        return a
    if at_most(b, a):
        return b
    return a if number(a, hints) <= number(b, hints) else b
