"""Views of inputs by strides and offset, taken of the caller's tensors before a graph begins.

    z = x.as_strided((2, 2), (1, 2), 3);  y = z + 1     ->   y = z + 1, z another input

An explicit offset counts from the start of the storage, and a view may show what lies between or
behind the elements of its input: no index of the input says either, and where an input begins in
its storage differs from call to call. The caller's tensor knows, and taking a view of it is no
work. In a graph that writes an input the call stays where it is: what it shows may change.
Must not know what becomes of the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode

from .storage import READS, storage_owners
from .writer import Writer

aten = torch.ops.aten


@dataclass(frozen=True)
class GivenView:
    """A view of an input.

    Attributes:
        position: of the input.
        relative: whether the offset counts from where the input begins, not its storage.
    """

    position: int
    size: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    relative: bool

    def of(self, inputs: Sequence[Any]) -> Tensor:
        """The view; raises eager's error where the storage ends before it does."""
        x: Tensor = inputs[self.position]
        start = x.storage_offset() if self.relative else 0
        return x.as_strided(self.size, self.strides, start + self.offset)


def take_views(module: fx.GraphModule) -> tuple[GivenView, ...]:
    """Makes inputs of the views, in place and behind the others; in the order of the new inputs."""
    graph = module.graph
    found = _found(graph)
    if not found:
        return ()
    given = graph.find_nodes(op="placeholder")
    values, last = [n.meta["val"] for n in given], given[-1]
    mode = detect_fake_mode(values) or contextlib.nullcontext()
    for view, calls in found.items():
        with mode, torch.no_grad():
            value = view.of(values)
        with graph.inserting_after(last):
            last = graph.placeholder(f"{given[view.position].name}_strided")
        last.meta = {"val": value}
        for node in calls:
            _replace(node, last)
    module.recompile()
    return tuple(found)


def _found(graph: fx.Graph) -> dict[GivenView, list[fx.Node]]:
    """The calls by the view that they take."""
    if any(map(_writes, graph.nodes)):
        return {}
    position = {n: k for k, n in enumerate(graph.find_nodes(op="placeholder"))}
    owners, found = storage_owners(graph), dict[GivenView, list[fx.Node]]()
    for node in graph.nodes:
        owner = owners.get(node.args[0]) if node.target in READS else None
        if owner is None or owner not in position:
            continue
        view = _view(node, owner, position[owner])
        if view is not None:
            found.setdefault(view, []).append(node)
    return found


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _view(node: fx.Node, owner: fx.Node, position: int) -> GivenView | None:
    """The view that a call takes; None where an index of its operand says it, or sizes vary."""
    given: tuple[Any, ...] = (*node.args, *node.kwargs.values())
    x, size, strides, offset = (*given, None)[:4]
    numbers = (*size, *strides, *(() if offset is None else (offset,)))
    if not all(isinstance(n, int) for n in numbers):
        return None
    if offset is not None:
        return GivenView(position, tuple(size), tuple(strides), offset, relative=False)
    if _inside(x.meta["val"], size, strides):
        return None
    before = x.meta["val"].storage_offset() - owner.meta["val"].storage_offset()
    if not isinstance(before, int):
        return None
    return GivenView(position, tuple(size), tuple(strides), before, relative=True)


def _inside(x: Tensor, size: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether every element is one of the operand's, by its place in it."""
    reach = sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    count: Any = x.numel()
    return x.is_contiguous() and isinstance(count, int) and (0 in size or reach < count)


def _replace(node: fx.Node, view: fx.Node) -> None:
    """The new input in place of a call, or a copy of it in place of one that copies."""
    made = view
    if node.target is aten.as_strided_copy.default:
        made = Writer(node).call(aten.clone.default, view, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def with_views(run: Callable[..., Any], views: Sequence[GivenView]) -> Callable[..., Any]:
    """A boxed function of a graph's inputs as they were; `run` takes one list of them and of its
    views."""

    def call(inputs: list[Any]) -> Any:
        inputs.extend([view.of(inputs) for view in views])
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


__all__ = ["GivenView", "take_views", "with_views"]
