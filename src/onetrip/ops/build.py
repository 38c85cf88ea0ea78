"""The `Builder` that composites expand through: it types new nodes by the operators' own rules.

Knows the table and names; must not know which node is being replaced, nor any pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..base.dtype import BY_NAME
from ..base.errors import VerifyError
from ..base.sym import Dim
from ..ir.graph import Node, Operand, Origin, Scalar, Value, freeze
from ..ir.types import TensorType
from .element import argument
from .rules import as_dtype
from .schema import Op
from .table import OPS


class Recorder:
    """Collects nodes in order.

    Args:
        name: gives the name of the next value.
        origin, call: what every new node carries.
    """

    def __init__(self, name: Callable[[], str], origin: Origin, call: int) -> None:
        self._name = name
        self._origin = origin
        self._call = call
        self.nodes: list[Node] = []

    def __call__(self, op: str, *operands: Operand | Dim | bool | float, **attrs: Any) -> Value:
        """Adds `op` on operands; numbers and sizes become Scalars."""
        entry = OPS[op]
        inputs = tuple(x if isinstance(x, Value | Scalar) else Scalar(x) for x in operands)
        types = entry.types(tuple(argument(x) for x in inputs), attrs)
        if len(types) != 1:
            raise VerifyError(
                f"{op} has {len(types)} outputs and a composite used it as one value",
                expected="an operator with one output",
                found=op,
                where=str(self._origin),
                next_step=f"expand {op} by a function of its own",
            )
        out = Value(self._name(), types[0])
        self.nodes.append(Node(op, inputs, (out,), freeze(attrs), self._origin, self._call))
        return out

    def again(
        self,
        node: Node,
        inputs: tuple[Operand, ...],
        types: tuple[TensorType, ...],
        attrs: Mapping[str, Any],
    ) -> tuple[Value, ...]:
        """Adds the library call `node` on other operands, its results laid out as `types` say."""
        outputs = tuple(Value(self._name(), t) for t in types)
        made = Node(node.op, inputs, outputs, freeze(attrs), self._origin, self._call)
        self.nodes.append(made)
        return outputs


def sample_node(op: Op, number: int = 0) -> Node:
    """The node of one of the operator's samples, with dense operands `x0`, `x1`, ..."""
    sample = op.samples[number]
    inputs: list[Operand] = []
    for k, x in enumerate(sample.operands):
        if isinstance(x, tuple):
            inputs.append(Value(f"x{k}", TensorType.dense(BY_NAME[x[0].rstrip("+%")], tuple(x[1]))))
        else:
            inputs.append(Scalar(x))
    attrs = {k: as_dtype(v) if k == "dtype" else v for k, v in sample.attrs}
    types = op.types(tuple(argument(x) for x in inputs), attrs)
    outputs = tuple(Value(f"y{k}", t) for k, t in enumerate(types))
    return Node(op.name, tuple(inputs), outputs, freeze(attrs))
