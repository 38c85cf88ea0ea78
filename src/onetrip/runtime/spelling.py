"""Arguments of a library call as Python text over the variables of a call.

    (Ref(0), (Ref(1), 2), n + 1)   ->   (t3, (t7, 2, ), s[0] + 1, )

A program is one function with the names of its values written into it, instead of a tree of
closures that is walked at each call. Must not know steps or frames.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Any

from ..base.host import HOST, Computed
from ..base.sym import Dim, Size, Sym, render
from ..ir.graph import Ref, Scalar
from .resolve import constant

Operands = Callable[[Ref], str | Scalar]
"""The name of the tensor behind a reference, or the number that it is."""


class Spelling:
    """Texts over names of tensors and `s`, the symbolic sizes.

    Args:
        sizes: the program's symbolic sizes, in order.

    Attributes:
        names: what the texts name beside them.
    """

    def __init__(self, sizes: Sequence[Size]) -> None:
        self._position: dict[Sym, int] = {size: k for k, size in enumerate(sizes)}
        self.names: dict[str, Any] = {}

    def bound(self, value: Any) -> str:
        """A name for a value."""
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def dim(self, d: Dim) -> str:
        """The text of a dimension, in parentheses where it is a sum."""
        return str(d) if isinstance(d, int) else f"({render(d, self._size)})"

    def _size(self, atom: Sym) -> str:
        return f"s[{self._position[atom]}]"

    def spell(self, x: Any, operand: Operands | None = None) -> str:
        """The text of an argument; `operand` says what its references stand for."""
        if isinstance(x, Ref):
            assert operand is not None
            found = operand(x)
            return found if isinstance(found, str) else self.spell(found.value, operand)
        if isinstance(x, tuple | list):
            return "(" + "".join(f"{self.spell(part, operand)}, " for part in x) + ")"
        if isinstance(x, Computed):
            return f"{self.bound(HOST[x.function])}(*{self.spell(x.arguments, operand)})"
        if isinstance(x, Sym):
            return self.dim(x)
        if x is None or type(x) in (bool, int, str):
            return repr(x)
        return self.bound(constant(x))

    def named(self, name: str, x: Any, operand: Operands | None = None) -> str:
        """The text of an argument given by name; `from` is one, and a word of the language."""
        text = self.spell(x, operand)
        return f"**{{{name!r}: {text}}}" if keyword.iskeyword(name) else f"{name}={text}"
