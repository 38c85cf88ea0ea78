"""The device asked which of two ways is faster: both are built, run on made-up values and timed.

    plans of both ways -> kernels -> known in the cache | built -> run beside each other -> medians

What was measured is kept in the cache folder under the text of both ways, so that a second
compilation builds and times neither. A way that cannot be built or run has no time and says why;
that is not kept, since the next try may have the memory. Must not know why it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..base.errors import UsageError
from ..base.options import Options
from ..base.sym import render
from ..cost.sizes import Hints
from ..ir.graph import Graph, Node, Value
from ..ir.printer import text
from ..plan.plan import GraphPlan, Measured
from ..runtime.cache import Cache, content_key
from ..runtime.clock import CLOCKS, WARM_CALLS, Call, Clock, card_name, interleaved
from ..target import Target
from .devices import device_for, target_here
from .operands import index_bound, operand
from .pipeline import executable, schedule_groups

ROUNDS = 15
"""The most rounds, of which each times both ways."""
SECONDS = 0.3
"""About how long all rounds take; the first, untimed calls come on top of it."""
AS_IS, REPLACED = "the nodes as they are", "the alternative"


@dataclass(frozen=True)
class WayTimer:
    """Times two ways on one device; see the head of this file.

    Attributes:
        target: whose figures schedule the kernels.
        clock: what reads the time; None: the device's own.
    """

    device: torch.device
    target: Target
    options: Options
    clock: Clock | None = None

    def __call__(self, as_is: GraphPlan, replaced: GraphPlan, hints: Hints) -> Measured:
        """The medians of both ways, on made-up operands of the sizes that the hints say."""
        ways = {AS_IS: as_is, REPLACED: replaced}
        name = card_name(self.device.type)
        sizes = [f"{render(size)} = {value}" for size, value in hints.items()]
        threads = torch.get_num_threads() if self.device.type == "cpu" else 0
        machine = ["two ways", name, f"{threads} threads", f"torch {torch.__version__}"]
        key = content_key([*machine, *sorted(sizes), *map(self._text, ways.values())])
        cache = Cache(self.options.cache_dir)
        known = cache.get_json(key, Measured)
        if known is None:
            known = self._measured(ways, hints, name)
            if not known.failure:
                cache.put_json(key, known)
        return known

    def _text(self, plan: GraphPlan) -> str:
        """What a way computes and by which kernels, without the names of its values."""
        device = device_for(self.device, self.target)
        scheduled = schedule_groups(plan, self.target, device, self.options)
        place = {n.name: k for k, n in enumerate(plan.graph.nodes)}
        parts = [text(_numbered(plan.graph))]
        for group in plan.groups:
            parts.append(f"group {[place[n] for n in group.nodes]}")
            parts += map(text, scheduled[group.name].kernels if group.generated else ())
        return "\n".join(parts)

    def _measured(self, ways: Mapping[str, GraphPlan], hints: Hints, name: str) -> Measured:
        calls: dict[str, Call] = {}
        failures: list[str] = []
        with _apart(self.device):
            for way, plan in ways.items():
                try:
                    calls[way] = self._ready(plan, hints)
                except Exception as error:  # whatever a compiler, a library or an allocator raises
                    failures.append(f"{way}: {type(error).__name__}: {_first_line(error)}")
            clock = self.clock or CLOCKS[self.device.type]
            us = {w: s.median for w, s in interleaved(calls, clock, ROUNDS, SECONDS).items()}
        return Measured(us.get(AS_IS), us.get(REPLACED), name, "; ".join(failures))

    def _ready(self, plan: GraphPlan, hints: Hints) -> Call:
        """A way as a call that has run."""
        device = device_for(self.device, self.target)
        _, _, run = executable(plan, self.target, device, self.options, hints)
        below = index_bound(g.nest for g in plan.groups if g.nest is not None)
        operands = [operand(v.type, below, self.device, hints) for v in plan.graph.inputs]

        def call() -> list[object]:
            return run(list(operands))

        for _ in range(WARM_CALLS):
            call()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return call


def timer_here(target: Target, options: Options) -> WayTimer:
    """A timer for a target that is the device at hand.

    Raises:
        UsageError: it is another one, on which nothing can be timed.
    """
    known = target.device == "cpu" or torch.cuda.is_available()
    here = target_here(target.device) if known else None
    if here is None or _chip(here) != _chip(target):
        raise UsageError(
            "autotune times kernels on the device at hand, and the target is another one",
            expected="the target " + (here or target_here("cpu")).name,
            found=target.name,
            next_step="leave out autotune: a plan for another chip is made of estimates",
        )
    return WayTimer(torch.device(target.device), target, options)


def _chip(target: Target) -> tuple[str, str, str, int]:
    """What a measured profile of a chip has in common with its data file."""
    return target.vendor, target.arch, target.device, target.multiprocessors


@contextmanager
def _apart(device: torch.device) -> Iterator[None]:
    """The device without what a compilation has going on; the user's random streams stay."""
    cards = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(unset_fake_temporarily())
        stack.enter_context(torch.no_grad())
        for card in cards:
            stack.enter_context(torch.cuda.device(card))
        stack.enter_context(torch.random.fork_rng(devices=cards))
        yield


def _numbered(graph: Graph) -> Graph:
    """The graph with its values named by position."""
    names = {v.name: f"v{k}" for k, v in enumerate(graph.values())}

    def value(v: Value) -> Value:
        return replace(v, name=names[v.name])

    def node(n: Node) -> Node:
        inputs = tuple(value(x) if isinstance(x, Value) else x for x in n.inputs)
        return replace(n, inputs=inputs, outputs=tuple(map(value, n.outputs)))

    outputs = tuple(value(x) if isinstance(x, Value) else x for x in graph.outputs)
    sizes = tuple(
        (size, names[source] if isinstance(source, str) else source, dim)
        for size, source, dim in graph.sizes
    )
    inputs, nodes = tuple(map(value, graph.inputs)), tuple(map(node, graph.nodes))
    return Graph(inputs, nodes, outputs, sizes=sizes)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


__all__ = ["WayTimer", "timer_here"]
