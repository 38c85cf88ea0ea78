"""Attention masks in the form that the library's fast kernels take.

    mask = arange(k) <= arange(q)[:, None]     ->  is_causal
    mask = full(True), or zeros added          ->  no mask
    mask = bias.permute(2, 0, 1)               ->  the same numbers with rows contiguous (on a GPU)

The library's attention is several times faster with a flag than with a mask of the same meaning:
it need not read the mask, may leave out the blocks above the diagonal, and has kernels that take
none. A mask is proved equal to a flag by computing it: it has no input, and each of its elements is
looked at. A mask with an input, or with a symbolic size, stays; its rows are made contiguous on a
GPU, where the library otherwise computes the whole score matrix in float32. Must not know the
partitioner or any later stage.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from . import attention_ops  # noqa: F401  (registers the operators)
from .writer import Writer

aten = torch.ops.aten
ours = torch.ops.onetrip
Node = torch.fx.Node

_MASK_PLACE = {
    ours.attention.default: 3,
    ours.attention_saving.default: 3,
    ours.attention_backward.default: 4,
}
"""Where the mask stands among the arguments; `is_causal` follows it."""
_NEEDS_ROWS = frozenset({"cuda"})
"""Devices whose fast kernels take masks with contiguous rows alone."""
_MOST_ELEMENTS = 1 << 26
"""Elements of a mask that are worth computing at compile time."""


def simplify_masks(module: torch.fx.GraphModule) -> None:
    """Replaces masks by flags where they are equal, and gives the others contiguous rows."""
    flags: dict[Node, bool | None] = {}
    dense: dict[Node, Node] = {}
    for node in list(module.graph.nodes):
        place = _MASK_PLACE.get(node.target)
        if place is None or not isinstance(node.args[place], Node):
            continue
        mask = node.args[place]
        if mask not in flags:
            flags[mask] = _causal_flag(mask)
        if flags[mask] is not None and not node.args[place + 1]:
            node.args = (*node.args[:place], None, flags[mask], *node.args[place + 2 :])
        elif _has_scattered_rows(mask):
            if mask not in dense:
                dense[mask] = _with_dense_rows(mask, node)
            _read_instead(node, place, dense[mask])
    if flags:
        module.graph.eliminate_dead_code()
        module.recompile()


def _has_scattered_rows(mask: Node) -> bool:
    value = mask.meta["val"]
    slow = value.device.type in _NEEDS_ROWS
    return slow and value.dim() > 1 and value.stride(-1) not in (0, 1)


def _read_instead(node: Node, place: int, mask: Node) -> None:
    """Gives a call another mask; a gradient of the mask is laid out as it was for its readers."""
    node.update_arg(place, mask)
    parts = [u for u in node.users if u.target is operator.getitem and u.args[1] == 3]
    if node.target is not ours.attention_backward.default or not parts:
        return
    fakes = torch.fx.map_arg(node.args, lambda n: n.meta["val"])
    with detect_fake_mode(list(fakes)) or contextlib.nullcontext(), torch.no_grad():
        node.meta["val"] = node.target(*fakes)
    for part in parts:
        before = part.meta["val"].stride()
        part.meta["val"] = node.meta["val"][3]
        order = sorted(range(len(before)), key=lambda axis: -before[axis])
        if order == sorted(order):
            continue
        write = Writer(part.next)
        turned = write.call(aten.permute.default, part, order)
        stored = write.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
        back = [order.index(axis) for axis in range(len(order))]
        restored = write.call(aten.permute.default, stored, back)
        for user in [u for u in part.users if u is not turned]:
            user.replace_input_with(part, restored)


def _with_dense_rows(mask: Node, reader: Node) -> Node:
    """The mask copied with its rows contiguous; axes along which it repeats are not copied."""
    write = Writer(reader)
    value = mask.meta["val"]
    distinct = mask
    for axis, step in enumerate(value.stride()):
        if step == 0:
            distinct = write.call(aten.slice.Tensor, distinct, axis, 0, 1)
    copied = write.call(aten.clone.default, distinct, memory_format=torch.contiguous_format)
    return copied if distinct is mask else write.call(aten.expand.default, copied, [*value.shape])


def _causal_flag(mask: Node) -> bool | None:
    """The value of `is_causal` that means the same as a mask; None where none does.

    A mask without inputs has no gradient, so nothing is lost with it.
    """
    steps = _closed_steps(mask)
    if steps is None:
        return None
    with unset_fake_temporarily(), torch.no_grad():
        value = _computed(steps)
        distinct = value[tuple(slice(1) if step == 0 else slice(None) for step in value.stride())]
        if distinct.numel() > _MOST_ELEMENTS:
            return None
        if bool((distinct if value.dtype is torch.bool else distinct == 0).all()):
            return False
        if value.dtype is not torch.bool or value.dim() < 2:
            return None
        causal = torch.ones(value.shape[-2:], dtype=torch.bool).tril()
        lead = tuple(slice(1) if step == 0 else slice(None) for step in value.stride()[:-2])
        return True if bool((value[lead] == causal).all()) else None


def _closed_steps(mask: Node) -> list[Node] | None:
    """The calls that make a value, producers first; None where it is no function of nothing."""
    found: dict[Node, None] = {}
    stack = [(mask, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            found.setdefault(node)
        elif node not in found:
            if not _is_closed(node):
                return None
            stack.append((node, True))
            stack.extend((source, False) for source in node.all_input_nodes)
    return list(found)


def _is_closed(node: Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, Tensor):
        return False
    tags = getattr(node.target, "tags", ())
    static = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
    return static and not node.is_impure() and torch.Tag.nondeterministic_seeded not in tags


def _computed(steps: list[Node]) -> Tensor:
    """The last of some calls, made on the CPU."""
    known: dict[Node, Any] = {}
    for node in steps:
        args, kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), _on_cpu)
        args, kwargs = torch.fx.map_arg((args, kwargs), known.__getitem__)
        known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    value: Tensor = known[steps[-1]]
    return value


def _on_cpu(argument: Any) -> Any:
    return torch.device("cpu") if isinstance(argument, torch.device) else argument
