"""The scores of an attention: what stands between the first product and the softmax.

    s = scale * (a @ b) + sum of addends, some places filled

`read_scores` walks from the operand of a softmax back to a product, and then from the product on:
each value on the way is the product's elements in another arrangement, whose strides *in the
product* say which of its dimensions are rows, columns and batch. A spelling is nothing but a way
along these nodes. Must not know what the scores are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.dtype import DType, bf16, f16, f32, f64
from ..base.errors import Unsupported
from ..base.sym import Dim, product
from ..ir.graph import Graph, Node, Operand, Value
from ..ir.types import TensorType, same_shape
from ..ops.rules import same_dim
from ..ops.schema import Movement
from ..ops.shapes import reshape_strides
from ..ops.table import OPS
from .closed import number_of

PRODUCTS = {"bmm": 0, "mm": 0, "baddbmm": 1, "addmm": 1}
"""Products of matrices, with the position of the left one among their operands."""


LEAST: Mapping[DType, float] = {
    f16: -65504.0, bf16: -3.3895313892515355e38, f32: -3.4028234663852886e38,
    f64: -1.7976931348623157e308,
}  # fmt: skip
"""The least finite number."""


def held(fill: float, dtype: DType) -> float:
    """A fill as values of a dtype hold it: -inf where it has left their range."""
    return -math.inf if fill < LEAST.get(dtype, -math.inf) else fill


@dataclass(frozen=True)
class Term:
    """Added to the scores, or filled into them.

    Attributes:
        value: an addend; a condition where something is filled.
        factor: of an addend.
        fill: the number that is filled; None for an addend.
        when: filled where the condition is this.
        frame: how the scores lie there, as strides in the product.
    """

    value: Value
    frame: TensorType
    factor: float = 1.0
    fill: float | None = None
    when: bool = True


@dataclass(frozen=True)
class Scores:
    """What the softmax reads.

    Attributes:
        product: the node that multiplies.
        nodes: the nodes after it, in order.
        factors: tensors of one number that scale it as well.
        frames: how its elements lie in the values on the way, the last in the softmax' operand.
    """

    product: Node
    nodes: tuple[Node, ...]
    frames: tuple[TensorType, ...]
    scale: float
    terms: tuple[Term, ...]
    factors: tuple[Value, ...] = ()

    @property
    def frame(self) -> TensorType:
        """How the softmax' operand lies in the product."""
        return self.frames[-1]


@dataclass(frozen=True)
class Inexpressible:
    """A product stands there, but what happens to it is no scale, mask or addend."""

    nodes: tuple[Node, ...]
    reason: str


def read_scores(graph: Graph, source: Value) -> Scores | Inexpressible | None:
    """The scores behind the operand of a softmax; None where no product is."""
    way = _way(graph, source)
    if way is None:
        return None
    product, steps = way[0][0], way[1:]
    scores = _at_product(product)
    for node, position in steps:
        found = _RULES.get(node.op, _unknown)(scores, node, position, graph)
        if isinstance(found, str):
            return Inexpressible(tuple(n for n, _ in way), found)
        scores = replace(found, nodes=(*scores.nodes, node))
    return scores


def _at_product(product: Node) -> Scores:
    first = PRODUCTS[product.op]
    frame = TensorType.dense(product.output.type.dtype, product.output.type.shape)
    at = product.attr
    terms: tuple[Term, ...] = ()
    if first and at.get("beta", 1) != 0:
        terms = (Term(product.values[0], frame, float(at.get("beta", 1))),)
    scale = float(at.get("alpha", 1)) if first else 1.0
    return Scores(product, (), (frame,), scale, terms)


# ------------------------------------------------------------------ the way back


MOST_STEPS = 64
Way = list[tuple[Node, int]]


def _way(graph: Graph, source: Value) -> Way | None:
    """(node, operand that comes from the product) from the nearest product on to a value."""
    seen: set[str] = set()
    stack: list[tuple[Value, Way]] = [(source, [])]
    while stack:
        value, after = stack.pop()
        node = graph.producers.get(value.name)
        if node is None or value.name in seen or len(after) > MOST_STEPS:
            continue
        seen.add(value.name)
        if node.op in PRODUCTS:
            return [(node, -1), *after]
        for k, x in reversed(tuple(enumerate(node.inputs))):
            if isinstance(x, Value) and _may_carry(node, k, x):
                stack.append((x, [(node, k), *after]))
    return None


def _may_carry(node: Node, position: int, x: Value) -> bool:
    """Whether an operand may hold the scores that a node gives on: as many as its result does."""
    op = OPS.get(node.op)
    if op is None or len(node.outputs) != 1 or position > 2 or not x.type.dtype.is_float:
        return False
    if isinstance(op.body, Movement):
        return position == 0 and same_shape((x.type.numel,), (node.output.type.numel,))
    return same_shape(x.type.shape, node.output.type.shape)


# ------------------------------------------------------------------ the way on


Answer = Scores | str
Rule = Callable[[Scores, Node, int, Graph], Answer]


def _unknown(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    if isinstance(OPS[node.op].body, Movement):
        return _moved(s, node, position, graph)
    return f"{node.op} of the scores is no scale, mask or addend"


def lying(node: Node, source: TensorType) -> TensorType | None:
    """How the elements of a movement's operand lie in its result; None where no strides say it."""
    body = OPS[node.op].body if node.op in OPS else None
    if not isinstance(body, Movement) or body.view is None or not node.values:
        return None
    x = Value(node.values[0].name, source)
    try:
        found = body.view(replace(node, inputs=(x, *node.inputs[1:])))
    except Unsupported:  # symbolic sizes that cannot be compared
        return None
    if found is None or found[1] != 0:
        return None
    return TensorType(source.dtype, node.output.type.shape, found[0])


ELEMENTWISE = frozenset({"clone", "alias", "to", "mul", "div"})
"""What leaves elements of its first operand where they are."""


def along(source: TensorType, nodes: Sequence[Node]) -> TensorType | None:
    """How elements lie after some nodes; None where no strides say it."""
    lain: TensorType | None = source
    for node in nodes:
        if lain is None:
            return None
        if node.op not in ELEMENTWISE:
            lain = lying(node, lain)
    return lain


def restrided(source: TensorType, shape: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The strides of the elements in another shape; None where no strides say it."""
    if not same_dim(source.numel, product(shape)):
        return None
    try:
        return reshape_strides(source, shape)
    except Unsupported:
        return None


def _moved(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    frame = lying(node, s.frame)
    if frame is None:
        return f"{node.op} mixes rows and columns of the scores"
    return replace(s, frames=(*s.frames, frame))


def _same(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    return s


def _cast(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    return s if node.output.type.dtype.is_float else "the scores are converted to integers"


def _times(s: Scores, by: float, dtype: DType) -> Answer:
    if not math.isfinite(by) or by <= 0:
        return f"the scores are multiplied by {by}"
    terms = tuple(
        replace(t, factor=t.factor * by, fill=None if t.fill is None else held(t.fill * by, dtype))
        for t in s.terms
    )
    return replace(s, scale=s.scale * by, terms=terms)


def _mul(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    other = node.inputs[1 - position]
    by = number_of(graph, other)
    if by is not None:
        return _times(s, by, node.output.type.dtype)
    if isinstance(other, Value) and other.type.rank == 0 and not s.terms:
        return replace(s, factors=(*s.factors, other))
    return "the scores are multiplied by a tensor"


def _div(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    by = number_of(graph, node.inputs[1]) if position == 0 else None
    if not by or node.attr.get("rounding_mode") is not None:
        return "the scores are divided by a tensor"
    return _times(s, 1 / by, node.output.type.dtype)


def _added(sign: int) -> Rule:
    def rule(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
        factor = float(node.attr.get("alpha", 1))
        other = node.inputs[1 - position]
        if position == 1:
            scaled = _times(s, sign * factor, node.output.type.dtype)
            if isinstance(scaled, str):
                return scaled
            s, factor = scaled, 1.0
        else:
            factor *= sign
        if not isinstance(other, Value):
            return s  # the same number in every place is nothing to a softmax
        return replace(s, terms=(*s.terms, Term(other, s.frame, factor)))

    return rule


def _masked_fill(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    return _filled(s, node.inputs[1], node.inputs[2], True, graph)


def _where(s: Scores, node: Node, position: int, graph: Graph) -> Answer:
    return _filled(s, node.inputs[0], node.inputs[3 - position], position == 2, graph)


def _filled(s: Scores, condition: Operand, by: Operand, when: bool, graph: Graph) -> Answer:
    fill = number_of(graph, by)
    if fill is None or not isinstance(condition, Value):
        return "the scores are replaced by another tensor"
    if fill != -math.inf and not fill < 0:
        return f"the scores are replaced by {fill}"
    return replace(s, terms=(*s.terms, Term(condition, s.frame, 1.0, fill, when)))


_RULES: dict[str, Rule] = {
    "clone": _same,
    "alias": _same,
    "to": _cast,
    "mul": _mul,
    "div": _div,
    "add": _added(1),
    "sub": _added(-1),
    "masked_fill": _masked_fill,
    "where": _where,
}
