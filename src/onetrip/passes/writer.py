"""Nodes made by a pass: typed by the operators' own rules, views with the strides they have.

Must not know what is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ..base.sym import Dim
from ..ir.graph import Node, Operand, Origin, Value, freeze
from ..ir.types import TensorType, same_shape
from ..ops.build import Recorder
from ..ops.schema import Movement
from ..ops.table import OPS


class Writer:
    """Collects new nodes under names that no value has.

    Args:
        stem: what the names begin with.
        taken: names of values that exist; the new ones are added.
        origin, call: what every new node carries.
    """

    def __init__(self, stem: str, taken: set[str], origin: Origin, call: int) -> None:
        self._numbers = count()
        self._stem = stem
        self._taken = taken
        self._origin = origin
        self._call = call
        self._record = Recorder(self._name, origin, call)

    def _name(self) -> str:
        name = next(n for k in self._numbers if (n := f"{self._stem}_{k}") not in self._taken)
        self._taken.add(name)
        return name

    @property
    def nodes(self) -> list[Node]:
        """What was made, in order."""
        return self._record.nodes

    def __call__(self, op: str, *operands: Operand | Dim | bool | float, **attrs: Any) -> Value:
        """Adds a node; a movement that can be a view has the strides of one."""
        made = self._record(op, *operands, **attrs)
        node = self.nodes[-1]
        body = OPS[op].body
        if not isinstance(body, Movement) or body.view is None or not node.values:
            return made
        found = body.view(node)
        return made if found is None else self.laid_out(made, found[0])

    def laid_out(self, made: Value, strides: Sequence[Dim]) -> Value:
        """The value just made, with other strides."""
        out = Value(made.name, replace(made.type, strides=tuple(strides)))
        self.nodes[-1] = replace(self.nodes[-1], outputs=(out,))
        return out

    def library(self, op: str, inputs: Iterable[Value], kind: TensorType, **attrs: Any) -> Value:
        """Adds a library call whose result is of the given type."""
        out = Value(self._name(), kind)
        made = Node(op, tuple(inputs), (out,), freeze(attrs), self._origin, self._call)
        self.nodes.append(made)
        return out

    def viewed(self, x: Value, shape: Sequence[Dim]) -> Value:
        """The value in another shape: itself where it has that."""
        if same_shape(x.type.shape, tuple(shape)):
            return x
        return self("view", x, size=tuple(shape))

    def permuted(self, x: Value, dims: Sequence[int]) -> Value:
        """The value with its dimensions in another order."""
        if tuple(dims) == tuple(range(x.type.rank)):
            return x
        return self("permute", x, dims=tuple(dims))
