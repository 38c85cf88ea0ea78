"""Special functions compiled for the CPU, against the integrals and sums that define them.

Eager's own f64 functions are off by thousands of units in the last place here, so the references
of the table, evaluated in f64 by quadrature, are the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from onetrip.ops import series
from onetrip.ops.bessel import OPS
from onetrip.ops.polynomials import OPS as POLYNOMIALS

SPECIAL = torch.tensor(
    [
        0.0,
        -0.0,
        1,
        -1,
        2,
        -2,
        8,
        -8,
        700,
        1e5,
        1e-30,
        math.inf,
        -math.inf,
        math.nan,
        0.5,
        1e30,
        -1e30,
        103.8,
        103.9,
    ]
)
RANGES = {"special_ndtri": (1e-12, 1 - 1e-6), "special_erfcx": (-5.0, 6.0),
          "special_log_ndtr": (-8.0, 4.0), "special_bessel_j0": (-30.0, 30.0),
          "special_bessel_j1": (-30.0, 30.0), "special_airy_ai": (-30.0, 12.0)}  # fmt: skip
POSITIVE = (0.05, 30.0)
ABSOLUTE = ("j0", "j1", "y0", "y1", "ndtri", "airy_ai")
"""What has zeros is held to its size elsewhere, not to what is left of it near one."""


def named(name: str) -> Callable[..., Tensor]:
    found: Callable[..., Tensor] = getattr(torch.special, name.removeprefix("special_"))
    return found


def compiled(fns: Sequence[Callable[..., Tensor]], *operands: Sequence[Tensor]) -> list[Tensor]:
    """Each function of its operands, all in one program."""
    torch._dynamo.reset()
    run = torch.compile(
        lambda xs: [f(*x) for f, x in zip(fns, xs, strict=True)],
        backend="onetrip", dynamic=False, options={"strict": True, "search": "eager"},
    )  # fmt: skip
    found: list[Tensor] = run(operands)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_are_their_integrals(dtype: torch.dtype) -> None:
    ranges = [RANGES.get(op.name, POSITIVE) for op in OPS]
    xs = [torch.linspace(low, high, 101, dtype=dtype) for low, high in ranges]
    found = compiled([named(op.name) for op in OPS], *((x,) for x in xs))
    for op, x, y in zip(OPS, xs, found, strict=True):
        want = op.reference(x.double().numpy(), {})
        size = np.maximum(1, np.abs(want)) if op.name.endswith(ABSOLUTE) else np.abs(want)
        allowed = 2e-12 * size + 1e-14
        if dtype is torch.float32:
            allowed += 0.51 * np.spacing(np.abs(want).astype(np.float32))
        assert (np.abs(y.double().numpy() - want) <= allowed).all(), op.name


def same_places(found: Tensor, eager: Tensor, name: str) -> None:
    """NaN, infinities and signs of zero."""
    assert torch.equal(found.isnan(), eager.isnan()), name
    assert torch.equal(found[eager.isinf()], eager[eager.isinf()]), name
    zeros = (eager == 0) & (found == 0)
    assert torch.equal(found.signbit()[zeros], eager.signbit()[zeros]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_poles_infinities_and_zeros_are_eagers(dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    found = compiled([named(op.name) for op in OPS], *((x,) for _ in OPS))
    for op, y in zip(OPS, found, strict=True):
        same_places(y, named(op.name)(x), op.name)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.bool])
def test_integers_have_the_poles_of_numbers(dtype: torch.dtype) -> None:
    """Where a step leaves the operand's range, that of integers is float32's."""
    x = torch.tensor([0, 1, 2, 1, 0]).to(dtype)
    found = compiled([named(op.name) for op in OPS], *((x,) for _ in OPS))
    for op, y in zip(OPS, found, strict=True):
        same_places(y, named(op.name)(x), op.name)


def test_large_integers_are_rounded_to_float32_first() -> None:
    """A phase of some millions is another one after the rounding."""
    x = torch.tensor([(1 << 24) + 1, 123456789, 987654321, 12345])
    fns, given = (torch.special.bessel_j0, torch.special.zeta), ((x,), (x // x + 1, x))
    for fn, y, own in zip(fns, compiled(fns, *given), given, strict=True):
        want = fn(*(t.float().double() for t in own))
        assert ((y - want).abs() <= 1e-6 * want.abs()).all()


def test_airys_function_decays_as_it_should() -> None:
    """What is left of it far out, where its size no longer shows an error."""
    x = torch.linspace(1.0, 40.0, 118, dtype=torch.float64)
    (found,) = compiled([torch.special.airy_ai], (x,))
    (op,) = (op for op in OPS if op.name == "special_airy_ai")
    want = torch.from_numpy(op.reference(x.numpy(), {}))
    assert ((found - want).abs() <= 1e-12 * want).all()


def terms(name: str) -> tuple[float, ...]:
    found: tuple[float, ...] = getattr(series, name)
    return found


@pytest.mark.parametrize("name", [n for n in vars(series) if n.isupper()])
def test_a_series_ends_where_its_terms_no_longer_count(name: str) -> None:
    largest = max(map(abs, terms(name)))
    assert abs(terms(name)[-1]) < 1e-14 * largest
    assert abs(terms(name)[-3]) > 1e-18 * largest


DEGREES = torch.tensor([0.0, 1, 2, 3, 4, 6, 7, 9, 12, 40, -1, 2.7, -0.5])
PLACES = torch.tensor([0.0, 1, -1, 0.3, -0.7, 0.99, 1.5, -2, 1.00001, math.inf, -math.inf, 0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_polynomials_of_every_degree_are_eagers(dtype: torch.dtype) -> None:
    x, n = (
        t.contiguous() for t in torch.meshgrid(PLACES.to(dtype), DEGREES.to(dtype), indexing="ij")
    )
    found = compiled([named(op.name) for op in POLYNOMIALS], *((x, n) for _ in POLYNOMIALS))
    rtol, atol = (2e-4, 1e-4) if dtype is torch.float32 else (1e-12, 1e-12)
    for op, y in zip(POLYNOMIALS, found, strict=True):
        eager = named(op.name)(x, n)
        same_places(y, eager, op.name)
        near = eager.isfinite()
        torch.testing.assert_close(y[near], eager[near], rtol=rtol, atol=atol)


def test_zeta_of_places_below_zero_is_eagers() -> None:
    """Eager adds terms up from there; ours are two sums from above zero."""
    orders = torch.tensor([2.0, 3, 4, 7, 2.5, 0.5, 1, 30, math.inf, math.nan]).double()
    places = torch.tensor([-0.5, -3.25, -7.75, -2, 0, 0.25, 3, 1e5, -math.inf, math.inf, math.nan])
    x, q = (t.contiguous() for t in torch.meshgrid(orders, places.double(), indexing="ij"))
    eager, (found,) = torch.special.zeta(x, q), compiled([torch.special.zeta], (x, q))
    same_places(found, eager, "zeta")
    near = eager.isfinite()
    torch.testing.assert_close(found[near], eager[near], rtol=1e-12, atol=1e-14)
