"""The real assembler behind a plan: asked near a limit only, kept, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from torch import Tensor

pytest.importorskip("triton")

import onetrip
from onetrip.api import resources
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import schedule_groups
from onetrip.api.plans import analyze_model
from onetrip.base.errors import ToolchainError
from onetrip.base.options import Options
from onetrip.plan.plan import GraphPlan
from onetrip.plan.search import Search
from onetrip.runtime import triton_assemble
from onetrip.target import Target, load

H200 = load("h200")
FEW = replace(
    H200, name="few-registers", registers_per_thread=32, spill_bandwidth=H200.copy_bandwidth
)
"""A chip without a cache behind its registers: what is spilled goes to memory."""
ROWS, WIDTH, INNER = 4096, 16384, 1024


def block(x: Tensor, w: Tensor, b: Tensor, r: Tensor, g: Tensor, h: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x @ w + b) + r, (WIDTH,), g, h)


def inputs() -> tuple[Tensor, ...]:
    shapes = ((ROWS, INNER), (INNER, WIDTH), (WIDTH,), (ROWS, WIDTH), (WIDTH,), (WIDTH,))
    return tuple(torch.empty(s, device="meta") for s in shapes)


def planned(target: Target, cache: Path, search: Search = "best", **more: Any) -> GraphPlan:
    options = Options(search=search, cache_dir=str(cache))  # type: ignore[arg-type]
    (found,) = analyze_model(block, inputs(), None, target, options, training=False, **more)
    return found.plan


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assembled")


def test_within_few_registers_max_spills_for_real_and_best_cuts(cache: Path) -> None:
    most, best = planned(FEW, cache, "max"), planned(FEW, cache)
    (whole,) = [g for g in most.groups if g.generated]
    assert whole.source == "assembled" and whole.registers == 32
    assert whole.spill_bytes is not None and whole.spill_bytes > 100
    assert best.traffic_bytes < most.traffic_bytes
    assert best.estimated_us < most.estimated_us
    pressed = [b for b in best.boundaries if b.code == "pressure-registers"]
    assert pressed and all(b.if_fused and b.if_fused.spill_bytes for b in pressed)
    assert "assembled" in {g.source for g in best.groups}


def test_who_is_far_from_every_limit_is_not_asked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(resources, "assembled", refuse)
    made = onetrip.plan(lambda x: torch.relu(x) * 2, torch.empty(4096, 4096, device="meta"))
    assert {g.source for g in made.groups} == {"estimated"}


def test_a_tool_that_fails_leaves_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ToolchainError("no assembler")

    monkeypatch.setattr(triton_assemble, "_assembled", fail)
    plan = planned(FEW, tmp_path, "max")
    assert {g.source for g in plan.groups if g.generated} == {"estimated"}


def test_without_triton_the_estimate_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onetrip.runtime.triton_assemble", None)
    plan = planned(FEW, tmp_path, "max")
    assert {g.source for g in plan.groups if g.generated} == {"estimated"}


def test_a_chip_whose_compiler_cannot_be_held_to_fewer_registers_is_estimated(
    tmp_path: Path,
) -> None:
    few = replace(load("mi300x"), name="few", registers_per_thread=32)
    plan = planned(few, tmp_path, "max")
    assert {g.source for g in plan.groups if g.generated} == {"estimated"}


def test_symbolic_sizes_are_estimated(cache: Path) -> None:
    plan = planned(FEW, cache, "max", dynamic=True)
    assert any(g.generated for g in plan.groups)
    assert {g.source for g in plan.groups if g.generated} == {"estimated"}


@pytest.mark.parametrize("target", ["h200", "mi300x"])
def test_explain_shows_what_the_assembler_says(target: str) -> None:
    x = torch.empty(512, 1024, device="meta")
    shown = onetrip.explain(lambda x: torch.softmax(x * 2, -1), x, target=target)
    (group,) = shown.plan.groups
    assert group.source == "assembled" and group.registers and group.spill_bytes == 0
    assert f"~{group.registers}" not in str(shown.plan)
    assert '"source":"assembled"' in shown.plan.json().replace(" ", "")
    estimated = onetrip.plan(lambda x: torch.softmax(x * 2, -1), x, target=target)
    assert f"~{estimated.groups[0].registers}" in str(estimated)


CHILD = """
import torch, onetrip
from tests_child import block, inputs
print(onetrip.plan(block, inputs(), target="h200").text(all_boundaries=True))
print(onetrip.explain(block, inputs(), target="h200"))
"""
BLOCK = """
import torch, torch.nn.functional as F
def block(x, w, b, r, g, h):
    return F.layer_norm(F.gelu(x @ w + b) + torch.cos(r), (1024,), g, h)
def inputs():
    shapes = ((512, 256), (256, 1024), (1024,), (512, 1024), (1024,), (1024,))
    return tuple(torch.empty(s, device="meta") for s in shapes)
"""


def test_a_second_process_with_a_warm_cache_explains_the_same(tmp_path: Path) -> None:
    (tmp_path / "tests_child.py").write_text(BLOCK)
    environment = {**os.environ, "ONETRIP_CACHE_DIR": str(tmp_path / "cache")}
    texts = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        texts.append(run.stdout)
    assert texts[0] == texts[1]
    assert "compute-bound" in texts[0] or "FLOP a byte" in texts[0]


def test_long_rows_of_random_numbers_are_held_to_what_lets_two_programs_run(cache: Path) -> None:
    """14,336 elements in 8 warps: a little more than half of the register file, when free."""

    def dropped(x: Tensor, b: Tensor, g: Tensor, h: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x + b, 0.1), (14336,), g, h)

    args = tuple(torch.empty(s, device="meta") for s in ((4096, 14336), *((14336,),) * 3))
    options = Options(cache_dir=str(cache))
    (found,) = analyze_model(dropped, args, None, H200, options, training=False)
    (group,) = [g for g in found.plan.groups if g.generated]
    kernels = schedule_groups(found.plan, H200, interpreted(), options)[group.name]
    (made,) = resources.assembled([kernels], H200, options)
    assert made is not None
    assert (made.registers, made.spill_bytes) == (128, 0)
