"""A GraphPlan as the records of the schema: names of traced nodes become keys.

Must not know JSON or tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..base.sym import Dim, render
from ..cost.sizes import NO_HINTS, Hints, number
from ..ir.graph import Graph, Node, Value
from ..plan import plan as planned
from ..plan.constraints import Refusal
from ..plan.decision import Decision
from ..plan.memory import Placed
from . import schema
from .keys import Keys, named
from .lines import asked_by, calls_of, is_binding
from .schema import Line


def graph_record(
    name: str,
    role: str,
    keys: Keys,
    plan: planned.GraphPlan,
    lines: Sequence[Line],
    hints: Hints = NO_HINTS,
) -> schema.Graph:
    """The record of one planned graph.

    Args:
        name: of the graph within its model.
        keys: of the plan's graph.
        lines: the user's wishes that it honours.
        hints: expected values of symbolic sizes, for bytes.
    """
    totals = plan.totals
    return schema.Graph(
        name=name,
        role=role,
        key=keys.fingerprint,
        kernels=totals.kernels,
        traffic_bytes=totals.traffic_bytes,
        peak_bytes=totals.peak_bytes,
        output_bytes=_output_bytes(plan.graph, hints),
        estimated_us=totals.estimated_us,
        bound_us=totals.bound_us,
        bound_kind=totals.bound_kind,
        eligible_bytes=totals.eligible_bytes,
        generated_bytes=totals.generated_bytes,
        arena_bytes=_formula(plan.memory.arena_bytes),
        groups=tuple(_group(g, keys) for g in plan.groups),
        boundaries=tuple(_boundary(b, plan, keys) for b in plan.boundaries),
        memory=tuple(_buffer(p, keys, hints) for p in plan.memory.buffers),
        lines=tuple(lines),
        refused=_refused(plan.refusals, lines, keys),
        alternatives=tuple(_alternative(c, keys) for c in plan.alternatives),
        together=tuple(schema.Together(t.groups, t.saved_us) for t in plan.together),
        call_lines={c.key: c.nodes[0].origin.line for c in keys.calls if c.nodes[0].origin.line},
    )


def _alternative(choice: planned.Choice, keys: Keys) -> schema.Alternative:
    by_user, clock = choice.code == "by-user", choice.measured
    return schema.Alternative(
        choice.kind,
        calls_behind(choice.nodes, keys),
        choice.note,
        choice.taken,
        choice.code,
        named(choice.reason, keys) if by_user else choice.reason,
        choice.as_is_us,
        choice.replaced_us,
        None
        if clock is None
        else schema.Measured(clock.as_is_us, clock.replaced_us, clock.device, clock.failure),
    )


def calls_behind(nodes: Iterable[str], keys: Keys) -> tuple[str, ...]:
    """Keys of the calls that nodes are parts of, each once."""
    return _distinct(keys.call_of[n].key for n in nodes)


def _refused(
    refusals: Sequence[Refusal], lines: Sequence[Line], keys: Keys
) -> tuple[schema.Refused, ...]:
    """What of the model's wishes cannot be had, the same calls for the same reason once."""
    found: dict[tuple[tuple[str, ...], str], schema.Refused] = {}
    asked = asked_by(lines, keys) if refusals else {}
    for r in refusals:
        line = asked.get((r.constraint, r.names))
        if line is None or is_binding(line):
            continue
        calls, d = calls_of(r, keys), r.decision
        found.setdefault(
            (calls, d.code),
            schema.Refused(
                line.kind, calls, d.cls, d.code, named(d.sentence, keys), _evidence(d),
                named(d.remedy, keys),
            ),
        )  # fmt: skip
    return tuple(found.values())


def _evidence(decision: Decision) -> tuple[schema.Evidence, ...]:
    return tuple(schema.Evidence(e.limit, e.value, e.unit, e.bound) for e in decision.evidence)


def totals(graphs: Sequence[schema.Graph]) -> schema.Totals:
    """Sums over the graphs of a model; the peak is that of the worst."""
    eligible = sum(g.eligible_bytes for g in graphs)
    exact = all(g.bound_kind == "exact" for g in graphs)
    return schema.Totals(
        kernels=sum(g.kernels for g in graphs),
        traffic_bytes=sum(g.traffic_bytes for g in graphs),
        peak_bytes=worst_peak((g.peak_bytes, g.output_bytes) for g in graphs),
        estimated_us=sum(g.estimated_us for g in graphs),
        bound_us=sum(g.bound_us for g in graphs),
        bound_kind="exact" if exact else "floor",
        generated_share=sum(g.generated_bytes for g in graphs) / eligible if eligible else 1.0,
    )


def worst_peak(graphs: Iterable[tuple[int, int]]) -> int:
    """The peak of graphs that run one after the other, each with its own peak and its outputs.

    While one runs, the outputs of those before it count as alive, since a backward graph reads what
    its forward graph kept.
    """
    peak = before = 0
    for own, outputs in graphs:
        peak = max(peak, before + own)
        before += outputs
    return peak


def _output_bytes(graph: Graph, hints: Hints) -> int:
    """Bytes of the distinct results that the graph makes; an input that is returned is none."""
    made = {v.name: v for v in graph.outputs if isinstance(v, Value) and v.name in graph.producers}
    return sum(number(v.type.numel, hints) * v.type.dtype.itemsize for v in made.values())


def _formula(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else render(dim)


def _group(group: planned.Group, keys: Keys) -> schema.Group:
    spilled = group.cost.spill_bytes // 2  # as much is written as is read back
    return schema.Group(
        name=group.name,
        kind=group.kind,
        generated=group.generated,
        anchor=group.anchor,
        nodes=tuple(keys.by_node[n] for n in group.nodes),
        ops=_ops(group, keys),
        modules=_distinct(keys.call_of[n].module for n in group.nodes),
        lines=_distinct(keys.call_of[n].nodes[0].origin.line for n in group.nodes),
        reads=sum(size for _, size in group.reads) + group.cost.again_bytes + spilled,
        writes=sum(size for _, size in group.writes) + spilled,
        registers=group.registers,
        spill_bytes=group.spill_bytes,
        shared_bytes=group.shared_bytes,
        occupancy=group.occupancy,
        source=group.source,
        flops=group.flops,
        intensity=group.intensity,
        estimated_us=group.estimated_us,
        bound_by=group.bound_by,
    )


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(w for w in words if w))


def _ops(group: planned.Group, keys: Keys) -> tuple[str, ...]:
    """The eager calls of a group; one that is only partly computed here says how much."""
    inside: dict[str, int] = {}
    for name in group.nodes:
        key = keys.call_of[name].key
        inside[key] = inside.get(key, 0) + 1
    parts = ((keys.by_key[key], count) for key, count in inside.items())
    return tuple(
        call.op if count == len(call.nodes) else f"{call.op} {count}/{len(call.nodes)}"
        for call, count in parts
    )


def _boundary(boundary: planned.Boundary, plan: planned.GraphPlan, keys: Keys) -> schema.Boundary:
    decision = boundary.decision
    fused = decision.if_fused
    made, read = _lines(boundary, plan)
    return schema.Boundary(
        producer=keys.by_node.get(boundary.producer, boundary.producer),
        consumer=boundary.consumer,
        values=tuple(keys.by_node[v] for v in boundary.values),
        bytes=boundary.bytes,
        kept=boundary.verdict,
        verdict=decision.cls,
        code=decision.code,
        reason=named(decision.sentence, keys),
        evidence=_evidence(decision),
        if_fused=None
        if fused is None
        else schema.IfFused(
            fused.kernels, fused.bytes, fused.registers, fused.spill_bytes, fused.us
        ),
        remedy=named(decision.remedy, keys),
        producer_line=made,
        consumer_line=read,
    )


def _lines(boundary: planned.Boundary, plan: planned.GraphPlan) -> tuple[str, str]:
    """Where a boundary's first value is made, and where the other group reads it first."""
    value = boundary.values[0]
    maker = plan.graph.producers.get(value)
    members = map(plan.nodes.__getitem__, plan.by_name[boundary.consumer].nodes)
    reader = next((n for n in members if _reads(n, value, plan)), None)
    return maker.origin.line if maker else "", reader.origin.line if reader else ""


def _reads(node: Node, value: str, plan: planned.GraphPlan) -> bool:
    """Whether a node reads a value, as it is or as a view of it."""
    return any(value in (v.name, plan.bases.get(v.name)) for v in node.values)


def _buffer(placed: Placed, keys: Keys, hints: Hints) -> schema.Buffer:
    r = placed.range
    return schema.Buffer(
        node=keys.by_node.get(r.name, r.name),
        bytes=number(r.bytes, hints),
        offset=None if placed.offset is None else _formula(placed.offset),
        first=r.first,
        last=r.last,
        where=r.where,
        reuses=None if r.reuses is None else keys.by_node.get(r.reuses, r.reuses),
    )
