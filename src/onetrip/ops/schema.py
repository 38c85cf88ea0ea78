"""What an operator is: one `Op` entry, from which imports, lowering, costs, tests and docs derive.

Four kinds of body say what an operator means:

- `Elementwise(body)`   scalar expressions of the operands, in operation precision -> expression
- `Movement(index)`     output index -> (operand number, its index, guard): no arithmetic
- `Reduce(...)`         lift of one element, monoid, finish of the final state
- `Composite(expand)`   other operators, given through a `Builder`
- `Opaque`              a library call (contraction, convolution, attention, sort, ...)

Elementwise operands are cast to the compute dtype (`compute(operand types, attrs)`; default: the
promoted dtype's operation precision), the body is evaluated there, and the result is cast once to
the output's dtype: that is eager's own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ..base.dtype import DType
from ..base.sym import Dim
from ..ir.expr import Expr
from ..ir.graph import Node, Operand, Value
from ..ir.types import TensorType

Attrs = Mapping[str, Any]


class Kind(Enum):
    """What an operator does to its iteration space; legality and schedules look at nothing else."""

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    MOVEMENT = "movement"
    REDUCTION = "reduction"
    SCAN = "scan"
    CONTRACTION = "contraction"
    GATHER = "gather"
    SCATTER = "scatter"
    RANDOM = "random"
    COMPOSITE = "composite"
    OPAQUE = "opaque"


TypeRule = Callable[[tuple[Any, ...], Attrs], tuple[TensorType, ...]]
"""(operand TensorTypes or numbers, attrs) -> output types."""


class Builder(Protocol):
    """Makes nodes of a graph; every call returns the new node's output value.

    Types of the outputs come from the operators' own type rules.
    """

    def __call__(self, op: str, *operands: Operand | Dim | bool | float, **attrs: Any) -> Value:
        """Adds `op` on operands; numbers become Scalars."""
        ...


@dataclass(frozen=True)
class Elementwise:
    """`body(operands in compute dtype, attrs)` -> Expr, cast to the output dtype afterwards.

    `compute(operand types or numbers, output type, attrs)` gives the compute dtype of each
    operand; None: the operation precision of the promoted operand dtype.
    `rounds`: positions of operands that eager rounds to the promoted dtype before it computes,
    although they are numbers or 0-d (multiplication reads them in operation precision, addition
    does not); `rounds_on_gpu` the same where its GPU kernels differ.
    `ops/element.py` applies all this. Beside the node's own attributes a body sees `common`, the
    promoted dtype (for eager's roundings between steps), and `gpu`, whose kernels it follows.
    """

    body: Callable[[tuple[Expr, ...], Attrs], Expr]
    compute: Callable[[tuple[Any, ...], TensorType, Attrs], tuple[DType, ...]] | None = None
    rounds: tuple[int, ...] = ()
    rounds_on_gpu: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Movement:
    """`read(out_index, node)` -> the expression to store at that index.

    It loads node's operands by name, selects between loads and constants by position, and casts;
    without operands it is a number computed from the position (arange, full). `view(node)` gives
    (strides, offset in elements) of an alias of operand 0 when the movement is one, else None.
    """

    read: Callable[[tuple[Dim, ...], Node], Expr]
    view: Callable[[Node], tuple[tuple[Dim, ...], Dim] | None] | None = None


@dataclass(frozen=True)
class Reduce:
    """A reduction over `axes(node)` (dimension numbers of operand 0).

    lift(element, position of the element along the reduced axes, node) -> components;
    finish(final components, number of reduced elements, node) -> value before the output cast.
    """

    monoid: str
    axes: Callable[[Node], tuple[int, ...]]
    lift: Callable[[Expr, Dim, Node], tuple[Expr, ...]]
    finish: Callable[[tuple[Expr, ...], Dim, Node], Expr]


@dataclass(frozen=True)
class Scanning:
    """An inclusive prefix fold along dimension `axis(node)` of operands of one shape.

    lift(element of every operand, position along the axis, node) -> components.
    `wide`: a state of f32 is kept in f64, as eager's CPU kernels do and its GPU ones do not.
    `reverse(node)`: whether it goes from the axis' end to its start.
    """

    monoid: str
    axis: Callable[[Node], int]
    lift: Callable[[tuple[Expr, ...], Dim, Node], tuple[Expr, ...]]
    component: int = 0
    wide: bool = False
    reverse: Callable[[Node], bool] = lambda node: False


@dataclass(frozen=True)
class Composite:
    """`expand(build, node)` -> one value for each output of the node, None for an absent one."""

    expand: Callable[[Builder, Node], tuple[Value | None, ...]]


@dataclass(frozen=True)
class Opaque:
    """A library call; `flops(node)` counts its arithmetic (2 for a multiply-add).

    `special(node)` counts special functions that it computes after its products, on the result.
    """

    flops: Callable[[Node], Dim]
    special: Callable[[Node], Dim] = lambda node: 0


@dataclass(frozen=True)
class Random:
    """Elementwise on (operands..., uniform number of the element's linear index); see `Rng`."""

    body: Callable[[tuple[Expr, ...], Expr, Attrs], Expr]
    rounds: int = 10


Body = Elementwise | Movement | Reduce | Scanning | Composite | Opaque | Random


@dataclass(frozen=True)
class Form:
    """One ATen overload and how its schema arguments map to operands and attributes.

    Attributes:
        target: such as `aten.add.Tensor`.
        operands: schema names, in operand order; an argument that is a list of tensors gives
            several operands; an absent optional tensor is left out, and the attribute
            `has_<name>` records presence when `operands` names end in `?`; for a list of optional
            tensors it is a tuple of bools.
        attrs: schema names kept as attributes (other arguments must have their default).
        fixed: attributes that this overload implies.
    """

    target: str
    operands: tuple[str, ...]
    attrs: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Sample:
    """One conformance sample: operand descriptions and attributes.

    operands: (dtype name, shape) pairs or numbers; `f32+` asks for positive elements, `f32%`
        for some in (0, 1).
    """

    operands: tuple[Any, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Exactness:
    """How far a generated result may stand from eager's contiguous kernel: 0 ulp is `matched`."""

    ulp: float

    @property
    def matched(self) -> bool:
        """Whether every bit is eager's."""
        return self.ulp == 0


MATCHED = Exactness(0)
BOUNDED = Exactness(math.inf)
"""No farther from the true value than twice eager's own distance plus 4 ulp."""


def ulp(count: float) -> Exactness:
    """At most `count` units in the last place from eager."""
    return Exactness(count)


@dataclass(frozen=True)
class Op:
    """One operator: everything onetrip knows of it stands here.

    Attributes:
        types: the type rule (dtype and shape of the outputs, dense strides).
        body: what it means.
        reference: numpy function on (operand arrays or numbers..., attrs) -> array or tuple of
            arrays, in f64 and i64; attrs is a mapping and comes last.
        samples: small inputs for the conformance test.
        exactness: per backend (`cpp`, `triton`); ops/exactness.py derives what is not declared.
    """

    name: str
    kind: Kind
    forms: tuple[Form, ...]
    types: TypeRule
    body: Body
    reference: Callable[..., Any]
    samples: tuple[Sample, ...]
    exactness: Mapping[str, Exactness] = field(default_factory=dict)
    onnx: tuple[str, ...] = ()
    doc: str = ""
