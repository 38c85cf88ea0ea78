"""What a model's own code asks of the planner: regions to be fused, values to be stored.

    with fuse():          every operator traced inside should share a kernel
        ...
    y = barrier(x)        no kernel holds both what makes x and what reads it

Outside a trace of Dynamo both do nothing. Inside one they leave calls of two operators without
results in Dynamo's graph. `take_annotations` removes these and writes what they ask into the
``meta["custom"]`` of the nodes they are about, which tracing carries to the ATen nodes, and from a
forward node to its backward ones. Other backends never see them: below Dynamo's graph the operators
are nothing at all. It must not know plans.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ..base.errors import UsageError

REGIONS = "onetrip_regions"
"""Key in ``meta["custom"]``: the (number, strict) of every region that holds a node."""
STORED = "onetrip_stored"
"""Key in ``meta["custom"]``: number of the barrier behind the node."""
_LEAVE, _ENTER, _ENTER_STRICT = range(3)

_LIBRARY = torch.library.Library("onetrip", "FRAGMENT")


def _nothing(*_: Any) -> None:
    """Runs under backends that run Dynamo's graph as it is, and vanishes from every trace."""


def _define_marker(schema: str) -> None:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    # Composite: tracing enters it and finds nothing; a batched tensor has a key of its own.
    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        _LIBRARY.impl(name, _nothing, key)


_define_marker("mark_region(int step) -> ()")
_define_marker("mark_stored(Tensor x) -> ()")


class fuse:  # noqa: N801 - used like a function: `with onetrip.fuse():`
    """Asks that all operators called inside share a kernel, in the forward and the backward graph.

    What may not share one is kept apart and on record in the plan (`plan.refused`): a model's
    author cannot know every target. Entering it again, in a loop or in another layer, is another
    region; regions may be nested. Outside `torch.compile` and `onetrip.plan` it does nothing.
    A graph break inside runs that function in eager mode.

    Args:
        strict: what may not share a kernel is an error of the compilation.

    Raises:
        UsageError: strict is neither True nor False.
    """

    def __init__(self, *, strict: bool = False) -> None:
        if not isinstance(strict, bool):
            raise UsageError(
                "onetrip.fuse: strict is neither True nor False",
                expected="True or False",
                found=f"{strict!r} ({type(strict).__name__})",
                next_step="with onetrip.fuse(strict=True): ...",
            )
        self.step = _ENTER_STRICT if strict else _ENTER

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            torch.ops.onetrip.mark_region(self.step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if torch.compiler.is_dynamo_compiling():
            torch.ops.onetrip.mark_region(_LEAVE)


def barrier(x: Tensor) -> Tensor:
    """The tensor itself: no kernel will hold both the operator that makes it and one that reads it.

    Outside `torch.compile` and `onetrip.plan` it does nothing. It is no operation for autograd, and
    says nothing about the gradient of x.

    Args:
        x: any tensor; an input of the graph is stored anyway.

    Raises:
        UsageError: x is no tensor.
    """
    if not isinstance(x, Tensor):
        raise UsageError(
            "onetrip.barrier: what is to be stored is no tensor",
            expected="a tensor",
            found=f"{x!r} ({type(x).__name__})",
            next_step="call barrier once for each tensor of a tuple or dict",
        )
    if torch.compiler.is_dynamo_compiling():
        torch.ops.onetrip.mark_stored(x)
    return x


# ---------------------------------------------------------------- out of Dynamo's graph


def take_annotations(module: torch.fx.GraphModule) -> None:
    """Moves what the markers of a Dynamo graph ask, and of graphs nested in it, to other nodes."""
    numbers = itertools.count(1)
    for part in [m for m in module.modules() if isinstance(m, torch.fx.GraphModule)]:
        marked = _take(part, numbers)
        if marked:
            part.recompile()


def _take(part: torch.fx.GraphModule, numbers: Iterator[int]) -> bool:
    """One graph; whether it held a marker."""
    open_regions: list[tuple[int, bool]] = []
    markers: list[torch.fx.Node] = []
    for node in part.graph.nodes:
        if node.target is torch.ops.onetrip.mark_region:
            markers.append(node)
            _step(open_regions, node.args[0], numbers)
        elif node.target is torch.ops.onetrip.mark_stored:
            markers.append(node)
            _ask_stored(node.args[0], next(numbers))
        elif open_regions and node.op.startswith("call"):
            _ask_regions(part, node, tuple(open_regions))
    for node in markers:
        part.graph.erase_node(node)
    return bool(markers)


def _step(open_regions: list[tuple[int, bool]], step: Any, numbers: Iterator[int]) -> None:
    """A region that was entered before a graph break ends in no graph of ours."""
    if step != _LEAVE:
        open_regions.append((next(numbers), step == _ENTER_STRICT))
    elif open_regions:
        open_regions.pop()


def _ask(node: torch.fx.Node, key: str, value: Any) -> None:
    node.meta["custom"] = {**node.meta.get("custom", {}), key: value}


def _ask_regions(
    part: torch.fx.GraphModule, node: torch.fx.Node, regions: tuple[tuple[int, bool], ...]
) -> None:
    """A call, and the calls of the graphs that it runs."""
    known = node.meta.get("custom", {}).get(REGIONS, ())
    _ask(node, REGIONS, (*regions, *(r for r in known if r not in regions)))
    for argument in node.all_input_nodes:
        inner = getattr(part, str(argument.target), None) if argument.op == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            for call in inner.graph.nodes:
                if call.op.startswith("call"):
                    _ask_regions(inner, call, regions)


def _ask_stored(x: Any, number: int) -> None:
    """The call that makes a tensor; picking it from several results is no call of its own."""
    while isinstance(x, torch.fx.Node) and x.target is operator.getitem:
        x = x.args[0]
    if isinstance(x, torch.fx.Node) and x.op.startswith("call"):
        _ask(x, STORED, number)


def asked_of(meta: Mapping[str, Any]) -> tuple[tuple[tuple[int, bool], ...], int]:
    """The regions that a traced node lies in, and the number of the barrier behind it, or 0.

    A backward node lies in the regions of its forward node; a barrier is about a forward value.
    """
    custom = meta.get("custom") or {}
    regions = tuple((int(n), bool(strict)) for n, strict in custom.get(REGIONS, ()))
    backward = "fwd_nn_module_stack" in meta
    return regions, 0 if backward else int(custom.get(STORED, 0))
