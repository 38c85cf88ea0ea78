"""Symbolic sizes of torch as dims of our own. Knows sympy's spelling and nothing of graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import sympy
import torch

from ..base.errors import Unsupported
from ..base.sym import Dim, Size, add, floordiv, is_nonnegative, mod, mul

LEAST = -(1 << 62)
"""Where a symbol has no lower bound."""


def dim_of(value: int | torch.SymInt | Any) -> Dim:
    """An int or SymInt as a Dim; raises Unsupported for an expression without a spelling."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, torch.SymInt):
        node = value.node
        return _translate(node.expr, _least(node))
    raise Unsupported(f"a size of type {type(value).__name__} has no form in the IR")


def strides_of(shape: Sequence[Dim], strides: Sequence[int | torch.SymInt]) -> tuple[Dim, ...]:
    """Strides as dims; `Max(1, n)` of a size n of the tensor is n: where n is 0, no element is."""
    sizes = frozenset(shape)
    return tuple(
        _translate(s.node.expr, _least(s.node), sizes) if isinstance(s, torch.SymInt) else int(s)
        for s in strides
    )


def _least(node: Any) -> Callable[[sympy.Symbol], int]:
    """The lower bound of a symbol in its shape environment: a number that the program is given may
    be negative, and a symbol of which nothing is said is a size."""

    def least(symbol: sympy.Symbol) -> int:
        ranges = getattr(node.shape_env, "var_to_range", {})
        found = ranges.get(symbol)
        if found is None:
            return 0
        return int(found.lower) if found.lower.is_Integer else LEAST

    return least


def _translate(e: Any, least: Callable[[sympy.Symbol], int], sizes: Collection[Dim] = ()) -> Dim:
    if e.is_Integer:
        return int(e)
    if e.is_Symbol:
        return Size(str(e), least(e))
    args = [_translate(a, least, sizes) for a in e.args]
    name = type(e).__name__
    if name == "Max" and len(args) == 2 and 1 in args:
        size = args[1] if args[0] == 1 else args[0]
        if size in sizes:
            return size
    if name == "Pow" and isinstance(args[1], int) and args[1] > 0:
        args, name = [args[0]] * args[1], "Mul"
    fold = _FOLDS.get(name)
    if fold is None:
        raise Unsupported(f"the size {e} has no form in the IR")
    total = args[0]
    for a in args[1:]:
        total = fold(total, a)
    return total


def _largest(a: Dim, b: Dim) -> Dim:
    """The one of two that is not below the other for any size; Unsupported where neither is."""
    for one, other in ((a, b), (b, a)):
        if is_nonnegative(add(one, mul(other, -1))):
            return one
    raise Unsupported(f"which of the sizes {a} and {b} is larger differs from call to call")


_FOLDS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Add": add,
    "Mul": mul,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "Mod": mod,
    "Max": _largest,
    "Min": lambda a, b: add(add(a, b), mul(_largest(a, b), -1)),
    "PythonMod": mod,
}
