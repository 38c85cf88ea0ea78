"""`onetrip diff`: plan files, models and revisions of git side by side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from onetrip.cli import main

MODEL = """
import torch
from torch import nn
from half import halved

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x):
        h = nn.functional.gelu(halved(x)) + x
        return self.norm(h)

def make():
    return Net().eval(), (torch.randn(64, 32),)
"""
WITH_READER = MODEL.replace("return self.norm(h)", "return self.norm(h), h @ h.t()")
HALF = "def halved(x):\n    return x / 2\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with one revision, and a working copy in which the sum has one more reader."""

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    folder = tmp_path / "nets"
    folder.mkdir()
    (folder / "net.py").write_text(MODEL)
    (folder / "half.py").write_text(HALF)
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
    (folder / "net.py").write_text(WITH_READER)
    monkeypatch.chdir(folder)
    return folder


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_a_revision_and_the_working_copy(repository: Path) -> None:
    found = run("diff", "HEAD:net.py:make", "net.py:make")
    assert found.exit_code == 1, found.output
    assert "kernels            1 -> 2" in found.output
    assert "+ +" in found.output and "inference/g1_mm: mm" in found.output
    assert "compute-bound-anchor" in found.output
    assert "(net.py:13)" in found.output  # the line of `h @ h.t()`


@pytest.mark.slow
def test_a_revision_and_itself(repository: Path) -> None:
    found = run("diff", "HEAD:net.py:make", "HEAD:net.py:make")
    assert found.exit_code == 0, found.output
    assert "no difference" in found.output


def test_plan_files_and_json(repository: Path, tmp_path: Path) -> None:
    files = []
    for search in ("eager", "best"):
        files.append(str(tmp_path / f"{search}.json"))
        made = run("plan", "net.py:make", "--search", search, "--out", files[-1])
        assert made.exit_code == 0, made.output
    found = run("diff", *files, "--json")
    assert found.exit_code == 1
    document = json.loads(found.output)
    assert document["before"]["kernels"] > document["after"]["kernels"]
    assert any("gone: " in r for c in document["changes"] for r in c["reasons"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:net.py:make", "git knows no revision 'nowhere'"),
        pytest.param(
            "HEAD:other.py:make", "the model's file does not exist", marks=pytest.mark.slow
        ),
        ("net.json", "the plan cannot be read"),
        ("net", "names no model"),
    ],
)
def test_wrong_names(repository: Path, name: str, words: str) -> None:
    found = run("diff", name, "net.py:make")
    assert found.exit_code == 2, found.output
    assert words in found.output
