"""Single operators that PyTorch's own samples once showed to be wrong, slow or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks import check
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

NOTHING = torch.zeros(0, 5)
OF_NOTHING: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: F.softmax(x.new_zeros(3, 0), -1),
    "cross_entropy": lambda x: F.cross_entropy(x, x.new_zeros(0, dtype=torch.int64)),
    "folds": lambda x: (x.sum(), x.mean(0), x.mean(), x.prod(0), x.any(0), x.all()),
    "statistics": lambda x: (x.logsumexp(0), x.norm(), *torch.var_mean(x, 0)),
    "extremes": lambda x: (x.amax(1), x.argmax(1), *x.max(1)),
    "scan": lambda x: (x.cumsum(0), x.cummax(0)[0]),
}


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("case", OF_NOTHING)
def test_an_operand_without_elements(case: str) -> None:
    """Folds give their neutral element, and a call that gives no element asks nothing of sizes."""
    check(OF_NOTHING[case], NOTHING)


def test_the_sign_of_a_negative_constant_changes() -> None:
    """Bessel functions are polynomials with coefficients of both signs."""
    check(torch.special.i0, torch.linspace(-20, 20, 41))


@pytest.mark.parametrize("name", ["elu", "selu", "celu"])
def test_a_zero_keeps_its_sign(name: str) -> None:
    """Below zero they are expm1, bit for bit, and not exp less one."""
    x = torch.cat((torch.tensor([-0.0, 0.0]), -torch.logspace(-9, 1, 62)))
    found = check(getattr(F, name), x)(x)
    assert torch.equal(found, getattr(F, name)(x))
    assert found[0].signbit()
