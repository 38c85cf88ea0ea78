"""A plan needs no more memory than eager for the same graph and live inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onetrip.cost.sizes import number
from onetrip.ir.graph import Graph, Value
from onetrip.plan import assemble as assemble_module
from onetrip.plan import peak
from onetrip.plan import search as search_module
from onetrip.plan.assemble import execution_order
from onetrip.plan.constraints import NO_CONSTRAINTS, Constraints
from onetrip.plan.decision import Decision
from onetrip.plan.evaluate import Evaluator
from onetrip.plan.index import index_graph
from onetrip.plan.legality import Legality
from onetrip.plan.peak import alive_at, eager_peak, spans_of
from onetrip.plan.plan import GraphPlan
from onetrip.plan.pool import Pool
from onetrip.plan.search import SLACK_BYTES, Search, plan_graph
from onetrip.target import load

from .graphs import Draft, lowered

H200 = load("h200")
ROWS, WIDTH = 1024, 1024
SIZE = ROWS * WIDTH * 4


def planned(graph: Graph, search: Search = "best", **more: object) -> GraphPlan:
    primitive, nests = lowered(graph)
    return plan_graph(primitive, nests, H200, search=search, **more)  # type: ignore[arg-type]


def eager(graph: Graph) -> int:
    """Most bytes alive in eager, by running its calls one after the other."""
    primitive, nests = lowered(graph)
    index = index_graph(primitive, nests)

    def size(name: str) -> int:
        kind = index.type_of(name)
        return number(kind.storage_elements) * kind.dtype.itemsize

    return eager_peak(index, size)


def siblings_far_apart(count: int = 4) -> Graph:
    """Each of `count` products is used up before the next one is made; all of them read x.

    One kernel for the siblings exp(x * k) reads x once, and holds all of their results at once.
    """
    d = Draft()
    x = d.input("x", ROWS, WIDTH)
    w = d.input("w", WIDTH, 8)
    total = d("m", "mm", d("first", "relu", x), w)
    for k in range(count):
        scaled = d(f"scaled{k}", "mul", x, float(k + 2))
        small = d(f"small{k}", "mm", d(f"e{k}", "exp", scaled), w)
        total = d(f"total{k}", "add", total, small)
    return d.graph(total)


def test_eager_frees_what_it_has_used_up() -> None:
    assert eager(siblings_far_apart()) < 2.1 * SIZE


@pytest.mark.parametrize("search", ["best", "max"])
def test_siblings_that_would_all_be_alive_at_once_stay_apart(search: Search) -> None:
    graph = siblings_far_apart()
    plan = planned(graph, search)
    assert plan.memory.unplanned_peak_bytes <= eager(graph) + SLACK_BYTES
    assert all(g.nest is None or len(g.stored) <= 2 for g in plan.groups)


def unrolled(steps: int, *size: int) -> Graph:
    """A loop written out, in which a step reads an earlier one and a factor that others read."""
    d = Draft()
    x = d.input("x", *size)
    factors = [d(f"factor{k}", "mul", x, float(k + 2)) for k in range(7)]
    kept = [x, x, x]
    for k in range(steps):
        wave = d(f"wave{k}", "sin", kept[-1])
        kept.append(d(f"old{k}", "add", d(f"new{k}", "add", wave, factors[k % 7]), kept[-3]))
    return d.graph(kept[-1])


@pytest.mark.parametrize("search", ["best", "greedy-bytes", "max"])
def test_a_loop_written_out_is_fused_as_far_as_eagers_memory_allows(search: Search) -> None:
    """All seven factors and the last steps are alive in eager too: two steps fit, thirty do not."""
    graph = unrolled(32, ROWS, WIDTH)
    plan = planned(graph, search)
    assert plan.memory.unplanned_peak_bytes <= eager(graph) + SLACK_BYTES
    assert len(plan.groups) < 32


def test_a_few_bytes_are_not_worth_a_kernel() -> None:
    assert len(planned(unrolled(32, 128)).groups) <= 2


def test_what_the_user_forces_stays_though_it_needs_more_memory() -> None:
    graph = siblings_far_apart(2)
    plan = planned(graph, constraints=Constraints(fuse=(("e0", "e1"),)))
    assert any({"e0", "e1"} <= set(g.nodes) for g in plan.groups)
    assert plan.refusals == ()


def test_what_is_kept_apart_says_so() -> None:
    primitive, nests = lowered(siblings_far_apart(2))
    index = index_graph(primitive, nests)
    pool = Pool(index)
    legality = Legality(pool, Evaluator(index, H200, {}), NO_CONSTRAINTS)
    parts = [pool.parts[index.by_name[name].number] for name in ("e0", "e1")]
    assert not isinstance(legality.check(parts), Decision)
    legality.divided = {(parts[0].mask, parts[1].mask): (3000, 2000)}
    refused = legality.check(parts)
    assert isinstance(refused, Decision)
    assert (refused.code, refused.cls) == ("peak-memory", "over-limit")
    assert (refused.evidence[0].value, refused.evidence[0].bound) == (3000, 2000)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains over one input with library calls between them, so that merges reach far."""
    d = Draft()
    values: list[Value] = [d.input("x", 1024, 1024)]
    for k in range(draw(st.integers(4, 16))):
        op = draw(st.sampled_from(["relu", "exp", "add", "sum", "call"]))
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        if op == "sum":
            values.append(d(f"v{k}", "sum", a, dim=(1,), keepdim=True))
        elif op == "call":
            values.append(d.extern(f"v{k}", "aten.sort.default", a))
        else:
            values.append(d(f"v{k}", op, *((a, b) if op == "add" else (a,))))
    used = {v.name for n in d.nodes for v in n.values}
    return d.graph(*[n.output for n in d.nodes if n.output.name not in used][:3])


@settings(max_examples=40, deadline=None)
@given(graphs(), st.sampled_from(["best", "max"]))
def test_no_plan_of_a_random_graph_holds_more_than_eager(graph: Graph, search: Search) -> None:
    plan = planned(graph, search)
    assert plan.memory.unplanned_peak_bytes <= eager(graph) + SLACK_BYTES


def test_bytes_alive_are_counted_at_every_step() -> None:
    primitive, nests = lowered(siblings_far_apart(1))
    pool = Pool(index_graph(primitive, nests))
    order = execution_order(pool)
    spans = spans_of(pool, order, lambda _: 1)
    alive = alive_at(spans)
    assert max(alive.values()) == max(
        sum(s.first <= k <= s.last for s in spans) for k in range(len(order))
    )
    assert all(n == sum(s.first <= k <= s.last for s in spans) for k, n in alive.items())


def test_the_lightest_divide_that_is_enough_is_taken() -> None:
    """A small value made early is kept apart, not the large one that stands beside it."""
    large, small, other = (1, 2), (4, 8), (16, 32)
    assert peak._enough({large: 2244, small: 132, other: 500}, 132) == [small]
    assert peak._enough({large: 2244, small: 132, other: 500}, 2500) == [large, other]
    assert peak._enough({small: 132}, 1000) == [small]


# ------------------------------------------------------------------ where the search falls back


def eager_groups(graph: Graph) -> set[tuple[str, ...]]:
    return {g.nodes for g in planned(graph, "eager").groups}


def test_eagers_groups_are_taken_where_nothing_is_found_to_keep_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assemble_module, "together", lambda *_: ())  # which has a bound of its own
    graph = siblings_far_apart()
    first = planned(graph)
    monkeypatch.setattr(search_module, "divides", lambda *_, **__: {})
    plan = planned(graph)
    assert {g.nodes for g in plan.groups} == eager_groups(graph)
    assert plan.memory.unplanned_peak_bytes <= eager(graph) + SLACK_BYTES
    assert plan.bound_us == first.bound_us, "the bound is that of the search, not of its way out"


def test_no_search_goes_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = siblings_far_apart()
    monkeypatch.setattr(search_module, "MOST_SEARCHES", 1)
    plan = planned(graph)
    assert {g.nodes for g in plan.groups} == eager_groups(graph)
    assert plan.memory.unplanned_peak_bytes <= eager(graph) + SLACK_BYTES


def test_groups_that_cannot_be_put_in_order_are_found_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither those of an earlier search nor those of all regions together are needed."""
    graph = siblings_far_apart()
    known = planned(graph)
    asked: list[bool] = []
    monkeypatch.setattr(Pool, "regroup", lambda *_: asked.append(False))
    plan = planned(graph)
    assert asked
    assert plan.memory.unplanned_peak_bytes <= eager(graph) + SLACK_BYTES
    assert len(plan.groups) < len(eager_groups(graph))
    assert plan.estimated_us <= known.estimated_us * 1.02


def test_a_search_that_begins_with_earlier_groups_finds_what_one_from_atoms_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = (siblings_far_apart(6), siblings_far_apart(3))
    begun: list[int] = []
    real = search_module._regrown

    def from_earlier(start: Any, state: Any, region: Any, judge: Any) -> Any:
        begun.append(len(start.earlier.get(region.atoms, ())))
        return real(start, state, region, judge)

    monkeypatch.setattr(search_module, "_regrown", from_earlier)
    warm = [planned(g).estimated_us for g in graphs]
    assert any(begun)

    def from_atoms(start: Any, state: Any, region: Any, judge: Any) -> Any:
        return real(replace(start, earlier={}), state, region, judge)

    monkeypatch.setattr(search_module, "_regrown", from_atoms)
    cold = [planned(g).estimated_us for g in graphs]
    assert all(w <= c * (1 + 1e-6) for w, c in zip(warm, cold, strict=True))
