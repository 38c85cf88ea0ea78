"""Which groups: the eager grouping, everything legal, or the cheapest that the search can prove.

    plan_graph: index -> pool of atoms -> constraints -> groups -> GraphPlan

`best` divides the graph into regions, groups each greedily and then exactly where it can, solves
equal regions once, and adds up what each of them proves. Everything is ordered by numbers and graph
order and limited by counts: same graph, same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from ..base.lazy import cached_property
from ..cost.occupancy import Resources
from ..cost.sizes import NO_HINTS, Hints
from ..ir.graph import Graph
from ..ir.nest import Nest
from ..passes.close import Unfusable
from ..passes.fuse import fuse
from ..target import Target
from .assemble import assemble, execution_order
from .candidates import Candidates
from .constrain import constrain
from .constraints import NO_CONSTRAINTS, Constraints
from .enumerate import Column
from .evaluate import Evaluator
from .exact import (
    MOST_AGAIN,
    MOST_DIRECT,
    MOST_POOLED,
    Answer,
    Prices,
    apart,
    best_groups,
    is_small,
    region_form,
)
from .greedy import Judge, State, by_bytes, by_time, eager, grow, largest
from .index import Atom, Index, index_graph
from .legality import Legality
from .peak import NO_DIVIDES, Divide, Divided, divides, eager_peak, highest, parting, spans_of
from .plan import GraphPlan
from .pool import Part, Pool
from .regions import Region, find_regions, joined
from .structure import Once, Structures
from .totals import Bound

Search = Literal["eager", "max", "best", "greedy-bytes", "greedy-time"]
MOST_SEARCHES = 24
"""Searches for a plan that needs no more memory than eager, before eager's grouping is taken."""
MOST_JOINED = 1000
"""Columns of a region that a CPU joins for rows and columns of one input, in a graph larger than a
region that is listed as it is. More, in several regions, are programs that take minutes: the
regions that it would join are searched each for itself, and there is a floor for all of them."""
SLACK_BYTES = 1 << 20
"""More than eager that a plan may hold: allocators take as much at a time (that of CUDA 2 MiB), and
the statistics of a norm that are stored between two kernels are no reason for a third one."""


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
        search: `eager` one kernel for each eager call, `max` everything legal, `best` by time;
            `greedy-bytes` and `greedy-time` are what `best` is compared with.
        resources: the real assembler, where there is one.
        hints: expected values of symbolic sizes.
    """
    structures = indexed(graph, nests)
    evaluator = Evaluator(structures.index, target, hints, resources, structures)
    task = _Task(structures.index, evaluator, constraints)
    found = _within_memory(task, search)
    if search == "best" and found.divided:
        # What is kept apart depends on the groups: a greedy search may have divided less.
        others = [_within_memory(task, s) for s in _GREEDY]
        least = min((found, *others), key=lambda f: f.us)
        found = replace(found, state=least.state)
    state = found.state
    return assemble(
        state.pool, evaluator, state.legality, search, tuple(state.refusals), found.bound
    )


@dataclass(frozen=True)
class _Found:
    """A finished search and what it proved."""

    state: State
    bound: Bound | None
    divided: bool = False

    @property
    def us(self) -> float:
        """The time of all groups."""
        return sum(self.state.price(p).cost.us for p in self.state.pool.parts.values())


def _within_memory(task: _Task, search: Search) -> _Found:
    """The search that needs no more memory than eager: what needs more is kept apart, and again.

    Prices are remembered, so that another search costs little; what the user forces stays. The
    bound is that of the first search, which leaves memory out of account.
    """
    size = task.evaluator.value_bytes
    limit = eager_peak(task.index, size) + SLACK_BYTES
    divided: Divided = {}
    answers: dict[Hashable, Answer] = {}
    earlier: dict[tuple[int, ...], list[Group]] = {}
    bound: Bound | None = None
    lowest = math.inf
    for k in range(MOST_SEARCHES):
        found = _searched(_Start(task, divided, answers, earlier), search)
        bound = bound or found.bound
        pool = found.state.pool
        order = execution_order(pool)
        spans = spans_of(pool, order, size)
        peak = highest(spans)
        if peak <= limit or search == "eager":
            return replace(found, bound=bound, divided=bool(divided))
        everywhere = peak >= lowest
        more = divides(pool, order, spans, limit, places=2**k, everywhere=everywhere)
        if more.keys() <= divided.keys():
            break
        divided, lowest = {**more, **divided}, min(peak, lowest)
    last = _searched(_Start(task, divided, answers, {}), "eager")
    pool = last.state.pool
    least = highest(spans_of(pool, execution_order(pool), size))
    return replace(last if least < peak else found, bound=bound, divided=True)


def _searched(start: _Start, search: Search) -> _Found:
    if search in _WHOLE:
        state = start.state()
        _WHOLE[search](state)
        return _Found(state, None)
    return _by_region(start, search)


_WHOLE: dict[Search, Callable[[State], None]] = {"eager": eager, "max": largest}
_GREEDY: dict[Search, Judge] = {"greedy-bytes": by_bytes, "greedy-time": by_time}


@dataclass(frozen=True)
class _Task:
    """What every search of one graph has in common."""

    index: Index
    evaluator: Evaluator
    constraints: Constraints
    _forms: dict[tuple[int, ...], Hashable] = field(default_factory=dict)

    def state(self, divided: Divided = NO_DIVIDES) -> State:
        """A pool of atoms under the user's constraints."""
        pool = Pool(self.index)
        legality = Legality(pool, self.evaluator, self.constraints)
        state = State(pool, legality, Candidates(pool, self.evaluator), self.evaluator)
        constrain(state, self.constraints)
        legality.divided = divided
        return state

    @cached_property
    def regions(self) -> list[Region]:
        """What is searched: all that kernels may reach from a unit, or a part of it."""
        found = [part for _, parts in self.reached for part in parts]
        return sorted(found, key=lambda r: r.units[0].atoms)

    @cached_property
    def reached(self) -> list[tuple[Region, list[Region]]]:
        """The regions of a pool in which nothing was merged yet but by the user, each with those
        that are searched in its place: itself, or those in which no kernel reduces rows and columns
        where these are too many to try."""
        pool = self.state().pool

        def link(producer: Part, consumer: Part) -> bool:
            atoms = pool.union((producer, consumer))
            return self.evaluator.has_nest(atoms, pool.stores(consumer))

        find = partial(
            find_regions,
            pool,
            link,
            self.evaluator.value_bytes,
            form=self.evaluator.structures.atom,
        )
        whole = find(mixed=True)
        if self.evaluator.target.device != "cpu" or len(self.index.atoms) <= MOST_DIRECT:
            return [(region, [region]) for region in whole]
        home = {atom: k for k, region in enumerate(whole) for atom in region.atoms}
        parts: list[list[Region]] = [[] for _ in whole]
        for part in find(mixed=False):
            parts[home[part.atoms[0]]].append(part)
        return [
            (region, [region] if found != [region] and is_small(region, MOST_JOINED) else found)
            for region, found in zip(whole, parts, strict=True)
        ]

    def form(self, region: Region) -> Hashable:
        """Equal for regions that differ in names only."""
        found = self._forms.get(region.atoms)
        if found is None:
            found = self._forms[region.atoms] = region_form(region, self.evaluator)
        return found


Group = tuple[tuple[int, ...], tuple[int, ...]]
"""Atoms of a group, and those of them that it owns."""


@dataclass(frozen=True)
class _Start:
    """What a search begins with.

    Attributes:
        answers: for regions of equal structure.
        earlier: the groups of each region, by its atoms, in the search before this one.
    """

    task: _Task
    divided: Divided
    answers: dict[Hashable, Answer]
    earlier: dict[tuple[int, ...], list[Group]]

    def state(self) -> State:
        """A pool of atoms under the user's constraints."""
        return self.task.state(self.divided)

    @cached_property
    def rivals(self) -> tuple[Divide, ...]:
        """Sets of atoms of which no two may share a kernel."""
        known = self.task.index.by_name
        cuts = [
            (1 << known[a].number, 1 << known[b].number)
            for a, b in self.task.constraints.cut
            if a in known and b in known
        ]
        return (*self.divided, *cuts)


# ------------------------------------------------------------------ region by region


def _by_region(start: _Start, search: Search) -> _Found:
    regions = start.task.regions
    while True:
        state = start.state()
        answers = [_answer(start, state, region, search) for region in regions]
        bound = _bound(start, state, regions, answers) if search == "best" else None
        for region, answer in zip(regions, answers, strict=True):
            start.earlier[region.atoms] = _groups(region, answer.columns)
        if state.pool.regroup([g for r in regions for g in start.earlier[r.atoms]]):
            state.prices.clear()
            return _Found(state, bound)
        fewer = _joined(start, regions, state.pool.circle())
        if len(fewer) == len(regions):
            break
        regions = fewer
    # Groups of one region wait for each other: merged one by one they cannot.
    state = start.state()
    for region in regions:
        _grow(state, region, _GREEDY.get(search, by_time))
    return _Found(state, bound)


def _bound(
    start: _Start, state: State, regions: Sequence[Region], answers: Sequence[Answer]
) -> Bound:
    """What the answers prove together, before their groups take the place of the pool's."""
    inside = {k for r in regions for k in r.atoms}
    kept = [p for p in state.pool.parts.values() if inside.isdisjoint(p.atoms)]
    split = [region for region, parts in start.task.reached if parts != [region]]
    open_atoms = {k for region in split for k in region.atoms}
    proved = [a for r, a in zip(regions, answers, strict=True) if open_atoms.isdisjoint(r.atoms)]
    floors = [Prices(r, start.task.evaluator, state.legality).floor() for r in split]
    exact = not floors and all(a.kind == "exact" for a in answers)
    us = sum(a.bound_us for a in proved) + sum(floors) + sum(state.price(p).cost.us for p in kept)
    shared = sum(a.moved_us for a in answers) + sum(_alone_us(state, p) for p in kept)
    return Bound(us, "exact" if exact else "floor", shared)


def _joined(start: _Start, regions: list[Region], circle: Sequence[Part]) -> list[Region]:
    """The regions with those as one whose groups wait for each other.

    Each has the best groups for itself, which no order has room for: together they are searched
    for groups that have one.
    """
    stuck = {k for p in _shortcuts(start.task.index, circle) for k in p.atoms}
    found = [r for r in regions if not stuck.isdisjoint(r.atoms)]
    if len(found) < 2 or sum(len(r.units) for r in found) > MOST_DIRECT:
        return regions
    one = joined(start.state().pool, found)
    rest = [r for r in regions if stuck.isdisjoint(r.atoms)]
    return sorted([*rest, one], key=lambda r: r.units[0].atoms)


def _shortcuts(index: Index, circle: Sequence[Part]) -> list[Part]:
    """The groups of a circle without which it would be none: what the next one reads of them is
    not made from what they read of the one before."""
    above, _ = index.closures
    count = len(circle)
    passed = [_passed(index, circle[(k + 1) % count], circle[k]) for k in range(count)]
    return [
        part
        for k, part in enumerate(circle)
        if not any(above[x] >> e & 1 for e in passed[k] for x in passed[k - 1])
    ]


def _passed(index: Index, source: Part, reader: Part) -> set[int]:
    """Atoms of one group whose values another one reads or computes again."""
    read = {index.maker.get(n, -1) for k in reader.atoms for n in index.atoms[k].reads}
    return {k for k in source.atoms if source.mask >> k & 1 and (k in read or reader.holds(k))}


def _alone_us(state: State, part: Part) -> float:
    """What a group of its own takes at least: a library call shares its launch with nothing."""
    cost = state.price(part).cost
    if not state.pool.is_generated(part):
        return cost.us
    moved = sum(size for _, size in (*cost.reads, *cost.writes))
    return 1e6 * moved / state.evaluator.target.copy_bandwidth


def _answer(start: _Start, state: State, region: Region, search: Search) -> Answer:
    """The region's groups; those of an equal region where there was one."""
    key = (start.task.form(region), apart(region, start.rivals))
    found = start.answers.get(key)
    if found is None:
        state = _regrown(start, state, region, _GREEDY.get(search, by_time))
        columns = _columns(state.pool, region)
        found = Answer(columns, 0.0, "floor")
        if search == "best":
            found = _improved(start, state, region, columns)
        start.answers[key] = found
    return found


def _improved(start: _Start, state: State, region: Region, known: tuple[Column, ...]) -> Answer:
    """The best groups of a region, of which greedy ones are known."""

    def by_other() -> tuple[Column, ...]:
        other = _regrown(start, start.state(), region, by_bytes)
        return _columns(other.pool, region)

    prices = Prices(region, start.task.evaluator, state.legality)
    # Another search for less memory is cheap: a large region is searched in the first alone.
    thorough = not start.divided or len(region.units) <= MOST_AGAIN
    return best_groups(prices, known, by_other, thorough=thorough)


def _regrown(start: _Start, state: State, region: Region, judge: Judge) -> State:
    """Merges within the region, from what is sound of its groups in the search before.

    A group that must be divided is taken apart, and so is one that computes what such a group does.
    What is left stands in a pool of its own: it need not fit to what was merged in other regions.

    Returns: the state that holds the region's groups.
    """
    groups = [g for g in start.earlier.get(region.atoms, ()) if not state.pool.is_pinned(g[0])]
    broken = {k for atoms, _ in groups if parting(atoms, start.divided) for k in atoms}
    count = -1
    while count != len(broken):
        count = len(broken)
        broken |= {k for atoms, _ in groups if not broken.isdisjoint(atoms) for k in atoms}
    sound = [g for g in groups if broken.isdisjoint(g[0])]
    begun = start.state() if sound else state
    if sound and not begun.pool.regroup(sound):
        sound, begun = [], state
    _grow(begun, region, judge, recompute=not sound or len(region.units) <= MOST_POOLED)
    return begun


def _grow(state: State, region: Region, judge: Judge, *, recompute: bool = True) -> None:
    """Merges within the region."""
    state.candidates.within = sum(1 << k for k in region.atoms)
    keys = dict.fromkeys(h for u in region.units for h in sorted(state.pool.homes[u.atoms[0]]))
    grow(state, judge, [state.pool.parts[k] for k in keys], recompute=recompute)
    state.candidates.within = -1


def _columns(pool: Pool, region: Region) -> tuple[Column, ...]:
    """The pool's groups of a region."""
    keys = dict.fromkeys(home for k in region.atoms for home in sorted(pool.homes[k]))
    found = []
    for part in (pool.parts[k] for k in keys):
        inside, made = set(part.atoms), set(pool.stores(part))
        units = [k for k, u in enumerate(region.units) if inside.issuperset(u.atoms)]
        stored = [k for k in units if not made.isdisjoint(region.units[k].makes)]
        found.append(Column(sum(1 << k for k in units), sum(1 << k for k in stored)))
    return tuple(found)


def _groups(region: Region, columns: Sequence[Column]) -> list[Group]:
    """Atoms of each column, and those that it owns: stored there, or in no other."""
    once = twice = stored = 0
    for c in columns:
        twice |= once & c.units
        once |= c.units
        stored |= c.stored
    return [
        (region.atoms_of(c.units), region.atoms_of(c.stored | c.units & ~twice & ~stored))
        for c in columns
    ]


def indexed(graph: Graph, nests: Mapping[str, Nest]) -> Structures:
    """The atoms of the graph; an alias that its reader cannot take in becomes a copy."""
    copies: frozenset[str] = frozenset()
    while True:
        structures = Structures(index_graph(graph, nests, copies))
        stuck = _stuck(structures)
        if not stuck:
            return structures
        copies |= stuck


def _stuck(structures: Structures) -> set[str]:
    """The last alias before each atom that cannot take in the aliases which it reads through."""
    index = structures.index
    known: Once[bool] = Once(lambda is_stuck, _: is_stuck)
    found: set[str] = set()
    for atom in index.atoms:
        if atom.generated and atom.chain:
            key, names = structures.group((atom.number,), frozenset((atom.name,)))
            if known.get(key, names, partial(_has_no_nest, index, atom)):
                found.add(atom.chain[-1])
    return found


def _has_no_nest(index: Index, atom: Atom) -> bool:
    members, stored = (*atom.chain, atom.name), frozenset((atom.name,))
    return isinstance(fuse(members, index.nests, stored, bounded=False), Unfusable)
