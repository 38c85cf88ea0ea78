"""Arguments of a library call as Python text over the slots of a frame.

    (Ref(0), (Ref(1), 2), n + 1)   ->   lambda t, s: (t[3], (t[7], c0,), c1(s),)

A call made hundreds of times in a step is one function with its slots written into it, instead of
a tree of closures that is walked at each call. Must not know steps or frames.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Any

from ..base.host import HOST, Computed
from ..base.sym import Size, Sym
from ..ir.graph import Operand, Ref, Scalar
from .resolve import constant, dim_function

Operands = Callable[[Ref], tuple[Operand, int]]


class Spelling:
    """Texts over `t`, the tensors by slot, and `s`, the symbolic sizes; what they name is bound.

    Args:
        sizes: the program's symbolic sizes, in order.
        operand: the operand behind a reference, and its slot.
    """

    def __init__(self, sizes: Sequence[Size], operand: Operands | None = None) -> None:
        self._sizes = sizes
        self._operand = operand
        self._bound: dict[str, Any] = {}

    def bound(self, value: Any) -> str:
        """A name for a value."""
        name = f"c{len(self._bound)}"
        self._bound[name] = value
        return name

    def spell(self, x: Any) -> str:
        """The text of an argument."""
        if isinstance(x, Ref):
            assert self._operand is not None
            operand, slot = self._operand(x)
            return self.spell(operand.value) if isinstance(operand, Scalar) else f"t[{slot}]"
        if isinstance(x, tuple | list):
            return "(" + "".join(f"{self.spell(part)}, " for part in x) + ")"
        if isinstance(x, Computed):
            return f"{self.bound(HOST[x.function])}(*{self.spell(x.arguments)})"
        if isinstance(x, Sym):
            return f"{self.bound(dim_function(x, self._sizes))}(s)"
        return self.bound(constant(x))

    def named(self, name: str, x: Any) -> str:
        """The text of an argument given by name; `from` is one, and a word of the language."""
        text = self.spell(x)
        return f"**{{{name!r}: {text}}}" if keyword.iskeyword(name) else f"{name}={text}"

    def function(self, text: str) -> Callable[[list[Any], Any], Any]:
        """The text as a function of `t` and `s`."""
        made: Callable[[list[Any], Any], Any] = eval(f"lambda t, s: {text}", self._bound)
        return made
