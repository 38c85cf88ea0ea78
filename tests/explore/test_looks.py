"""How the page looks: axe, both themes and widths, wires that pass boxes by, the roofline."""

from __future__ import annotations

import pytest
from pages import WIDTHS, Opened, act, state

from onetrip.api.workshop import ModelWorkshop
from onetrip.bench import gallery
from onetrip.explore import server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(opened: Opened, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(theme=theme)
    tags = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}

    def faults() -> list[str]:
        found = axe.run(page, options=tags).response["violations"]
        return [f"{v['id']}: {n['html'][:160]}" for v in found for n in v["nodes"]]

    assert faults() == []
    act(page, "f")
    page.keyboard.press("n")
    act(page, "i")
    for tab in ("Kernel", "Node", "Kernels", "Memory timeline", "Roofline", "Diff", "History"):
        page.get_by_role("tab", name=tab, exact=True).click()
        page.wait_for_timeout(300)
        assert faults() == [], tab
    page.keyboard.press("v")
    assert faults() == []
    page.keyboard.press("?")
    assert faults() == []
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("norm")
    assert faults() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_or_leaves_the_window(opened: Opened, theme: str, width: int) -> None:
    page = opened(theme=theme, width=width)
    act(page, "f")
    page.keyboard.press("n")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    for selector in ("header > *", "#meters > *", ".node", "main > *"):
        assert page.evaluate(OVERLAPS, selector) == [], selector
    assert page.evaluate(OUTSIDE, "header > *, #meters > *, main > *, #below") == []
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == theme


OVERLAPS = """(selector) => {
  const boxes = [...document.querySelectorAll(selector)].filter((e) => e.offsetParent)
    .map((e) => [e.id || e.textContent.slice(0, 20), e.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], k) => boxes.slice(k + 1).filter(([, q]) =>
    p.left + 1 < q.right && q.left + 1 < p.right && p.top + 1 < q.bottom && q.top + 1 < p.bottom)
    .map(([b]) => `${a} / ${b}`));
}"""
OUTSIDE = """(selector) => [...document.querySelectorAll(selector)].filter((e) => {
  const r = e.getBoundingClientRect();
  return r.width && (r.left < -1 || r.right > innerWidth + 1 || r.bottom > innerHeight + 1);
}).map((e) => e.id || e.tagName)"""


def test_the_theme_can_be_changed(opened: Opened) -> None:
    page = opened()
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


# ------------------------------------------------------------------ wires and dots


@pytest.mark.parametrize("name", ["attention", "bert"])
def test_no_wire_runs_through_an_operator(opened: Opened, name: str) -> None:
    shop = ModelWorkshop(name, gallery.DEMOS[name].programs())
    running = server.start(shop, "h100")
    try:
        page = opened(running.url)
        assert page.evaluate("onetrip.placed.links.length") >= 3
        assert page.evaluate(CROSSED) == []
    finally:
        running.stop()


CROSSED = """(() => {
  const {items, links} = onetrip.placed;
  const wire = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  return links.flatMap((link) => {
    wire.setAttribute('d', link.curve.path);
    const whole = wire.getTotalLength();
    const points = Array.from({length: 200}, (_, k) => wire.getPointAtLength(whole * k / 199));
    return [...items.values()].filter((p) => p.id !== link.a && p.id !== link.b)
      .filter((p) => points.some(({x, y}) => x > p.x && x < p.x + p.w && y > p.y && y < p.y + p.h))
      .map((p) => `${link.a} to ${link.b} through ${p.id}`);
  });
})()"""


def test_the_router_goes_around_what_stands_between(opened: Opened) -> None:
    """Boxes below one another: straight to the next, aside to the one behind it, back upwards."""
    found = opened().evaluate("""(() => {
      const items = [0, 1, 2, 3].map((k) => ({id: k, x: 100, y: 76 * k, w: 150, h: 42}));
      const route = onetrip.router(items);
      const lane = (a, b) => route(items[a], items[b]).lane?.x ?? null;
      return [lane(0, 1), lane(0, 2), lane(0, 2), lane(0, 3), lane(3, 0)];
    })()""")
    straight, *lanes = found
    assert straight is None and all(x < 100 or x > 250 for x in lanes)
    assert len(set(lanes)) == len(lanes)  # no two share a lane


def test_the_roofline_has_ticks_and_names_its_dots(opened: Opened) -> None:
    page = opened()
    act(page, "b")
    page.get_by_role("tab", name="Roofline").click()
    dots = page.get_by_role("group", name="Kernels, by FLOPs a byte").get_by_role("button")
    assert dots.count() == 2
    product = dots.nth(1)
    assert product.get_attribute("aria-label").startswith("K1: mm; 682.7 FLOPs a byte, ")
    assert not product.locator(".says").is_visible()
    product.hover()
    assert product.locator(".says").is_visible()
    page.mouse.move(0, 0)
    dots.nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert product.locator(".says").is_visible() and not dots.nth(0).locator(".says").is_visible()
    page.keyboard.press("Enter")
    assert state(page)["kernel"] == "K1"
    assert page.locator(".dot.chosen").get_attribute("aria-label").startswith("K1")
