"""Attention found by structure in a graph that spells it out.

    o = softmax(scale q k^T + bias, filled where masked) v   ->   o = attention(q, k, v, mask)

A softmax is found in its primitives, the first product behind it and the second one before it; all
between is read by what it does to the scores, not by how it is spelled. Rows that are masked out
whole are NaN or the mean of the values in eager and something else in the library: unless there is
provably none, they are put right after the call (`masking.py`). Must not know costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.dtype import bf16, f16, f32, f64
from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from .alternatives import Alternative, Declined, Exactness, Found
from .attention_call import Setting, call_attention
from .heads import Heads, find_heads
from .masking import Masks
from .scores import Inexpressible, Scores, along, read_scores

KIND = "attention"
DTYPES = {"cpu": (f32, bf16, f16, f64), "cuda": (f32, bf16, f16)}
"""Element types for which the library has a kernel that stores no scores."""


@dataclass(frozen=True)
class Softmax:
    """A softmax in primitives: exp(x - max x) / sum of it, along one dimension.

    Attributes:
        shifted: whether the maximum is subtracted: without it large scores overflow.
    """

    source: Value
    result: Value
    dim: int
    nodes: tuple[Node, ...]
    shifted: bool


@dataclass(frozen=True)
class Spelled:
    """An attention that a graph spells out.

    Attributes:
        second: the product with the values.
        place: which operand of it the probabilities are.
        after: the nodes from the softmax to it.
    """

    softmax: Softmax
    scores: Scores
    heads: Heads
    after: tuple[Node, ...]
    second: Node
    place: int

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, the second product last."""
        own = (self.scores.product, *self.scores.nodes, *self.softmax.nodes)
        return (*own, *self.after, self.second)


def find(graph: Graph, device: str) -> Sequence[Found]:
    """Every attention of the graph, and places like one that the library cannot compute."""
    setting = Setting(graph, device, Masks(graph), {v.name for v in graph.values()})
    found: list[Found] = []
    for node in graph.nodes:
        softmax = _softmax(graph, node)
        spelled = None if softmax is None else _spelled(graph, softmax)
        if isinstance(spelled, Spelled):
            found.append(_alternative(setting, spelled))
        elif spelled is not None:
            found.append(spelled)
    return found


# ------------------------------------------------------------------ reading


def _softmax(graph: Graph, last: Node) -> Softmax | None:
    """The softmax that ends in a division."""
    if last.op != "div" or len(last.values) != 2:
        return None
    top, total = (graph.producers.get(v.name) for v in last.values)
    if top is None or total is None or top.op != "exp" or total.op != "sum":
        return None
    dim = _kept_dim(total)
    if dim is None or total.values[0].name != top.name:
        return None
    x = top.values[0]
    shift = graph.producers.get(x.name)
    if shift is not None and shift.op == "sub" and len(shift.values) == 2:
        peak = graph.producers.get(shift.values[1].name)
        own = peak is not None and peak.op == "amax" and peak.values[0] == shift.values[0]
        if peak is not None and own and _kept_dim(peak) == dim:
            nodes = (peak, shift, top, total, last)
            return Softmax(shift.values[0], last.output, dim, nodes, True)
    return Softmax(x, last.output, dim, (top, total, last), False)


def _kept_dim(node: Node) -> int | None:
    """The one dimension that a reduction keeps with size 1."""
    dims, rank = node.attr.get("dim"), node.values[0].type.rank
    if not node.attr.get("keepdim") or not isinstance(dims, tuple) or len(dims) != 1 or not rank:
        return None
    return int(dims[0]) % rank


def _spelled(graph: Graph, softmax: Softmax) -> Spelled | Declined | None:
    forward = _second_product(graph, softmax.result)
    if forward is None:
        return None
    after, second, place = forward
    scores = read_scores(graph, softmax.source)
    if scores is None:
        return None
    if isinstance(scores, Inexpressible):
        nodes = (*scores.nodes, *softmax.nodes, *after, second)
        return _declined(graph, nodes, scores.reason)
    nodes = (scores.product, *scores.nodes, *softmax.nodes, *after, second)
    heads = find_heads(scores.frames, softmax.dim)
    if heads is None:
        return _declined(graph, nodes, "the softmax does not run over the keys")
    if not _contracts(heads, along(scores.frame, after), place):
        return _declined(graph, nodes, "the second product does not sum over the keys")
    return Spelled(softmax, scores, heads, after, second, place)


def _declined(graph: Graph, nodes: Sequence[Node], reason: str) -> Declined:
    return Declined(KIND, _in_order(graph, nodes), reason)


def _in_order(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    names = {n.name for n in nodes}
    return tuple(n.name for n in graph.nodes if n.name in names)


CARRIES = frozenset({"clone", "alias", "to"})


def _second_product(graph: Graph, value: Value) -> tuple[tuple[Node, ...], Node, int] | None:
    """The nodes to the next product on the only way that a value takes, it, and its operand."""
    after: list[Node] = []
    while True:
        readers = graph.consumers.get(value.name, ())
        if len(readers) != 1:
            readers = tuple(n for n in readers if n.op in ("bmm", "mm"))
        if len(readers) != 1:
            return None
        (node,) = readers
        if node.op in ("bmm", "mm"):
            return tuple(after), node, node.values.index(value)
        moves = along(TensorType.dense(value.type.dtype, value.type.shape), (node,)) is not None
        if not moves or (node.op not in CARRIES and len(node.values) > 1) or node.op in SCALES:
            return None
        after.append(node)
        value = node.output


SCALES = frozenset({"mul", "div"})


def _contracts(heads: Heads, lain: TensorType | None, place: int) -> bool:
    """Whether a product sums over the keys of the probabilities, one matrix at a time."""
    if lain is None:
        return False
    sides = (heads.queries, heads.keys) if place == 0 else (heads.keys, heads.queries)
    wanted = [side[1] for side in sides]
    if lain.rank == 3:
        wanted.insert(0, heads.step)
    return all(n == 1 or s == w for n, s, w in zip(lain.shape, lain.strides, wanted, strict=True))


# ------------------------------------------------------------------ making


def _alternative(setting: Setting, spelled: Spelled) -> Found:
    graph = setting.graph
    outside = _read_outside(graph, spelled.nodes)
    if outside is not None:
        return _declined(graph, spelled.nodes, f"what {outside.op} makes is read elsewhere as well")
    dtype = spelled.second.output.type.dtype
    if dtype not in DTYPES.get(setting.device, ()):
        return _declined(graph, spelled.nodes, f"the library has no fused kernel for {dtype.name}")
    made = call_attention(setting, spelled.scores, spelled.heads, spelled.second, spelled.place)
    if isinstance(made, str):
        return _declined(graph, spelled.nodes, made)
    exactness = made.exactness if spelled.softmax.shifted else Exactness.FINITE_ONLY
    return Alternative(
        KIND,
        _in_order(graph, (*spelled.nodes, *made.replaced)),
        made.nodes,
        made.values,
        exactness,
        made.note,
    )


def _read_outside(graph: Graph, nodes: Sequence[Node]) -> Node | None:
    """A node of the pattern, not the last, that something else reads as well."""
    names = {n.name for n in nodes}
    for node in nodes[:-1]:
        for v in node.outputs:
            readers = graph.consumers.get(v.name, ())
            if v.name in graph.needed or any(r.name not in names for r in readers):
                return node
    return None
