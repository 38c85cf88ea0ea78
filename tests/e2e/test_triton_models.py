"""The Triton of eight families: right in the interpreter, assembled for four chips, no spills.

A slice of each: benchmarks/zoo.py --triton runs every family in both dtypes and modes.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from zoo_triton import assembled, check

from onetrip.target import load

F32, BF16 = torch.float32, torch.bfloat16
RUNS = (
    ("bert", F32, True),
    ("gpt2", BF16, False),
    ("llama", F32, True),
    ("vit", BF16, False),
    ("resnet", BF16, False),
    ("convnext", F32, False),
    ("t5", BF16, False),
    ("mamba", F32, False),
)
ASSEMBLED = (("bert", "a100"), ("llama", "h100"), ("convnext", "b200"), ("resnet", "mi300x"))


@pytest.mark.parametrize(("name", "dtype", "training"), RUNS)
def test_right_in_the_interpreter(name: str, dtype: torch.dtype, training: bool) -> None:
    _, found = check(name, dtype, training)
    assert found.by_name and not found.wrong, found.wrong


@pytest.mark.parametrize(("name", "chip"), ASSEMBLED)
def test_assembles_without_spills(name: str, chip: str) -> None:
    made = assembled(name, BF16, True, chip)
    assert made.kernels > 3
    assert [s for s in made.spills if not s.expected] == []
    assert 0 < made.most_registers <= load(chip).registers_per_thread
