"""Random calls of an ATen graph become seeded operators of ours, before it is partitioned.

So autograd's saved values hold a seed of 8 bytes where torch would save a mask or the numbers.
The table says what each call becomes; a call it does not name stays as it is. It must not know
the partitioner or any later stage.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy

from . import torch_ops  # noqa: F401  (registers the operators)
from .philox import UNIFORM_BITS
from .writer import Writer

aten = torch.ops.aten
ours = torch.ops.onetrip
Node = torch.fx.Node


class _Writer(Writer):
    """A writer that makes seeds and reads sizes."""

    def __init__(self, node: Node, salts: itertools.count[int]) -> None:
        super().__init__(node)
        self._salts = salts

    def seed(self, device: torch.device) -> Node:
        return self.call(ours.seed.default, device, next(self._salts))

    def sizes(self, source: Any) -> list[Any]:
        """Sizes of a node's value, or of a list of sizes, as ints and nodes."""
        if not isinstance(source, Node):
            return list(source)
        return [
            n if isinstance(n, int) else self.call(aten.sym_size.int, source, axis)
            for axis, n in enumerate(source.meta["val"].shape)
        ]


def _dense_order(value: Tensor) -> list[int] | None:
    """Axes from outermost to innermost in memory, or None where the value is not dense."""
    if value.is_contiguous():
        return list(range(value.dim()))
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda axis: -strides[axis])
    return order if value.permute(order).is_contiguous() else None


def _uniform(w: _Writer, like: Tensor, source: Any, dtype: torch.dtype) -> Node | None:
    """Uniform numbers with the sizes and the memory order of ``like``."""
    order = _dense_order(like)
    if order is None or dtype not in UNIFORM_BITS:
        return None
    sizes = w.sizes(source)
    stored = [sizes[axis] for axis in order]
    numbers = w.call(ours.uniform.default, w.seed(like.device), stored, dtype)
    if order == sorted(order):
        return numbers
    return w.call(aten.permute.default, numbers, [order.index(a) for a in range(len(order))])


# ---------------------------------------------------------------- the table

_Rule: TypeAlias = Callable[[_Writer, Node], Node | None]


def _rand(w: _Writer, node: Node) -> Node | None:
    value = node.meta["val"]
    return _uniform(w, value, node.args[0], value.dtype)


def _uniform_between(w: _Writer, node: Node) -> Node | None:
    value = node.meta["val"]
    low, high = (*node.args[1:], *(0.0, 1.0)[len(node.args) - 1 :])[:2]
    numbers = _uniform(w, value, node.args[0], value.dtype)
    if numbers is None or not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return None
    scaled = w.call(aten.mul.Tensor, numbers, high - low)
    return w.call(aten.add.Tensor, scaled, low)


def _bernoulli(w: _Writer, node: Node) -> Node | None:
    value = node.meta["val"]
    numbers = _uniform(w, value, node.args[0], torch.float32)
    if numbers is None:
        return None
    given = node.target in (aten.bernoulli.p, aten.bernoulli.Tensor)
    odds = node.args[1] if given else node.args[0]
    compare = aten.lt.Tensor if isinstance(odds, Node) else aten.lt.Scalar
    hits = w.call(compare, numbers, odds)
    return w.call(aten._to_copy.default, hits, dtype=value.dtype)


def _float_numbers(w: _Writer, node: Node) -> Node | None:
    """Uniform float32 numbers of a call's sizes, float64 ones where that is asked for."""
    value = node.meta["val"]
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    source = node if not node.args else next((a for a in node.args if _is_sized(a)), None)
    return None if source is None else _uniform(w, value, source, dtype)


def _is_sized(argument: Any) -> bool:
    """Whether a call's argument says its sizes: a list of them or a tensor with dimensions."""
    if isinstance(argument, Node):
        value = argument.meta.get("val")
        return isinstance(value, Tensor) and value.dim() > 0
    return isinstance(argument, (list, tuple))


def _as_asked(w: _Writer, numbers: Node, node: Node) -> Node:
    dtype = node.meta["val"].dtype
    if numbers.meta["val"].dtype == dtype:
        return numbers
    return w.call(aten._to_copy.default, numbers, dtype=dtype)


def _scaled(w: _Writer, numbers: Node, factor: Any, shift: Any) -> Node:
    """numbers * factor + shift; both may be tensors."""
    if factor != 1.0:
        numbers = w.call(aten.mul.Tensor, numbers, factor)
    return numbers if shift == 0.0 else w.call(aten.add.Tensor, numbers, shift)


def _standard_normal(w: _Writer, node: Node) -> Node | None:
    """sqrt(-2 log(1 - u)) cos(2 pi v): Box and Muller, 1958."""
    first, second = _float_numbers(w, node), _float_numbers(w, node)
    if first is None or second is None:
        return None
    length = w.call(aten.log.default, w.call(aten.rsub.Scalar, first, 1.0))
    length = w.call(aten.sqrt.default, w.call(aten.mul.Tensor, length, -2.0))
    angle = w.call(aten.cos.default, w.call(aten.mul.Tensor, second, 2 * math.pi))
    return w.call(aten.mul.Tensor, length, angle)


def _normal(mean_at: int | None, std_at: int | None) -> _Rule:
    """Normal numbers whose mean and deviation stand at these arguments; None: 0 and 1."""

    def rule(w: _Writer, node: Node) -> Node | None:
        numbers = _standard_normal(w, node)
        if numbers is None:
            return None
        mean = 0.0 if mean_at is None else _argument(node, mean_at, "mean", 0.0)
        std = 1.0 if std_at is None else _argument(node, std_at, "std", 1.0)
        return _as_asked(w, _scaled(w, numbers, std, mean), node)

    return rule


def _argument(node: Node, position: int, name: str, default: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


_LEAST = 2.0**-25
"""Half of the least exponential number that 24 bits give; 0 is never drawn."""


def _exponential(w: _Writer, node: Node) -> Node | None:
    """-log(1 - u) / rate, at least a number above 0."""
    numbers = _float_numbers(w, node)
    rate = _argument(node, 1, "lambd", 1.0)
    if numbers is None or not isinstance(rate, (int, float)):
        return None
    logs = w.call(aten.log.default, w.call(aten.rsub.Scalar, numbers, 1.0))
    least = w.call(aten.clamp_min.default, w.call(aten.neg.default, logs), _LEAST)
    return _as_asked(w, _scaled(w, least, 1.0 / rate, 0.0), node)


def _integers(low_at: int | None, high_at: int) -> _Rule:
    """low + (48 random bits) mod (high - low)."""

    def rule(w: _Writer, node: Node) -> Node | None:
        low = 0 if low_at is None else node.args[low_at]
        high = node.args[high_at]
        if not isinstance(low, int) or not isinstance(high, int) or high - low > 1 << 31:
            return None
        parts = [_halves(w, node) for _ in range(2)]
        if parts[0] is None or parts[1] is None:
            return None
        word = w.call(aten.add.Tensor, w.call(aten.mul.Tensor, parts[0], 1 << 24), parts[1])
        drawn = w.call(aten.remainder.Scalar, word, high - low)
        return _as_asked(w, _scaled(w, drawn, 1.0, low), node)

    return rule


def _halves(w: _Writer, node: Node) -> Node | None:
    """24 random bits as int64."""
    numbers = _float_numbers(w, node)
    if numbers is None:
        return None
    whole = w.call(aten.mul.Tensor, numbers, float(1 << 24))
    return w.call(aten._to_copy.default, whole, dtype=torch.int64)


def _dropout(w: _Writer, node: Node) -> Node | None:
    """``native_dropout``: its value, its mask where read, and its gradient share one seed."""
    x, p, train = (*node.args, None)[:3]
    if train is False or not isinstance(p, float) or not isinstance(x, Node):
        return None
    seed = w.seed(x.meta["val"].device)
    dropped = w.call(ours.dropout.default, x, p, seed)
    for part in [u for u in node.users if u.target is operator.getitem]:
        if part.args[1] == 0:
            part.replace_all_uses_with(dropped)
        else:
            _replace_mask(w, part, x, p, seed)
    return dropped


def _replace_mask(w: _Writer, mask: Node, x: Node, p: float, seed: Node) -> None:
    for user in list(mask.users):
        if user.target is aten.native_dropout_backward.default and user.args[1] is mask:
            later = _Writer(user, itertools.count())
            gradient = later.call(ours.dropout.default, user.args[0], p, seed)
            user.replace_all_uses_with(gradient)
            user.graph.erase_node(user)
    if mask.users:
        numbers = w.call(ours.uniform.default, seed, w.sizes(x), torch.float32)
        mask.replace_all_uses_with(w.call(aten.ge.Scalar, numbers, p))


def _rrelu(w: _Writer, node: Node) -> Node | None:
    """``rrelu_with_noise``: x s and s, with s drawn where x <= 0 and 1 elsewhere."""
    x = node.args[0]
    low, high = _argument(node, 2, "lower", 0.125), _argument(node, 3, "upper", 1 / 3)
    if not _argument(node, 4, "training", False) or not isinstance(x, Node):
        return None
    numbers = _uniform(w, x.meta["val"], x, torch.float32)
    if numbers is None or not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return None
    drawn = w.call(aten._to_copy.default, _scaled(w, numbers, high - low, low),
                   dtype=x.meta["val"].dtype)  # fmt: skip
    slopes = w.call(aten.where.ScalarOther, w.call(aten.le.Scalar, x, 0.0), drawn, 1.0)
    parts = [w.call(aten.mul.Tensor, x, slopes), slopes]
    for user in [u for u in node.users if u.target is operator.getitem]:
        user.replace_all_uses_with(parts[int(user.args[1])])  # type: ignore[arg-type]
    return parts[0]


_SEEDED: dict[Any, _Rule] = {
    aten.rand.default: _rand,
    aten.rand_like.default: _rand,
    aten.uniform.default: _uniform_between,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.native_dropout.default: _dropout,
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.randn.default: _normal(None, None),
    aten.randn_like.default: _normal(None, None),
    aten.normal_functional.default: _normal(1, 2),
    aten.normal.Tensor_float: _normal(0, 1),
    aten.normal.float_Tensor: _normal(0, 1),
    aten.normal.Tensor_Tensor: _normal(0, 1),
    aten.normal.float_float: _normal(0, 1),
    aten.exponential.default: _exponential,
    aten.randint.default: _integers(None, 0),
    aten.randint.low: _integers(0, 1),
    aten.randint_like.default: _integers(None, 1),
    aten.randint_like.low_dtype: _integers(1, 2),
}
_WHOLE = frozenset({
    aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype,
})  # fmt: skip
"""Calls that draw integers, whatever the dtype of their result; others draw floats alone."""
_SEVERAL = frozenset({aten.native_dropout.default, aten.rrelu_with_noise_functional.default})
"""Calls with several results, whose rules replace the uses of each."""


def _replaceable(node: Node) -> bool:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) else value
    drawn = isinstance(first, Tensor) and (first.is_floating_point() or node.target in _WHOLE)
    return drawn and node.kwargs.get("generator") is None


def _first_salt(nodes: Sequence[Node]) -> int:
    taken = [int(n.args[1]) for n in nodes if n.target is ours.seed.default]  # type: ignore[arg-type]
    return max(taken, default=-1) + 1


def seed_random_calls(module: torch.fx.GraphModule) -> None:
    """Replaces every random call that the table names, in place.

    Seeds are marked to be saved, and what is computed from seeds alone to be computed again.
    """
    graph = module.graph
    salts = itertools.count(_first_salt(list(graph.nodes)))
    for node in list(graph.nodes):
        rule = _SEEDED.get(node.target)
        if rule is None or not _replaceable(node):
            continue
        replacement = rule(_Writer(node, salts), node)
        if replacement is None:
            continue
        if node.target not in _SEVERAL:
            node.replace_all_uses_with(replacement)
        _erase(node)
    _mark(graph)
    module.recompile()


def _mark(graph: torch.fx.Graph) -> None:
    """Tells the partitioner to save seeds, and neither numbers drawn from them nor masks."""
    drawn: set[Node] = set()
    for node in graph.nodes:
        if node.target is ours.seed.default:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            drawn.add(node)
            continue
        sources = {n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)}
        if sources and sources <= drawn and node.op == "call_function":
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            drawn.add(node)


def _erase(node: Node) -> None:
    for user in list(node.users):
        _erase(user)
    node.graph.erase_node(node)
