"""Why a call of a captured program stays with the library: each nature has a reason of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import onetrip

_LIBRARY = torch.library.Library("onetrip_tests", "DEF")
_LIBRARY.define("double_(Tensor(a!) x) -> ()")
_LIBRARY.impl("double_", lambda x: x.mul_(2) and None, "CompositeExplicitAutograd")
torch.library.register_fake("onetrip_tests::double_", lambda x: None, lib=_LIBRARY)


def drawn(x: Tensor) -> Tensor:
    return torch.multinomial(x.exp(), 2) + 1


def complex_numbers(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.fft(x.exp())).abs()


def written(x: Tensor) -> Tensor:
    y = x.exp()
    torch.ops.onetrip_tests.double_(y)
    return y + 1


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        (drawn, "rng", "random stream"),
        (complex_numbers, "dtype", "dtype"),
        (written, "mutation", "writes into its operands"),
    ],
)
def test_the_nature_of_a_call_is_its_reason(function: object, code: str, words: str) -> None:
    made = onetrip.plan(function, torch.rand(8, 8))  # type: ignore[arg-type]
    found = [b for b in made.boundaries if b.code == code]
    assert found, [(b.code, b.reason) for b in made.boundaries]
    assert all(b.verdict == "extern" and words in b.reason and b.remedy for b in found)
