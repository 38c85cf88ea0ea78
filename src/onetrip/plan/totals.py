"""Sums over a plan, the eager baseline, and the floor that no plan goes below.

    floor = max(compulsory bytes / copy bandwidth, sum of contraction FLOPs / peak rate) + launches

Compulsory bytes: what is read of each graph input, once, and each output written, once. Launches:
one for each library call, and one more when anything is generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..cost.roofline import Cost, call_dtype, matrix_peak
from ..passes.close import Unfusable
from .evaluate import Evaluator
from .index import Atom, Index
from .plan import Group, Together, Totals
from .share import OWN_DRAW, eager_bytes


@dataclass(frozen=True)
class Bound:
    """No plan of the vocabulary is faster than `us`; `exact` when every region was enumerated.

    Attributes:
        shared_us: no plan is faster in which small groups share launches: a floor.
    """

    us: float
    kind: Literal["exact", "floor"]
    shared_us: float = 0.0


def totals(
    index: Index,
    evaluator: Evaluator,
    groups: Sequence[Group],
    search: str,
    bound: Bound | None = None,
    shared: Sequence[Together] = (),
) -> Totals:
    """The figures of a plan; peak_bytes is filled in by the memory plan."""
    if bound is None or shared:
        known = bound.shared_us if bound is not None else 0.0
        bound = Bound(max(known, floor_us(index, evaluator)), "floor")
    costs = [(g.cost, g) for g in groups]
    if search == "eager":
        costs = list(_eager_calls(index, groups))
    share = eager_bytes(index, evaluator.value_bytes)
    us = sum(c.us for c, _ in costs) - sum(one.saved_us for one in shared)
    return Totals(
        sum(not is_draw(g) for _, g in costs) - sum(len(one.groups) - 1 for one in shared),
        sum(c.bytes for c, _ in costs),
        0,
        us,
        min(us, bound.us),
        bound.kind,
        share.eligible,
        share.generated,
    )


def is_draw(group: Group) -> bool:
    """Whether a group only draws a seed of torch's generator: 8 bytes, and no kernel of a plan."""
    return group.call is not None and group.call.op == OWN_DRAW


# ------------------------------------------------------------------ eager


def _eager_calls(index: Index, groups: Sequence[Group]) -> Iterable[tuple[Cost, Group]]:
    """The cost of each eager call: its inputs and outputs, however many kernels it became here."""
    calls: dict[tuple[str, int], list[Group]] = {}
    for k, g in enumerate(groups):
        call = index.by_name[g.nodes[-1]].node.call
        calls.setdefault(("group", k) if call < 0 else ("call", call), []).append(g)
    for parts in calls.values():
        yield (parts[0].cost if len(parts) == 1 else _joined(index, parts)), parts[0]


def _joined(index: Index, parts: Sequence[Group]) -> Cost:
    """One launch that moves what enters and leaves the parts and does all of their work."""
    inside = {n for g in parts for n in g.nodes}
    made = {n for g in parts for n, _ in g.writes}
    reads: dict[str, int] = {}
    for name, size in (x for g in parts for x in g.reads if x[0] not in made):
        reads[name] = max(reads.get(name, 0), size)
    writes = tuple(x for g in parts for x in g.writes if _leaves(index, x[0], inside))
    old = sum(g.cost.bytes for g in parts)
    new = sum(reads.values()) + sum(size for _, size in writes)
    memory = sum(g.cost.memory_us for g in parts) * (new / old if old else 1.0)
    compute = sum(g.cost.compute_us for g in parts)
    first = parts[0].cost
    return replace(
        first,
        us=max(memory, compute) + first.launch_us,
        memory_us=memory,
        compute_us=compute,
        reads=tuple(reads.items()),
        writes=writes,
        flops=sum(g.flops for g in parts),
        special=sum(g.cost.special for g in parts),
        again_bytes=0,
    )


def _leaves(index: Index, name: str, inside: set[str]) -> bool:
    readers = (index.atoms[r].name for r in index.readers.get(name, ()))
    return name in index.needed or any(r not in inside for r in readers)


# ------------------------------------------------------------------ the floor


def floor_us(index: Index, evaluator: Evaluator) -> float:
    """A lower bound of the time of any plan: see the head of this file."""
    target = evaluator.target
    moved = sum(_input_bytes(index, evaluator).values())
    moved += sum(evaluator.value_bytes(n) for n in index.needed if n in index.maker)
    library = [evaluator.library(a).cost for a in index.atoms if not a.generated]
    seconds = 0.0
    for atom, cost in zip(_library(index), library, strict=True):
        if cost.flops:
            seconds += cost.flops / matrix_peak(target, call_dtype(atom.node))
    launches = sum(c.launch_us for c in library)
    if any(a.generated for a in index.atoms):
        launches += target.replay_us
    return max(1e6 * moved / target.copy_bandwidth, 1e6 * seconds) + launches


def _library(index: Index) -> list[Atom]:
    return [a for a in index.atoms if not a.generated]


def _input_bytes(index: Index, evaluator: Evaluator) -> dict[str, int]:
    """The most that one atom must read of each graph input; every plan reads at least that."""
    inputs = {v.name for v in index.graph.inputs}
    found: dict[str, int] = {}
    for atom in index.atoms:
        if not inputs.intersection(atom.reads):
            continue
        priced = evaluator.price((atom.number,), tuple(v.name for v in atom.node.outputs))
        if isinstance(priced, Unfusable):
            continue
        for name, size in priced.cost.reads:
            if name in inputs:
                found[name] = max(found.get(name, 0), size)
    return found
