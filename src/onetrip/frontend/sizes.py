"""Symbolic sizes of torch as dims of our own. Knows sympy's spelling and nothing of graphs.

What a polynomial with floor-divisions cannot say (the larger of two sizes, a size times 1.5)
becomes a symbol of its own, which the host computes once a call from those that inputs tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..base.errors import Unsupported
from ..base.host import HOST, Computed, sizes_of
from ..base.sym import Dim, Size, Sym, add, atoms, floordiv, is_nonnegative, mod, mul

LEAST = -(1 << 62)
"""Where a symbol has no lower bound."""
_ANY_SIZE = ValueRanges(0, int_oo)


class Sizes:
    """The symbols of one graph.

    Attributes:
        computed: for each symbol that no input tells, what the host computes it from.
    """

    def __init__(self) -> None:
        self.computed: dict[Size, Computed] = {}
        self._known: dict[Computed, Size] = {}

    def dim(self, value: int | torch.SymInt | Any) -> Dim:
        """An int or SymInt as a Dim; raises Unsupported for an expression without a spelling."""
        if isinstance(value, int):
            return int(value)
        if isinstance(value, torch.SymInt):
            node = value.node
            return self._translate(node.expr, _least(node))
        raise Unsupported(f"a size of type {type(value).__name__} has no form in the IR")

    def strides(
        self, shape: Sequence[Dim], strides: Sequence[int | torch.SymInt]
    ) -> tuple[Dim, ...]:
        """Strides as dims; `Max(1, n)` of a size n of the tensor is n: where n is 0, no element
        is."""
        own = frozenset(shape)
        return tuple(
            self._translate(s.node.expr, _least(s.node), own)
            if isinstance(s, torch.SymInt)
            else int(s)
            for s in strides
        )

    def untold(self, dim: Dim, known: Collection[Sym]) -> Sym | None:
        """The first symbol in a dim that neither is known nor is computed from what is."""
        for a in atoms(dim):
            if a in known:
                continue
            made = self.computed.get(a) if isinstance(a, Size) else None
            inside = (
                (a,) if made is None else map(partial(self.untold, known=known), sizes_of(made))
            )
            found = next(filter(None, inside), None)
            if found is not None:
                return found
        return None

    def _translate(self, e: Any, least: _Least, sizes: Collection[Dim] = ()) -> Dim:
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            return Size(str(e), least(e))
        name = type(e).__name__
        if name in _ROUNDING:
            return self._symbol(_hosted(e, lambda a: self._translate(a, least)), least(e))
        args = [self._translate(a, least, sizes) for a in e.args]
        if name == "Max" and len(args) == 2 and 1 in args:
            size = args[1] if args[0] == 1 else args[0]
            if size in sizes:
                return size
        if name == "Pow" and isinstance(args[1], int) and args[1] > 0:
            args, name = [args[0]] * args[1], "Mul"
        if name in _EXTREMES:
            return self._extreme(name, args, least(e))
        fold = _FOLDS.get(name)
        if fold is None:
            raise Unsupported(f"the size {e} has no form in the IR")
        total = args[0]
        for a in args[1:]:
            total = fold(total, a)
        return total

    def _extreme(self, name: str, args: Sequence[Dim], least: int) -> Dim:
        """The largest or the least of several: one of them where it is so for every size."""
        sign = 1 if name == "Max" else -1
        kept = list(dict.fromkeys(args))
        for a in tuple(kept):
            others = (b for b in kept if b is not a)
            if any(is_nonnegative(mul(add(b, mul(a, -1)), sign)) for b in others):
                kept.remove(a)
        if len(kept) == 1:
            return kept[0]
        return self._symbol(Computed(_EXTREMES[name], tuple(kept)), least)

    def _symbol(self, number: Computed, least: int) -> Size:
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = Size(f"computed{len(self._known)}", least)
            self.computed[found] = number
        return found


_Least = Callable[[Any], int]


def _least(node: Any) -> _Least:
    """The lower bound of an expression in a symbol's shape environment: a number that the program
    is given may be negative, and a symbol of which nothing is said is a size."""
    ranges = getattr(node.shape_env, "var_to_range", {})

    def least(e: Any) -> int:
        known = {s: ranges.get(s, _ANY_SIZE) for s in e.free_symbols}
        low = bound_sympy(e, known).lower
        return int(low) if low.is_Integer else LEAST

    return least


def _hosted(e: Any, dim: Callable[[Any], Dim]) -> Any:
    """An expression that holds fractions, as what the host computes."""
    if e.is_Integer or e.is_Symbol:
        return dim(e)
    if e.is_Float or e.is_Rational:
        return float(e)
    name = type(e).__name__
    function = _ROUNDING.get(name) or _FRACTIONS.get(name)
    if function is None:
        if e.is_integer:
            return dim(e)
        raise Unsupported(f"the size {e} has no form in the IR")
    first, *others = (_hosted(a, dim) for a in e.args)
    if not others:
        return Computed(function, (first,))
    for other in others:
        first = Computed(function, (first, other))
    return first


_FOLDS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Add": add,
    "Mul": mul,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "Mod": mod,
    "PythonMod": mod,
}
_EXTREMES = {"Max": "sym_max", "Min": "sym_min"}
_ROUNDING = {
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "TruncToInt": "trunc",
    "RoundToInt": "round",
}
"""Functions that make a whole number of a fraction, with what the host calls them."""
_FRACTIONS = {
    "ToFloat": "sym_float",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "Add": "add",
    "Mul": "mul",
    "FloatPow": "pow",
}
assert {*_EXTREMES.values(), *_ROUNDING.values(), *_FRACTIONS.values()} <= HOST.keys()
