"""Whether a call can be lowered at all, asked before it takes its place in a graph.

A rule for types tells most of what an operator cannot do. What depends on symbolic sizes shows only
in what it reads and where: a bound that is not provably inside, a number that counts from either
end. Calls of equal form are tried once; those of fixed sizes, which the rule for types knows all
about, are not.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..base.errors import Unsupported
from ..base.intern import key_of
from ..base.sym import Sym
from ..ir.graph import Graph, Node, Scalar
from ..ops.table import OPS
from .expand import expand
from .lower import is_primitive, lower_node


class Lowerable:
    """Why calls of one graph have no nests; `gpu` as of `Lowering`."""

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self._known: dict[Hashable, str | None] = {}

    def __call__(self, node: Node) -> str | None:
        """Why a call has no nest; None where it has one, or where all its sizes are fixed."""
        if not _is_symbolic(node):
            return None
        operands = tuple(key_of(x.value) if isinstance(x, Scalar) else x.type for x in node.inputs)
        wires = tuple(node.values.index(v) for v in node.values)
        form = (node.op, key_of(node.attrs), operands, wires, tuple(v.type for v in node.outputs))
        if form not in self._known:
            self._known[form] = self._tried(node)
        return self._known[form]

    def _tried(self, node: Node) -> str | None:
        try:
            for made in expand(Graph(node.values, (node,), node.outputs)).nodes:
                if made.op in OPS and is_primitive(OPS[made.op]):
                    lower_node(made, self._gpu)
        except Unsupported as error:
            return str(error)
        return None


def _is_symbolic(node: Node) -> bool:
    dims = [d for v in (*node.values, *node.outputs) for d in v.type.shape]
    numbers = [x.value for x in node.inputs if isinstance(x, Scalar)]
    return any(map(_holds_size, (*dims, *numbers, *(value for _, value in node.attrs))))


def _holds_size(x: object) -> bool:
    return any(map(_holds_size, x)) if isinstance(x, tuple) else isinstance(x, Sym)
