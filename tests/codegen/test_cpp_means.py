"""Means that the second pass over a row corrects: exact where all numbers are equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from onetrip.runtime.accuracy import judge, wide

Program = Callable[[Tensor], Tensor]


def standardized(x: Tensor, dim: int) -> Tensor:
    """Statistics over one axis, as a program spells them."""
    centred = x - x.mean(dim, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(dim, keepdim=True) + 1e-5)


FAMILIES: dict[str, tuple[Program, tuple[int, ...]]] = {
    "row": (lambda x: functional.layer_norm(x, x.shape[-1:]), (24, 63)),
    "rows of a long axis": (lambda x: functional.layer_norm(x, x.shape[-1:]), (2, 150_001)),
    "column": (lambda x: standardized(x, 1), (70, 61, 40)),
    "few columns": (lambda x: standardized(x, 0), (30_011, 3)),
    "both norms in one row": (
        lambda x: functional.layer_norm(torch.sin(functional.layer_norm(x, (63,))) + x, (63,)),
        (24, 63),
    ),
    "groups": (lambda x: functional.group_norm(x, 4), (2, 12, 7, 9)),
}


def compiled(program: Program, x: Tensor) -> Tensor:
    torch._dynamo.reset()
    made: Tensor = torch.compile(program, backend="onetrip", dynamic=False)(x)
    return made


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_numbers_are_at_no_distance_from_their_mean(name: str) -> None:
    program, shape = FAMILIES[name]
    constants = torch.tensor([0.1, 3.7, -1000.3])
    for c in constants:
        found = compiled(program, c.expand(shape).contiguous())
        assert not found.any(), f"{found.abs().max():.2e} of {c}"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("spread", [1e-4, 1.0])
def test_numbers_far_from_0_keep_their_distances(name: str, spread: float) -> None:
    program, shape = FAMILIES[name]
    x = 100 + spread * torch.randn(shape, generator=torch.Generator().manual_seed(3))
    verdict = judge((compiled(program, x),), (program(x),), (program(wide(x)),))
    assert verdict.ok, verdict.note


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_eager_s(value: float) -> None:
    x = torch.randn(24, 63, generator=torch.Generator().manual_seed(3))
    x[5, 7] = value
    program, _ = FAMILIES["row"]
    assert torch.equal(compiled(program, x).isnan(), program(x).isnan())
    right = x.mean(1)

    def both(x: Tensor) -> Tensor:
        mean = x.mean(1)
        return mean + 0 * (x - mean[:, None]).square().mean(1).clamp(0, 0).nan_to_num(0)

    found = compiled(both, x)
    assert torch.equal(found.isfinite(), right.isfinite())
    assert torch.equal(found[5].nan_to_num(1, 2, 3), right[5].nan_to_num(1, 2, 3))
