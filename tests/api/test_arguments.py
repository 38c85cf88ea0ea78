"""A wrong argument is an error of its own where it is written, not at the first call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import onetrip
from onetrip.base.errors import UsageError

X = torch.ones(3)
EXPORTED = torch.export.export(torch.nn.ReLU(), (X,))
WRONG: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str, str]] = {
    "compile a text": (onetrip.compile, ("x",), {}, "model", "a module or a function"),
    "compile nothing": (onetrip.compile, (None,), {}, "model", "a module or a function"),
    "plan a text": (onetrip.plan, ("x",), {}, "model", "a module or a function"),
    "explain a text": (onetrip.explain, ("x",), {}, "model", "a module or a function"),
    "verify a text": (onetrip.verify, ("x",), {}, "model", "a module or a function"),
    "plan an exported program": (
        onetrip.plan, (EXPORTED, X), {}, "model", "a module or a function",
    ),
    "a number for args": (onetrip.plan, (torch.relu, 3), {}, "args", "one tensor"),
    "a dict for args": (onetrip.verify, (torch.relu, {"x": X}), {}, "args", "one tensor"),
    "a list for kwargs": (onetrip.plan, (torch.relu, X, [X]), {}, "kwargs", "a dict"),
    "training": (onetrip.plan, (torch.relu, X), {"training": "yes"}, "training", "True or False"),
    "shapes": (onetrip.plan, (torch.relu, X), {"dynamic_shapes": 7}, "dynamic_shapes", "a dict"),
    "dynamic": (onetrip.compile, (torch.relu,), {"dynamic": "x"}, "dynamic", "True, False or None"),
    "fullgraph": (onetrip.compile, (torch.relu,), {"fullgraph": 1}, "fullgraph", "True or False"),
    "an empty mode": (onetrip.compile, (torch.relu,), {"mode": ""}, "mode", "max-autotune"),
    "a target's number": (onetrip.plan, (torch.relu, X), {"target": 90}, "target", "h200"),
    "a target to compile for": (onetrip.compile, (torch.relu,), {"target": "nope"}, "nope", "h200"),
    "a target to verify": (onetrip.verify, (torch.relu, X), {"target": "nope"}, "nope", "h200"),
    "a file to load": (onetrip.load_plan, (None,), {}, "path", "the path of a file"),
    "a barrier": (onetrip.barrier, (3,), {}, "barrier", "a tensor"),
    "a fuse": (onetrip.fuse, (), {"strict": 3}, "strict", "True or False"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_it_says_what_was_expected_what_was_found_and_what_to_do(case: str) -> None:
    call, args, kwargs, name, expected = WRONG[case]
    with pytest.raises(UsageError, match=name) as caught:
        call(*args, **kwargs)
    error = caught.value
    assert expected in str(error.expected)
    assert error.found
    assert error.next_step


def test_of_an_exported_program_its_module_is_asked_for() -> None:
    with pytest.raises(UsageError) as caught:
        onetrip.plan(EXPORTED, X)  # type: ignore[arg-type]
    assert ".module()" in caught.value.next_step
    assert onetrip.plan(EXPORTED.module(), X).kernels == 1


def test_a_folder_that_cannot_be_written_is_named_before_anything_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="generated text cannot be written") as caught:
        onetrip.compile(torch.relu, dump_dir=tmp_path / "file" / "texts")
    assert str(tmp_path / "file") in str(caught.value)
    onetrip.compile(torch.relu, dump_dir=tmp_path / "made" / "texts")
    assert list((tmp_path / "made" / "texts").iterdir()) == []


def test_inside_a_trace_wrong_markers_are_the_same_error() -> None:
    def stored(x: Tensor) -> Tensor:
        return onetrip.barrier((x, x)) + 1  # type: ignore[arg-type]

    def fused(x: Tensor) -> Tensor:
        with onetrip.fuse(strict=1):  # type: ignore[arg-type]
            return x + 1

    for function in (stored, fused):
        torch._dynamo.reset()
        with pytest.raises(UsageError):
            onetrip.compile(function)(X)
