"""Products with an activation: what is found by device, and what has no fused call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onetrip.passes.library_epilogues import find

from .captured import found, graph_of

Program = Callable[..., Any]
TANH_GELU = partial(functional.gelu, approximate="tanh")


def products(program: Program, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(0)
    first, last = nn.Linear(8, 16).to(dtype), nn.Linear(16, 8).to(dtype)
    graph = graph_of(
        partial(program, first, last), torch.randn(2, 4, 8, dtype=dtype), device=device
    )
    return found(find, graph, device)


def ends(act: Callable[[Tensor], Tensor]) -> Program:
    return lambda first, last, x: last(act(first(x)))


@pytest.mark.parametrize(
    ("device", "act", "expected"),
    [
        ("cpu", functional.silu, "silu reassociates"),
        ("cpu", TANH_GELU, "gelu reassociates"),
        ("cpu", functional.gelu, "gelu finite-only"),
        ("cpu", functional.relu, "relu finite-only"),
        ("cuda", functional.relu, "relu reassociates"),
        ("cuda", TANH_GELU, "gelu reassociates"),
    ],
)
def test_found(device: str, act: Any, expected: str) -> None:
    made, declined = products(ends(act), device)
    assert [m.partition(":")[0] for m in made] == [expected] and not declined


@pytest.mark.parametrize(
    ("device", "dtype", "program", "reason"),
    [
        ("cuda", torch.bfloat16, ends(functional.gelu), "no gelu in its epilogue"),
        ("cuda", torch.float32, ends(TANH_GELU), "farther from the exact value"),
        ("cuda", torch.bfloat16,
         lambda first, last, x: last(functional.relu(x @ first.weight.t())), "has none"),
        ("cpu", torch.float64, ends(functional.silu), "no float64"),
        ("cpu", torch.bfloat16,
         lambda first, last, x: last(functional.silu(first(x)) * x.sum()), "need not be stored"),
    ],
)  # fmt: skip
def test_declined(device: str, dtype: torch.dtype, program: Program, reason: str) -> None:
    made, declined = products(program, device, dtype)
    assert not made and len(declined) == 1 and reason in declined[0], (made, declined)


@pytest.mark.parametrize(
    "program",
    [
        lambda first, last, x: (last(functional.silu(y := first(x))), y),
        lambda first, last, x: last(functional.silu(first(x).mT.mT.flip(-1))),
        lambda first, last, x: last(functional.silu(first(x) + 1)),
        lambda first, last, x: last(torch.addmm(first.bias, x[0], first.weight.t(), alpha=2)),
    ],
    ids=["read elsewhere", "turned around", "a number added", "scaled"],
)
def test_look_alikes(program: Program) -> None:
    assert products(program) == ([], [])
