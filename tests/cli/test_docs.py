"""The documents: generated parts are as they would be written now, links and pictures exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from onetrip.cli.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#([\w-]+))?\)")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_current(generate: ModuleType) -> None:
    assert generate.stale(write=False) == [], "make docs writes them"


def test_a_stale_part_is_found_and_others_are_left(generate: ModuleType) -> None:
    text = "before\n<!-- generated:x (docs/generate.py) -->\nold\n<!-- end -->\nafter\n"
    assert generate.written("x", text, iter(["new"])) == text.replace("old", "\nnew\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        assert path.exists(), f"{page.name} names {target}"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            words = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}
            assert anchor in words, f"{page.name} names {target}#{anchor}"


def test_every_page_is_on_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [p.name for p in PAGES if p.name != "index.md" and f"({p.name})" not in index]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_shell_examples_name_commands_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    named = {m for b in blocks for m in re.findall(r"^onetrip (\w+)", b, re.MULTILINE)}
    assert named <= set(COMMANDS)
