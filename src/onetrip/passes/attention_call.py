"""The nodes of an attention by the library: operands, mask, call, rows put right, result in place.

Must not know how the attention was spelled, but for the nodes after it that only move its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..base.dtype import f32
from ..base.sym import Dim, add, is_nonnegative, mod, mul
from ..ir.graph import Graph, Node, Ref, Value
from ..ir.types import TensorType, contiguous_strides
from ..ops.attention_layout import dense_strides, result_order
from ..ops.rules import same_dim
from .alternatives import Exactness
from .heads import Heads, present, shared_heads
from .masking import Mask, Masks, Rows, settle, with_rows
from .scores import PRODUCTS, Scores, along, restrided
from .writer import Writer

TARGET = "onetrip.attention.default"


@dataclass(frozen=True)
class Made:
    """The nodes, what they stand for, and the nodes of movements that they replace as well."""

    nodes: tuple[Node, ...]
    values: tuple[tuple[str, Value], ...]
    replaced: tuple[Node, ...]
    exactness: Exactness
    note: str


@dataclass(frozen=True)
class Setting:
    """What one graph has in common for all of its attentions."""

    graph: Graph
    device: str
    masks: Masks
    taken: set[str]


def call_attention(
    setting: Setting, scores: Scores, heads: Heads, second: Node, place: int
) -> Made | str:
    """The nodes, or why the library cannot compute it.

    Args:
        second: the product with the values; `place`: which operand of it the probabilities are.
    """
    graph = setting.graph
    origin = replace(second.origin, call=TARGET)
    write = Writer(f"{second.name}_attention", setting.taken, origin, second.call)
    first = PRODUCTS[scores.product.op]
    sides = ((scores.product.values[first], False), (scores.product.values[first + 1], True))
    q_side, k_side = sides[::-1] if heads.turned else sides
    v_side = (second.values[1 - place], place == 1)
    dtype = second.output.type.dtype
    width = k_side[0].type.shape[-2 if k_side[1] else -1]
    out_width = v_side[0].type.shape[-2 if v_side[1] else -1]
    if setting.device == "cpu" and not same_dim(width, out_width):
        return "the library's kernel takes values as wide as the keys"
    rows = (heads.queries[0], heads.keys[0], heads.keys[0])
    wide = (width, width, out_width)
    operands = [
        present(graph, write, x, turned, TensorType.dense(dtype, (*heads.outer, n, w)), k < 2)
        for k, ((x, turned), n, w) in enumerate(
            zip((q_side, k_side, v_side), rows, wide, strict=True)
        )
    ]
    q, k, v = (None if x is None else x.value for x in operands)
    if q is None or k is None or v is None:
        return f"scores and result are of other precision ({dtype.name})"
    for factor in scores.factors:
        q = write("mul", q, factor)
    scale = scores.scale
    for x in operands:
        scale *= x.factor if x is not None else 1.0
    mask = setting.masks.combine(write, scores.terms, heads, dtype, setting.device == "cpu")
    if isinstance(mask, str):
        return mask
    if setting.device == "cuda":
        mask = with_rows(write, mask, heads.keys[0])
    strides = result_strides(q.type, v.type, setting.device)
    if strides is None:
        return "sizes are symbolic and the query's layout is not known"
    given = _shared(setting, k, v, mask)
    kind = TensorType(dtype, (*heads.outer, heads.queries[0], out_width), strides)
    o = _call(write, (q, *given), mask, scale, given != (k, v), kind)
    o = settle(write, o, v, mask)
    result, stands_for, replaced = _in_place(graph, write, o, second, place)
    used = _used(write.nodes, result)
    exactness = Exactness.REASSOCIATES if mask.exact else Exactness.FINITE_ONLY
    return Made(used, ((stands_for, result),), replaced, exactness, _note(mask))


def _call(
    write: Writer,
    qkv: tuple[Value, Value, Value],
    mask: Mask,
    scale: float,
    grouped: bool,
    kind: TensorType,
) -> Value:
    given = mask.value is not None
    inputs = (*qkv, *((mask.value,) if mask.value is not None else ()))
    args = (Ref(0), Ref(1), Ref(2), Ref(3) if given else None, mask.causal, scale, grouped)
    return write.library(
        "attention",
        inputs,
        kind,
        is_causal=mask.causal,
        scale=scale,
        enable_gqa=grouped,
        has_attn_mask=given,
        target=TARGET,
        args=args,
        kwargs=(),
    )


def _shared(setting: Setting, k: Value, v: Value, mask: Mask) -> tuple[Value, Value]:
    """Keys and values without the copies of heads that queries share, where kernels take them so:
    on a GPU those of 16 bits without a mask."""
    if setting.device != "cpu" and (mask.value is not None or k.type.dtype is f32):
        return k, v
    fewer = shared_heads(setting.graph, k), shared_heads(setting.graph, v)
    if fewer[0] is None or fewer[1] is None:
        return k, v
    return fewer[0], fewer[1]


def _note(mask: Mask) -> str:
    how = "causal" if mask.causal else "without a mask" if mask.value is None else "with a mask"
    rows = {None: "", Rows.NAN: ", NaN", Rows.MEAN: ", the mean", Rows.EITHER: ", NaN or the mean"}
    masked = f"{rows[mask.rows]} in rows that are masked whole" if mask.rows else ""
    return f"the library's attention, {how}{masked}"


def _used(nodes: Sequence[Node], result: Value) -> tuple[Node, ...]:
    """The nodes that the result needs."""
    needed = {result.name}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(v.name for v in node.values)
            kept.append(node)
    return tuple(reversed(kept))


# ------------------------------------------------------------------ layout


def result_strides(q: TensorType, v: TensorType, device: str) -> tuple[Dim, ...] | None:
    """Strides of the library's result; None where the query's strides cannot be compared."""
    alike = same_dim(q.shape[3], v.shape[3]) and q.strides[3] == 1
    order = result_order(q.strides, alike, device == "cpu", _is_at_least)
    outer = [q.strides[k] for k in order[:3]] if alike or device != "cpu" else []
    if not all(_is_at_least(a, b) for a, b in pairwise(outer)):
        return None
    return dense_strides((*q.shape[:3], v.shape[3]), order)


def _is_at_least(a: Dim, b: Dim) -> bool:
    """Whether a stride is provably no smaller than another."""
    if b != 0 and mod(a, b) == 0:
        return a != 0
    return is_nonnegative(add(a, mul(b, -1)))


def _in_place(
    graph: Graph, write: Writer, o: Value, second: Node, place: int
) -> tuple[Value, str, tuple[Node, ...]]:
    """The result as a value of the graph: (what is made, the value that it is, nodes replaced).

    It is the last value on the way from the second product that is laid out as the result lies
    anyway: copies that eager makes of a product's result are left out. Where there is none, the
    result is copied into the layout of the first.
    """
    lain = _as_product(o.type, second.output.type, place)
    ways = _movements(graph, second, lain)
    first: tuple[Value, tuple[int, ...], int] | None = None
    exact: tuple[Value, tuple[int, ...], int] | None = None
    for number, (value, frame) in enumerate(ways):
        order = _order(o.type, frame)
        if order is None:
            continue
        first = first or (value, order, number)
        if _lies_like(o.type, order, value.type):
            exact = (value, order, number)
    chosen = exact or first
    if chosen is None:
        return _rearranged(write, o, second, place), second.output.name, ()
    value, order, number = chosen
    x = write.viewed(write.permuted(o, order), value.type.shape)
    if exact is None:
        x = write("clone", x)
    if x is not o:
        x = write.laid_out(x, value.type.strides)
    replaced = tuple(graph.producers[v.name] for v, _ in ways[1 : number + 1])
    return x, value.name, replaced


def _as_product(o: TensorType, product: TensorType, place: int) -> TensorType | None:
    """How the result's elements lie in the second product's, counted row-major."""
    turned = place == 1
    shape = product.shape
    if turned:
        shape = (*shape[:-2], shape[-1], shape[-2])
    strides = restrided(TensorType.dense(o.dtype, o.shape), shape)
    if strides is None:
        return None
    if turned:
        strides = (*strides[:-2], strides[-1], strides[-2])
    return TensorType(o.dtype, product.shape, strides)


def _movements(
    graph: Graph, second: Node, lain: TensorType | None
) -> list[tuple[Value, TensorType]]:
    """The second product's result, and the values on its only way that are movements of it."""
    value = second.output
    ways: list[tuple[Value, TensorType]] = []
    while lain is not None:
        ways.append((value, lain))
        readers = graph.consumers.get(value.name, ())
        if value.name in graph.needed or len(readers) != 1 or readers[0].op in ("to", "mul", "div"):
            break
        (node,) = readers
        lain = along(lain, (node,)) if len(node.values) == 1 else None
        value = node.outputs[0]
    return ways


def _order(o: TensorType, frame: TensorType) -> tuple[int, ...] | None:
    """The result's dimensions in the order in which a value has them; None where it splits one."""
    rows = contiguous_strides(o.shape)
    open_ = [k for k in range(4) if o.shape[k] != 1]
    order: list[int] = []
    for size, stride in zip(frame.shape, frame.strides, strict=True):
        if size == 1:
            continue
        k = next((k for k in open_ if same_dim(o.shape[k], size) and rows[k] == stride), None)
        if k is None:
            return None
        open_.remove(k)
        order.append(k)
    units = [k for k in range(4) if o.shape[k] == 1]
    if order == sorted(order):
        return None if open_ else (0, 1, 2, 3)
    return None if open_ else (*units, *order)


def _lies_like(o: TensorType, order: Sequence[int], value: TensorType) -> bool:
    own = [o.strides[k] for k in order if o.shape[k] != 1]
    theirs = [s for n, s in zip(value.shape, value.strides, strict=True) if n != 1]
    return len(own) == len(theirs) and all(map(same_dim, own, theirs))


def _rearranged(write: Writer, o: Value, second: Node, place: int) -> Value:
    """The result as the second product's."""
    x = write.permuted(o, (0, 1, 3, 2)) if place == 1 else o
    if not x.type.is_contiguous:
        x = write("clone", x)
        x = write.laid_out(x, contiguous_strides(x.type.shape))
    x = write.viewed(x, second.output.type.shape)
    return write.laid_out(x, second.output.type.strides) if x is not o else x
