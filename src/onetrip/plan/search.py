"""Which groups: the eager grouping, everything legal, or greedily what saves the most time.

    plan_graph: index -> pool of atoms -> constraints -> merges from a priority queue -> GraphPlan

`best` takes the candidate with the largest saving of time first. A candidate enters the queue with
a bound made of bytes and a launch, is priced when it comes up, and goes back unless it still leads
(lazy greedy). Everything is ordered by numbers and graph order: same graph, same plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..cost.occupancy import Resources
from ..cost.sizes import NO_HINTS, Hints
from ..ir.graph import Graph
from ..ir.nest import Nest
from ..passes.close import Unfusable
from ..passes.fuse import fuse
from ..target import Target
from .assemble import Recomputed, assemble, execution_order
from .candidates import Candidate, Candidates
from .constraints import NO_CONSTRAINTS, Constraints, Refusal
from .decision import Decision
from .evaluate import Evaluator, Priced
from .index import Index, index_graph
from .legality import Fused, Legality
from .peak import Divide, divides, eager_peak
from .plan import GraphPlan
from .pool import Part, Pool

Search = Literal["eager", "max", "best"]
BYTE_WEIGHT = 0.02
"""Saved bytes count this share of their time even where arithmetic hides them."""
LEAST_GAIN_US = 1e-6
MOST_ATTEMPTS = {"merge": 8, "recompute": 3}
"""Candidates judged for each atom: twice what layers and scans need, and a bound on unrolled loops,
of which each step reads the one before."""
MOST_SEARCHES = 12
"""Searches for a plan that needs no more memory than eager, before eager's grouping is taken."""


@dataclass
class _State:
    """One search: the pool and what was found on the way."""

    pool: Pool
    legality: Legality
    candidates: Candidates
    evaluator: Evaluator
    prices: dict[int, Priced] = field(default_factory=dict)
    recomputed: list[Recomputed] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def price(self, part: Part) -> Priced:
        """The price of a group of the pool."""
        found = self.prices.get(part.key)
        if found is None:
            stored = self.pool.stored(part.atoms, (part,))
            priced = self.evaluator.price(part.atoms, stored)
            assert not isinstance(priced, Unfusable), f"{part.atoms}: {priced}"
            found = self.prices[part.key] = priced
        return found


def plan_graph(
    graph: Graph,
    nests: Mapping[str, Nest],
    target: Target,
    *,
    search: Search = "best",
    constraints: Constraints = NO_CONSTRAINTS,
    resources: Resources | None = None,
    hints: Hints = NO_HINTS,
) -> GraphPlan:
    """The plan of one graph.

    Args:
        nests: nests of the primitive nodes, by node name (passes/lower.py).
        search: `eager` one kernel for each eager call, `max` everything legal, `best` by time.
        resources: the real assembler, where there is one.
        hints: expected values of symbolic sizes.
    """
    index = _index(graph, nests)
    launch_us = target.launch_us if search == "eager" else None
    evaluator = Evaluator(index, target, hints, resources, launch_us)
    state = _within_memory(index, evaluator, constraints, search)
    return assemble(
        state.pool,
        evaluator,
        state.legality,
        search,
        tuple(state.recomputed),
        tuple(state.refusals),
    )


def _within_memory(
    index: Index, evaluator: Evaluator, constraints: Constraints, search: Search
) -> _State:
    """The search that needs no more memory than eager: what needs more is kept apart, and again.

    Prices are remembered, so that another search costs little; what the user forces stays.
    """
    limit = eager_peak(index, evaluator.value_bytes)
    divided: tuple[Divide, ...] = ()
    for _ in range(MOST_SEARCHES):
        state = _searched(index, evaluator, constraints, search, divided)
        order = execution_order(state.pool)
        more = divides(state.pool, order, limit, evaluator.value_bytes)
        if not more or search == "eager":
            return state
        divided = (*divided, *more)
    return _searched(index, evaluator, constraints, "eager", divided)


def _searched(
    index: Index,
    evaluator: Evaluator,
    constraints: Constraints,
    search: Search,
    divided: tuple[Divide, ...],
) -> _State:
    pool = Pool(index)
    state = _State(
        pool, Legality(pool, evaluator, constraints), Candidates(pool, evaluator), evaluator
    )
    _constrain(state, constraints)
    state.legality.divided = divided
    _SEARCHES[search](state)
    return state


def _index(graph: Graph, nests: Mapping[str, Nest]) -> Index:
    """The atoms of the graph; an alias that its reader cannot take in becomes a copy."""
    copies: frozenset[str] = frozenset()
    while True:
        index = index_graph(graph, nests, copies)
        stuck = {
            a.chain[-1]
            for a in index.atoms
            if a.generated and a.chain and _is_stuck(index, a.number)
        }
        if not stuck:
            return index
        copies |= stuck


def _is_stuck(index: Index, atom: int) -> bool:
    members = index.members((atom,))
    return isinstance(fuse(members, index.nests, frozenset(members[-1:]), bounded=False), Unfusable)


# ------------------------------------------------------------------ constraints


def _constrain(state: _State, constraints: Constraints) -> None:
    for names in constraints.pin:
        _pin(state, names)
    for pair in constraints.fuse:
        _force(state, "fuse", pair)
    for pair in constraints.want:
        _force(state, "want", pair)


def _known(state: _State, names: Iterable[str]) -> list[int]:
    """Numbers of the atoms of these nodes; aliases take part in any group and are left out."""
    by_name = state.pool.index.by_name
    return [by_name[n].number for n in names if n in by_name]


def _pin(state: _State, names: tuple[str, ...]) -> None:
    pool = state.pool
    parts: dict[int, Part] = {}
    clones: list[int] = []
    for k in _known(state, names):
        owner = pool.parts[pool.owner[k]]
        if owner.frozen:
            clones.append(k)
        else:
            parts[owner.key] = owner
    if not parts:
        return
    merged = _apply_union(state, "pin", names, list(parts.values()), clones)
    if merged is not None:
        merged.frozen = True


def _force(state: _State, constraint: str, pair: tuple[str, str]) -> None:
    pool = state.pool
    keys = dict.fromkeys(pool.owner[k] for k in _known(state, pair))
    if len(keys) > 1:
        _apply_union(state, constraint, pair, [pool.parts[k] for k in keys])


def _apply_union(
    state: _State,
    constraint: str,
    names: tuple[str, ...],
    parts: list[Part],
    clones: Sequence[int] = (),
) -> Part | None:
    """One group of the parts, with clones recomputed in it, or a refusal on the record."""
    pool = state.pool
    if len(parts) == 1:
        return pool.clone(clones, parts[0]) if clones else parts[0]
    answer = state.legality.check(parts, clones)
    if isinstance(answer, Decision):
        state.refusals.append(Refusal(constraint, names, answer))
        return None
    made = _apply_merge(state, answer)
    return pool.clone(clones, made) if clones else made


def _apply_merge(state: _State, fused: Fused) -> Part:
    made = state.pool.merge(fused.parts)
    state.prices[made.key] = fused.priced
    return made


# ------------------------------------------------------------------ the three searches


def _eager(state: _State) -> None:
    """Merges within each call only: a call whose nodes cannot be one kernel keeps several."""
    atoms = state.pool.index.atoms

    def one_call(candidate: Candidate) -> bool:
        calls = {atoms[k].node.call for key in candidate.keys for k in state.pool.parts[key].atoms}
        return len(calls) == 1 and calls != {-1}

    _run(state, _always, one_call, recompute=False)


def _max(state: _State) -> None:
    _run(state, _always, lambda _: True, recompute=False)


def _best(state: _State) -> None:
    _run(state, _gain, lambda _: True, recompute=True)


def _always(state: _State, candidate: Candidate) -> tuple[float, list[Fused]] | None:
    """The merge whenever it is legal, in the order of bytes saved."""
    parts = [state.pool.parts[k] for k in candidate.keys]
    answer = state.legality.check(parts)
    if isinstance(answer, Decision):
        return None
    return _estimate(state, candidate), [answer]


def _gain(state: _State, candidate: Candidate) -> tuple[float, list[Fused]] | None:
    """Microseconds saved by a candidate and the groups it makes; None when it does not pay."""
    parts = [state.pool.parts[k] for k in candidate.keys]
    made: list[Fused] = []
    for pieces in [parts] if candidate.kind == "merge" else [[parts[0], r] for r in parts[1:]]:
        one = candidate.kind == "merge"
        answer = state.legality.check(pieces) if one else state.legality.check_clone(*pieces)
        if isinstance(answer, Decision):
            return None
        made.append(answer)
    before = [state.price(p) for p in parts]
    gain = _weight(state, before) - _weight(state, [f.priced for f in made])
    return (gain, made) if gain > LEAST_GAIN_US else None


def _weight(state: _State, priced: Iterable[Priced]) -> float:
    """Time, with a small share for bytes that the arithmetic hides."""
    bandwidth = state.evaluator.target.copy_bandwidth
    return sum(p.cost.us + BYTE_WEIGHT * 1e6 * p.cost.bytes / bandwidth for p in priced)


def _estimate(state: _State, candidate: Candidate) -> float:
    """What a candidate may save: a launch and its bytes at full bandwidth."""
    target = state.evaluator.target
    return target.replay_us + 1e6 * candidate.bytes / target.copy_bandwidth


Judge = Callable[[_State, Candidate], "tuple[float, list[Fused]] | None"]
Entry = tuple[float, tuple[int, ...], str, bool, Candidate]


def _run(
    state: _State, judge: Judge, admits: Callable[[Candidate], bool], *, recompute: bool
) -> None:
    queue: list[Entry] = []
    seen: set[tuple[str, tuple[int, ...]]] = set()

    def push(parts: Iterable[Part]) -> None:
        for part in parts:
            for c in state.candidates.around(part, recompute=recompute):
                if (c.kind, c.keys) not in seen and admits(c):
                    seen.add((c.kind, c.keys))
                    heapq.heappush(queue, (-_estimate(state, c), c.keys, c.kind, False, c))

    push(list(state.pool.parts.values()))
    left = {kind: most * len(state.pool.parts) for kind, most in MOST_ATTEMPTS.items()}
    while queue:
        _, keys, kind, exact, candidate = heapq.heappop(queue)
        if any(k not in state.pool.parts for k in keys) or not left[kind]:
            continue
        left[kind] -= 1
        answer = judge(state, candidate)
        if answer is None:
            continue
        gain, made = answer
        if not exact and queue and gain < -queue[0][0]:
            heapq.heappush(queue, (-gain, keys, kind, True, candidate))
            continue
        push(_apply(state, candidate, made, gain))


def _apply(state: _State, candidate: Candidate, made: list[Fused], gain: float) -> list[Part]:
    if candidate.kind == "merge":
        return [_apply_merge(state, made[0])]
    pool = state.pool
    producer, *readers = (pool.parts[k] for k in candidate.keys)
    apart = sum(state.price(p).cost.us for p in (producer, *readers))
    together = sum(f.priced.cost.us for f in made)
    stored = pool.stored(producer.atoms, (producer,))
    name = state.legality.label(producer)
    state.recomputed.append(Recomputed(name, stored, producer.atoms, apart, together))
    grown = pool.dissolve(producer, readers)
    for part, fused in zip(grown, made, strict=True):
        state.prices[part.key] = fused.priced
    return grown


_SEARCHES: dict[Search, Callable[[_State], None]] = {"eager": _eager, "max": _max, "best": _best}
