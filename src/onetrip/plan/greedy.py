"""Merges one after the other, the one that gains most first, from a priority queue.

A candidate enters the queue with a bound made of bytes and a launch, is judged when it comes up,
and goes back unless it still leads (lazy greedy). Everything is ordered by numbers and graph order.

    always    whatever is legal                 by_time    what makes the groups faster
    by_bytes  what makes them move less
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..passes.close import Unfusable
from .candidates import Candidate, Candidates
from .constraints import Refusal
from .decision import Decision
from .evaluate import Evaluator, Priced
from .legality import Fused, Legality
from .pool import Part, Pool

BYTE_WEIGHT = 0.02
"""Saved bytes count this share of their time even where arithmetic hides them."""
LEAST_GAIN_US = 1e-6
MOST_ATTEMPTS = {"merge": 8, "recompute": 3}
"""Candidates judged for each atom: twice what layers and scans need, and a bound on unrolled loops,
of which each step reads the one before."""


@dataclass
class State:
    """One search: the pool and what was found on the way."""

    pool: Pool
    legality: Legality
    candidates: Candidates
    evaluator: Evaluator
    prices: dict[int, Priced] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    def price(self, part: Part) -> Priced:
        """The price of a group of the pool."""
        found = self.prices.get(part.key)
        if found is None:
            stored = self.pool.stores(part)
            priced = self.evaluator.price(part.atoms, stored)
            assert not isinstance(priced, Unfusable), f"{part.atoms}: {priced}"
            found = self.prices[part.key] = priced
        return found

    def merge(self, fused: Fused) -> Part:
        """One group of those that may be one."""
        made = self.pool.merge(fused.parts)
        self.prices[made.key] = fused.priced
        return made


Judge = Callable[[State, Candidate], "tuple[float, list[Fused]] | None"]
Admits = Callable[[Candidate], bool]
Entry = tuple[float, tuple[int, ...], str, bool, Candidate]


def _everything(_: Candidate) -> bool:
    return True


def grow(
    state: State,
    judge: Judge,
    parts: Iterable[Part],
    *,
    recompute: bool,
    admits: Admits = _everything,
) -> None:
    """Merges until nothing gains.

    Args:
        parts: the groups to begin with; candidates have at least one of them.
        recompute: whether groups may be computed in each of their readers.
        admits: which candidates are looked at.
    """
    first = list(parts)
    left = {kind: most * len(first) for kind, most in MOST_ATTEMPTS.items()}
    queue = _Queue(state, admits, recompute, left)
    for part in first:
        queue.push(part)
    while (entry := queue.pop()) is not None:
        _, keys, kind, exact, candidate = entry
        answer = judge(state, candidate)
        if answer is None:
            continue
        gain, made = answer
        if not exact and gain < queue.next_gain:
            heapq.heappush(queue.entries, (-gain, keys, kind, True, candidate))
            continue
        for part in _apply(state, candidate, made):
            queue.push(part)
        queue.patient = True


@dataclass
class _Queue:
    """Candidates by what they may gain.

    A group that could be one with all of its readers is recomputed in them only when no merge is
    left: their merges gain as much, and each of them makes the question another one.

    Attributes:
        patient: whether such candidates wait.
        left: how many of each kind may still be judged.
    """

    state: State
    admits: Admits
    recompute: bool
    left: dict[str, int]
    entries: list[Entry] = field(default_factory=list)
    later: list[Entry] = field(default_factory=list)
    patient: bool = True
    _seen: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    @property
    def next_gain(self) -> float:
        """What the next candidate may gain; nothing is expected of an empty queue."""
        return -self.entries[0][0] if self.entries else -math.inf

    def push(self, part: Part) -> None:
        """Takes in the candidates of a group."""
        for c in self.state.candidates.around(part, recompute=self.recompute):
            if (c.kind, c.keys) not in self._seen and self.admits(c):
                self._seen.add((c.kind, c.keys))
                entry = (-_estimate(self.state, c), c.keys, c.kind, False, c)
                heapq.heappush(self.entries, entry)

    def pop(self) -> Entry | None:
        """The next candidate to be judged; None when none is left."""
        while self.entries or self.later:
            if not self.entries:
                self.entries, self.later, self.patient = self.later, [], False
                heapq.heapify(self.entries)
            entry = heapq.heappop(self.entries)
            _, keys, kind, _, _ = entry
            if not self.left[kind] or any(k not in self.state.pool.parts for k in keys):
                continue
            if self.patient and kind == "recompute" and self._may_be_one(keys):
                self.later.append(entry)
                continue
            self.left[kind] -= 1
            return entry
        return None

    def _may_be_one(self, keys: tuple[int, ...]) -> bool:
        """Whether nothing but their nests can keep these groups apart."""
        return self.state.legality.may_be_one([self.state.pool.parts[k] for k in keys])


def _apply(state: State, candidate: Candidate, made: list[Fused]) -> list[Part]:
    if candidate.kind == "merge":
        return [state.merge(made[0])]
    pool = state.pool
    producer, *readers = (pool.parts[k] for k in candidate.keys)
    grown = pool.dissolve(producer, readers)
    for part, fused in zip(grown, made, strict=True):
        state.prices[part.key] = fused.priced
    return grown


def _estimate(state: State, candidate: Candidate) -> float:
    """What a candidate may save: a launch and its bytes at full bandwidth."""
    target = state.evaluator.target
    return target.replay_us + 1e6 * state.candidates.bytes(candidate) / target.copy_bandwidth


# ------------------------------------------------------------------ judges


def always(state: State, candidate: Candidate) -> tuple[float, list[Fused]] | None:
    """The merge whenever it is legal, in the order of bytes saved."""
    parts = [state.pool.parts[k] for k in candidate.keys]
    answer = state.legality.check(parts)
    if isinstance(answer, Decision):
        return None
    return _estimate(state, candidate), [answer]


def by_time(state: State, candidate: Candidate) -> tuple[float, list[Fused]] | None:
    """Microseconds saved, with a small share for bytes that the arithmetic hides."""

    def us(priced: Priced) -> float:
        bandwidth = state.evaluator.target.copy_bandwidth
        return priced.cost.us + BYTE_WEIGHT * 1e6 * priced.cost.bytes / bandwidth

    return _gain(state, candidate, us)


def by_bytes(state: State, candidate: Candidate) -> tuple[float, list[Fused]] | None:
    """Bytes saved, as their time at full bandwidth; a launch where the bytes are the same."""
    target = state.evaluator.target

    def us(priced: Priced) -> float:
        return target.replay_us + 1e6 * priced.cost.bytes / target.copy_bandwidth

    return _gain(state, candidate, us)


def _gain(
    state: State, candidate: Candidate, weight: Callable[[Priced], float]
) -> tuple[float, list[Fused]] | None:
    """What a candidate saves and the groups it makes; None when it does not pay."""
    parts = [state.pool.parts[k] for k in candidate.keys]
    one = candidate.kind == "merge"
    made: list[Fused] = []
    for pieces in [parts] if one else [[parts[0], r] for r in parts[1:]]:
        answer = state.legality.check(pieces) if one else state.legality.check_clone(*pieces)
        if isinstance(answer, Decision):
            return None
        made.append(answer)
    before = sum(weight(state.price(p)) for p in parts)
    gain = before - sum(weight(f.priced) for f in made)
    return (gain, made) if gain > LEAST_GAIN_US else None


# ------------------------------------------------------------------ whole graphs


def eager(state: State) -> None:
    """Merges within each call only: a call whose nodes cannot be one kernel keeps several."""
    atoms = state.pool.index.atoms

    def one_call(candidate: Candidate) -> bool:
        calls = {atoms[k].node.call for key in candidate.keys for k in state.pool.parts[key].atoms}
        return len(calls) == 1 and calls != {-1}

    grow(state, always, state.pool.parts.values(), recompute=False, admits=one_call)


def largest(state: State) -> None:
    """Everything that is legal."""
    grow(state, always, state.pool.parts.values(), recompute=False)
