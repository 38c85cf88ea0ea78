"""Takes the pictures of the documents from the explorer itself, in headless Chromium.

python docs/screenshots.py [FOLDER]     default: docs/pictures
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from playwright.sync_api import sync_playwright

from onetrip.api.workshop import ModelWorkshop
from onetrip.bench import gallery
from onetrip.explore import server

SIZE = {"width": 1280, "height": 800}


def _acted(page: Any, *keys: str) -> None:
    """Presses keys that each change the plan, one after the other."""
    for key in keys:
        before = int(page.evaluate("document.body.dataset.acts || 0"))
        page.keyboard.press(key)
        page.wait_for_selector(f"body[data-acts='{before + 1}']", timeout=300_000)
    page.wait_for_timeout(300)


def _all_cut(page: Any) -> None:
    page.keyboard.press("n")
    page.wait_for_selector("#detail .verdict")


def _one_less(page: Any) -> None:
    page.keyboard.press("n")
    page.keyboard.press("n")
    _acted(page, "x")


def _sweet(page: Any) -> None:
    page.keyboard.press("n")
    for _ in range(4):
        page.keyboard.press("n")
        _acted(page, "x")
    page.keyboard.press("n")
    page.wait_for_selector("#detail .verdict")


def _pressure(page: Any) -> None:
    _acted(page, "f")
    page.get_by_role("tab", name="Kernels").click()
    page.get_by_role("button", name="K18", exact=True).click()


def _source(page: Any) -> None:
    _acted(page, "b")
    page.get_by_role("tab", name="Kernels").click()
    page.get_by_role("button", name="K16", exact=True).click()
    page.wait_for_selector(".code .linked")


def _whole_model(page: Any) -> None:
    _acted(page, "b")
    page.keyboard.press("n")
    page.get_by_role("tab", name="Memory timeline").click()
    page.wait_for_selector("#table canvas")


PICTURES: dict[str, tuple[str, str, Callable[[Any], None]]] = {
    "all-cut": ("demo", "light", _all_cut),
    "one-cut-less": ("demo", "light", _one_less),
    "sweet-spot": ("pressure", "light", _sweet),
    "pressure": ("pressure", "light", _pressure),
    "source": ("demo", "dark", _source),
    "bert": ("bert", "light", _whole_model),
}
"""Picture: (demo, theme, what is done before it is taken)."""


def take(folder: Path) -> list[Path]:
    """Every picture, as a file of its name."""
    browser_path = shutil.which("chromium")
    folder.mkdir(parents=True, exist_ok=True)
    taken: list[Path] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for demo in dict.fromkeys(name for name, _, _ in PICTURES.values()):
            shop = ModelWorkshop(
                demo, gallery.DEMOS[demo].programs(), made_up=gallery.made_up_chips()
            )
            running = server.start(shop, gallery.DEMOS[demo].target)
            for name, (_, theme, prepare) in PICTURES.items():
                if PICTURES[name][0] != demo:
                    continue
                page = browser.new_page(viewport=SIZE, color_scheme=theme)
                page.goto(running.url)
                page.wait_for_selector("body[data-ready]", timeout=120_000)
                prepare(page)
                page.wait_for_timeout(400)
                taken.append(folder / f"{name}.png")
                page.screenshot(path=taken[-1])
                page.close()
            running.stop()
        browser.close()
    return taken


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    click.echo("\n".join(f"taken: {path}" for path in take(where)))
