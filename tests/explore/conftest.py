"""Workshops, a server and a browser, made once for all tests of the explorer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from onetrip.api.workshop import ModelWorkshop
from onetrip.bench import gallery
from onetrip.explore import server


def workshop(name: str) -> ModelWorkshop:
    """The workshop of a demo."""
    programs, chips = gallery.DEMOS[name].programs(), gallery.made_up_chips()
    return ModelWorkshop(name, programs, made_up=chips)


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
