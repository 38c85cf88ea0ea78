"""Groups that share a launch: which may, what it saves, what it needs of memory."""

from __future__ import annotations

import dataclasses

import pytest

from onetrip.api.devices import interpreted
from onetrip.api.pipeline import schedule_groups
from onetrip.base.options import Options
from onetrip.base.sym import Size
from onetrip.ir.graph import Graph
from onetrip.ir.kernel import Packed
from onetrip.ir.program import Launch
from onetrip.ir.verify import verify
from onetrip.plan.constraints import NO_CONSTRAINTS, Constraints
from onetrip.plan.plan import GraphPlan
from onetrip.plan.program import build_program
from onetrip.plan.search import Search, plan_graph
from onetrip.target import Target, load

from .graphs import Draft, lowered

H200 = load("h200")


def planned(
    graph: Graph,
    target: Target = H200,
    search: Search = "best",
    constraints: Constraints = NO_CONSTRAINTS,
) -> GraphPlan:
    primitive, nests = lowered(graph)
    return plan_graph(primitive, nests, target, search=search, constraints=constraints)


def launches(plan: GraphPlan) -> list[int]:
    """Kernels of each launch of the plan's program, which is verified."""
    scheduled = schedule_groups(plan, load(plan.target), interpreted(), Options())
    made = build_program(plan.graph, plan, scheduled)
    verify(made)
    kernels = [s.kernel for s in made.steps if isinstance(s, Launch)]
    return [len(k.parts) if isinstance(k, Packed) else 1 for k in kernels]


def siblings(count: int, *shape: int) -> Graph:
    """exp of many inputs that have nothing in common."""
    d = Draft()
    inputs = [d.input(f"x{k}", *shape) for k in range(count)]
    return d.graph(*(d(f"y{k}", "exp", x) for k, x in enumerate(inputs)))


def test_small_groups_of_unlike_forms_are_one_launch() -> None:
    d = Draft()
    x, y, z = d.input("x", 64, 64), d.input("y", 7, 30), d.input("z", 1000)
    plan = planned(d.graph(d("a", "exp", x), d("b", "sum", y, dims=(1,)), d("c", "neg", z)))
    assert [t.groups for t in plan.together] == [tuple(g.name for g in plan.groups)]
    assert (len(plan.groups), plan.kernels, launches(plan)) == (3, 1, [3])


def test_a_shared_launch_costs_one_launch_and_the_work() -> None:
    plan = planned(siblings(24, 64, 1024))
    alone = sum(g.estimated_us for g in plan.groups)
    (one,) = plan.together
    assert plan.estimated_us == pytest.approx(alone - one.saved_us)
    assert plan.bound_us <= plan.estimated_us < alone / 8
    assert plan.estimated_us > max(g.estimated_us for g in plan.groups)


def test_large_groups_keep_their_launches() -> None:
    plan = planned(siblings(3, 4096, 4096))
    assert plan.together == ()
    assert launches(plan) == [1, 1, 1]


def test_two_small_groups_beside_a_large_one_are_not_worth_a_word() -> None:
    d = Draft()
    x, y, z = d.input("x", 32768, 8192), d.input("y", 64), d.input("z", 32)
    plan = planned(d.graph(d("a", "exp", x), d("b", "exp", y), d("c", "neg", z)))
    assert (plan.together, plan.totals.bound_kind) == ((), "exact")


def test_what_waits_for_another_is_in_a_later_launch() -> None:
    d = Draft()
    x, y = d.input("x", 64), d.input("y", 32)
    sort = d.extern("s", "aten.sort.default", d("a", "exp", x))
    graph = d.graph(d("b", "exp", y), d("c", "neg", sort))
    plan = planned(graph)
    where = {g.nodes[-1]: g.name for g in plan.groups}
    assert all({where["a"], where["c"]} - set(t.groups) for t in plan.together)
    assert sum(launches(plan)) == 3


def test_groups_that_the_user_wants_apart_stay_apart() -> None:
    graph = siblings(2, 64)
    assert planned(graph).kernels == 1
    cut = planned(graph, constraints=Constraints(cut=(("y0", "y1"),)))
    assert (cut.kernels, launches(cut)) == (2, [1, 1])


def test_eager_keeps_its_calls_and_a_cpu_its_kernels() -> None:
    assert planned(siblings(4, 64), search="eager").together == ()
    assert planned(siblings(4, 64), load("cpu")).together == ()


def test_symbolic_sizes_are_launched_alone() -> None:
    n = Size("n")
    d = Draft()
    x, y = d.input("x", n), d.input("y", n, 3)
    plan = planned(d.graph(d("a", "exp", x), d("b", "exp", y)))
    assert plan.together == ()


def test_addresses_of_a_launch_are_bounded() -> None:
    plan = planned(siblings(300, 64))
    assert launches(plan) == [120, 120, 60]


def test_memory_is_alive_throughout_a_launch() -> None:
    """b's input dies where c begins: apart they could share memory, in one launch they cannot."""
    d = Draft()
    x = d.input("x", 4096)
    a = d.extern("a", "aten.sort.default", x)
    p, q = d("p", "exp", a), d("q", "sum", x, dims=(0,))
    graph = d.graph(d.extern("u", "aten.sort.default", p), d.extern("v", "aten.sort.default", q))
    plan = planned(graph)
    step = {g.name: k for k, g in enumerate(plan.groups)}
    for one in plan.together:
        inside = {step[n] for n in one.groups}
        for placed in plan.memory.buffers:
            r = placed.range
            assert r.first not in inside or r.first == min(inside)
            assert r.last not in inside or r.last == max(inside)
    launches(plan)


def test_a_launch_that_would_need_more_memory_is_not_shared() -> None:
    """Each of two chains needs its memory only while it runs."""
    d = Draft()
    x, y = d.input("x", 1 << 18), d.input("y", 1 << 18)
    first = d.extern("s", "aten.sort.default", d("a", "exp", x))
    second = d.extern("t", "aten.sort.default", d("b", "exp", y))
    graph = d.graph(d("m", "amax", first, dims=(0,)), d("n", "amax", second, dims=(0,)))
    plan = planned(graph)
    alone = planned(graph, dataclasses.replace(H200, replay_us=0.0))
    assert alone.together == ()
    assert plan.peak_bytes <= alone.peak_bytes
