"""Nothing unfinished, nothing of one machine, and a map that matches the house.

Line length and complexity are the linter's part.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THIS = Path(__file__).relative_to(ROOT)
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".cfg", ".ts", ".tsx", ".css", ".html", ""}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Roots that belong to one person's machine; /tmp, /usr and /proc are everyone's.
MACHINE_PATH = re.compile(r"(?<![\w.~/:-])/(work|home|root|Users|farm|opt|mnt|data)/[\w.-]+")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
# Made by tools or by a licence, not by us.
GENERATED = {"LICENSE", "package-lock.json"}


def tracked() -> list[Path]:
    """Files that git tracks or would track; from an unpacked archive, every file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines()
    paths = map(Path, names) if names else (p.relative_to(ROOT) for p in ROOT.rglob("*.*"))
    return [
        p
        for p in paths
        if p.suffix in TEXT and p.name not in GENERATED and p != THIS and (ROOT / p).is_file()
    ]


def matches(pattern: re.Pattern[str], text: str) -> list[str]:
    """Line number and text of each line that the pattern is found in."""
    lines = enumerate(text.splitlines(), 1)
    return [f"{number}: {line.strip()[:120]}" for number, line in lines if pattern.search(line)]


def all_matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{line}"
        for path in tracked()
        for line in matches(pattern, (ROOT / path).read_text(encoding="utf-8", errors="replace"))
    ]


def unmentioned(document: str, folders: list[str]) -> list[str]:
    """The folders that the document does not name as `folder/`."""
    return [name for name in folders if f"`{name}/`" not in document]


def missing_tests(document: str, root: Path) -> list[str]:
    """The tests that the document names and that do not exist."""
    found = []
    for file, function in TEST_NAME.findall(document):
        path = root / file
        if not path.exists():
            found.append(file)
        elif function and f"def {function}(" not in path.read_text(encoding="utf-8"):
            found.append(f"{file}::{function}")
    return found


def test_nothing_is_left_unfinished() -> None:
    assert all_matches(UNFINISHED) == []


def test_no_path_of_one_machine() -> None:
    assert all_matches(MACHINE_PATH) == []


def test_architecture_names_every_folder() -> None:
    package = ROOT / "src" / "onetrip"
    folders = [p.name for p in sorted(package.iterdir()) if (p / "__init__.py").exists()]
    assert folders
    assert unmentioned((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), folders) == []


def test_architecture_names_tests_that_exist() -> None:
    assert missing_tests((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), ROOT) == []


@pytest.mark.parametrize("line", ["x = 1  # TODO: later", "# FIXME", "XXX"])
def test_unfinished_mark_is_found(line: str) -> None:
    assert matches(UNFINISHED, line)


@pytest.mark.parametrize("line", ["see /home/ann/notes", 'open("/data/sets/x")', "cd /root/.cache"])
def test_machine_path_is_found(line: str) -> None:
    assert matches(MACHINE_PATH, line)


@pytest.mark.parametrize("line", ["a/work/b", "https://host/data/x", "/tmp/x", "work / data"])
def test_harmless_path_passes(line: str) -> None:
    assert matches(MACHINE_PATH, line) == []


def test_unmentioned_folder_is_found() -> None:
    assert unmentioned("only `ir/` here", ["ir", "ops"]) == ["ops"]


def test_missing_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_x() -> None: ...\n")
    document = "`tests/test_a.py::test_x` `tests/test_a.py::test_y` `tests/test_b.py`"
    assert missing_tests(document, tmp_path) == ["tests/test_a.py::test_y", "tests/test_b.py"]
