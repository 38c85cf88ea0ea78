"""Where queries, keys and batch of an attention lie, and its operands in the library's form.

    product [batch, queries, keys]   ->   operands [batch, heads, rows, width]

The batch of a product is split as its scores are split on their way to the softmax. An operand is
taken from as far back as its elements have that form: copies that eager makes only so that a
product can read them are left out. Must not know masks or scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.sym import Dim, mul, product
from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType, contiguous_strides, same_shape
from ..ops.rules import same_dim
from .closed import number_of
from .scores import along, lying, restrided
from .writer import Writer

Extent = tuple[Dim, Dim]
"""Size and stride in the first product."""


@dataclass(frozen=True)
class Heads:
    """The axes of the first product.

    Attributes:
        turned: whether the product's rows are the keys.
        queries, keys: their sizes and strides in it.
        step: elements of one of its matrices.
        lead: the finest split of its batch, outermost first.
    """

    turned: bool
    queries: Extent
    keys: Extent
    step: Dim
    lead: tuple[Dim, ...]

    @property
    def outer(self) -> tuple[Dim, Dim]:
        """Batch and heads as the library takes them: all but the last split, and that."""
        return (product(self.lead[:-1]), self.lead[-1]) if self.lead else (1, 1)


@dataclass(frozen=True)
class Places:
    """Which dimensions of a value are batch (outermost first), queries and keys."""

    lead: tuple[int, ...]
    queries: int | None
    keys: int | None


def find_heads(frames: Sequence[TensorType], dim: int) -> Heads | None:
    """The axes, given the scores on their way and the axis of the softmax in the last of them.

    None where the softmax runs over another axis than one of the product's, or where values split
    the batch in ways that do not nest.
    """
    rows, columns = frames[0].shape[-2:]
    sides: tuple[tuple[bool, Extent, Extent], ...] = (
        (False, (rows, columns), (columns, 1)),
        (True, (columns, 1), (rows, columns)),
    )
    last = (frames[-1].shape[dim], frames[-1].strides[dim])
    for turned, queries, keys in sides:
        if last[0] != 1 and _is(last, keys):
            found = Heads(turned, queries, keys, mul(rows, columns), ())
            return _with_lead(found, frames)
    return None


def _is(a: Extent, b: Extent) -> bool:
    return same_dim(a[0], b[0]) and same_dim(a[1], b[1])


def _with_lead(heads: Heads, frames: Sequence[TensorType]) -> Heads | None:
    splits: list[tuple[Dim, ...]] = []
    for frame in frames:
        places = places_in(frame, heads)
        if places is None:
            return None
        splits.append(tuple(frame.shape[k] for k in places.lead))
    finest = max(splits, key=len)
    if any(nested(split, finest) is None for split in splits):
        return None
    return Heads(heads.turned, heads.queries, heads.keys, heads.step, finest)


def places_in(frame: TensorType, heads: Heads) -> Places | None:
    """Which dimension is what; None where one is neither."""
    open_ = {k: (n, s) for k, (n, s) in enumerate(zip(frame.shape, frame.strides, strict=True))}
    open_ = {k: e for k, e in open_.items() if e[0] != 1}
    found = [next((k for k, e in open_.items() if _is(e, own)), None) for own in
             (heads.queries, heads.keys)]  # fmt: skip
    for k in found:
        if k is not None:
            del open_[k]
    lead: list[int] = []
    step = heads.step
    while open_:
        following = next((k for k, e in open_.items() if same_dim(e[1], step)), None)
        if following is None:
            return None
        lead.append(following)
        step = mul(step, open_.pop(following)[0])
    return Places(tuple(reversed(lead)), *found)


def nested(coarse: Sequence[Dim], fine: Sequence[Dim]) -> list[list[Dim]] | None:
    """The finer sizes that each coarser one is the product of; None where they do not nest."""
    left = list(fine)
    groups: list[list[Dim]] = []
    for size in coarse:
        group: list[Dim] = []
        while left and not same_dim(product(group), size):
            group.append(left.pop(0))
        if not same_dim(product(group), size):
            return None
        groups.append(group)
    return None if left else groups


# ------------------------------------------------------------------ operands


@dataclass(frozen=True)
class Operand:
    """A value in the library's form, and the number that eager multiplied it with."""

    value: Value
    factor: float = 1.0


def present(
    graph: Graph, write: Writer, matrices: Value, turned: bool, like: TensorType, scales: bool
) -> Operand | None:
    """The operand of a product as [batch, heads, rows, width] with contiguous rows.

    Args:
        matrices: [batch, rows, width] or [rows, width]; `turned`: the last two the other way.
        like: dtype and shape that are wanted.
        scales: whether the value before a multiplication will do.
    """
    found = _farthest(graph, matrices, turned, like, scales)
    if found is not None:
        return Operand(write.viewed(found.value, like.shape), found.factor)
    if matrices.type.dtype is not like.dtype:
        return None
    x = matrices
    if turned:
        x = write.permuted(x, (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))
    x = write.viewed(x, like.shape)
    return Operand(x if _has_rows(x.type) else _copied(write, x))


def _copied(write: Writer, x: Value) -> Value:
    made = write("clone", x)
    return write.laid_out(made, contiguous_strides(x.type.shape))


def _has_rows(kind: TensorType) -> bool:
    return kind.strides[-1] == 1 or kind.shape[-1] == 1


def _farthest(
    graph: Graph, matrices: Value, turned: bool, like: TensorType, scales: bool
) -> Operand | None:
    """The value farthest back that has the wanted elements in their order but for sizes of 1."""
    value, factor = matrices, 1.0
    after: list[Node] = []
    best: Operand | None = None
    while True:
        if value.type.dtype is like.dtype and _is_like(value.type, after, turned, like.shape):
            best = Operand(value, factor)
        node = graph.producers.get(value.name)
        by = None if node is None else _step(graph, node)
        if node is None or by is None or (by != 1.0 and not scales):
            return best
        value, factor = node.values[0], factor * by
        after.insert(0, node)


def _step(graph: Graph, node: Node) -> float | None:
    """What a node multiplies every element with, without rounding to fewer bits before."""
    if not node.values:
        return None
    kinds = (node.values[0].type.dtype, node.outputs[0].type.dtype)
    if node.op == "to":
        widens = kinds[0].is_float and kinds[1].is_float and kinds[0].bits <= kinds[1].bits
        return 1.0 if widens else None
    if node.op in ("mul", "div") and kinds[0] is kinds[1]:
        by = number_of(graph, node.inputs[1])
        scales = by is not None and by > 0 and same_shape(
            node.values[0].type.shape, node.outputs[0].type.shape
        )  # fmt: skip
        return None if not scales or by is None else by if node.op == "mul" else 1 / by
    if node.op in ("clone", "alias") or lying(node, node.values[0].type) is not None:
        return 1.0
    return None


def _is_like(kind: TensorType, after: Sequence[Node], turned: bool, shape: Sequence[Dim]) -> bool:
    if not _has_rows(kind):
        return False
    if not same_shape(*(tuple(n for n in t if n != 1) for t in (kind.shape, tuple(shape)))):
        return False
    lain = along(TensorType.dense(kind.dtype, kind.shape), after)
    if lain is None:
        return False
    if turned:
        *lead, a, b = range(lain.rank)
        shapes, strides = (tuple(t[k] for k in (*lead, b, a)) for t in (lain.shape, lain.strides))
        lain = TensorType(lain.dtype, shapes, strides)
    found = restrided(lain, tuple(shape))
    return found is not None and _alike(shape, found, contiguous_strides(tuple(shape)))


def _alike(shape: Sequence[Dim], a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether strides are the same wherever they count."""
    return all(n == 1 or same_dim(s, t) for n, s, t in zip(shape, a, b, strict=True))


def shared_heads(graph: Graph, x: Value) -> Value | None:
    """The value of fewer heads that `x` repeats, each for as many neighbouring heads."""
    batch, heads, rows, width = x.type.shape
    node = graph.producers.get(x.name)
    if node is None or node.op != "view" or node.values[0].type.rank != 5:
        return None
    value = node.values[0]
    b, own, times, r, w = value.type.shape
    whole = (b, mul(own, times), r, w)
    if times == 1 or not same_shape(whole, (batch, heads, rows, width)):
        return None
    after: list[Node] = []
    while True:
        made_by = graph.producers.get(value.name)
        if made_by is None or made_by.op not in ("clone", "expand", "unsqueeze", "view"):
            return None
        after.insert(0, made_by)
        value = made_by.values[0]
        if not same_shape(value.type.shape, (b, own, r, w)):
            continue
        lain = along(TensorType.dense(value.type.dtype, value.type.shape), after)
        dense = contiguous_strides(value.type.shape)
        repeats = lain is not None and _alike(lain.shape, lain.strides, (*dense[:2], 0, *dense[2:]))
        return value if repeats and _has_rows(value.type) else None
