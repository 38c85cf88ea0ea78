"""Operators with an epilogue beside the steps that they stand for, in every form they may meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from onetrip.frontend import library_ops
from onetrip.runtime.accuracy import judge

NUMBERS = {"hardtanh": (0.0, 6.0), "leaky_relu": (0.1,)}
WINDOWS = ((1, 1), (2, 1), (1, 2))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FOLLOWS = set(library_ops._STEPS) - {"none", "relu", "hardtanh", "gelu"}
"""oneDNN's relu and hardtanh make numbers of NaN, and its gelu by erf makes NaN of infinity."""


def steps(y: Tensor, activation: str) -> Tensor:
    return library_ops._STEPS[activation](y.clone(), NUMBERS.get(activation, ()))


def forms() -> Iterator[tuple[int, int, int, int, int]]:
    """(batch, groups, kernel, stride, dilation)."""
    for batch, groups, kernel, window in itertools.product((1, 3), (1, 4), (1, 3), WINDOWS):
        yield batch, groups, kernel, *window


def draw(dtype: torch.dtype, channels_last: bool, groups: int, kernel: int, batch: int) -> Any:
    made = torch.Generator().manual_seed(groups + 10 * kernel)
    x = torch.randn(batch, 8, 7, 8, generator=made).to(dtype)
    w = (torch.randn(12, 8 // groups, kernel, kernel, generator=made) / 4).to(dtype)
    b = torch.randn(12, generator=made).to(dtype)
    return (x.to(memory_format=torch.channels_last) if channels_last else x), w, b


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_convolutions_are_laid_out_as_eagers(dtype: torch.dtype, channels_last: bool) -> None:
    for batch, groups, kernel, stride, dilation in forms():
        x, w, b = draw(dtype, channels_last, groups, kernel, batch)
        window = ((stride,) * 2, (kernel // 2,) * 2, (dilation,) * 2, groups)
        plain = functional.conv2d(x, w, b, *window)
        exact = functional.conv2d(x.double(), w.double(), b.double(), *window)
        for other in (None, torch.randn_like(plain)):
            ours = torch.ops.onetrip.convolution_epilogue(x, w, b, other, *window, "silu", ())
            eager = functional.silu(plain if other is None else plain + other)
            true = functional.silu(exact if other is None else exact + other.double())
            verdict = judge((ours,), (eager,), (true,))
            assert verdict.ok, (verdict, batch, groups, kernel, stride, dilation)
            assert ours.stride() == eager.stride()


@pytest.mark.parametrize("activation", library_ops._STEPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_activation(activation: str, dtype: torch.dtype) -> None:
    numbers = NUMBERS.get(activation, ())
    x, w, b = draw(dtype, True, 1, 3, 3)
    window = ((1, 1), (1, 1), (1, 1), 1)
    ours = torch.ops.onetrip.convolution_epilogue(x, w, b, None, *window, activation, numbers)
    eager = steps(functional.conv2d(x, w, b, padding=1), activation)
    exact = steps(functional.conv2d(x.double(), w.double(), b.double(), padding=1), activation)
    assert (verdict := judge((ours,), (eager,), (exact,))).ok, verdict
    rows, weight = x.flatten(1), (torch.randn(16, 8 * 7 * 8) / 21).to(dtype)
    for bias in (None, torch.randn(16).to(dtype)):
        ours = torch.ops.onetrip.linear_epilogue(rows, weight, bias, activation, numbers)
        eager = steps(functional.linear(rows, weight, bias), activation)
        wide = (None if bias is None else bias.double(),)
        exact = steps(functional.linear(rows.double(), weight.double(), *wide), activation)
        assert (verdict := judge((ours,), (eager,), (exact,))).ok, verdict
        assert ours.stride() == eager.stride()


@pytest.mark.parametrize("activation", sorted(FOLLOWS))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_eagers(activation: str, value: float) -> None:
    numbers = NUMBERS.get(activation, ())
    for dtype in (torch.float32, torch.bfloat16):
        x, w, b = draw(dtype, True, 1, 3, 3)
        x[0, 0, 3, 3] = value
        window = ((1, 1), (1, 1), (1, 1), 1)
        ours = torch.ops.onetrip.convolution_epilogue(x, w, b, None, *window, activation, numbers)
        eager = steps(functional.conv2d(x, w, b, padding=1), activation)
        assert torch.equal(ours.isnan(), eager.isnan())
        assert torch.equal(ours[eager.isinf()], eager[eager.isinf()])
        rows, weight = x.flatten(1), torch.randn(16, 8 * 7 * 8).to(dtype)
        ours = torch.ops.onetrip.linear_epilogue(rows, weight, None, activation, numbers)
        eager = steps(functional.linear(rows, weight), activation)
        assert torch.equal(ours.isnan(), eager.isnan())
        assert torch.equal(ours[eager.isinf()], eager[eager.isinf()])


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 5, 6, 7), (0, 4, 5, 6)])
def test_other_ranks_and_none_at_all(shape: tuple[int, ...]) -> None:
    rank = len(shape) - 2
    x, w = torch.randn(shape), torch.randn(6, 4, *(3,) * rank)
    ones = (1,) * rank
    ours = torch.ops.onetrip.convolution_epilogue(x, w, None, None, ones, ones, ones, 1, "tanh", ())
    eager = torch.convolution(x, w, None, ones, ones, ones, False, (0,) * rank, 1).tanh()
    assert ours.shape == eager.shape and ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager)


def test_without_the_library_the_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_ops, "_onednn_has", lambda name, dtype: False)
    x, w, b = draw(torch.float32, False, 1, 3, 1)
    window = ((1, 1), (1, 1), (1, 1), 1)
    ours = library_ops._convolution(x, w, b, None, *window, "relu", ())
    assert torch.equal(ours, functional.conv2d(x, w, b, padding=1).relu())
    ours = library_ops._linear(x.flatten(1), w.flatten(1)[:, :8].repeat(1, 56), b, "gelu", ())
    eager = functional.linear(x.flatten(1), w.flatten(1)[:, :8].repeat(1, 56), b)
    assert torch.equal(ours, functional.gelu(eager))


def test_fakes_have_the_form_of_what_is_computed() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for channels_last in (False, True):
        x, w, b = draw(torch.bfloat16, channels_last, 4, 3, 2)
        args = (x, w, b, None, (2, 2), (1, 1), (1, 1), 4, "none", ())
        real = torch.ops.onetrip.convolution_epilogue(*args)
        with FakeTensorMode() as mode:
            faked = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
            fake = torch.ops.onetrip.convolution_epilogue(*faked)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
