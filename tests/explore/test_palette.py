"""The palette: every command, operator and kernel by its name, with the keyboard alone."""

from __future__ import annotations

from typing import Any

import pytest
from pages import Opened, state

pytestmark = pytest.mark.slow


def chosen(page: Any, text: str) -> str:
    """Opens the palette, types, and says which row would run."""
    page.keyboard.press("Control+k")
    page.keyboard.type(text)
    found: str = page.locator("#palette-list [aria-selected=true] span").inner_text()
    return found


def ran(page: Any, text: str) -> None:
    """Types the name of a command and runs the first that fits."""
    chosen(page, text)
    page.keyboard.press("Enter")
    assert not page.locator("#palette").is_visible()


def test_it_lists_every_key_choice_and_table(opened: Opened) -> None:
    page = opened()
    page.get_by_role("button", name="Commands").click()
    page.keyboard.type(" ")
    for text in page.locator("#key-list dd").all_inner_texts():
        page.locator("#palette-input").fill(text)
        assert page.locator("#palette-list span").first.inner_text() == text
    for text in ("size 2x", "target few-registers", "show Roofline", "Write the page as one file"):
        page.locator("#palette-input").fill(text)
        assert page.locator("#palette-list span").all_inner_texts() == [text]


def test_commands_run_with_the_keyboard(opened: Opened) -> None:
    page = opened()
    ran(page, "fuse all")
    page.wait_for_selector("body[data-acts='1']")
    assert state(page)["preset"] == "max"
    ran(page, "undo")
    page.wait_for_selector("body[data-acts='2']")
    ran(page, "size 2x")
    page.wait_for_selector("body[data-acts='3']")
    assert page.evaluate("onetrip.data.state.size") == "2x"
    ran(page, "roofline")
    page.wait_for_selector("#table canvas")


def test_operators_and_kernels_are_found(opened: Opened) -> None:
    page = opened()
    ran(page, "norm:layer_norm")
    assert state(page)["node"] == 4
    ran(page, "K16")
    assert (state(page)["kernel"], state(page)["detail"]) == ("K16", "Kernel")
    assert chosen(page, "show") == "show Why"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert state(page)["detail"] == "Kernel"


def test_nothing_found_runs_nothing_and_escape_leaves(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("Control+k")
    page.keyboard.type("no such thing")
    assert "0 found" in page.locator("#palette").inner_text()
    page.keyboard.press("Enter")
    before = state(page)
    page.keyboard.press("Meta+k")
    page.keyboard.type("x")  # a name, and no key of the page
    page.keyboard.press("Escape")
    assert state(page) == before and not page.locator("#palette").is_visible()
