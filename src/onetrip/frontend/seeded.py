"""Random calls of an ATen graph become seeded operators of ours, before it is partitioned.

So autograd's saved values hold a seed of 8 bytes where torch would save a mask or the numbers.
The table says what each call becomes; a call it does not name stays as it is. It must not know
the partitioner or any later stage.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

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


_SEEDED: dict[Any, Callable[[_Writer, Node], Node | None]] = {
    aten.rand.default: _rand,
    aten.rand_like.default: _rand,
    aten.uniform.default: _uniform_between,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.native_dropout.default: _dropout,
}


def _replaceable(node: Node) -> bool:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) else value
    drawn = isinstance(first, Tensor) and first.is_floating_point()
    return drawn and node.kwargs.get("generator") is None


def _first_salt(nodes: Sequence[Node]) -> int:
    taken = [int(n.args[1]) for n in nodes if n.target is ours.seed.default]  # type: ignore[arg-type]
    return max(taken, default=-1) + 1


def seed_random_calls(module: torch.fx.GraphModule) -> None:
    """Replaces every random call that the table names, in place; seeds are marked to be saved."""
    graph = module.graph
    salts = itertools.count(_first_salt(list(graph.nodes)))
    for node in list(graph.nodes):
        rule = _SEEDED.get(node.target)
        if rule is None or not _replaceable(node):
            continue
        replacement = rule(_Writer(node, salts), node)
        if replacement is None:
            continue
        if node.target is not aten.native_dropout.default:
            node.replace_all_uses_with(replacement)
        _erase(node)
    for node in graph.nodes:
        if node.target is ours.seed.default:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    module.recompile()


def _erase(node: Node) -> None:
    for user in list(node.users):
        _erase(user)
    node.graph.erase_node(node)
