"""Alternatives are taken where they are cheaper and admitted, and each leaves a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onetrip.base.sym import Size
from onetrip.ir.graph import Graph, Node, Origin, Value
from onetrip.ir.verify import verify
from onetrip.passes.alternatives import Alternative, Declined, Exactness, Found
from onetrip.passes.lower import lower
from onetrip.passes.writer import Writer
from onetrip.plan import choose as module
from onetrip.plan import measured
from onetrip.plan.choose import Problem, choose, plan_problem
from onetrip.plan.constraints import NO_CONSTRAINTS, Constraints
from onetrip.plan.plan import GraphPlan, Measured
from onetrip.target import load

from .graphs import Draft

H200 = load("h200")
N = 512


def layers(count: int = 1) -> Graph:
    """x w w, halved, layer after layer: two products that a sum of two could stand for."""
    d = Draft()
    x, w = d.input("x", N, N), d.input("w", N, N)
    for k in range(count):
        a = d(f"a{k}", "mm", x, w)
        b = d(f"b{k}", "mm", a, w)
        x = d(f"c{k}", "mul", b, 0.5)
    return d.graph(x)


def instead(
    graph: Graph,
    names: Sequence[str],
    op: str = "add",
    kind: str = "sum",
    exactness: Exactness = Exactness.BITWISE,
) -> Alternative:
    """`op` of the first node's first operand with itself, in place of some nodes."""
    nodes = {n.name: n for n in graph.nodes}
    last = nodes[names[-1]]
    taken = {v.name for v in graph.values()}
    write = Writer(f"{last.name}_{kind}", taken, Origin(call="aten.add.Tensor"), last.call)
    x = nodes[names[0]].values[0]
    made = write(op, x, x, **({"alpha": 1} if op == "add" else {}))
    if op == "mm":
        write.nodes[-1] = _library(write.nodes[-1], last)
    return Alternative(
        kind, tuple(names), tuple(write.nodes), ((last.name, made),), exactness, "a sum"
    )


def _library(node: Node, like: Node) -> Node:
    attrs = like.attrs if like.op == "mm" else ()
    return replace(node, attrs=attrs)


def problem(graph: Graph, *found: Found, **changed: Any) -> Problem:
    return Problem(graph, found, lower, H200, **changed)


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def test_the_cheaper_way_is_taken_and_on_record() -> None:
    graph = layers()
    chosen, (choice,) = choose(problem(graph, instead(graph, ("a0", "b0"))))
    assert ops(chosen) == ["add", "mul"]
    assert (choice.taken, choice.code, choice.nodes) == (True, "taken", ("a0", "b0"))
    assert choice.as_is_us is not None and choice.replaced_us is not None
    assert choice.replaced_us < choice.as_is_us
    verify(chosen, "choose")


def test_a_dearer_way_is_not_taken_and_says_what_it_costs() -> None:
    graph = layers()
    chosen, (choice,) = choose(problem(graph, instead(graph, ("c0",), op="mm")))
    assert chosen is graph
    assert (choice.taken, choice.code) == (False, "cost")
    assert choice.as_is_us is not None and choice.replaced_us is not None
    assert choice.as_is_us <= choice.replaced_us
    assert f"{choice.replaced_us:.3g} us" in choice.reason


@pytest.mark.parametrize(
    ("numerics", "exactness", "taken"),
    [
        ("bitwise", Exactness.BITWISE, True),
        ("bitwise", Exactness.REASSOCIATES, False),
        ("eager", Exactness.REASSOCIATES, True),
        ("eager", Exactness.FINITE_ONLY, False),
        ("fast", Exactness.FINITE_ONLY, True),
    ],
)
def test_the_numerics_decide(numerics: str, exactness: Exactness, taken: bool) -> None:
    graph = layers()
    found = instead(graph, ("a0", "b0"), exactness=exactness)
    chosen, (choice,) = choose(problem(graph, found, numerics=numerics))
    assert (choice.taken, chosen is graph) == (taken, not taken)
    assert choice.code == ("taken" if taken else "numerics")


def test_of_two_that_share_nodes_the_one_that_saves_more_is_taken() -> None:
    graph = layers()
    less = instead(graph, ("a0",), kind="less")
    more = instead(graph, ("a0", "b0"), kind="more")
    for order in ((less, more), (more, less)):
        chosen, choices = choose(problem(graph, *order))
        assert [c.kind for c in choices] == [a.kind for a in order]
        assert {c.kind: c.code for c in choices} == {"less": "overlap", "more": "taken"}
        assert ops(chosen) == ["add", "mul"]


def test_places_of_equal_structure_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layers(5)
    planned: list[Graph] = []
    real = module.plan_graph

    def counting(one: Graph, *rest: Any, **more: Any) -> Any:
        planned.append(one)
        return real(one, *rest, **more)

    monkeypatch.setattr(module, "plan_graph", counting)
    found = [instead(graph, (f"a{k}", f"b{k}")) for k in range(5)]
    chosen, choices = choose(problem(graph, *found))
    assert [c.taken for c in choices] == [True] * 5
    assert ops(chosen) == ["add", "mul"] * 5
    assert len(planned) == 2
    verify(chosen, "choose")


def test_nodes_that_only_the_replaced_ones_need_count_for_it() -> None:
    d = Draft()
    x, w = d.input("x", N, N), d.input("w", N, N)
    a = d("a", "mm", x, w)
    d("b", "mul", a, 2.0)
    graph = d.graph(d.nodes[-1].output)
    made = Writer("b_sum", {v.name for v in graph.values()}, Origin(), 1)
    out = made("add", x, x, alpha=1)
    alone = Alternative("sum", ("b",), tuple(made.nodes), (("b", out),), Exactness.BITWISE, "")
    chosen, (choice,) = choose(problem(graph, alone))
    both = choose(problem(graph, replace(alone, nodes=("a", "b"))))[1][0]
    assert choice.as_is_us == both.as_is_us
    assert ops(chosen) == ["add"]


WISHES = {
    "cut": Constraints(cut=(("a0", "b0"),)),
    "fuse": Constraints(fuse=(("b0", "c0"),)),
    "pin": Constraints(pin=(("a0",),)),
}


@pytest.mark.parametrize("wish", WISHES)
def test_a_wish_about_its_nodes_forbids_it(wish: str) -> None:
    graph = layers()
    chosen, (choice,) = choose(problem(graph, instead(graph, ("a0", "b0"))), WISHES[wish])
    assert chosen is graph
    assert choice.code == "by-user" and choice.reason.startswith(f"{wish}(")


def test_a_cut_that_leaves_the_nodes_together_does_not() -> None:
    graph = layers()
    wishes = Constraints(cut=(("b0", "c0"),))
    _, (choice,) = choose(problem(graph, instead(graph, ("a0", "b0"))), wishes)
    assert choice.taken


def test_eager_search_takes_none_and_a_declined_place_leaves_its_reason() -> None:
    graph = layers()
    declined = Declined("attention", ("a0", "b0"), "the softmax does not run over the keys")
    found = (instead(graph, ("a0", "b0")), declined)
    chosen, choices = choose(problem(graph, *found, search="eager"))
    assert chosen is graph
    assert [c.code for c in choices] == ["search", "no-form"]
    assert choices[1].reason == declined.reason


def test_the_plan_holds_the_choices_and_costs_less() -> None:
    graph = layers(2)
    found = tuple(instead(graph, (f"a{k}", f"b{k}")) for k in range(2))
    plain = plan_problem(problem(graph))
    better = plan_problem(problem(graph, *found), NO_CONSTRAINTS)
    assert plain.alternatives == ()
    assert [c.taken for c in better.alternatives] == [True, True]
    assert better.estimated_us < plain.estimated_us
    assert all(isinstance(v, Value) and v.name == "c1" for v in better.graph.outputs)


# ------------------------------------------------------------------ measured


class FakeTimer:
    """Answers as a device would, and counts how often it is asked."""

    def __init__(self, as_is: float | None, replaced: float | None, failure: str = "") -> None:
        self.answer = Measured(as_is, replaced, "a chip", failure)
        self.asked: list[tuple[GraphPlan, GraphPlan]] = []

    def __call__(self, as_is: GraphPlan, replaced: GraphPlan, hints: Any) -> Measured:
        self.asked.append((as_is, replaced))
        return self.answer


def near() -> tuple[Graph, Alternative]:
    """A product, and another one that could stand for it: their estimates are equal."""
    graph = layers()
    return graph, instead(graph, ("a0",), op="mm")


def test_of_two_near_ways_the_one_that_is_measured_faster_is_taken() -> None:
    graph, found = near()
    (by_cost,) = choose(problem(graph, found))[1]
    assert by_cost.code == "cost" and by_cost.measured is None
    chosen, (choice,) = choose(problem(graph, found, timer=FakeTimer(9.0, 5.0)))
    assert (choice.taken, choice.code, chosen is graph) == (True, "taken", False)
    assert choice.measured == Measured(9.0, 5.0, "a chip")
    assert (choice.as_is_us, choice.replaced_us) == (by_cost.as_is_us, by_cost.replaced_us)
    assert "on a chip, it takes 5 us instead of 9 us" in choice.reason


def test_the_cheaper_way_is_not_taken_when_it_is_measured_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measured, "ERROR_BAND", {"cuda": 9.0})
    graph = layers()
    found = instead(graph, ("a0", "b0"))
    assert choose(problem(graph, found))[1][0].taken
    chosen, (choice,) = choose(problem(graph, found, timer=FakeTimer(5.0, 9.0)))
    assert (choice.taken, choice.code, chosen is graph) == (False, "measured", True)
    assert "it takes 9 us and the nodes as they are 5 us" in choice.reason


def test_nothing_is_measured_where_the_estimates_tell_the_ways_apart() -> None:
    graph = layers()
    found = instead(graph, ("a0", "b0"))
    timer = FakeTimer(1.0, 9.0)
    (choice,) = choose(problem(graph, found, timer=timer))[1]
    assert choice.as_is_us is not None and choice.replaced_us is not None
    assert choice.as_is_us > choice.replaced_us * (1 + measured.ERROR_BAND["cuda"])
    assert not timer.asked
    assert choice.taken and choice.measured is None


@pytest.mark.parametrize("device", measured.ERROR_BAND)
def test_the_band_is_the_same_whichever_way_is_cheaper(device: str) -> None:
    edge = 1 + measured.ERROR_BAND[device]
    for low, high, is_open in ((1.0, edge * 0.999, True), (1.0, edge * 1.001, False)):
        assert measured.is_open(low, high, device) is is_open
        assert measured.is_open(high, low, device) is is_open


@pytest.mark.parametrize(
    ("as_is", "replaced", "taken", "code"),
    [(None, 5.0, True, "taken"), (5.0, None, False, "measured"), (None, None, False, "cost")],
)
def test_a_way_that_does_not_run_leaves_the_other_and_the_reason(
    as_is: float | None, replaced: float | None, taken: bool, code: str
) -> None:
    graph, found = near()
    timer = FakeTimer(as_is, replaced, "no compiler")
    (choice,) = choose(problem(graph, found, timer=timer))[1]
    assert (choice.taken, choice.code) == (taken, code)
    assert "no compiler" in choice.reason and "a chip" in choice.reason


def test_places_of_equal_structure_are_timed_once_as_graphs_of_their_own() -> None:
    graph = layers(5)
    timer = FakeTimer(9.0, 5.0)
    found = [instead(graph, (f"a{k}",), op="mm") for k in range(5)]
    choices = choose(problem(graph, *found, timer=timer))[1]
    assert [c.taken for c in choices] == [True] * 5
    ((as_is, replaced),) = timer.asked
    assert [n.op for n in as_is.graph.nodes] == ["mm"]
    assert len(as_is.graph.inputs) == 2 and len(replaced.graph.inputs) == 1


def test_what_is_on_record_decides_and_nothing_is_measured_again() -> None:
    graph, found = near()
    timer = FakeTimer(5.0, 9.0)
    known = {(found.kind, found.nodes): Measured(9.0, 5.0, "another chip")}
    (choice,) = choose(problem(graph, found, timer=timer, measured=known))[1]
    assert not timer.asked
    assert choice.taken and choice.measured == known[found.kind, found.nodes]


def test_a_part_knows_the_sizes_that_its_inputs_tell() -> None:
    d = Draft()
    rows, other = Size("s0", 2), Size("s1", 2)
    a = d("a", "exp", d.input("x", rows, N))
    graph = d.graph(d("b", "neg", a))
    sizes = ((rows, "x", 0), (other, "y", 1))
    made = module.part(graph.nodes[1:], ("b",), sizes)
    assert made.sizes == ((rows, "a", 0),)
    verify(made, "part")
