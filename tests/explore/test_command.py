"""What `onetrip explore` is given, and what becomes of it on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onetrip.base.errors import UsageError
from onetrip.cli.explore import command

BUDGET = """format = 1
numerics = "fast"

[target.a100]
kernels = 2
"""


def exported(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What the page that the command writes holds."""
    path = tmp_path / "page.html"
    run = CliRunner().invoke(command, [*arguments, "--export", str(path)], catch_exceptions=False)
    assert run.exit_code == 0
    found = re.search(r'id="exported">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data["states"][data["shown"]]


def test_a_budget_says_how_the_model_is_planned_and_for_which_target(tmp_path: Path) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(BUDGET)
    shown = exported(tmp_path, "demo", "--budget", str(path))
    assert shown["graph"]["target"] == "a100"
    assert shown["state"]["budget"] == {"kernels": {"found": 2, "limit": 2, "noun": "kernels"}}
    assert exported(tmp_path, "demo", "--budget", str(path), "--target", "h100")["state"][
        "budget"
    ] == {}  # fmt: skip


@pytest.mark.parametrize("flags", [("--numerics", "eager"), ("--training",)])
def test_another_way_to_plan_than_the_budgets_is_refused(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(BUDGET)
    with pytest.raises(UsageError, match="stands in the budget"):
        exported(tmp_path, "demo", "--budget", str(path), *flags)


def test_a_demo_begins_with_its_own_target(tmp_path: Path) -> None:
    shown = exported(tmp_path, "pressure")
    assert (shown["graph"]["target"], shown["state"]["budget"]) == ("few-registers", None)
    assert exported(tmp_path, "pressure", "--target", "h100")["graph"]["target"] == "h100"
