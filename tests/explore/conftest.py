"""Workshops, a server and a browser, made once for all tests of the explorer."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pages import WIDTHS, Opened

from onetrip.api.workshop import ModelWorkshop
from onetrip.base.cancel import checkpoint
from onetrip.bench import gallery
from onetrip.explore import server
from onetrip.report.view import Plan


def workshop(name: str) -> ModelWorkshop:
    """The workshop of a demo."""
    programs, chips = gallery.DEMOS[name].programs(), gallery.made_up_chips()
    return ModelWorkshop(name, programs, made_up=chips)


class Endless(ModelWorkshop):
    """Its Best takes until somebody has had enough."""

    begun, enough = threading.Event(), threading.Event()

    def plan(self, size: str, target: str, search: str) -> Plan:
        if search == "best":
            self.begun.set()
            while not self.enough.wait(0.01):
                checkpoint()
        return super().plan(size, target, search)


@pytest.fixture
def endless() -> Endless:
    Endless.begun.clear()
    Endless.enough.clear()
    return Endless("demo", gallery.DEMOS["demo"].programs(), made_up=gallery.made_up_chips())


@pytest.fixture
def unending(endless: Endless) -> Iterator[server.Running]:
    """A server of it."""
    made = server.start(endless, "h100")
    yield made
    endless.enough.set()
    made.stop()


@pytest.fixture(scope="session")
def demo() -> ModelWorkshop:
    return workshop("demo")


@pytest.fixture(scope="session")
def pressure() -> ModelWorkshop:
    return workshop("pressure")


@pytest.fixture(scope="session")
def running(demo: ModelWorkshop) -> Iterator[server.Running]:
    made = server.start(demo, "h100")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: Debian's package, or the one that Playwright was given."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the page is tested with Playwright: pip install playwright"
    )
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium, or make browser")
    with playwright.sync_playwright() as found:
        made = found.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any, running: server.Running) -> Iterator[Opened]:
    """Opens the page; a test fails when the page says anything on its console."""
    contexts: list[Any] = []
    said: list[str] = []

    def open_page(url: str = running.url, *, theme: str = "light", width: int = 1280) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": WIDTHS[width]}, color_scheme=theme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if "400" not in m.text else None)
        page.on("pageerror", lambda e: said.append(str(e)))
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
