"""`onetrip check` and `assert_fused`: a realistic change of a model, told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from onetrip.base.errors import UsageError
from onetrip.cli import main
from onetrip.testing import assert_fused

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x, r):
        h = nn.functional.gelu(self.up(x)) + r
        y = self.norm(h)
        return y

def make():
    return Block().eval(), (torch.randn(128, 32), torch.randn(128, 64))
"""
WITH_READER = MODEL.replace("return y\n", "return y, h @ h.t()\n")


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    found = run("check", "net.py:make", "--budget", "b.toml", "--write", "--target", "h200")
    assert found.exit_code == 0, found.output
    return path


def test_a_new_reader_of_a_fused_value_breaks_the_budget(model: Path) -> None:
    kept = run("check", "net.py:make", "--budget", "b.toml")
    assert (kept.exit_code, kept.output.splitlines()[0]) == (0, "h200: within budget")
    model.write_text(WITH_READER)
    found = run("check", "net.py:make", "--budget", "b.toml", "--format", "github")
    assert found.exit_code == 1
    line = 1 + WITH_READER.splitlines().index("        return y, h @ h.t()")
    assert f"::error file=net.py,line={line},title=onetrip h200 kernels" in found.output
    assert "compute-bound-anchor" in found.output


def test_a_reader_within_a_kernel_that_stays_whole_is_named(model: Path) -> None:
    """The sum shares the kernel of what it reads: no boundary is new, bytes and peak are more."""
    model.write_text(MODEL.replace("        return y", "        return y, h.sum(0)"))
    found = run("check", "net.py:make", "--budget", "b.toml", "--format", "github")
    assert found.exit_code == 1
    line = 1 + next(k for k, t in enumerate(model.read_text().splitlines()) if "h.sum(0)" in t)
    assert f"::error file=net.py,line={line},title=onetrip h200 traffic_bytes" in found.output


def test_a_file_keeps_how_its_plans_are_made(model: Path) -> None:
    again = run("check", "net.py:make", "--budget", "b.toml", "--write", "--search", "max")
    assert again.exit_code == 0
    added = run("check", "net.py:make", "--budget", "b.toml", "--write", "--target", "a100")
    assert added.exit_code == 0 and 'search = "max"' in Path("b.toml").read_text()
    other = run("check", "net.py:make", "--budget", "b.toml", "--write", "--target", "b200",
                "--numerics", "fast")  # fmt: skip
    assert other.exit_code == 2 and "one way to plan for all" in other.output
    assert "b200" not in Path("b.toml").read_text()


def test_targets(model: Path) -> None:
    assert (
        run("check", "net.py:make", "--budget", "b.toml", "--write", "--target", "cpu:4").exit_code
        == 0
    )
    both = run("check", "net.py:make", "--budget", "b.toml")
    assert both.exit_code == 0
    assert "h200: within budget" in both.output and "cpu:4: within budget" in both.output
    one = run("check", "net.py:make", "--budget", "b.toml", "--target", "a100")
    assert one.exit_code == 2
    assert "one of h200, cpu:4" in one.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "none.toml"), "the budget cannot be read"),
        (("--budget", "b.toml", "--search", "max"), "stands in the budget"),
        (("--budget", "no/b.toml", "--write"), "cannot be written"),
    ],
)
def test_wrong_use(model: Path, args: tuple[str, ...], words: str) -> None:
    found = run("check", "net.py:make", *args)
    assert found.exit_code == 2, found.output
    assert words in found.output


def test_an_unknown_target_is_told_with_the_budgets_line(model: Path) -> None:
    Path("b.toml").write_text("format = 1\n\n[target.h300]\nkernels = 1\n")
    for command in ("check", "explore"):
        found = run(command, "net.py:make", "--budget", "b.toml")
        assert found.exit_code == 2
        assert "unknown target 'h300'" in found.output
        assert "where: [target.h300] in b.toml" in found.output


def test_a_factory_that_is_missing_is_not_called_none(model: Path) -> None:
    found = run("check", "net.py:made", "--budget", "b.toml")
    assert found.exit_code == 2
    assert "no function 'made'" in found.output and "nothing of that name" in found.output
    model.write_text(MODEL + "\nmade = 3\n")
    assert "found: 3" in run("check", "net.py:made", "--budget", "b.toml").output


RAISING = {
    "the model raises": ("h = nn.functional.gelu", "raise ValueError('seven')", "seven"),
    "shapes do not fit": ("nn.Linear(32, 64)", "nn.Linear(33, 64)", "33"),
    "the factory raises": ("return Block().eval()", "raise ValueError('eight')", "eight"),
    "the file raises": ("from torch import nn", "raise ValueError('nine')", "nine"),
    "the file is no Python": ("class Block", "class class", "SyntaxError"),
}


@pytest.mark.parametrize("fault", RAISING)
def test_a_model_that_cannot_be_planned_is_neither_within_nor_over_budget(
    model: Path, fault: str
) -> None:
    """Status 1 says that the budget is exceeded, and nothing else."""
    line, instead, words = RAISING[fault]
    (found,) = [text for text in MODEL.splitlines() if line in text]
    indent = found[: len(found) - len(found.lstrip())]
    whole = found.replace(line, instead) if "33" in instead else indent + instead
    model.write_text(MODEL.replace(found, whole))
    for command in (
        ("check", "net.py:make", "--budget", "b.toml"),
        ("diff", "net.py:make", "net.py:make"),
    ):
        told = run(*command)
        assert told.exit_code == 2, told.output
        assert words in told.output


def test_a_fault_of_ours_is_no_verdict(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetrip.report.budget.judge", lambda *_: 1 // 0)
    told = run("check", "net.py:make", "--budget", "b.toml")
    assert told.exit_code == 2
    assert "ZeroDivisionError" in told.stderr


# ------------------------------------------------------------------ assert_fused


class Block(nn.Module):
    def __init__(self, returned: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.returned = returned

    def forward(self, x: torch.Tensor) -> object:
        h = nn.functional.gelu(x + 1)
        y = self.norm(h)
        return (y, h @ h.t()) if self.returned else y


X = torch.empty(128, 64, device="meta")


def test_assert_fused_returns_the_plan() -> None:
    plan = assert_fused(Block(False), X, kernels=1, together=[("add", "gelu", "norm:layer_norm")])
    assert plan.kernels == 1


def test_assert_fused_names_boundary_and_line() -> None:
    with pytest.raises(AssertionError) as error:
        assert_fused(Block(True), X, kernels=1)
    text = str(error.value)
    assert "kernels: 2 kernels, 1 in the budget" in text
    assert "test_check.py:" in text and "compute-bound-anchor" in text


def test_assert_fused_finds_calls_apart() -> None:
    with pytest.raises(AssertionError, match=r"'gelu \+ mm'.* has become 2 kernels"):
        assert_fused(Block(True), X, together=[("gelu", "mm")])
    with pytest.raises(UsageError, match="no call is named 'conv'"):
        assert_fused(Block(True), X, together=[("gelu", "conv")])
