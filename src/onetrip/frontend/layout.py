"""Images lie channels-last inside a graph where the library's convolutions are faster so.

    y = convolution(x, w)          ->  y = convolution(clone(x, channels_last), w)
    z = relu(y);  u = z.view(...)  ->  the same with the strides that follow; a view that would need
                                       other strides reads a copy
    return z                       ->  return clone(z, as it was)

One copy where an image enters, one where it leaves, and none in between: elementwise operators,
norms and further convolutions keep the layout that they are given. Done before a graph is split
into forward and backward, so that what one saves the other reads as it lies. The values that the
program sees have the strides that eager gives them.
Must not know the partitioner or any later stage.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._guards import detect_fake_mode

from .storage import READS, WRITES
from .writer import Writer

aten = torch.ops.aten
Node = torch.fx.Node
Strides = tuple[int, ...]


@dataclass(frozen=True)
class _Places:
    """Where a call has its images, weights that it packs, and where it says that it is transposed
    or in groups."""

    images: tuple[int, ...]
    packed: tuple[int, ...]
    transposed: int
    groups: int


_CALLS: Mapping[Any, _Places] = {
    aten.convolution.default: _Places((0,), (1,), 6, 8),
    aten.convolution_backward.default: _Places((0, 1), (), 7, 9),
}
_FASTER: Mapping[str, frozenset[torch.dtype]] = {
    "cuda": frozenset({torch.bfloat16, torch.float16}),
    "cpu": frozenset({torch.float32, torch.bfloat16, torch.float16}),
}
"""Dtypes of which a device's library reorders every image by a pass of its own, before and after
each convolution, unless it lies channels-last: cuDNN of 16 bits; oneDNN, where in f32 that took 20
to 50 % of a small convolution's time and a fifth of a large one's. Without instructions for 16 bits
a CPU's convolutions are computed in f32 as well (`passes/cpu_library.py`)."""
_LEAST: Mapping[str, int] = {"cuda": 1, "cpu": 2}
"""Fewest convolutions of a graph for which its images are turned: a CPU's library takes the plain
images that enter a model as fast, so only what travels between two convolutions gains."""
_PACKS: frozenset[str] = frozenset({"cpu"})
"""Devices whose library packs weights at each call, from channels-last ones by copying runs:
measured, 512 x 512 x 3 x 3 of them in 20 ms less than 35."""


_WIDE: Mapping[str, int] = {"cpu": 1 << 16}
"""Elements of a weight from which on gradients take longer channels-last than the passes that they
save: on a CPU those of 128 x 128 x 3 x 3 took a tenth longer, of 512 x 512 x 3 x 3 on images of
7 x 7 half again as long."""


def lay_out_channels_last(module: torch.fx.GraphModule) -> None:
    """Gives images channels-last strides from where they enter convolutions to where they leave."""
    graph = module.graph
    if not _gains(module):
        return
    before = {n: _strides(n.meta.get("val")) for n in graph.nodes}
    changed: set[Node] = set()
    for node in list(graph.nodes):
        if node.op == "output":
            _restore(node, before, changed)
        elif node.op == "call_function":
            if _is_faster(node):
                _turn(node)
            if any(n in changed or n not in before for n in node.all_input_nodes):
                _follow(node, before, changed)
    graph.eliminate_dead_code()
    module.recompile()


# ---------------------------------------------------------------- which convolutions


def _gains(module: torch.fx.GraphModule) -> bool:
    """Whether there are convolutions enough that run faster so."""
    calls = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    devices = [_device(node) for node in calls if _is_faster(node)]
    gradients = module.graph.find_nodes(
        op="call_function", target=aten.convolution_backward.default
    )
    wide = {_device(node) for node in gradients if _is_wide(node)}
    return any(devices.count(d) >= _LEAST.get(d, 1) for d in {*devices} - wide)


def _is_wide(gradient: Node) -> bool:
    """Whether a convolution's gradient has so large a weight that channels-last images slow it."""
    weight = gradient.args[2].meta["val"]  # type: ignore[union-attr]
    return bool(weight.numel() >= _WIDE.get(weight.device.type, weight.numel() + 1))


def _device(call: Node) -> str:
    kind: str = call.args[_CALLS[call.target].images[0]].meta["val"].device.type  # type: ignore[union-attr]
    return kind


def _is_faster(node: Node) -> bool:
    places = _CALLS.get(node.target)
    if places is None or node.args[places.transposed] or node.args[places.groups] != 1:
        return False
    images = [node.args[p].meta["val"] for p in places.images]  # type: ignore[union-attr]
    known = _FASTER.get(images[0].device.type, frozenset())
    return all(_is_image(i) and i.dtype in known for i in images)


def _is_image(t: Tensor) -> bool:
    """Four axes of known extents, with channels and places: strides say which order they have."""
    if t.dim() != 4 or not all(isinstance(d, int) for d in t.shape):
        return False
    return t.numel() > 0 and t.shape[1] > 1 and t.shape[2] * t.shape[3] > 1


def _is_turned(t: Tensor) -> bool:
    return t.is_contiguous(memory_format=torch.channels_last)


def _turn(node: Node) -> None:
    """Gives a call its images channels-last, and its weights where they are packed from them."""
    places = _CALLS[node.target]
    for place in (*places.images, *(places.packed if _device(node) in _PACKS else ())):
        image = node.args[place]
        assert isinstance(image, Node)
        if not _is_turned(image.meta["val"]):
            copy = Writer(node).call(aten.clone.default, image, memory_format=torch.channels_last)
            node.update_arg(place, copy)


# ---------------------------------------------------------------- what follows


def _follow(node: Node, before: Mapping[Node, Any], changed: set[Node]) -> None:
    """The strides of a call's results from those of its operands; views get what they can view."""
    if not _keeps_any_layout(node):
        for source in node.all_input_nodes:
            _read_as_before(node, source, before, changed)
        return
    value = _computed(node)
    if value is None:
        for source in node.all_input_nodes:
            _read_as_before(node, source, before, changed)
        value = _computed(node)
        assert value is not None, f"{node} cannot read what it read before"
    node.meta["val"] = value
    if _strides(value) != before[node]:
        changed.add(node)


def _keeps_any_layout(node: Node) -> bool:
    """Whether an operator reads operands of any strides and says how its results then lie."""
    target = node.target
    if target is operator.getitem or target is torch.ops.onetrip.dropout.default:
        return True
    known = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return known and target not in READS | WRITES


def _computed(node: Node) -> Any:
    """What a call gives for its operands' fakes; None where it cannot view them."""
    args: Any
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    fakes = [n.meta["val"] for n in node.all_input_nodes]
    mode = detect_fake_mode(fakes) or contextlib.nullcontext()
    with mode, torch.no_grad():
        try:
            value = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, ValueError):
            return None
    if node.target is not aten.convolution_backward.default or not _is_turned(args[1]):
        return value
    return tuple(_turned(t) if t is not None and t.dim() == 4 else t for t in value)


def _turned(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def _read_as_before(
    node: Node, source: Node, before: Mapping[Node, Any], changed: set[Node]
) -> None:
    """Gives a reader a copy that lies as its operand once did."""
    if source in changed and isinstance(source.meta["val"], Tensor):
        node.replace_input_with(source, _as_before(Writer(node), source, before, changed))


def _restore(output: Node, before: Mapping[Node, Any], changed: set[Node]) -> None:
    for source in output.all_input_nodes:
        if source in changed:
            copy = _as_before(Writer(output), source, before, changed)
            output.replace_input_with(source, copy)


def _as_before(write: Writer, source: Node, before: Mapping[Node, Any], changed: set[Node]) -> Node:
    """A copy that lies as a value once did: of what it is a view of, where it leaves gaps there."""
    part = source.target is operator.getitem
    view: Any = source.args[0] if part else source
    value, viewed = source.meta["val"], view.args[0] if view.args else None
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, before[source], strict=True))
    is_view = getattr(view.target, "is_view", False) and isinstance(viewed, Node)
    if span == value.numel() or not is_view:
        return _stored_as(write, source, before[source])
    base = _as_before(write, viewed, before, changed) if viewed in changed else viewed
    made = write.call(view.target, base, *view.args[1:], **view.kwargs)
    return write.call(operator.getitem, made, source.args[1]) if part else made


def _stored_as(write: Writer, source: Node, strides: Strides) -> Node:
    """A copy with the axes in the order of these strides."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    if order == sorted(order):
        return write.call(aten.clone.default, source, memory_format=torch.contiguous_format)
    turned = write.call(aten.permute.default, source, order)
    stored = write.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
    return write.call(aten.permute.default, stored, [order.index(k) for k in range(len(order))])


def _strides(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.stride()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_strides, value))
    return None
