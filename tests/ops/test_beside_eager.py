"""Operators compiled for the CPU beside eager, where samples of random numbers show nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="onetrip", dynamic=False, options={"strict": True})


def every(dtype: torch.dtype) -> Tensor:
    """All values of a 16-bit dtype."""
    return torch.arange(1 << 16).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_sinc_rounds_once(dtype: torch.dtype) -> None:
    """Eager's kernel multiplies by pi, takes the sine and divides in float32."""
    x = every(dtype)
    found, eager = compiled(torch.sinc)(x), torch.sinc(x)
    assert torch.equal(found.nan_to_num(), eager.nan_to_num())
    assert torch.equal(found.isnan(), eager.isnan())


@pytest.mark.parametrize("fn", [torch.fmax, torch.fmin])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_of_two_zeros_fmax_and_fmin_choose_as_eager(
    fn: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    a = torch.tensor([0.0, -0.0, 0.0, -0.0] * 16, dtype=dtype)
    b = torch.tensor([-0.0, 0.0, 0.0, -0.0] * 16, dtype=dtype)
    assert torch.equal(compiled(fn)(a, b).signbit(), fn(a, b).signbit())


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_divisors_and_multiples_that_leave_the_range(dtype: torch.dtype) -> None:
    """Narrow integers are multiplied in 32 bits, and their sign is lost before the rest is."""
    limits = torch.iinfo(dtype)
    edges = [0, 1, 2, 3, 12, 96, 100, limits.max, limits.max - 1, limits.max // 2]
    signs = edges + [-x for x in edges if limits.min < 0]
    a, b = (
        t.flatten() for t in torch.meshgrid([torch.tensor(signs, dtype=dtype)] * 2, indexing="ij")
    )
    for fn in (torch.gcd, torch.lcm):
        assert torch.equal(compiled(fn)(a, b), fn(a, b))


def powers(dtype: torch.dtype) -> Tensor:
    """Every power of two of a dtype and its neighbours, both signs, and what has no exponent."""
    limits = torch.finfo(dtype)
    steps = range(-1080 if dtype is torch.float64 else -155, 1024)
    x = torch.tensor([2.0**n for n in steps], dtype=torch.float64).to(dtype)
    x = torch.cat([x, x * (1 - limits.eps), x * (1 + limits.eps)])
    return torch.cat([x, -x, torch.tensor([limits.max, float("nan")], dtype=dtype)])


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_mantissas_and_exponents_of_all_magnitudes(dtype: torch.dtype) -> None:
    """Subnormal numbers have those of their value; zero, NaN and infinity stay what they are."""
    x = every(dtype) if dtype in HALVES else powers(dtype)
    found, eager = compiled(torch.frexp)(x), torch.frexp(x)
    assert torch.equal(found[1], eager[1])
    assert torch.equal(found[0].nan_to_num(7.0), eager[0].nan_to_num(7.0))
    assert torch.equal(found[0].isnan(), eager[0].isnan())
    assert torch.equal(found[0].signbit()[x == 0], x.signbit()[x == 0])


def heads(*shape: int, between: bool = False) -> Tensor:
    """Queries, keys or values; `between` other rows, as a projection leaves them."""
    x = torch.randn(shape)
    return x.transpose(1, 2).contiguous().transpose(1, 2) if between else x


ATTENTIONS = {
    "three axes": ((4, 3, 8), (4, 6, 8), (4, 6, 8), {"is_causal": True}),
    "library's fast kernel": ((2, 4, 3, 8), (2, 4, 6, 8), (2, 4, 6, 8), {}),
    "grouped": ((2, 4, 3, 8), (2, 2, 6, 8), (2, 2, 6, 8), {"enable_gqa": True}),
    "narrow values": ((2, 4, 3, 8), (2, 4, 6, 8), (2, 4, 6, 5), {}),
    "one key for all": ((2, 4, 3, 8), (1, 1, 6, 8), (2, 4, 6, 8), {}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients_of_attention_lie_as_eagers(name: str) -> None:
    """How the library lays them depends on the kernel that it takes."""
    *shapes, flags = ATTENTIONS[name]
    attend = partial(torch.nn.functional.scaled_dot_product_attention, **flags)
    given = [heads(*s, between=len(s) == 4 and k == 0) for k, s in enumerate(shapes)]
    strides = []
    for run in (attend, compiled(lambda q, k, v: attend(q, k, v))):
        leaves = [t.detach().requires_grad_() for t in given]
        y = run(*leaves)
        found = torch.autograd.grad(y, leaves, torch.ones(y.shape))
        strides.append([t.stride() for t in found])
    assert strides[0] == strides[1]


def test_sums_of_a_constant_over_different_axes_keep_their_counts() -> None:
    """A constant has no index by which axes could be told apart."""

    def sums(x: Tensor) -> Tensor:
        twos = torch.full_like(x, 2.0)
        return torch.cat([twos.sum(1).reshape(-1), twos.sum(0).reshape(-1), twos.sum((1, 2))])

    x = torch.randn(10, 7, 5)
    assert torch.equal(compiled(sums)(x), sums(x))


@pytest.mark.parametrize("whole", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_was_an_integer_is_no_negative_zero(dtype: torch.dtype, whole: torch.dtype) -> None:
    """Compilers make one rounding of a conversion there and back, which keeps -0.0 and NaN."""
    x = torch.tensor([-0.3, 0.4, -7.9, torch.inf, torch.nan, -1e30, -0.0] * 6, dtype=dtype)

    def there_and_back(x: Tensor) -> Tensor:
        return x.to(whole).to(torch.float32)

    found, eager = compiled(there_and_back)(x), there_and_back(x)
    assert torch.equal(found, eager)
    assert torch.equal(found.signbit(), eager.signbit())


def test_a_repetition_and_a_concatenation_of_one_tensor_keep_their_axes() -> None:
    """Both have 16 elements and read a, one of them a twice."""

    def both(a: Tensor, b: Tensor) -> Tensor:
        repeated = a.repeat(2)
        return torch.stack([repeated, torch.cat([a, b])]).view(-1) + repeated[:12].sum()

    a, b = torch.arange(8.0), torch.arange(8.0) + 100
    assert torch.equal(compiled(both)(a, b), both(a, b))

    def apart(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.repeat(2), torch.cat([a, b])

    for found, eager in zip(compiled(apart)(a, b), apart(a, b), strict=True):
        assert torch.equal(found, eager)


@pytest.mark.parametrize("size", [1, 7, 8, 24, 33])
def test_the_largest_and_the_least_of_conditions(size: int) -> None:
    def extremes(x: Tensor) -> Tensor:
        return torch.stack([x.amax(1), x.amin(1)])

    x = torch.stack([torch.arange(size) == k for k in range(size + 1)])
    found = compiled(extremes)(torch.cat([x, ~x]))
    assert torch.equal(found, extremes(torch.cat([x, ~x])))
