"""Single operators that PyTorch's own samples once showed to be wrong, slow or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks import check, compiled
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from onetrip.api.backend import builds

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


def test_gelu_keeps_its_digits_where_it_nearly_vanishes() -> None:
    """1 + erf cancels below 0, where eager has none right: a share of normal numbers does not."""
    x = torch.cat((torch.linspace(-5, 5, 20001), torch.linspace(-0.01, 0.01, 2001)))

    def both(f: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        y = f(x)
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    found, slope = both(check(F.gelu, x), x)
    true, true_slope = both(F.gelu, x.detach().double())
    assert ((found - true).abs() / true.abs().clamp(1e-30)).max() < 16 * 2**-23
    assert (slope - true_slope).abs().max() < 3 * 2**-23


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_half_a_complex_number_leaves_the_rest_of_a_graph_compiled() -> None:
    x = torch.randn(5)
    narrow, doubled = compiled(lambda x: (x.to(torch.complex32), x * 2 + 1), strict=False)(x)
    assert torch.equal(torch.view_as_real(narrow), torch.view_as_real(x.to(torch.complex32)))
    assert torch.equal(doubled, x * 2 + 1)
    assert builds["compiled"] == 1
    assert not builds["eager"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.permute(1, 0), torch.permute_copy(x, (1, 0))),
        lambda x: torch.split_with_sizes_copy(x, (1, 3), 1),
        lambda x: torch.unbind_copy(x, 1),
        lambda x: torch.expand_copy(x[:, :1], (2, 3, 4)),
    ],
)
def test_a_copy_of_a_view_shares_no_memory(function: Callable[[Tensor], Any]) -> None:
    x = torch.randn(3, 4)
    made = check(function, x)(x)
    copies = made[1:] if isinstance(made, tuple) and len(made) == 2 else [made]
    flat = [t for c in copies for t in (c if isinstance(c, list | tuple) else (c,))]
    assert all(t.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() for t in flat)


def test_more_functions_of_the_library_are_kernels_of_ours() -> None:
    x = torch.linspace(2.1, 9, 40)
    check(lambda x: torch.mvlgamma(x, 3), x)
    check(torch.ldexp, x, torch.arange(40) - 20)
    check(torch.special.spherical_bessel_j0, torch.linspace(-3, 30, 67))


def test_no_elements_of_a_type_without_kernels() -> None:
    z = torch.zeros(0, 3, dtype=torch.complex64)
    found = compiled(lambda z: (z @ z.t(), z.t() @ z), strict=False)(z)
    assert all(map(torch.equal, found, (z @ z.t(), z.t() @ z)))


def test_one_of_several_results_has_a_name_of_its_own() -> None:
    """The second result of one call and the only one of another are both `median_1`."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return (*x.median(1), x.median(), *x.topk(2), x.topk(3).values)

    x = torch.randn(5, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.compile(f, backend="onetrip")(x)
    for mine, theirs in zip(found, f(x), strict=True):
        assert torch.equal(mine, theirs)
