"""Graph: a model's operators over tensor values, in execution order.

    Graph  ::= inputs: Value...  nodes: Node...  outputs: Value...
    Node   ::= outputs = op(operands, attrs)        origin
    Operand::= Value | Scalar

Values are named once (SSA). `Node.call` numbers the eager call a node came from: nodes that one
call expands into share it, which is how "one kernel for each call that eager makes" is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.host import Computed
from ..base.lazy import cached_property
from ..base.sym import Size
from .types import TensorType


@dataclass(frozen=True)
class Value:
    """A tensor value; unique by name within a graph."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Scalar:
    """A number given as an operand, or a symbolic size used as one."""

    value: Any


Operand = Value | Scalar


@dataclass(frozen=True)
class Origin:
    """Where the user wrote an operator, and what the code around it asks for.

    Attributes:
        module: dotted path.
        line: `file.py:line`.
        call: name of the eager call.
        regions: (number, strict) of the regions to be fused that hold it, the outermost first.
        stored: number of the barrier behind it, 0 for none: no kernel may hold both this call and
            one that reads its result.
    """

    module: str = ""
    line: str = ""
    call: str = ""
    regions: tuple[tuple[int, bool], ...] = ()
    stored: int = 0

    def __str__(self) -> str:
        return " ".join(part for part in (self.module, self.line) if part) or "(unknown)"


@dataclass(frozen=True)
class Ref:
    """Stands for operand `index` of a node inside an extern's argument template."""

    index: int


@dataclass(frozen=True)
class Literal:
    """A framework object in an extern's arguments, by kind (`dtype`, `device`, ...) and name."""

    kind: str
    text: str


@dataclass(frozen=True)
class Node:
    """An operator applied to operands.

    Attributes:
        op: name in the operator table, or `extern`.
        attrs: sorted (name, value) pairs; values are numbers, text, dtypes, dims, tuples or None.
            An extern has `target` (ATen name), `args` and `kwargs` (templates with `Ref`s) and
            `reason`.
        call: number of the eager call that this node is part of.
    """

    op: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Value, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    origin: Origin = field(default_factory=Origin)
    call: int = -1

    @cached_property
    def name(self) -> str:
        """The name of the first output: unique in a graph."""
        return self.outputs[0].name if self.outputs else f"call{self.call}"

    @cached_property
    def attr(self) -> Mapping[str, Any]:
        """The attributes by name."""
        return dict(self.attrs)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The operands that are tensors."""
        return tuple(v for v in self.inputs if isinstance(v, Value))

    @property
    def output(self) -> Value:
        """The only output."""
        (out,) = self.outputs
        return out


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which every value is made before it is used.

    Attributes:
        outputs: what the graph returns, in order; None stands for an absent gradient and a Scalar
            for a size that is returned.
        mutations: (input, value) pairs: the value to be written back into the input at the end.
        sizes: symbolic sizes, with what tells each one: the name of an input and a dimension; that
            of a scalar input and -1; or what is computed from the sizes before it, and -1.
    """

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value | Scalar | None, ...]
    mutations: tuple[tuple[Value, Value], ...] = ()
    sizes: tuple[tuple[Size, str | Computed, int], ...] = ()

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that makes each value; inputs have none."""
        return {v.name: n for n in self.nodes for v in n.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in order, each once."""
        found: dict[str, dict[str, Node]] = {}
        for n in self.nodes:
            for v in n.values:
                found.setdefault(v.name, {})[n.name] = n
        return {name: tuple(nodes.values()) for name, nodes in found.items()}

    @cached_property
    def needed(self) -> frozenset[str]:
        """Names of values that must exist when the graph ends."""
        names = {v.name for v in self.outputs if isinstance(v, Value)}
        return frozenset(names | {v.name for _, v in self.mutations})

    def with_nodes(self, nodes: tuple[Node, ...]) -> Graph:
        """The same graph with other nodes."""
        return replace(self, nodes=nodes)

    def values(self) -> Iterator[Value]:
        """Every value: inputs, then outputs of nodes in order."""
        yield from self.inputs
        for n in self.nodes:
            yield from n.outputs


def freeze(attrs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Attributes as the sorted pairs a Node holds."""
    return tuple(sorted(attrs.items()))
