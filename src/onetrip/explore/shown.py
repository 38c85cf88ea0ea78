"""A session as plain data for the page: what stands once, what an action changed, and why.

Figures are the cost model's; an estimated time is a range, as wide as the model's published error.
After an action only groups and edges that changed are told. Must not know HTTP or HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..cost.roofline import call_dtype, matrix_rate
from ..plan.decision import Decision
from ..plan.draft import Sums, name_of
from ..plan.measured import ERROR_BAND
from ..plan.plan import GraphPlan
from ..plan.pool import Part
from ..report.budget import LIMITS, Rule
from ..report.record import worst_peak
from ..target import Target
from .board import Board, Edge, Node, is_locked
from .boards import PRESETS
from .pins import pinned
from .session import Session, label

Json = dict[str, Any]
_BY_SEARCH = ("not-reached", "as-drawn")
"""Codes that tell whether a search chose the groups."""
MOST_OPS = 5
"""Operators named in the title of a group."""


@dataclass
class Told:
    """What a page was told.

    Attributes:
        searched: whether the groups are those of Best.
        groups: names of groups and what they store, by key.
        edges: their states.
        pinned: keys of the groups that are pinned.
        yours: the edges that the user cut.
    """

    board: int = 0
    searched: bool = False
    groups: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    edges: dict[int, tuple[str, str]] = field(default_factory=dict)
    pinned: set[int] = field(default_factory=set)
    yours: set[int] = field(default_factory=set)


# ------------------------------------------------------------------ what stands


def graph(session: Session) -> Json:
    """The calls and edges of the board, and what the page can ask for."""
    board, place = session.board, session.place
    workshop = session.boards.workshop
    forms = {form: k for k, form in enumerate(board.copies)}
    return {
        "model": workshop.name,
        "target": place.target,
        "targets": list(dict.fromkeys((*workshop.targets, place.target))),
        "size": place.size,
        "sizes": list(workshop.sizes),
        "graph": place.graph,
        "graphs": list(session.graphs()),
        "board": session.state.board,
        "presets": PRESETS,
        "measures": workshop.measures,
        "roof": _roof(board),
        "nodes": [_node(n, board) for n in board.nodes],
        "edges": [
            {
                "id": e.id,
                "a": e.a,
                "b": e.b,
                "bytes": e.bytes,
                "form": forms[e.form],
                "copies": len(board.copies[e.form]),
            }
            for e in board.edges
        ],
        "other": [
            {"kind": a.kind, "taken": a.taken, "reason": session.named(a.reason), "note": a.note}
            for a in session.boards.planned(place, "best").plan.alternatives
        ]
        if session.state.preset == "best"
        else [],
    }


def _node(node: Node, board: Board) -> Json:
    index = board.draft.index
    last = index.atoms[node.atoms[-1]]
    value = last.node.outputs[0] if last.node.outputs else None
    origin = node.call.nodes[0].origin
    return {
        "id": node.id,
        "op": node.call.op,
        "key": label(node.call.key),
        "module": node.call.module,
        "line": origin.line,
        "form": node.form,
        "library": not last.generated,
        "type": "" if value is None else str(value.type.dtype),
        "shape": "" if value is None else " × ".join(map(str, value.type.shape)),
        "bytes": sum(board.draft.evaluator.value_bytes(v.name) for v in last.node.outputs),
        "steps": len(node.atoms),
    }


def _roof(board: Board) -> Json:
    target = board.draft.evaluator.target
    return {
        "bandwidth": target.copy_bandwidth,
        "vector": target.peak_flops("vector", "f32"),
        "matrix": target.peak_flops("matrix", "bf16" if target.device == "cuda" else "f32"),
        "device": target.device,
    }


# ------------------------------------------------------------------ what an action changed


def state(session: Session, told: Told) -> Json:
    """The state that is shown, without what the page knows already."""
    board, now = session.board, session.state
    if told.board != id(board):
        told.board, told.groups, told.edges, told.yours = id(board), {}, {}, set()
        told.pinned = set()
        whole = True
    else:
        whole = False
    parts = board.draft.pool.parts
    held = {p.key for p in pinned(board, now.pins)}
    other = (told.pinned ^ held) & parts.keys()
    groups = {key: (name_of(p), board.draft.pool.stores(p)) for key, p in parts.items()}
    fresh_groups = {key for key, found in groups.items() if told.groups.get(key) != found}
    changed = {key: parts[key] for key in sorted(fresh_groups | other)}
    gone = {told.groups[key][0] for key in told.groups.keys() - parts.keys()}
    told.pinned, told.groups = held, groups
    asked = board.edges_of(changed.values())
    asked += _between(board, told, changed.values(), {e.id for e in asked})
    statuses = {e.id: edge_state(session, e) for e in asked}
    marked = told.yours ^ now.cuts
    if told.searched != (now.preset == "best"):
        told.searched = not told.searched
        marked |= {k for k, (_, code) in told.edges.items() if code in _BY_SEARCH}
    statuses |= {k: edge_state(session, board.edges[k]) for k in marked - statuses.keys()}
    fresh = {k: s for k, s in statuses.items() if told.edges.get(k) != s}
    told.edges |= fresh
    told.yours -= fresh.keys()
    told.yours |= {k for k, (state, _) in fresh.items() if state == "yours"}
    place = session.place
    return {
        "whole": whole,
        "board": now.board,
        "target": place.target,
        "size": place.size,
        "graph": place.graph,
        "preset": now.preset,
        "label": now.label,
        "totals": totals(session),
        "eager": _totals_of(session.boards.planned(place, "eager").plan, None, board),
        "budget": budget(session),
        "groups": [group(board, p, p.key in held) for p in changed.values()],
        "gone": sorted(gone.difference(name for name, _ in groups.values())),
        "shared": [list(one.groups) for one in session.shared()],
        "edges": {str(k): list(s) for k, s in fresh.items()},
        "history": [s.label for s in place.done],
        "undone": [s.label for s in reversed(place.undone)],
        "lost": _lost(session),
    }


def _lost(session: Session) -> list[Json]:
    """What could not be carried over to this target or size, in any graph."""
    here, names = session.place.graph, session.graphs()
    return [
        {
            "a": x.producer if p.graph == here else f"{names[p.graph]}/{x.producer}",
            "b": x.consumer,
            "reason": x.reason,
        }
        for p in session.places()
        for x in p.lost
    ]


def _between(board: Board, told: Told, changed: Iterable[Part], known: set[int]) -> list[Edge]:
    """The edges kept apart by what lies between their groups, where one that changed lies there."""
    places = board.draft.places()
    spots = [places[p.key] for p in changed]
    if not spots:
        return []
    low, high = min(spots), max(spots)
    found: list[Edge] = []
    for k, (_, code) in told.edges.items():
        if code == "convexity" and k not in known:
            ends = [places[p.key] for p in board.ends(board.edges[k])]
            if ends and min(ends) <= high and low <= max(ends):
                found.append(board.edges[k])
    return found


def edge_state(session: Session, edge: Edge) -> tuple[str, str]:
    """`fused`, `cut`, `yours` (cut by the user), `other` (no kernel as it is written, but Best may
    compute both ends in another way) or `locked`, and the code of the reason."""
    why = session.why(edge)
    if why is None:
        return "fused", ""
    if is_locked(why):
        return ("other" if edge.id in session.board.ways else "locked"), why.code
    return ("yours" if edge.id in session.state.cuts else "cut"), why.code


def totals(session: Session) -> Json:
    """The meters: a preset's are those of its plan, others those of the draft."""
    sums = session.board.draft.sums()
    found = _totals_of(session.plan, sums, session.board)
    bound = session.boards.bound(session.place)
    return found if bound is None else found | {"bound": bound.us, "bound_kind": bound.kind}


def _totals_of(plan: GraphPlan | None, sums: Sums | None, board: Board) -> Json:
    target = board.draft.evaluator.target
    figures = plan.totals if plan is not None else sums
    assert figures is not None
    found = {
        "kernels": figures.kernels,
        "traffic": figures.traffic_bytes,
        "peak": figures.peak_bytes,
        **span(figures.estimated_us, target),
        "limit": target.registers_per_thread,
    }
    if sums is not None:
        found |= {"registers": sums.registers, "spill": sums.spill_bytes}
        found |= {"spilled": sums.spilled_bytes}
    return found


def budget(session: Session) -> Json | None:
    """What all graphs together come to and may come to, by rule; None without a budget."""
    place, workshop = session.place, session.boards.workshop
    if workshop.budget is None:
        return None
    limits = workshop.budget.target.get(place.target)
    figures = session.figures_of_all()
    outputs = (g.output_bytes for g in workshop.plan(place.size, place.target, "eager").graphs)
    found: dict[Rule, int] = {
        "kernels": sum(f.kernels for f in figures),
        "traffic_bytes": sum(f.traffic_bytes for f in figures),
        "peak_bytes": worst_peak(zip((f.peak_bytes for f in figures), outputs, strict=True)),
    }
    return {
        rule: {"found": found[rule], "limit": limit, "noun": noun}
        for rule, noun in LIMITS.items()
        if limits is not None and (limit := getattr(limits, rule)) is not None
    }


def span(us: float, target: Target) -> Json:
    """An estimate with the range in which nine of ten measurements lie."""
    band = 1 + ERROR_BAND[target.device]
    return {"us": us, "low": us / band, "high": us * band}


def group(board: Board, part: Part, is_pinned: bool) -> Json:
    """A group's figures."""
    draft = board.draft
    priced, target = draft.price(part), draft.evaluator.target
    cost, need = priced.cost, priced.need
    calls = list(dict.fromkeys(board.node_of[k] for k in part.atoms))
    inside = set(part.atoms)
    partly = [n for n in calls if not inside.issuperset(board.nodes[n].atoms)]
    ops = list(dict.fromkeys(board.nodes[n].call.op for n in calls))
    more = f" and {len(ops) - MOST_OPS} more" if len(ops) > MOST_OPS else ""
    reads = sum(size for _, size in cost.reads) + cost.again_bytes + cost.spill_bytes // 2
    floor = _floor_us(board, part)
    return {
        "name": name_of(part),
        "title": ", ".join(ops[:MOST_OPS]) + more,
        "kind": priced.kind,
        "generated": draft.pool.is_generated(part),
        "launched": draft.launches(part),
        "pinned": is_pinned,
        "calls": calls,
        "partly": partly,
        "reads": reads,
        "writes": cost.bytes - reads,
        "flops": cost.flops,
        "intensity": cost.intensity,
        **span(cost.us, target),
        "bound": cost.bound_by,
        "roof": min(1.0, floor / cost.us) if cost.us else 1.0,
        "registers": need.registers if need else None,
        "spill": need.spill_bytes if need else None,
        "shared": need.shared_bytes if need else None,
        "occupancy": need.occupancy if need else None,
        "source": need.source if need else "library",
    }


def _floor_us(board: Board, part: Part) -> float:
    """What its values, read and written once, or its FLOPs would take at the chip's full rate."""
    draft = board.draft
    target, cost = draft.evaluator.target, draft.price(part).cost
    node = draft.index.atoms[part.atoms[0]].node
    generated = draft.pool.is_generated(part)
    vector = target.peak_flops("vector", "f32")
    rate = vector if generated else matrix_rate(target, call_dtype(node))
    wanted = cost.bytes - cost.spill_bytes - cost.again_bytes
    return 1e6 * max(wanted / target.copy_bandwidth, cost.flops / rate if rate else 0.0)


# ------------------------------------------------------------------ why


def why(session: Session, edge: Edge) -> Json:
    """The record of an edge: why it is cut and what fusing changes, or what a cut would."""
    board = session.board
    decision = session.why(edge)
    a, b = (board.nodes[k] for k in (edge.a, edge.b))
    made, read = (n.call.nodes[0].origin.line for n in (a, b))
    found: Json = {
        "edge": edge.id,
        "title": session.title(edge),
        "state": edge_state(session, edge),
        "bytes": edge.bytes,
        "copies": len(board.like(edge)),
        "lines": [made, read],
        "pins": session.pins_at(edge),
        "way": board.ways.get(edge.id, ""),
    }
    if decision is None:
        return found | {"if_cut": _if_cut(session, edge)}
    return found | _decision(session, decision) | {"if_fused": _if_fused(session, edge, decision)}


def _decision(session: Session, decision: Decision) -> Json:
    return {
        "verdict": decision.cls,
        "code": decision.code,
        "reason": session.named(decision.sentence),
        "remedy": session.named(decision.remedy),
        "evidence": [
            {"limit": e.limit, "value": e.value, "unit": e.unit, "bound": e.bound}
            for e in decision.evidence
        ],
    }


def _if_fused(session: Session, edge: Edge, decision: Decision) -> Json | None:
    """What fusing changes in all; where it may not be, the figures of that kernel alone."""
    fused = decision.if_fused
    if not is_locked(decision):
        return _tried(session, lambda: session.board.fuse(edge) is None)
    if fused is None:
        return None
    return {"kernel": {"bytes": fused.bytes, "us": fused.us, "registers": fused.registers,
                       "spill": fused.spill_bytes}}  # fmt: skip


def _if_cut(session: Session, edge: Edge) -> Json | None:
    return _tried(session, lambda: session.board.cut(edge) is None)


def _tried(session: Session, change: Callable[[], bool]) -> Json | None:
    """What a change would add to each meter; the groups stay as they are."""
    draft, figures = session.board.draft, session.figures
    grouping, before = draft.grouping, draft.sums()
    try:
        if not change():
            return None
        after = draft.sums()
    finally:
        draft.start(grouping)
    return {
        "kernels": after.kernels - figures.kernels,
        "traffic": after.traffic_bytes - figures.traffic_bytes,
        "peak": after.peak_bytes - figures.peak_bytes,
        "us": after.estimated_us - figures.estimated_us,
        "registers": [before.registers, after.registers],
        "spill": [before.spill_bytes, after.spill_bytes],
    }
