"""Which alternatives a graph takes: each against the nodes that it would replace, in microseconds.

    alternatives -> those the user and the numerics admit -> both ways planned -> best saving first

Both ways are planned as graphs of their own: the replaced nodes and those before them that nothing
else reads, and the made nodes; what either reads from elsewhere are its inputs. So a way is worth
what its kernels cost without their neighbours. Where the estimates are too near to tell and a
device is at hand, both are timed on it and the faster one is taken. Places of equal structure are
priced and timed once. What was not taken leaves a record as well. Must not know how alternatives
are found.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..base.host import Computed, sizes_of
from ..base.intern import key_of
from ..base.sym import Size
from ..base.text import us_text
from ..cost.occupancy import Resources
from ..cost.sizes import Hints
from ..ir.graph import Graph, Node, Value
from ..ir.nest import Nest
from ..passes.alternatives import ADMITTED, Alternative, Declined, Found, taken
from ..passes.canonicalize import canonicalize
from ..target import Target
from .constraints import NO_CONSTRAINTS, Constraints
from .measured import Timer, Way, is_open
from .plan import Choice, GraphPlan, Measured
from .search import Search, plan_graph

LEAST_SAVING = 0.02
"""Share of the time that an alternative must save: less lies within the cost model's error."""

Lower = Callable[[Graph], Mapping[str, Nest]]


@dataclass(frozen=True)
class Problem:
    """A graph to be planned, and all that planning it under other wishes needs.

    Attributes:
        graph: expanded and canonical, as captured.
        found: second ways to compute parts of it, and places that have none.
        lower: makes the nests of a graph's primitive nodes.
        hints: expected values of symbolic sizes.
        resources: the real assembler, where there is one.
        timer: asks the device where estimates are too near; None: estimates decide.
        measured: what a given plan holds on record: it decides without being measured again.
    """

    graph: Graph
    found: tuple[Found, ...]
    lower: Lower
    target: Target
    search: Search = "best"
    numerics: str = "eager"
    hints: Hints = field(default_factory=dict)
    resources: Resources | None = None
    timer: Timer | None = None
    measured: Mapping[Way, Measured] = field(default_factory=dict)

    @property
    def made(self) -> tuple[Alternative, ...]:
        """The alternatives among what was found."""
        return tuple(f for f in self.found if isinstance(f, Alternative))


def plan_problem(problem: Problem, constraints: Constraints = NO_CONSTRAINTS) -> GraphPlan:
    """The plan of a graph with the alternatives that pay."""
    graph, choices = choose(problem, constraints)
    plan = plan_graph(
        graph,
        problem.lower(graph),
        problem.target,
        search=problem.search,
        constraints=constraints,
        resources=problem.resources,
        hints=problem.hints,
    )
    return replace(plan, alternatives=choices)


def choose(
    problem: Problem, constraints: Constraints = NO_CONSTRAINTS
) -> tuple[Graph, tuple[Choice, ...]]:
    """The graph with the alternatives that pay in it, and a record of every one that was found."""
    records: dict[int, Choice] = {}
    priced: list[tuple[float, int, Alternative]] = []
    prices = _Prices(problem)
    for number, found in enumerate(problem.found):
        refusal = _refusal(found, problem, constraints)
        if refusal is not None:
            records[number] = _record(found, refusal)
            continue
        assert isinstance(found, Alternative)
        record = records[number] = prices.record(found)
        if record.taken:
            priced.append((_saved(record), number, found))
    chosen: list[Alternative] = []
    owner: dict[str, str] = {}
    for _, number, found in sorted(priced, key=lambda p: (-p[0], p[1])):
        other = next((owner[n] for n in found.nodes if n in owner), None)
        if other is not None:
            why = ("overlap", f"{other} takes some of its nodes and saves more")
            records[number] = replace(records[number], taken=False, code=why[0], reason=why[1])
            continue
        owner.update(dict.fromkeys(found.nodes, found.kind))
        chosen.append(found)
    ordered = tuple(records[k] for k in range(len(problem.found)))
    return (canonicalize(taken(problem.graph, chosen)) if chosen else problem.graph), ordered


# ------------------------------------------------------------------ what may not be taken


Why = tuple[str, str]
"""Code and sentence."""


def _refusal(found: Found, problem: Problem, constraints: Constraints) -> Why | None:
    if isinstance(found, Declined):
        return "no-form", found.reason
    if problem.search == "eager":
        return "search", "search='eager' keeps the calls that eager makes"
    if found.exactness not in ADMITTED[problem.numerics]:
        return (
            "numerics",
            f"its results are {found.exactness.value}, which numerics={problem.numerics!r} does "
            "not admit",
        )
    wish = _wish_inside(frozenset(found.nodes), constraints)
    return None if wish is None else ("by-user", f"{wish} was asked for")


def _wish_inside(nodes: frozenset[str], constraints: Constraints) -> str | None:
    """A wish that could not be met any more were these nodes replaced."""
    for a, b in constraints.cut:
        if a in nodes and b in nodes:
            return f"cut({a}, {b})"
    named = (*(("fuse", p) for p in constraints.fuse), *(("pin", p) for p in constraints.pin))
    for kind, names in named:
        if not nodes.isdisjoint(names):
            return f"{kind}({', '.join(names)})"
    return None


def _by_cost(before: float, after: float) -> Why:
    if after < before * (1 - LEAST_SAVING):
        return "taken", f"it takes {after:.3g} us instead of {before:.3g} us"
    return "cost", f"it would take {after:.3g} us, the nodes as they are take {before:.3g} us"


def _by_clock(measured: Measured, before: float, after: float) -> Why:
    """The faster way; the only one that runs; the cheaper one where neither does."""
    won, where = measured.replaced_wins, f"on {measured.device}"
    estimates = f"estimated {after:.3g} and {before:.3g} us"
    if won is None:
        code, reason = _by_cost(before, after)
        return code, f"{reason}; neither could be timed {where}: {measured.failure}"
    code = "taken" if won else "measured"
    if measured.as_is_us is None or measured.replaced_us is None:
        way = "the nodes as they are" if won else "it"
        return code, f"{way} cannot be timed {where} ({measured.failure}); {estimates}"
    old, new = us_text(measured.as_is_us), us_text(measured.replaced_us)
    rest = f"instead of {old}" if won else f"and the nodes as they are {old}"
    return code, f"measured {where}, it takes {new} {rest}; {estimates}"


def _record(found: Found, why: Why) -> Choice:
    note = found.note if isinstance(found, Alternative) else ""
    code, reason = why
    return Choice(found.kind, found.nodes, note, code == "taken", code, reason, None, None)


def _saved(record: Choice) -> float:
    """Microseconds that a choice saves: as measured, or else by estimate."""
    measured = record.measured
    if measured is not None and measured.as_is_us is not None and measured.replaced_us is not None:
        return measured.as_is_us - measured.replaced_us
    assert record.as_is_us is not None and record.replaced_us is not None
    return record.as_is_us - record.replaced_us


# ------------------------------------------------------------------ prices


class _Ways(NamedTuple):
    """Plans of the nodes as they are and of what would replace them."""

    as_is: GraphPlan
    replaced: GraphPlan


class _Prices:
    """What both ways take, by structure."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nests: Mapping[str, Nest] | None = None
        self._nodes = {n.name: n for n in problem.graph.nodes}
        self._place = {name: k for k, name in enumerate(self._nodes)}
        self._ways: dict[Hashable, _Ways] = {}
        self._timed: dict[Hashable, Measured] = {}

    def record(self, found: Alternative) -> Choice:
        """Whether an alternative is taken: by the clock where it was or is asked, else by cost."""
        key, ways = self._planned_both(found)
        before, after = (w.totals.estimated_us for w in ways)
        measured = self._problem.measured.get((found.kind, found.nodes))
        if measured is None and is_open(before, after, self._problem.target.device):
            measured = self._time(key, ways)
        why = _by_cost(before, after) if measured is None else _by_clock(measured, before, after)
        return replace(_record(found, why), as_is_us=before, replaced_us=after, measured=measured)

    def _time(self, key: Hashable, ways: _Ways) -> Measured | None:
        timer = self._problem.timer
        if timer is None:
            return None
        if key not in self._timed:
            self._timed[key] = timer(*ways, self._problem.hints)
        return self._timed[key]

    def _planned_both(self, found: Alternative) -> tuple[Hashable, _Ways]:
        """What an alternative's structure is, and both ways of it."""
        before = self._replaced(found)
        old = tuple(name for name, _ in found.values)
        new = tuple(v.name for _, v in found.values)
        key = (_structure(before, old), _structure(found.made, new))
        if key not in self._ways:
            if self._nests is None:
                self._nests = self._problem.lower(self._problem.graph)
            nests = {n.name: self._nests[n.name] for n in before if n.name in self._nests}
            sizes = self._problem.graph.sizes
            as_is, made = part(before, old, sizes), part(found.made, new, sizes)
            self._ways[key] = _Ways(
                self._planned(as_is, nests), self._planned(made, self._problem.lower(made))
            )
        return key, self._ways[key]

    def _replaced(self, found: Alternative) -> list[Node]:
        """The nodes that are gone with an alternative: its own, and what only they need."""
        graph = self._problem.graph
        gone = dict.fromkeys(found.nodes)
        kept = {v.name for n in found.made for v in n.values} | graph.needed
        open_ = [v.name for name in found.nodes for v in self._nodes[name].values]
        while open_:
            node = graph.producers.get(open_.pop())
            if node is None or node.name in gone or node.op == "extern":
                continue
            made = [v.name for v in node.outputs]
            readers = (r.name for name in made for r in graph.consumers.get(name, ()))
            if kept.isdisjoint(made) and all(r in gone for r in readers):
                gone[node.name] = None
                open_.extend(v.name for v in node.values)
        return [self._nodes[name] for name in sorted(gone, key=self._place.__getitem__)]

    def _planned(self, graph: Graph, nests: Mapping[str, Nest]) -> GraphPlan:
        p = self._problem
        return plan_graph(graph, nests, p.target, search=p.search, hints=p.hints)


Sizes = tuple[tuple[Size, str | Computed, int], ...]


def part(nodes: Sequence[Node], outputs: Iterable[str], sizes: Sizes = ()) -> Graph:
    """Some nodes as a graph: what they read from elsewhere are its inputs.

    Args:
        sizes: the symbolic sizes of the graph that they stand in; those that are a dimension of an
            input are sizes of the part.
    """
    made = {v.name: v for n in nodes for v in n.outputs}
    read = {v.name: v for n in nodes for v in n.values if v.name not in made}
    known = {**read, **made}
    told = {d: (v.name, k) for v in reversed(read.values()) for k, d in enumerate(v.type.shape)}
    bound: list[tuple[Size, str | Computed, int]] = []
    for size, source, dim in sizes:
        if size in told:
            bound.append((size, *told[size]))
        elif isinstance(source, Computed) and all(s in told for s in sizes_of(source)):
            bound.append((size, source, dim))
    inputs = tuple(read.values())
    return Graph(inputs, tuple(nodes), tuple(known[name] for name in outputs), sizes=tuple(bound))


def _structure(nodes: Sequence[Node], outputs: Sequence[str]) -> Hashable:
    """Equal for parts that differ in names only."""
    number: dict[str, int] = {}
    rows: list[Hashable] = []
    for n in nodes:
        wires = tuple(_wire(x, number) for x in n.inputs)
        number.update({v.name: len(number) + k for k, v in enumerate(n.outputs)})
        rows.append((n.op, key_of(n.attrs), wires, tuple(v.type for v in n.outputs)))
    return tuple(rows), tuple(number.get(name, -1) for name in outputs)


def _wire(x: Any, number: dict[str, int]) -> Hashable:
    if not isinstance(x, Value):
        return ("scalar", key_of(x.value))
    return (number.setdefault(x.name, len(number)), x.type)
