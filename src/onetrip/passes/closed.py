"""Values that are functions of nothing: masks made of positions, computed while compiling.

Numbers are those of the operators' references: exact but for the rounding of bf16, which is left
out. Must not know what the values are for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..base.dtype import DType, bf16, bool_, f16, f32, f64, i32, i64
from ..base.sym import Sym
from ..ir.graph import Graph, Node, Operand, Scalar, Value
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


# ------------------------------------------------------------------ one number everywhere


def number_of(graph: Graph, x: Operand) -> float | None:
    """The number that an operand is everywhere; None where it is no constant."""
    for node in _makers(graph, x):
        if node.op == "full":
            x = Scalar(node.attr["fill_value"])
        elif node.op == "scalar_tensor":
            x = Scalar(node.attr["s"])
    known = x.value if isinstance(x, Scalar) else None
    return float(known) if isinstance(known, int | float) else None


def _makers(graph: Graph, x: Operand) -> Iterator[Node]:
    """The maker of a value, and those behind movements and casts that leave a constant one."""
    while isinstance(x, Value) and (node := graph.producers.get(x.name)) is not None:
        yield node
        if node.op not in ("expand", "view", "to", "clone", "permute", "unsqueeze") or not (
            node.values
        ):
            return
        x = node.values[0]
