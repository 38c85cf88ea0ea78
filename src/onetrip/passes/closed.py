"""Values that are functions of nothing: masks made of positions, computed while compiling.

Numbers are those of the operators' references: exact but for the rounding of bf16, which is left
out. Must not know what the values are for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.dtype import DType, bf16, bool_, f16, f32, f64, i32, i64
from ..base.sym import Sym
from ..ir.graph import Node, Operand, Value
from ..ops.schema import Opaque, Random
from ..ops.table import OPS

CARRIERS: Mapping[DType, Any] = {
    bool_: np.bool_, i32: np.int32, i64: np.int64,
    bf16: np.float32, f16: np.float16, f32: np.float32, f64: np.float64,
}  # fmt: skip
MOST_ELEMENTS = 1 << 26
"""Elements of a value that are worth computing at compile time."""


class Closed:
    """The values of a graph that have no input, each computed at most once.

    Args:
        makers: the node that makes each value.
    """

    def __init__(self, makers: Mapping[str, Node]) -> None:
        self._makers = makers
        self._known: dict[str, Any] = {}

    def put(self, of: Value, array: Any) -> None:
        """Tells the array of a value that is made later."""
        self._known[of.name] = array

    def value(self, of: Value) -> Any | None:
        """The array of a value; None where it depends on an input or is not worth computing."""
        stack = [of.name]
        while stack:
            name = stack[-1]
            if name in self._known:
                stack.pop()
                continue
            node = self._makers.get(name)
            if node is None or not _is_computed(node):
                self._known[name] = None
                continue
            waiting = [v.name for v in node.values if v.name not in self._known]
            if waiting:
                stack.extend(waiting)
                continue
            self._known[name] = self._computed(node)
        return self._known[of.name]

    def _computed(self, node: Node) -> Any | None:
        operands = [self._known[x.name] if isinstance(x, Value) else x.value for x in node.inputs]
        if any(x is None for x in operands):
            return None
        with np.errstate(all="ignore"):
            made = OPS[node.op].reference(*operands, dict(node.attr))
        return np.asarray(made).astype(CARRIERS[node.output.type.dtype])


def _is_computed(node: Node) -> bool:
    """Whether a node has a reference that may stand for it, and one result of fixed size."""
    op = OPS.get(node.op)
    if op is None or isinstance(op.body, Opaque | Random) or len(node.outputs) != 1:
        return False
    kind = node.output.type
    given = (*node.inputs, *(a for _, a in node.attrs))
    if kind.dtype not in CARRIERS or any(map(_is_symbolic, given)):
        return False
    static = [n for n in kind.shape if isinstance(n, int)]
    return len(static) == kind.rank and math.prod(static) <= MOST_ELEMENTS


def _is_symbolic(x: Operand | Any) -> bool:
    if isinstance(x, tuple):
        return any(map(_is_symbolic, x))
    return isinstance(getattr(x, "value", x), Sym)
