"""What every test stands on: its own cache folder, a fixed seed, and golden texts.

`golden(name, text)` compares `text` with tests/golden/<name>.txt; `--update-golden` rewrites that
file instead, and the diff is then read like any other change.
"""

from __future__ import annotations

import difflib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
SEED = 20
OUTER_RINGS = {"api", "bench", "cli", "e2e", "frontend", "runtime"}
"""Folders whose tests capture models, run compilers or start processes: `slow`, every one."""

_cache_dirs: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts")


def pytest_configure(config: pytest.Config) -> None:
    """Before any import of onetrip: no test may read or fill the user's own cache.

    Workers share the folder of the process that started them.
    """
    if hasattr(config, "workerinput"):
        return
    _cache_dirs.append(tempfile.mkdtemp(prefix="onetrip-tests-"))
    os.environ["ONETRIP_CACHE_DIR"] = _cache_dirs[-1]


def pytest_unconfigure(config: pytest.Config) -> None:
    while _cache_dirs:
        shutil.rmtree(_cache_dirs.pop(), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in OUTER_RINGS:
            item.add_marker(pytest.mark.slow)
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.golden)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the imports left in memory stays: each full collection would look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random tensors whichever tests ran before; tests without torch do not load it."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(SEED)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the one kept under tests/golden, or rewrite that one."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        found = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8")
            return
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        if found != kept:
            lines = difflib.unified_diff(
                kept.splitlines(), found.splitlines(), f"golden/{name}.txt", "found", lineterm=""
            )
            pytest.fail("\n".join([*lines, "If this is meant: make golden"]), pytrace=False)

    return compare
