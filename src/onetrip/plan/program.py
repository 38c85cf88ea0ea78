"""A plan and its scheduled kernels become the host's steps for one call.

    sizes are bound -> for each group: views, memory, launches or a library call -> values that the
    caller needs as views -> inputs that the program changes and that no group wrote are written

A value that is stored into the memory of an input is an alias of it from then on. Consecutive
kernels stay together: what they no longer need is freed before the next library call.
Must not know how kernels are made: a schedule says which, on which values, with which scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from ..base.errors import VerifyError
from ..cost.sizes import NO_HINTS, Hints
from ..ir.graph import Graph, Node, Ref, Scalar, Value
from ..ir.kernel import Kernel, Packed
from ..ir.nest import Buffer
from ..ir.program import Alias, Alloc, Bind, Call, Free, Launch, Program, Step, Update
from ..ops.opaque import in_place_variant, out_variant
from ..ops.schema import Kind
from ..ops.table import OPS
from .in_place import kernels_write_in_place
from .index import View
from .memory import MemoryPlan, Range, plan_memory
from .plan import GraphPlan, Group

CLONE = "aten.clone.default"


class Scheduled(Protocol):
    """The kernels of one group, in order, and the memory between them."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Launched in this order."""
        ...

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        """Buffers that live only between these kernels."""
        ...

    def arguments(self, kernel: Kernel, group: str) -> tuple[str, ...]:
        """Values that a kernel is launched on; scratch `s` is named `<group>.s`."""
        ...


@dataclass
class _Steps:
    """The steps so far, the views that exist, the values that were stored into an input and into
    which, and the values whose last use is past."""

    views: Mapping[str, View]
    steps: list[Step] = field(default_factory=list)
    made: dict[str, list[str]] = field(default_factory=dict)
    in_place: dict[str, str] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)

    def view(self, name: str) -> None:
        """Makes a view where `name` is one and does not exist yet."""
        view = self.views.get(name)
        if view is None or name in self.made.get(view.base, ()):
            return
        self.made.setdefault(view.base, []).append(name)
        self.steps.append(Alias(Value(name, view.type), view.base, view.offset))

    def inside(self, value: Value, target: str) -> None:
        """Makes a value that lies in the memory of an input."""
        self.in_place[value.name] = target
        self.steps.append(Alias(value, target))

    def free(self) -> None:
        """Frees what is past, its views first."""
        for name in self.past:
            self.steps.extend(Free(v) for v in (*self.made.pop(name, ()), name))
        self.past = []


def build_program(
    graph: Graph,
    plan: GraphPlan,
    kernels: Mapping[str, Scheduled],
    *,
    hints: Hints = NO_HINTS,
) -> Program:
    """The program of a plan.

    Args:
        kernels: schedules of the generated groups, by group name.
        hints: as given to the planner; they order the buffers of symbolic size.
    """
    missing = [g.name for g in plan.groups if g.generated and g.name not in kernels]
    if missing:
        raise VerifyError(
            "groups of the plan have no kernel", expected="a schedule each", found=str(missing)
        )
    memory = _with_scratch(plan, kernels, hints)
    dies = _deaths(memory, len(plan.groups))
    types = {v.name: v for v in graph.values()}
    out = _Steps({v.value.name: v for v in plan.views})
    out.steps += [Bind(size, source, dim) for size, source, dim in graph.sizes]
    shared = {name: one.groups for one in plan.together for name in one.groups}
    waiting: list[Sequence[Launch]] = []
    lookups = _lookups(graph)
    for k, group in enumerate(plan.groups):
        if group.call is not None:
            _library(out, group.call, memory, types)
        else:
            found = tuple(lookups[n] for n in group.nodes if n in lookups)
            waiting.append(_generated(out, group, kernels[group.name], memory, types, found))
        if group.name == shared.get(group.name, (group.name,))[-1]:
            out.steps += _side_by_side(waiting)
            waiting = []
        out.past += dies.get(k, ())
    out.free()
    results = _results(out, graph)
    arena = [p.range.name for p in memory.buffers if p.offset is not None]
    return Program(
        graph.inputs,
        tuple(out.steps),
        results,
        tuple(dict.fromkeys(size for size, _, _ in graph.sizes)),
        memory.arena_bytes,
        tuple((n, types[n].type) for n in arena if n in types),
    )


def _library(out: _Steps, call: Node, memory: MemoryPlan, types: Mapping[str, Value]) -> None:
    out.free()
    for v in call.values:
        out.view(v.name)
    operands = tuple(_lying(out, x) if isinstance(x, Value) else x for x in call.inputs)
    at, variant = call.attr, out_variant(call)
    if variant is not None:
        out.steps += [Alloc(types[v.name], memory.offset(v.name)) for v in call.outputs]
    target = memory.inside(call.outputs[0].name) if call.outputs else None
    out.steps.append(
        Call(
            variant or (target and in_place_variant(call)) or at["target"],
            operands,
            () if target else call.outputs,
            tuple(at["args"]),
            tuple(at["kwargs"]),
            str(at.get("reason") or ""),
            variant is not None,
        )
    )
    if target:
        out.inside(call.output, target)


def _lying(out: _Steps, x: Value) -> Value:
    """An operand with the layout that it has in memory."""
    view = out.views.get(x.name)
    return x if view is None else Value(x.name, view.type)


def _generated(
    out: _Steps,
    group: Group,
    scheduled: Scheduled,
    memory: MemoryPlan,
    types: Mapping[str, Value],
    lookups: tuple[str, ...],
) -> list[Launch]:
    """The launches of a group, whose memory is there."""
    launched = [(k, scheduled.arguments(k, group.name)) for k in scheduled.kernels]
    for name in group.stored:
        target = memory.inside(name)
        if target is not None and kernels_write_in_place(launched, name, target):
            out.inside(types[name], target)
        else:
            out.steps.append(Alloc(types[name], memory.offset(name)))
    for b in scheduled.scratch:
        name = _scratch_name(group, b)
        out.steps.append(Alloc(Value(name, b.type), memory.offset(name)))
    return [Launch(kernel, given, lookups) for kernel, given in launched]


def _lookups(graph: Graph) -> dict[str, str]:
    """The calls of a graph that read where an index says, as errors name them."""
    return {
        n.name: f"{n.origin.call or n.op} at {n.origin}"
        for n in graph.nodes
        if n.op in OPS and OPS[n.op].kind is Kind.GATHER
    }


def _side_by_side(groups: Sequence[Sequence[Launch]]) -> Iterator[Launch]:
    """The first kernels of all groups as one launch, then the second ones, ..."""
    for stage in zip_longest(*groups):
        launches = [x for x in stage if x is not None]
        kernels = tuple(x.kernel for x in launches if isinstance(x.kernel, Kernel))
        if len(launches) == 1:
            yield launches[0]
        else:
            name = f"{kernels[0].name}_and_{len(kernels) - 1}_more"
            given = tuple(a for x in launches for a in x.arguments)
            yield Launch(
                Packed(name, kernels), given, tuple(a for x in launches for a in x.lookups)
            )


# ------------------------------------------------------------------ memory


def _scratch_name(group: Group, buffer: Buffer) -> str:
    return f"{group.name}.{buffer.name}"


def _with_scratch(plan: GraphPlan, kernels: Mapping[str, Scheduled], hints: Hints) -> MemoryPlan:
    """The memory plan with the schedules' scratch buffers placed as well."""
    scratch = [
        Range(_scratch_name(g, b), b.type.storage_elements * b.type.dtype.itemsize, k, k)
        for k, g in enumerate(plan.groups)
        if g.generated
        for b in kernels[g.name].scratch
    ]
    if not scratch:
        return plan.memory
    return plan_memory([*(p.range for p in plan.memory.buffers), *scratch], hints)


def _deaths(memory: MemoryPlan, end: int) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for p in memory.buffers:
        if p.range.last < end:
            found.setdefault(p.range.last, []).append(p.range.name)
    return found


# ------------------------------------------------------------------ results and changed inputs


def _results(out: _Steps, graph: Graph) -> tuple[str | Scalar | None, ...]:
    """The outputs by name, and the writes to inputs, none of which may see another's effect."""
    changed = {target.name for target, _ in graph.mutations}
    copy = _copier(out, changed)
    for value in _values(graph):
        out.view(value.name)
    left = [(t, v) for t, v in graph.mutations if t.name not in (v.name, out.in_place.get(v.name))]
    writes = [(t.name, copy(v)) for t, v in left]
    results = tuple(copy(o) if isinstance(o, Value) else o for o in graph.outputs)
    out.steps += [Update(target, value) for target, value in writes]
    return results


def _values(graph: Graph) -> Iterable[Value]:
    yield from (v for v in graph.outputs if isinstance(v, Value))
    yield from (v for _, v in graph.mutations)


def _copier(out: _Steps, changed: set[str]) -> Callable[[Value], str]:
    """Names a value to be read after the writes: a copy where it lies in a changed input."""
    copies: dict[str, str] = {}

    def copy(v: Value) -> str:
        view = out.views.get(v.name)
        if (v.name if view is None else view.base) not in changed:
            return v.name
        if v.name not in copies:
            copies[v.name] = f"{v.name}.before"
            lying = _lying(out, v)
            made = Value(copies[v.name], lying.type)
            out.steps.append(Call(CLONE, (lying,), (made,), (Ref(0),), ()))
        return copies[v.name]

    return copy
