"""What a page does to plans: presets, cuts, fuses, undo, other targets and sizes, saved plans."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onetrip
from onetrip import api
from onetrip.api.workshop import ModelWorkshop
from onetrip.base.cancel import Cancelled, cancelled_by
from onetrip.base.errors import UsageError
from onetrip.bench import gallery
from onetrip.explore import export, shown, source, timeline
from onetrip.explore.board import Board, Edge
from onetrip.explore.boards import Boards
from onetrip.explore.pins import pin_of
from onetrip.explore.session import Session
from onetrip.plan.decision import Decision
from onetrip.report.budget import Budget, Limits, limits_of
from onetrip.report.compare import stem


@pytest.fixture
def session(demo: ModelWorkshop) -> Session:
    return Session(Boards(demo), "h100")


def edge(session: Session, title: str) -> Edge:
    return next(e for e in session.board.edges if session.title(e) == title)


def meters(session: Session) -> tuple[int, int, int, float]:
    t = shown.totals(session)
    return t["kernels"], t["traffic"], t["peak"], pytest.approx(t["us"])


def planned(size: str, search: str) -> api.plans.Plan:  # type: ignore[name-defined]
    model, args = gallery.DEMOS["demo"].programs()[size]()
    return onetrip.plan(model, args, target="h100", search=search)


def as_plan(plan: Any) -> tuple[int, int, int, float]:
    return plan.kernels, plan.traffic_bytes, plan.peak_bytes, plan.estimated_us


def test_presets_are_the_plans_of_the_three_searches(session: Session) -> None:
    for search in ("eager", "max", "best"):
        session.preset(search)
        assert as_plan(planned("1x", search)) == meters(session)


def test_the_lesson_step_by_step(session: Session) -> None:
    """All cut; each cut that is removed saves one kernel and two trips of the tensor."""
    kernels, traffic, _, _ = meters(session)
    assert kernels == 5
    trip = 4096 * 4096 * 2
    for k, title in enumerate(["add → gelu", "gelu → add#1", "add#1 → norm:layer_norm"], 1):
        session.toggle(edge(session, title).id)
        assert meters(session)[:2] == (kernels - k, traffic - 2 * k * trip)
    assert as_plan(planned("1x", "best")) == meters(session)
    with pytest.raises(UsageError, match="compute-bound-anchor"):
        session.toggle(edge(session, "mm → add").id)


def test_twice_the_rows_leave_the_kernels(session: Session) -> None:
    session.preset("max")
    before = meters(session)
    session.go(size="2x")
    after = meters(session)
    assert after[0] == before[0] == 2
    assert 1.9 * before[1] < after[1] < 2 * before[1]


def test_on_few_registers_the_last_fuse_spills_and_the_traffic_says_so(session: Session) -> None:
    session.go(target="few-registers")
    session.preset("eager")
    for title in ("add → gelu", "gelu → add#1"):
        session.toggle(edge(session, title).id)
    assert shown.totals(session)["spill"] == 0
    session.toggle(edge(session, "add#1 → norm:layer_norm").id)
    t = shown.totals(session)
    assert (t["registers"], t["limit"]) == (40, 40)
    assert t["spill"] > 0
    threads = t["spilled"] // (2 * t["spill"])
    assert t["spilled"] == 2 * t["spill"] * threads > 0
    session.go(target="h100")
    assert t["traffic"] == meters(session)[1] + t["spilled"]


TRIP = 4096 * 4096 * 2
"""Bytes of one trip of the tensor between two calls."""
SWEET = ["add → gelu", "gelu → mul", "mul → add#1", "add#1 → add#2"]


@pytest.fixture
def few(pressure: ModelWorkshop) -> Session:
    return Session(Boards(pressure), gallery.DEMOS["pressure"].target)


def test_under_pressure_the_last_fuse_moves_more_than_it_saves(few: Session) -> None:
    """All cut; each fuse saves a kernel and two trips; the last one spills more than it saves."""
    _, traffic, _, _ = meters(few)
    assert meters(few)[0] == 7
    for k, title in enumerate(SWEET, 1):
        few.toggle(edge(few, title).id)
        assert meters(few)[:2] == (7 - k, traffic - 2 * k * TRIP)
        assert shown.totals(few)["spill"] == 0
    sweet, last = meters(few), edge(few, "add#2 → norm:layer_norm")
    told = shown.why(few, last)
    assert told["code"] == "pressure-registers" and told["if_fused"]["traffic"] > 0
    few.toggle(last.id)
    t = shown.totals(few)
    assert (t["kernels"], t["registers"], t["limit"], t["spill"]) == (2, 40, 40, 44)
    assert t["spilled"] == 2 * 44 * 256 * 4096  # out and in, of each thread of each row
    assert t["traffic"] == sweet[1] - 2 * TRIP + t["spilled"] > sweet[1]
    assert t["us"] > sweet[3].expected
    few.preset("max")
    assert shown.totals(few)["traffic"] == t["traffic"]
    few.preset("best")
    assert meters(few)[:2] == sweet[:2]


def test_under_pressure_twice_the_rows_leave_the_kernels(few: Session) -> None:
    counts = {}
    for size in ("1x", "2x", "4x"):
        few.go(size=size)
        for search in ("max", "best"):
            few.preset(search)
            counts[size, search] = meters(few)[0]
    assert set(counts.values()) == {2, 3}
    assert all(n == counts["1x", search] for (_, search), n in counts.items())


def test_with_the_registers_of_a_real_chip_the_same_fuse_saves_traffic(few: Session) -> None:
    few.go(target="h100")
    few.preset("best")
    assert meters(few)[0] == 2 and shown.totals(few)["spilled"] == 0


def test_undo_and_redo(session: Session) -> None:
    first = edge(session, "add → gelu").id
    before = meters(session)
    session.toggle(first)
    after = meters(session)
    session.undo()
    assert meters(session) == before and session.state.preset == "eager"
    session.redo()
    assert meters(session) == after and session.state.preset == "mine"
    session.toggle(first)
    session.redo()
    assert meters(session)[:3] == before[:3]  # eager's launches have another price
    assert session.state.cuts == {first}
    for _ in range(9):
        session.undo()
    assert meters(session) == before


def test_a_users_cut_is_told_from_the_planners(session: Session) -> None:
    session.preset("best")
    chosen = edge(session, "gelu → add#1")
    told = shown.Told()
    shown.state(session, told)
    session.toggle(chosen.id)
    changed = shown.state(session, told)
    assert changed["edges"][str(chosen.id)][0] == "yours"
    assert not changed["whole"] and len(changed["groups"]) == 2
    session.preset("eager")
    assert shown.state(session, told)["edges"][str(chosen.id)][0] == "cut"


def test_what_is_told_piece_by_piece_is_the_whole(session: Session) -> None:
    told, groups, edges = shown.Told(), {}, {}
    for step in ("toggle", "max", "eager", "toggle", "best", "undo", "undo"):
        if step == "toggle":
            session.toggle(edge(session, "gelu → add#1").id)
        elif step == "undo":
            session.undo()
        else:
            session.preset(step)
        state = shown.state(session, told)
        for name in state["gone"]:
            groups.pop(name, None)
        groups |= {g["name"]: g for g in state["groups"]}
        edges |= state["edges"]
        whole = shown.state(session, shown.Told())
        assert whole["whole"]
        assert {g["name"]: g for g in whole["groups"]} == groups
        assert whole["edges"] == edges


def test_a_group_that_stores_less_is_told_again() -> None:
    """Its calls are the same; what it stored is computed again where it was read."""

    def program() -> tuple[Any, ...]:
        def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            e = x.exp()
            return e * 2, e.tanh()

        return twice, (torch.empty(1 << 20, device="meta"),)

    session = Session(Boards(ModelWorkshop("twice", {"as given": program})), "h100")
    told, both = shown.Told(), ((0, 1), (0, 1))
    session.board.draft.start((both, ((2,), (2,))))
    (before,) = (g for g in shown.state(session, told)["groups"] if len(g["calls"]) == 2)
    session.board.draft.start((both, ((0, 2), (2,))))
    after = {g["name"]: g for g in shown.state(session, told)["groups"]}
    assert after[before["name"]]["writes"] == before["writes"] // 2


def test_what_a_fuse_and_a_cut_would_change_is_what_they_change(session: Session) -> None:
    chosen = edge(session, "add → gelu")
    for name in ("if_fused", "if_cut"):
        before = meters(session)
        expected = shown.why(session, chosen)[name]
        assert meters(session) == before
        session.toggle(chosen.id)
        after = meters(session)
        assert (after[0] - before[0], after[1] - before[1]) == (
            expected["kernels"], expected["traffic"],
        )  # fmt: skip


def test_another_target_keeps_what_was_fused(session: Session) -> None:
    session.toggle(edge(session, "add → gelu").id)
    session.preset("best")
    session.toggle(edge(session, "gelu → add#1").id)
    session.go(target="mi300x")
    board = session.board
    assert board.is_fused(edge(session, "add → gelu"))
    assert session.state.cuts == {edge(session, "gelu → add#1").id}
    assert session.place.lost == ()


def test_what_is_not_possible_on_a_target_is_listed(session: Session) -> None:
    session.toggle(edge(session, "add → gelu").id)
    session._carry([("norm:layer_norm#0", ":nothing#0"), (":mm#0", ":add#0")], set())
    lost = session.place.lost
    assert [(x.producer, x.consumer) for x in lost] == [
        ("norm:layer_norm", "nothing"), ("mm", "add"),
    ]  # fmt: skip
    assert "no such edge" in lost[0].reason and "library" in lost[1].reason


def test_sessions_do_not_disturb_each_other(demo: ModelWorkshop) -> None:
    boards = Boards(demo)
    one, two = Session(boards, "h100"), Session(boards, "h100")
    before = meters(two)
    one.preset("max")
    assert meters(two) == before
    two.toggle(edge(two, "add → gelu").id)
    assert meters(one)[0] == 2 and meters(two)[0] == 4


def test_a_plan_that_nobody_wants_ends_soon_and_can_be_asked_for_again() -> None:
    demo = gallery.DEMOS["demo"]
    shop = ModelWorkshop("demo", demo.programs())
    unwanted = threading.Event()
    unwanted.set()
    with cancelled_by(unwanted):
        with pytest.raises(Cancelled):
            shop.plan("1x", "h100", "best")
        unwanted.clear()
        assert shop.plan("1x", "h100", "best").kernels == 2


# ------------------------------------------------------------------ other ways


def others(session: Session) -> list[str]:
    """Titles of the edges that no kernel holds as they are written, but Best in another way."""
    edges = session.board.edges
    return [session.title(e) for e in edges if shown.edge_state(session, e)[0] == "other"]


def test_an_edge_that_best_fuses_in_another_way_is_not_called_impossible() -> None:
    shop = ModelWorkshop("attention", gallery.DEMOS["attention"].programs())
    session = Session(Boards(shop), "h100")
    assert others(session) == ["bmm → mul", "softmax → bmm#1"]
    told = shown.why(session, edge(session, "softmax → bmm#1"))
    assert "attention" in told["way"] and told["code"] == "compute-bound-anchor"
    with pytest.raises(UsageError, match="cannot be one kernel"):
        session.toggle(edge(session, "bmm → mul").id)
    session.preset("best")
    assert others(session) == []


@pytest.mark.parametrize(("numerics", "known"), [("eager", False), ("fast", True)])
def test_another_way_is_one_that_the_numerics_admit(numerics: str, known: bool) -> None:
    shop = ModelWorkshop("conv", gallery.DEMOS["conv"].programs(), numerics=numerics)
    session = Session(Boards(shop), "cpu:2")
    assert any(title.startswith("conv:convolution →") for title in others(session)) == known


# ------------------------------------------------------------------ pins


def home(session: Session, op: str) -> str:
    """The first kernel that computes a call of this operator."""
    board = session.board
    node = next(n for n in board.nodes if n.call.op == op)
    return next(n for n, p in board.parts().items() if node.atoms[0] in p.atoms)


def small_session() -> Session:
    return Session(Boards(ModelWorkshop("small", {"as given": small})), "cpu:2")


def test_a_pin_has_the_effect_of_the_plans_pin() -> None:
    session = small_session()
    session.toggle(edge(session, "add → gelu").id)
    session.pin(home(session, "gelu"))
    kernels = meters(session)
    assert session.state.preset == "mine" and kernels[0] == 4
    session.preset("best")
    assert session.state.preset == "best"
    expected = onetrip.plan(*small(), target="cpu:2").pin("add#0", "gelu")
    assert as_plan(expected) == meters(session)
    assert expected.kernels == onetrip.plan(*small(), target="cpu:2").kernels + 1
    saved = session.saved()
    assert saved.lines == expected.lines and as_plan(saved) == as_plan(expected)
    session.preset("max")
    assert home(session, "gelu") != home(session, "layer_norm")


def test_what_is_pinned_stays_until_it_is_freed() -> None:
    session = small_session()
    session.toggle(edge(session, "add → gelu").id)
    name = home(session, "gelu")
    session.pin(name)
    before = meters(session)
    for title in ("add → gelu", "gelu → add#1"):
        with pytest.raises(UsageError, match=f"{name} is pinned"):
            session.toggle(edge(session, title).id)
    assert meters(session) == before
    assert shown.why(session, edge(session, "gelu → add#1"))["pins"] == [name]
    session.toggle(edge(session, "add#1 → norm:layer_norm").id)  # another kernel's
    session.pin(name)
    assert session.state.pins == frozenset()
    session.toggle(edge(session, "gelu → add#1").id)
    assert home(session, "gelu") == home(session, "layer_norm")


def test_a_pin_alone_changes_no_figure_and_is_saved() -> None:
    session = small_session()
    session.preset("best")
    before = meters(session)
    session.pin(home(session, "gelu"))
    assert meters(session) == before and session.state.preset == "best"
    saved = session.saved()
    assert as_plan(saved) == before
    assert pin_of(session.board, session.part(home(session, "gelu"))) in [
        tuple(map(stem, line.calls)) for line in saved.lines
    ]


def test_a_pin_is_undone_and_told_once(session: Session) -> None:
    session.preset("best")
    told = shown.Told()
    shown.state(session, told)
    name = home(session, "gelu")
    session.pin(name)
    changed = shown.state(session, told)
    assert [(g["name"], g["pinned"]) for g in changed["groups"]] == [(name, True)]
    assert changed["gone"] == [] and changed["history"][-1] == f"pin {name}"
    assert shown.state(session, told)["groups"] == []
    session.undo()
    assert [(g["name"], g["pinned"]) for g in shown.state(session, told)["groups"]] == [
        (name, False)
    ]
    session.redo()
    assert session.board.parts()[name].key in told.groups
    assert shown.state(session, told)["groups"][0]["pinned"]


def test_an_export_has_the_pins_in_every_preset() -> None:
    session = small_session()
    session.toggle(edge(session, "add → gelu").id)
    session.pin(home(session, "gelu"))
    session.preset("best")
    data = export._data(session, False)
    assert data["shown"] == "best"
    for told in data["states"].values():
        assert [g["name"] for g in told["state"]["groups"] if g["pinned"]] == ["K3"]
    assert data["states"]["best"]["state"]["totals"] == shown.totals(session)


def test_a_library_call_is_not_pinned(session: Session) -> None:
    with pytest.raises(UsageError, match="stays as it is"):
        session.pin(home(session, "mm"))


def test_a_pin_goes_along_to_another_target_and_size(session: Session) -> None:
    session.toggle(edge(session, "add → gelu").id)
    session.pin(home(session, "gelu"))
    session.go(size="2x")
    session.go(target="mi300x")
    assert len(session.state.pins) == 1 and session.place.lost == ()
    session.preset("best")
    assert home(session, "gelu") not in (home(session, "layer_norm"), home(session, "mm"))
    session.go(target="h100")
    assert session.state.preset == "best" and len(session.state.pins) == 1
    assert home(session, "gelu") != home(session, "layer_norm")


def test_a_pin_that_stands_in_the_way_of_an_alternative_is_kept() -> None:
    shop = ModelWorkshop("attention", gallery.DEMOS["attention"].programs())
    session = Session(Boards(shop), "h100")
    name = home(session, "softmax")
    session.pin(name)
    session.preset("best")
    assert not any(a.taken for a in session.plan.alternatives)  # type: ignore[union-attr]
    assert home(session, "softmax") == name and session.saved().kernels == meters(session)[0]
    session.pin(name)
    session.preset("best")
    assert any(a.taken for a in session.plan.alternatives)  # type: ignore[union-attr]


# ------------------------------------------------------------------ budgets


def test_figures_stand_beside_their_limits(demo: ModelWorkshop) -> None:
    best = demo.plan("1x", "h100", "best").document
    shop = ModelWorkshop(
        "demo", gallery.DEMOS["demo"].programs(),
        budget=Budget(1, {"h100": limits_of(best), "a100": Limits(peak_bytes=1)}),
    )  # fmt: skip
    session = Session(Boards(shop), "h100")

    def found() -> dict[str, tuple[int, int]]:
        told = shown.state(session, shown.Told())["budget"]
        return {rule: (line["found"], line["limit"]) for rule, line in told.items()}

    exact = {
        "kernels": best.totals.kernels,
        "traffic_bytes": best.totals.traffic_bytes,
        "peak_bytes": best.totals.peak_bytes,
    }
    kernels, traffic, peak, _ = meters(session)
    assert found() == {
        "kernels": (kernels, exact["kernels"]),
        "traffic_bytes": (traffic, exact["traffic_bytes"]),
        "peak_bytes": (peak, exact["peak_bytes"]),
    }
    session.preset("best")
    assert found() == {rule: (value, value) for rule, value in exact.items()}
    session.toggle(edge(session, "gelu → add#1").id)
    assert found()["kernels"] == (exact["kernels"] + 1, exact["kernels"])
    session.go(target="a100")
    assert found() == {"peak_bytes": (meters(session)[2], 1)}
    session.go(target="mi300x")
    assert found() == {}


def test_without_a_budget_nothing_is_said_of_one(session: Session) -> None:
    assert shown.state(session, shown.Told())["budget"] is None


def test_a_budget_counts_all_graphs_of_a_model() -> None:
    def make() -> tuple[Any, ...]:
        with torch.device("meta"):
            return Layer().train(), (torch.empty(1 << 18, 64),)

    budget = Budget(1, {"h100": Limits(kernels=1, traffic_bytes=1, peak_bytes=1)}, training=True)
    session = Session(
        Boards(ModelWorkshop("layer", {"as given": make}, training=True, budget=budget)), "h100"
    )

    def found() -> tuple[int, int, int]:
        told = shown.state(session, shown.Told())["budget"]
        return tuple(told[r]["found"] for r in ("kernels", "traffic_bytes", "peak_bytes"))

    for search in ("eager", "max"):
        for graph in (0, 1):
            session.go(graph=graph)
            session.preset(search)
        t = session.boards.workshop.plan("as given", "h100", search).document.totals
        assert found() == (t.kernels, t.traffic_bytes, t.peak_bytes)
    backward = meters(session)[0]
    session.go(graph=0)
    session.preset("eager")
    assert found()[0] == meters(session)[0] + backward


@pytest.mark.parametrize(
    "action",
    [
        lambda s: s.toggle(999), lambda s: s.toggle(-1), lambda s: s.preset("x"),
        lambda s: s.go(size="9x"), lambda s: s.go(target="none"), lambda s: s.go(graph=7),
        lambda s: s.part("K999"),
    ],
)  # fmt: skip
def test_wrong_wishes_change_nothing(session: Session, action: Any) -> None:
    before = meters(session)
    with pytest.raises(UsageError):
        action(session)
    assert meters(session) == before
    assert len(session.place.done) == 1


# ------------------------------------------------------------------ copies of layers


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.up(self.norm(x)) * 2)


def test_an_edit_applies_to_all_copies_or_to_one() -> None:
    def make() -> tuple[Any, ...]:
        with torch.device("meta"):
            return nn.Sequential(*(Layer() for _ in range(5))).eval(), (torch.empty(1 << 18, 64),)

    session = Session(Boards(ModelWorkshop("layers", {"as given": make})), "h100")
    kernels = meters(session)[0]
    chosen = edge(session, "2:mul → 2:tanh")
    assert len(session.board.like(chosen)) == 5
    session.toggle(chosen.id)
    assert meters(session)[0] == kernels - 1
    session.undo()
    session.pin(home(session, "tanh"), everywhere=True)
    assert len(session.state.pins) == 5
    session.undo()
    session.toggle(chosen.id, everywhere=True)
    assert meters(session)[0] == kernels - 5
    session.undo()
    assert meters(session)[0] == kernels


# ------------------------------------------------------------------ one price for one plan


def demo_session(name: str, target: str = "") -> Session:
    demo = gallery.DEMOS[name]
    shop = ModelWorkshop(name, demo.programs(), made_up=gallery.made_up_chips())
    return Session(Boards(shop), target or demo.target)


class Twins(nn.Module):
    """Small kernels that need none of each other: a plan launches some of them as one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + 1).exp().sum(1), (y * 2).tanh().sum(0), torch.cumsum(y.sigmoid(), 1)


def twins_session() -> Session:
    def make() -> tuple[Any, ...]:
        return Twins(), (torch.randn(64, 48), torch.randn(33, 7))

    return Session(Boards(ModelWorkshop("twins", {"as given": make})), "h100")


@pytest.mark.parametrize("search", ["eager", "max", "best"])
@pytest.mark.parametrize("name", ["demo", "dropout", "siblings", "twins"])
def test_the_panel_says_what_the_meters_will_show(name: str, search: str) -> None:
    session = twins_session() if name == "twins" else demo_session(name)
    session.preset(search)
    tried = 0
    for e in session.board.edges:
        before, told = session.figures, shown.why(session, e)
        effect = told.get("if_cut") or (told.get("if_fused") if not session.lock(e) else None)
        if effect is None:
            continue
        tried += 1
        session.toggle(e.id)
        after = session.figures
        assert effect["kernels"] == after.kernels - before.kernels
        assert effect["traffic"] == after.traffic_bytes - before.traffic_bytes
        assert effect["peak"] == after.peak_bytes - before.peak_bytes
        assert effect["us"] == pytest.approx(after.estimated_us - before.estimated_us)
        assert as_plan(session.saved()) == meters(session)
        session.undo()
    assert tried


@pytest.mark.parametrize("name", ["demo", "dropout", "siblings", "pressure", "twins"])
def test_the_kernels_of_the_table_come_to_the_meters(name: str) -> None:
    session = twins_session() if name == "twins" else demo_session(name)
    sharing = 0
    for search in ("eager", "max", "best"):
        session.preset(search)
        told = shown.state(session, shown.Told())
        groups, totals = told["groups"], told["totals"]
        shared = sum(len(names) - 1 for names in told["shared"])
        assert sum(g["launched"] for g in groups) - shared == totals["kernels"]
        assert sum(g["reads"] + g["writes"] for g in groups) == totals["traffic"]
        saved = sum(g["us"] for g in groups) - totals["us"]
        assert saved == pytest.approx(0, abs=1e-6) if not shared else saved > 0
        sharing += shared
    assert (sharing > 0) == (name == "twins")


def test_a_graph_has_one_bound_on_a_target() -> None:
    session = demo_session("demo", "h100")
    assert "bound" not in shown.totals(session)
    session.preset("best")
    bound = shown.totals(session)["bound"], shown.totals(session)["bound_kind"]
    for search in ("max", "eager"):
        session.preset(search)
        assert (shown.totals(session)["bound"], shown.totals(session)["bound_kind"]) == bound
    session.toggle(edge(session, "add → gelu").id)
    assert (shown.totals(session)["bound"], shown.totals(session)["bound_kind"]) == bound


# ------------------------------------------------------------------ plans that are saved


def small() -> tuple[Any, ...]:
    torch.manual_seed(0)
    return gallery.Block(16, 64).eval().requires_grad_(False), (
        torch.randn(32, 16), torch.randn(32, 64),
    )  # fmt: skip


class Filled(gallery.Block):
    """The block with numbers in it."""

    def __init__(self) -> None:
        super().__init__(16, 64)
        for p in self.parameters():
            nn.init.normal_(p, std=0.3)


def test_a_saved_plan_is_honoured_by_compile(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Filled().eval().requires_grad_(False)
    args = (torch.randn(32, 16), torch.randn(32, 64))
    session = Session(Boards(ModelWorkshop("small", {"as given": lambda: (model, args)})), "cpu:2")
    session.preset("eager")
    session.toggle(edge(session, "add → gelu").id)
    made = session.saved()
    assert (made.kernels, made.traffic_bytes) == meters(session)[:2]
    assert made.kernels == 4  # neither Best nor Eager
    path = tmp_path / "fusion.json"
    made.save(path)
    torch._dynamo.reset()
    fast = onetrip.compile(model, plan=path, target="cpu:2")
    torch.testing.assert_close(fast(*args), model(*args))
    again = onetrip.load_plan(path)
    assert [line.kind for line in again.lines] == ["pin"] * 3


# ------------------------------------------------------------------ what is shown of a group


def test_source_is_linked_to_operators(session: Session) -> None:
    session.preset("best")
    name = next(n for n, p in session.board.parts().items() if len(p.atoms) > 3)
    found = source.kernel(session, session.part(name))
    assert found["language"] == "Triton"
    assert len(found["lines"]) == found["text"].rstrip("\n").count("\n") + 1
    stores = [x for x, t in zip(found["lines"], found["text"].split("\n"), strict=False)
              if "tl.store" in t]  # fmt: skip
    norm = next(n.id for n in session.board.nodes if n.call.op == "layer_norm")
    assert [x["calls"] for x in stores] == [[norm]]
    compile(found["reproducer"], "reproducer", "exec")
    assert "norm:layer_norm#0" in found["reproducer"]


def test_a_library_call_has_its_reason_for_a_source(session: Session) -> None:
    mm = next(
        n for n, p in session.board.parts().items() if not session.board.draft.pool.is_generated(p)
    )
    assert source.kernel(session, session.part(mm))["language"] == "library"


def test_the_timeline_is_the_memory_plan(session: Session) -> None:
    found = timeline.memory(session)
    assert found["peak"] == meters(session)[2]
    assert len(found["steps"]) == 5
    inside = [b for b in found["buffers"] if b["offset"] is not None]
    for k, a in enumerate(inside):
        for b in inside[k + 1 :]:
            together = a["first"] <= b["last"] and b["first"] <= a["last"]
            shared = (
                a["offset"] < b["offset"] + b["bytes"] and b["offset"] < a["offset"] + a["bytes"]
            )
            assert not (together and shared) or b["reuses"]


def test_an_export_leaves_the_session_and_redacts(session: Session) -> None:
    session.toggle(edge(session, "add → gelu").id)
    before, steps = meters(session), len(session.place.done)
    html = export.page(session)
    assert "gallery.py" in html and "tl.store" in html
    assert meters(session) == before and len(session.place.done) == steps
    hidden = export.page(session, redact=True)
    assert "gallery.py" not in hidden and "tl.store" not in hidden
    assert "norm:layer_norm" not in hidden and '"m0"' in hidden
    assert "layer_norm" in hidden
    for text in (html, hidden):
        assert "/static/" not in text.replace('"/static/', "") or "src=" not in text


def test_an_export_tells_of_every_edge(session: Session) -> None:
    for state in export._data(session, False)["states"].values():
        edges = state["state"]["edges"]
        assert state["why"].keys() == edges.keys()
        for k, (status, _) in edges.items():
            assert ("if_cut" in state["why"][k]) == (status == "fused")


def test_what_keeps_two_apart_is_said_of_the_groups_that_are_shown(session: Session) -> None:
    told = shown.Told()
    shown.state(session, told)
    chosen = edge(session, "add → gelu")
    assert shown.edge_state(session, chosen) == ("cut", "as-drawn")
    found = shown.why(session, chosen)
    assert found["verdict"] == "by-user" and "rest of the plan" not in found["reason"]
    (time,) = found["evidence"]
    assert time["limit"].startswith("time of one kernel") and time["value"] < time["bound"]
    session.preset("best")
    shown.state(session, told)
    assert {code for _, code in told.edges.values()}.isdisjoint({"as-drawn"})
    session.preset("eager")
    shown.state(session, told)
    assert told.edges[chosen.id] == ("cut", "as-drawn")


class Words(nn.Module):
    """Modules named as words that the page uses, and copies of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.e, self.best = nn.LayerNorm(16), nn.Linear(16, 16), nn.Sigmoid()
        self.secret = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.best(self.e(self.fused(x)))
        for layer in self.secret:
            x = torch.relu(layer(x))
        return x


def test_a_redacted_page_differs_in_names_of_modules_and_lines_alone() -> None:
    def words() -> Any:
        return Words(), (torch.randn(4, 16),)

    session = Session(Boards(ModelWorkshop("words", {"as given": words})), "cpu:2")
    given, hidden = export._data(session, False), export._data(session, True)
    assert "secret" not in json.dumps(hidden)
    renamed = {"fused": "m2", "e": "m1", "best": "m0", "secret": "m3"}
    for name, state in given["states"].items():
        other = hidden["states"][name]
        assert other["state"] == state["state"]
        for a, b in zip(state["graph"]["nodes"], other["graph"]["nodes"], strict=True):
            module = ".".join(renamed.get(w, w) for w in a["module"].split("."))
            key = b["key"].removeprefix(f"{module}:") if module else b["key"]
            assert (b["op"], b["module"]) == (a["op"], module)
            assert key == a["key"].removeprefix(f"{a['module']}:")
        for edge, why in state["why"].items():
            assert other["why"][edge]["code"] == why["code"]


def test_measuring_is_asked_for(session: Session) -> None:
    board = session.board
    group = board.draft.group(session.part("K3"))
    with pytest.raises(UsageError, match="--measure"):
        session.boards.workshop.measured(board.planned, group)


def test_a_kernel_is_measured_on_the_device_at_hand() -> None:
    shop = ModelWorkshop("small", {"as given": small}, measure=True)
    session = Session(Boards(shop), "cpu:2")
    session.preset("best")
    board = session.board
    part = next(p for p in board.parts().values() if board.draft.pool.is_generated(p))
    assert 0 < shop.measured(board.planned, board.draft.group(part)) < 1e6
    session.go(target="h100")
    with pytest.raises(UsageError, match="device at hand"):
        shop.measured(
            session.board.planned,
            session.board.draft.group(next(iter(session.board.parts().values()))),
        )


def test_a_plan_opens_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    plan = onetrip.plan(*small(), target="cpu:2")
    running = plan.explore()
    try:
        assert opened == [running.url] and running.url in running._repr_html_()
    finally:
        running.stop()
    plan.save(tmp_path / "p.json")
    with pytest.raises(UsageError, match="no model to explore"):
        onetrip.load_plan(tmp_path / "p.json").explore()


def test_a_page_begins_with_the_groups_of_its_plan() -> None:
    def begun(plan: onetrip.Plan) -> tuple[str, int]:
        session = Session(Boards(ModelWorkshop("small", {"as given": small})), "cpu:2", plan)
        session.go(target="h100")
        assert export.page(session)
        session.go(target="cpu:2")
        session = Session(session.boards, "cpu:2", plan)
        return session.state.preset, len(session.board.grouping)

    plan = onetrip.plan(*small(), target="cpu:2")
    assert begun(plan) == ("best", plan.kernels)
    assert begun(onetrip.plan(*small(), target="cpu:2", search="eager"))[0] == "eager"
    pinned = Session(Boards(ModelWorkshop("small", {"as given": small})), "cpu:2",
                     plan.pin("add#0", "gelu"))  # fmt: skip
    assert pinned.state.pins == {(":add#0", ":gelu#0")}
    cut = plan.cut("gelu", "add#1")
    assert begun(cut) == ("mine", cut.kernels) and cut.kernels == plan.kernels + 1


class Steps(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(nn.functional.gelu(super().forward(x) + 1) * 2)


def training_session() -> Session:
    def make() -> tuple[Any, ...]:
        with torch.device("meta"):
            return Steps().train(), (torch.empty(1 << 18, 64),)

    session = Session(Boards(ModelWorkshop("layer", {"as given": make}, training=True)), "h100")
    assert session.graphs() == ("forward", "backward")
    return session


def first_cut(session: Session) -> Edge:
    return next(e for e in session.board.edges if shown.edge_state(session, e)[0] == "cut")


def first_fused(session: Session) -> Edge:
    return next(e for e in session.board.edges if session.board.is_fused(e))


def test_forward_and_backward_are_kept_apart_and_saved_together() -> None:
    session = training_session()
    session.preset("max")
    session.toggle(first_fused(session).id)
    forward = meters(session)
    session.go(graph=1)
    session.preset("eager")
    backward = meters(session)
    assert backward != forward
    session.go(graph=0)
    assert meters(session) == forward and session.state.preset == "mine"
    plan = session.saved()
    assert [g.kernels for g in plan.graphs] == [forward[0], backward[0]]
    assert session.place.graph == 0 and meters(session) == forward


@pytest.mark.parametrize("search", ["eager", "max", "best"])
def test_a_graph_that_is_only_looked_at_is_in_the_preset_that_was_chosen_last(search: str) -> None:
    session = training_session()
    session.preset(search)
    unseen, counted = session.saved(), session.figures_of_all()
    assert as_plan(unseen) == as_plan(session.boards.workshop.plan("as given", "h100", search))
    session.go(graph=1)
    assert session.state.preset == search
    assert as_plan(session.saved()) == as_plan(unseen) and session.figures_of_all() == counted
    session.go(graph=0)
    session.preset("max")
    session.go(graph=1)
    assert session.state.preset == "max"
    session.preset("eager")
    session.go(graph=0)
    session.preset("best")
    session.go(graph=1)
    assert session.state.preset == "eager"  # chosen here


def test_edits_of_all_graphs_are_carried_to_another_target() -> None:
    session = training_session()
    session.preset("max")
    session.toggle(first_fused(session).id)
    cuts, forward = session.state.cuts, meters(session)
    saved = session.saved().lines
    session.go(graph=1)
    session.go(target="a100")
    assert session.place.lost == ()
    session.go(target="h100")
    session.go(graph=0)
    assert session.state.preset == "mine" and session.state.cuts == cuts
    assert meters(session) == forward and session.saved().lines == saved


def test_what_another_graph_lost_on_a_target_is_told() -> None:
    session = training_session()
    session.toggle(first_cut(session).id)
    session.go(graph=1)
    refused = Decision("size", "over-limit", "it would be too large")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Board, "fuse", lambda board, edge: refused)
        session.go(target="a100")
    (lost,) = shown.state(session, shown.Told())["lost"]
    assert lost["a"].startswith("forward/") and lost["reason"] == refused.sentence


@pytest.mark.parametrize("search", ["eager", "max", "best"])
def test_a_preset_that_is_chosen_again_is_no_step(session: Session, search: str) -> None:
    session.preset(search)
    steps = len(session.place.done)
    session.preset(search)
    assert len(session.place.done) == steps


@pytest.mark.parametrize("name", ["pressure", "dropout", "siblings", "conv", "attention"])
def test_every_demo_has_plans_reasons_and_an_export(name: str) -> None:
    shop = ModelWorkshop(name, gallery.DEMOS[name].programs(), made_up=gallery.made_up_chips())
    session = Session(Boards(shop), "h100")
    eager = meters(session)
    for search in ("max", "best"):
        session.preset(search)
        assert meters(session)[0] <= eager[0]
        for e in session.board.edges:
            found = shown.why(session, e)
            assert ("if_cut" in found) == (found["state"][0] == "fused")
        for part in session.board.parts():
            assert source.kernel(session, session.part(part))["text"]
    assert len(export.page(session)) > 50_000
