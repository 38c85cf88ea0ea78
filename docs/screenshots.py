"""Takes the pictures of the documents from the explorer itself, in headless Chromium.

python docs/screenshots.py                    docs/pictures, as they are in the documents
python docs/screenshots.py FOLDER --every     more states, at both widths and in both themes
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import click
from playwright.sync_api import sync_playwright

from onetrip.api.workshop import ModelWorkshop
from onetrip.bench import gallery
from onetrip.explore import server
from onetrip.report.budget import Budget, Limits

WIDTHS = {1280: 800, 1920: 1080}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


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


def _pinned(page: Any) -> None:
    _acted(page, "b")
    page.keyboard.press("n")
    _acted(page, "i")
    page.get_by_role("tab", name="Roofline").click()
    page.locator(".dot").first.focus()


def _palette(page: Any) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("add")


def _by_kernel(page: Any) -> None:
    page.keyboard.press("v")
    page.keyboard.press("?")


@dataclass(frozen=True)
class Picture:
    """A state of the page.

    Attributes:
        prepare: what is done before it is taken.
        limit: kernels that a budget allows.
    """

    demo: str
    prepare: Callable[[Any], None]
    theme: Literal["light", "dark"] = "light"
    limit: int | None = None


DOCUMENTS = {
    "all-cut": Picture("demo", _all_cut),
    "one-cut-less": Picture("demo", _one_less),
    "sweet-spot": Picture("pressure", _sweet),
    "pressure": Picture("pressure", _pressure),
    "source": Picture("demo", _source, "dark"),
    "bert": Picture("bert", _whole_model),
}
MORE = {
    "budget": Picture("pressure", _pressure, limit=1),
    "pinned": Picture("demo", _pinned),
    "palette": Picture("demo", _palette),
    "keys": Picture("demo", _by_kernel),
    "attention": Picture("attention", _all_cut),
}


def take(folder: Path, every: bool) -> Iterator[Path]:
    """The pictures of the documents, or with more states each in every width and theme."""
    pictures = DOCUMENTS | MORE if every else DOCUMENTS
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for demo, limit in dict.fromkeys((p.demo, p.limit) for p in pictures.values()):
            found = gallery.DEMOS[demo]
            budget = limit and Budget(1, {found.target: Limits(limit, 10**9, 10**9)})
            shop = ModelWorkshop(
                demo, found.programs(), made_up=gallery.made_up_chips(), budget=budget or None
            )
            running = server.start(shop, found.target)
            for name, picture in pictures.items():
                if (picture.demo, picture.limit) != (demo, limit):
                    continue
                for width, theme in product(WIDTHS, THEMES) if every else [(1280, picture.theme)]:
                    page = browser.new_page(
                        viewport={"width": width, "height": WIDTHS[width]}, color_scheme=theme
                    )
                    page.goto(running.url)
                    page.wait_for_selector("body[data-ready]", timeout=120_000)
                    picture.prepare(page)
                    page.wait_for_timeout(400)
                    taken = folder / (f"{name}-{width}-{theme}.png" if every else f"{name}.png")
                    page.screenshot(path=taken)
                    page.close()
                    yield taken
            running.stop()
        browser.close()


@click.command()
@click.argument(
    "folder", type=click.Path(path_type=Path), default=Path(__file__).parent / "pictures"
)
@click.option("--every", is_flag=True, help="More states, at both widths, light and dark.")
def main(folder: Path, every: bool) -> None:
    """Takes the pictures."""
    for path in take(folder, every):
        click.echo(f"taken: {path}")


if __name__ == "__main__":
    main()
