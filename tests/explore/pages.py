"""What tests do to a page, and what they read off it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onetrip.base.text import bytes_text

WIDTHS = {1280: 800, 1920: 1080}
"""Of windows that are looked at, with their heights."""
Opened = Callable[..., Any]


def act(page: Any, key: str) -> None:
    """Presses a key that changes the plan, and waits until the new figures are shown."""
    before = int(page.evaluate("document.body.dataset.acts || 0"))
    page.keyboard.press(key)
    page.wait_for_selector(f"body[data-acts='{before + 1}']")


def meters(page: Any) -> dict[str, str]:
    """The meters as a reader sees them."""
    found = page.locator("#meters div").all_inner_texts()
    return {name: value.strip() for name, value in (t.split("\n", 1) for t in found)}


def says(page: Any, kernels: int, traffic: int) -> bool:
    m = meters(page)
    return m["KERNELS"].split()[0] == str(kernels) and m["TRAFFIC"].startswith(bytes_text(traffic))


def state(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        "({...onetrip.pick, mode: onetrip.view.mode, all: onetrip.view.everywhere,"
        " preset: onetrip.data.state.preset, steps: onetrip.data.state.history.length,"
        " detail: onetrip.detail, focus: document.activeElement.id})"
    )
    return found


def press(page: Any, keys: str) -> dict[str, Any]:
    for key in keys.split():
        page.keyboard.press(key)
    page.evaluate("onetrip.queue")
    return state(page)


def refused(page: Any, keys: str) -> str:
    press(page, keys)
    found: str = page.locator("#problem:not([hidden])").inner_text()
    return found
