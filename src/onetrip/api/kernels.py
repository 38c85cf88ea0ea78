"""kernels: every generated group of a plan by itself, with what the cost model expects of it.

A group runs on memory of its own with made-up values, so its time can be measured without the
model around it. Equal groups of a plan are one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ..base.errors import UsageError
from ..base.options import Options, parse_options
from ..base.sym import ceildiv
from ..codegen.scheduled import Scheduled
from ..cost.occupancy import need
from ..cost.roofline import Cost, kernel_cost
from ..cost.traffic import traffic, work
from ..ir import kernel as loops
from ..ir.nest import Buffer, Nest
from ..ir.parser import parse
from ..ir.printer import text
from ..passes.anonymize import anonymize
from ..plan.plan import GraphPlan, Group
from ..runtime.frame import Action, Backend, BoundLaunch, Frame
from ..target import Target, load
from .devices import device_for, target_at_hand
from .operands import index_bound, made_up, storage_bytes
from .pipeline import schedule_groups
from .plans import Args, analyze_model

Run = Callable[[], None]


@dataclass(frozen=True)
class Launch:
    """One kernel of a group: its schedule family, programs and warps of a program."""

    family: str
    programs: int
    warps: int


@dataclass(frozen=True)
class Alone:
    """A generated group that can be run by itself.

    Attributes:
        graph: role of its graph; group: its name there.
        ops: the operators that it computes, in order.
        cold: the cost when nothing that it reads is in the cache.
        warm: the cost when all that it reads is, as far as it fits.
        footprint: bytes of its buffers; cache_bytes: of the target's last level of cache.
        nest: what it computes, as text that `ir.parser` reads.
    """

    graph: str
    group: str
    ops: tuple[str, ...]
    cold: Cost
    warm: Cost
    launches: tuple[Launch, ...]
    footprint: int
    cache_bytes: int
    nest: str
    buffers: tuple[Buffer, ...]
    below: int
    action: Action
    backend: Backend

    def place(self) -> Run:
        """The group on fresh memory: a call that launches its kernels on the current queue."""
        tensors = [made_up(b.type, self.below, self.backend.device) for b in self.buffers]
        table = (ctypes.c_void_p * max(1, len(tensors)))(*(t.data_ptr() for t in tensors))
        frame = Frame(table, list(tensors), (ctypes.c_int64 * 1)())
        backend, action = self.backend, self.action

        def run() -> None:
            frame.queue = backend.queue()
            action(frame)

        return run


def kernels(
    model: Callable[..., Any],
    args: Args = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    target: str = "",
    search: str = "best",
    training: bool = False,
    numerics: str = "eager",
) -> tuple[Alone, ...]:
    """The generated groups of a model of fixed sizes, built for a device at hand.

    Args:
        model: a module or function, on any device, meta included.
        args: positional arguments; a lone tensor stands for a tuple of one.
        device: `cpu` or `cuda`: where the kernels run.
        target: whose figures price and schedule them; default: the device's own.
        search, training, numerics: as for `plan`.

    Raises:
        ToolchainError: a kernel cannot be built; otherwise as `plan`.
    """
    options = parse_options(None, {"search": search, "numerics": numerics})
    chip = load(target) if target else target_at_hand(torch.device(device))
    analyzed = analyze_model(model, args, kwargs, chip, options, training=training)
    found: dict[str, Alone] = {}
    for graph in analyzed:
        for one in built_alone(graph.role, graph.plan, torch.device(device), chip, options):
            found.setdefault(one.nest, one)
    return tuple(found.values())


def priced(nest: str, target: Target) -> tuple[Cost, Cost]:
    """The cold and the warm cost of a group whose text a record has kept.

    Raises:
        ParseError: it is no text of a nest.
    """
    found = parse(nest)
    if not isinstance(found, Nest):
        raise UsageError("a cost is that of a nest", expected="nest { ... }", found=nest[:40])
    return _both(found, target)


def _both(nest: Nest, target: Target) -> tuple[Cost, Cost]:
    """The cost when nothing that is read is in the cache, and when all is."""
    everything = frozenset(b.name for b in nest.buffers)
    return _priced(nest, target, frozenset()), _priced(nest, target, everything)


def built_alone(
    role: str, plan: GraphPlan, device: torch.device, target: Target, options: Options
) -> list[Alone]:
    """The generated groups of a plan, built together; equal ones once."""
    way = device_for(device, target)
    scheduled = schedule_groups(plan, target, way, options)
    seen: dict[tuple[loops.Kernel, ...], Group] = {}
    for g in plan.groups:
        if g.generated and not any(k.sizes for k in scheduled[g.name].kernels):
            seen.setdefault(scheduled[g.name].kernels, g)
    groups = list(seen.values())
    if not groups:
        return []
    named = [_arguments(scheduled[g.name], g.name) for g in groups]
    segments = [
        [BoundLaunch(k, tuple(names.index(a) for a in given), ()) for k, given in launched]
        for launched, names, _ in named
    ]
    backend = way.backend(options)
    actions = backend.build(segments)
    return [
        _alone(role, plan, g, scheduled[g.name], buffers, action, backend, target)
        for g, (_, _, buffers), action in zip(groups, named, actions, strict=True)
    ]


def _arguments(
    scheduled: Scheduled, group: str
) -> tuple[list[tuple[loops.Kernel, tuple[str, ...]]], list[str], tuple[Buffer, ...]]:
    """(kernels with the values they are launched on, all values, their buffers)."""
    launched = [(k, scheduled.arguments(k, group)) for k in scheduled.kernels]
    buffers: dict[str, Buffer] = {}
    for kernel, given in launched:
        for name, buffer in zip(given, kernel.buffers, strict=True):
            buffers.setdefault(name, buffer)
    return launched, list(buffers), tuple(buffers.values())


def _alone(
    role: str,
    plan: GraphPlan,
    group: Group,
    scheduled: Scheduled,
    buffers: tuple[Buffer, ...],
    action: Action,
    backend: Backend,
    target: Target,
) -> Alone:
    nest = group.nest
    assert nest is not None
    ops = {n.name: n.op for n in plan.graph.nodes}
    cold, warm = _both(nest, target)
    return Alone(
        role,
        group.name,
        tuple(ops[n] for n in group.nodes),
        cold,
        warm,
        tuple(Launch(k.family, _programs(k), k.warps) for k in scheduled.kernels),
        sum(storage_bytes(b.type) for b in buffers),
        target.l2_bytes,
        text(anonymize(nest)[0]),
        buffers,
        index_bound([nest]),
        action,
        backend,
    )


def _priced(nest: Nest, target: Target, resident: frozenset[str]) -> Cost:
    needs = need(nest, target)
    return kernel_cost(nest, traffic(nest), work(nest), needs, target, resident=resident)


def _programs(kernel: loops.Kernel) -> int:
    grid = (s for s in loops.statements(kernel.body) if isinstance(s, loops.Loop))
    counts = (ceildiv(s.end, s.tile) for s in grid if s.mapping is not loops.Mapping.SERIAL)
    return prod(n for n in counts if isinstance(n, int))


__all__ = ["Alone", "Launch", "built_alone", "kernels", "priced"]
