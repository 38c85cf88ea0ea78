"""The page in a real Chromium: the lesson, every key, axe, both themes and widths, the export."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import Opened, act, meters, press, refused, says, state
from test_session import SWEET, Layer
from torch import nn

from onetrip.api.workshop import ModelWorkshop
from onetrip.bench import gallery
from onetrip.explore import export, server, shown
from onetrip.explore.boards import Boards
from onetrip.explore.session import Session
from onetrip.report.budget import Budget, limits_of

pytestmark = pytest.mark.slow


@pytest.fixture
def model(demo: ModelWorkshop) -> Session:
    """Python's own answer to what the page does."""
    return Session(Boards(demo), "h100")


def totals(session: Session) -> tuple[int, int]:
    t = shown.totals(session)
    return t["kernels"], t["traffic"]


# ------------------------------------------------------------------ the lesson


def test_the_lesson_with_the_keyboard_alone(opened: Opened, model: Session) -> None:
    """All cut; remove one cut after the other; fuse all; double the tensor; few registers."""
    page = opened()
    assert says(page, *totals(model)) and totals(model)[0] == 5
    page.keyboard.press("n")  # the product's boundary, which cannot be removed
    page.keyboard.press("x")
    page.wait_for_selector("#problem:not([hidden])")
    assert "compute-bound-anchor" in page.locator("#problem").inner_text()
    page.keyboard.press("n")
    for k, name in enumerate(["add → gelu", "gelu → add#1", "add#1 → norm:layer_norm"]):
        page.wait_for_selector(f'#detail h3:text-is("{name}")')
        act(page, "x")
        model.toggle(next(e.id for e in model.board.edges if model.title(e) == name))
        assert says(page, *totals(model)) and totals(model)[0] == 4 - k
        if k < 2:
            page.keyboard.press("n")
    assert meters(page)["KERNELS"] == "2 (−3)"
    page.select_option("#size", "2x")
    page.wait_for_selector("body[data-acts='4']")
    model.go(size="2x")
    assert says(page, *totals(model)) and totals(model)[0] == 2
    page.select_option("#target", "few-registers")
    page.wait_for_selector("body[data-acts='5']")
    model.go(target="few-registers")
    assert says(page, *totals(model))
    over = page.locator("#meters .over").inner_text()
    assert re.search(r"40/40\s+spills \d+ B a thread", over)
    assert "spilled" in meters(page)["TRAFFIC"]
    page.locator("#nodes").focus()
    act(page, "b")
    model.preset("best")
    assert says(page, *totals(model))
    assert "against eager" in page.locator("#status").inner_text()


def test_the_sweet_spot_with_the_keyboard_alone(opened: Opened, pressure: ModelWorkshop) -> None:
    """All cut; fuse until the next one would spill; fuse all: red, and the traffic goes up."""
    running = server.start(pressure, "few-registers")
    model = Session(Boards(pressure), "few-registers")
    try:
        page = opened(running.url)
        assert says(page, *totals(model)) and totals(model)[0] == 7
        page.keyboard.press("n")  # the product's boundary
        for name in SWEET:
            page.keyboard.press("n")
            page.wait_for_selector(f'#detail h3:text-is("{name}")')
            act(page, "x")
            model.toggle(next(e.id for e in model.board.edges if model.title(e) == name))
            assert says(page, *totals(model))
            assert page.locator("#meters .over").count() == 0
        sweet = totals(model)
        assert sweet[0] == 3
        act(page, "f")
        model.preset("max")
        assert says(page, *totals(model)) and totals(model)[0] == 2
        assert totals(model)[1] > sweet[1]
        assert "spills 44 B a thread" in page.locator("#meters .over").inner_text()
        act(page, "b")
        model.preset("best")
        assert says(page, *totals(model)) and totals(model) == sweet
        page.select_option("#size", "2x")
        page.wait_for_selector("body[data-acts='7']")
        model.go(size="2x")
        assert says(page, *totals(model)) and totals(model)[0] == 3
    finally:
        running.stop()


def test_planning_can_be_cancelled_with_a_button_and_with_a_key(
    opened: Opened, unending: Any, endless: Any
) -> None:
    page = opened(unending.url)
    shown_before = meters(page)
    for leave in (
        lambda: page.get_by_role("button", name="Cancel").click(),
        lambda: page.keyboard.press("c"),
    ):
        page.keyboard.press("b")
        page.wait_for_selector("#cancel:not([hidden])")
        leave()
        page.wait_for_selector("#cancel", state="hidden")
        page.wait_for_function("document.getElementById('status').textContent.startsWith('canc')")
        assert meters(page) == shown_before and state(page)["preset"] == "eager"
    endless.enough.set()
    act(page, "b")
    assert state(page)["preset"] == "best"


def test_a_key_cancels_at_once_what_was_just_asked_for(opened: Opened, unending: Any) -> None:
    page = opened(unending.url)
    before = meters(page)
    press(page, "b c")
    assert page.evaluate("document.getElementById('status').textContent").startswith("canc")
    assert page.locator("#problem").is_hidden() and meters(page) == before
    press(page, "b f c")  # what waits behind it as well
    page.evaluate("onetrip.queue")
    assert meters(page) == before and state(page)["steps"] == 1


def test_what_is_planned_and_what_waits_for_it_is_said(
    opened: Opened, unending: Any, endless: Any
) -> None:
    page = opened(unending.url)
    said = "document.getElementById('status').textContent"
    page.evaluate("void onetrip.preset('best')")
    assert page.evaluate(said) == "planning Best …"
    page.select_option("#target", "a100")
    assert page.evaluate(said) == "planning Best, then a100 …"
    endless.enough.set()
    page.wait_for_selector("body[data-acts='2']")
    assert page.evaluate("onetrip.data.graph.target") == "a100"
    assert page.evaluate(said).startswith("Best: ")


def test_another_target_does_not_wait_for_a_best_that_nobody_asked_for(
    opened: Opened, unending: Any, endless: Any
) -> None:
    page = opened(unending.url)
    assert endless.begun.wait(60)
    page.select_option("#target", "a100")
    page.wait_for_selector("body[data-acts='1']")
    assert page.evaluate("onetrip.data.graph.target") == "a100"
    status = page.evaluate("document.getElementById('status').textContent")
    assert status.startswith("Eager: ") and "planning" not in status
    assert not endless.enough.is_set()


def test_a_reload_finds_its_session_again(opened: Opened) -> None:
    page = opened()
    act(page, "f")
    before, steps = meters(page), state(page)["steps"]
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert meters(page) == before and state(page)["steps"] == steps == 2
    act(page, "u")
    assert state(page)["preset"] == "eager"
    assert state(opened())["steps"] == 1  # another tab is another page


def test_a_budget_stands_beside_the_figures_and_is_red_beyond(
    opened: Opened, demo: ModelWorkshop
) -> None:
    budget = Budget(1, {"h100": limits_of(demo.plan("1x", "h100", "best").document)})
    shop = ModelWorkshop("demo", gallery.DEMOS["demo"].programs(), budget=budget)
    running = server.start(shop, "h100")
    try:
        page = opened(running.url)
        assert meters(page)["BUDGET"].startswith("✘ over")
        assert "5 of 2 kernels" in meters(page)["BUDGET"]
        assert "352 MB of 151 MB moved" in meters(page)["BUDGET"]
        assert page.locator("#meters .over .more").count() == 2  # the peak is within its limit
        act(page, "b")
        assert meters(page)["BUDGET"].startswith("✔") and page.locator(".over").count() == 0
        page.select_option("#target", "mi300x")
        page.wait_for_selector("body[data-acts='2']")
        assert "none for mi300x" in meters(page)["BUDGET"]
    finally:
        running.stop()


def test_a_cut_moves_nothing(opened: Opened) -> None:
    page = opened()
    before = page.evaluate(PLACES)
    for key in ("f", "e", "b"):
        act(page, key)
        assert page.evaluate(PLACES) == before


PLACES = """[...document.querySelectorAll('.node')]
  .map((n) => JSON.stringify(n.getBoundingClientRect()))"""


# ------------------------------------------------------------------ keys


KEYS: dict[str, Callable[[Any], bool]] = {
    "/": lambda p: press(p, "/")["focus"] == "search",
    "ArrowDown": lambda p: press(p, "ArrowDown ArrowDown ArrowDown")["node"] == 2,
    "ArrowUp": lambda p: press(p, "ArrowDown ArrowDown ArrowDown ArrowUp")["node"] == 1,
    "ArrowLeft": lambda p: press(p, "ArrowDown ArrowLeft")["node"] == 0,
    "ArrowRight": lambda p: press(p, "ArrowDown ArrowRight")["node"] == 0,
    "n": lambda p: press(p, "n n")["edge"] == 1,
    "p": lambda p: press(p, "n n p")["edge"] == 0 and press(p, "p")["edge"] == 3,
    "x": lambda p: press(p, "n n x")["preset"] == "mine",
    "i": lambda p: pins(p),
    "a": lambda p: not press(p, "a")["all"] and press(p, "a")["all"],
    "w": lambda p: press(p, "n k w")["detail"] == "Why" and state(p)["focus"] == "detail",
    "k": lambda p: press(p, "n k")["detail"] == "Kernel",
    "f": lambda p: press(p, "f")["preset"] == "max",
    "e": lambda p: press(p, "f e")["preset"] == "eager",
    "b": lambda p: press(p, "b")["preset"] == "best",
    "c": lambda p: "Nothing is being" in refused(p, "c"),
    "u": lambda p: press(p, "f u")["preset"] == "eager",
    "r": lambda p: press(p, "f u r")["preset"] == "max",
    "s": lambda p: saved(p)["totals"]["kernels"] == 5,
    "v": lambda p: press(p, "v")["mode"] == "kernel" and press(p, "v")["mode"] == "module",
    "Enter": lambda p: shuts_and_opens(p),
    "Ctrl+K": lambda p: press(p, "Control+k")["focus"] == "palette-input",
    "Escape": lambda p: press(p, "/ Escape")["focus"] == "nodes",
    "?": lambda p: helps(p),
}


def pins(page: Any) -> bool:
    """The key pins the kernel of the chosen boundary, and every place that names it says so."""
    press(page, "b n n")
    act(page, "i")
    badges = page.locator(".node .k").all_inner_texts()
    pressed = page.get_by_role("button", name="Unpin K16 (i)", exact=True).get_attribute(
        "aria-pressed"
    )
    act(page, "u")
    freed = page.get_by_role("button", name="Pin K16 (i)", exact=True).get_attribute("aria-pressed")
    return (badges.count("◆ K16"), pressed, freed) == (4, "true", "false")


def saved(page: Any) -> dict[str, Any]:
    with page.expect_download() as found:
        page.keyboard.press("s")
    plan: dict[str, Any] = json.loads(Path(found.value.path()).read_text())
    assert found.value.suggested_filename == "fusion.json"
    return plan


def shuts_and_opens(page: Any) -> bool:
    press(page, "p Enter")  # the norm stands in a module
    shut = page.locator(".node.module").count()
    page.evaluate("onetrip.chooseItem('mnorm')")
    press(page, "Enter")
    return bool(shut == 1 and page.locator(".node.module").count() == 0)


def helps(page: Any) -> bool:
    page.keyboard.press("?")
    shown_now = page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    return bool(shown_now and not page.locator("#keys").is_visible())


def test_arrows_go_from_tab_to_tab(opened: Opened) -> None:
    page = opened()
    for tabs, keys, name in (
        ("Details", "ArrowRight ArrowRight ArrowLeft", "Kernel"),
        ("Tables and charts", "ArrowLeft", "History"),
    ):
        row = page.get_by_role("tablist", name=tabs)
        row.get_by_role("tab").first.focus()
        for key in keys.split():
            page.keyboard.press(key)
        assert row.get_by_role("tab", selected=True).inner_text() == name


@pytest.mark.parametrize("key", KEYS)
def test_every_key(opened: Opened, key: str) -> None:
    assert KEYS[key](opened())


def test_the_list_of_keys_is_the_one_that_is_tested(opened: Opened) -> None:
    listed = opened().evaluate(
        "[...document.querySelectorAll('#key-list dt')].map((d) => d.textContent)"
    )
    assert set(listed) == set(KEYS)


# ------------------------------------------------------------------ tables, links, search


def test_the_table_of_boundaries_does_what_the_graph_does(opened: Opened) -> None:
    page = opened()
    page.get_by_role("button", name="Fuse add to gelu", exact=True).click()
    page.wait_for_selector("body[data-acts='1']")
    page.get_by_role("button", name="Cut add to gelu", exact=True).click()
    page.wait_for_selector("body[data-acts='2']")
    row = page.locator("#table tr.chosen")
    assert "cut by you" in row.inner_text()
    assert page.get_by_role("button", name="Fuse mm to add").is_disabled()


def test_the_table_of_kernels_pins_and_a_pinned_kernel_stays(opened: Opened) -> None:
    page = opened()
    act(page, "b")
    page.get_by_role("tab", name="Kernels").click()
    page.get_by_role("button", name="Pin K16", exact=True).click()
    page.wait_for_selector("body[data-acts='2']")
    page.get_by_role("tab", name="Boundaries").click()
    page.get_by_role("button", name="Show gelu to add#1", exact=True).click()
    page.wait_for_selector("#detail .verdict")
    assert "K16 is pinned" in page.locator("#detail").inner_text()
    assert page.get_by_role("button", name="Cut here (x)").is_disabled()
    page.keyboard.press("x")
    page.wait_for_selector("#problem:not([hidden])")
    assert "unpin that kernel first" in page.locator("#problem").inner_text()
    act(page, "f")
    assert "◆ K16" in page.locator("#nodes").inner_text()


def test_a_selection_is_shown_everywhere(opened: Opened) -> None:
    page = opened()
    act(page, "b")
    page.get_by_role("tab", name="Kernels").click()
    page.get_by_role("button", name="K16", exact=True).click()
    page.wait_for_selector(".code div")
    assert page.locator("#table tr.chosen").inner_text().startswith("K16")
    assert page.locator(".node.kin").count() == 4
    page.locator(".code .linked").first.click()
    assert state(page)["kernel"] == "K16"
    page.wait_for_selector(".code .lit")
    for tab in ("Memory timeline", "Roofline", "History", "Diff"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_selector("#table canvas, #table ol, #table pre")
    assert "no difference" in page.locator("#table pre").inner_text()


def test_search_and_reasons(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("/")
    page.keyboard.type("norm layer")
    page.keyboard.press("Enter")
    assert state(page)["node"] == 4
    page.get_by_role("checkbox", name=re.compile("compute-bound-anchor")).check()
    assert page.locator("#table tbody tr").count() == 1
    assert page.locator("#wires .wire.faint").count() == 3


# ------------------------------------------------------------------ export, layers


def test_an_export_opens_from_disk_without_the_network(
    opened: Opened, browser: Any, model: Session, tmp_path: Path
) -> None:
    model.toggle(1)
    path = tmp_path / "page.html"
    path.write_text(export.page(model), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert state(page)["preset"] == "mine" and says(page, *totals(model))
    for key, name in (("e", "eager"), ("f", "max"), ("b", "best")):
        page.keyboard.press(key)
        model.preset(name)
        assert says(page, *totals(model))
    page.keyboard.press("n")
    assert "library's kernel" in page.locator("#detail").inner_text()
    page.keyboard.press("k")
    page.wait_for_selector(".code div")
    page.keyboard.press("x")
    assert "changes no plan" in page.locator("#problem").inner_text()
    page.get_by_role("tab", name="Memory timeline").click()
    assert [u for u in asked if not u.startswith("data:")] == [path.as_uri()]
    context.close()


@pytest.fixture
def layered() -> Iterator[server.Running]:
    """Five equal layers."""

    def make() -> tuple[Any, ...]:
        with torch.device("meta"):
            layers = nn.Sequential(*(Layer() for _ in range(5))).eval()
            return nn.ModuleDict({"layers": layers})["layers"], (torch.empty(1 << 18, 64),)

    running = server.start(ModelWorkshop("layers", {"as given": make}), "h100")
    yield running
    running.stop()


def test_identical_layers_fold_and_an_edit_applies_to_all_or_one(
    opened: Opened, layered: server.Running
) -> None:
    page = opened(layered.url)
    assert page.locator(".node").count() == 5
    assert "×5" in page.locator("#boxes").inner_text()
    kernels = int(meters(page)["KERNELS"].split()[0])
    edge = page.evaluate("onetrip.data.edges.find((e) => onetrip.data.nodes[e.b].op === 'tanh').id")
    page.evaluate(f"onetrip.chooseEdge({edge})")
    act(page, "x")
    assert meters(page)["KERNELS"].startswith(f"{kernels - 5} ")
    act(page, "u")
    page.keyboard.press("a")
    act(page, "x")
    assert meters(page)["KERNELS"].startswith(f"{kernels - 1} ")
    page.evaluate("onetrip.unfold('')")
    assert page.locator(".node").count() == 25


def test_the_table_of_boundaries_folds_as_the_layers_do(
    opened: Opened, layered: server.Running
) -> None:
    page = opened(layered.url)
    rows = page.locator("#table tbody tr")
    every = page.evaluate("onetrip.data.edges.length")
    forms = page.evaluate("new Set(onetrip.data.edges.map((e) => e.form)).size")
    assert rows.count() == forms < every / 3
    counts = page.locator("#table tbody td:nth-child(5)").all_inner_texts()
    assert sum(int(text.removeprefix("×") or 1) for text in counts) == every
    page.keyboard.press("a")
    assert rows.count() == every
    row = rows.filter(has_text=re.compile("mul.*tanh")).first
    row.get_by_role("button", name=re.compile("^Fuse")).click()
    page.wait_for_selector("body[data-acts='1']")
    page.keyboard.press("a")
    assert rows.count() == forms + 1  # one copy has another state
