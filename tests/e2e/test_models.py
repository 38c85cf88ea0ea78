"""Eight families of models on the CPU, and what surrounds a model's operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from checks import check, compiled
from torch import Tensor
from zoo import FAMILIES, build
from zoo_runs import LIBRARY, Compiled, library_calls, share
from zoo_runs import check as check_family

DTYPES = [torch.float32, torch.bfloat16]
DROPPING = ("bert", "gpt2", "llama", "vit", "t5")
"""Families whose configuration has a dropout probability."""


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str, dtype: torch.dtype, training: bool) -> None:
    """Outputs, caches, gradients and buffers; what stays with a library; what is generated."""
    ours, found = check_family(name, dtype, training)
    assert not found.wrong, found.wrong
    assert {str(n.attr["target"]) for n in library_calls(ours.analyzed)} <= LIBRARY
    assert share(ours.analyzed) >= 0.8


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_follows_the_seed(name: str) -> None:
    model, inputs = build(name, torch.float32, dropout=True)
    ours = Compiled(model.train())
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(ours(inputs, True).values)
    assert all(bool(t.isfinite().all()) for t in runs[0].values() if t.is_floating_point())
    assert all(torch.equal(t, runs[1][key]) for key, t in runs[0].items())
    assert not torch.equal(runs[0][".loss"], runs[2][".loss"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_last(dtype: torch.dtype) -> None:
    model, inputs = build("resnet", dtype)
    images = inputs["pixel_values"].to(memory_format=torch.channels_last)
    check(model.to(memory_format=torch.channels_last), images)


def test_fast_numerics_is_no_farther_from_the_truth_than_eager() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(x * 1.5 + w) * x

    check(fn, torch.randn(33, 70).bfloat16(), torch.randn(70).bfloat16(), numerics="fast")


def test_matched_chain_has_eagers_bits() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (((x * w + x) - w) * 1.7).relu() / 3.0

    x, w = torch.randn(37, 65).bfloat16(), torch.randn(65).bfloat16()
    assert torch.equal(compiled(fn)(x, w), fn(x, w))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(0, 5),
        lambda: torch.randn(5, 0),
        lambda: torch.randn(()),
        lambda: torch.randn(1, 1),
        lambda: torch.randn(6, 8).t(),
        lambda: torch.randn(12, 16)[::2, 1::3],
        lambda: torch.randn(1, 7).expand(5, 7),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(3, 4, 5).flip(1).transpose(0, 2),
    ],
)
def test_any_layout_and_size(make: Any) -> None:
    check(lambda x: torch.sigmoid(x * 2 + 1) * x + x.sum(), make())


def test_views_mutations_and_aliases_come_out_as_eager_leaves_them() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return x.view(-1)[3:], (y + 1).t(), y, x[0] + y

    ours_fn = compiled(fn)
    for _ in range(2):
        mine = [torch.arange(12.0).view(3, 4), torch.ones(3, 4)]
        theirs = [t.clone() for t in mine]
        ours, eager = ours_fn(*mine), fn(*theirs)
        for a, b in zip((*ours, *mine), (*eager, *theirs), strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
        assert ours[0].data_ptr() == mine[0].data_ptr() + 12
        assert ours[2] is mine[1]


def test_training_saves_seeds_and_redraws_the_same_mask() -> None:
    def fn(x: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x + b, 0.25, training=True), (x.shape[-1],))

    ours_fn = compiled(fn)
    x, b = torch.randn(8, 48, requires_grad=True), torch.randn(48, requires_grad=True)
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        y = ours_fn(x, b)
        runs.append((y.detach(), *torch.autograd.grad(y.square().sum() + y[0].sum(), (x, b))))
    assert all(torch.equal(a, c) for a, c in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[2][0])


def test_dropout_gradient_uses_the_forward_mask() -> None:
    ours_fn = compiled(lambda x: F.dropout(x * 3, 0.5, training=True))
    x = torch.ones(4, 300, requires_grad=True)
    y = ours_fn(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert 0.35 < (y != 0).float().mean() < 0.65


def test_symbolic_sizes_share_one_compilation() -> None:
    def fn(x: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(x * 0.5 + b, -1) + x.mean(0)

    ours_fn = compiled(fn, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for rows, columns in ((3, 5), (7, 33), (16, 64)):
        x, b = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(ours_fn(x, b), fn(x, b))
    counters = torch._dynamo.utils.counters["stats"]
    assert counters["unique_graphs"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_bound_that_is_nan_makes_every_element_nan(dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        nan = float("nan")
        return x.clamp(max=nan), x.clamp(nan, 1.0), x.clamp(0.0, nan), F.hardtanh(x, nan, 1.0)

    x = torch.tensor([1.0, -2.0, float("inf"), float("nan"), -0.0] * 5, dtype=dtype)
    assert all(t.isnan().all() for t in fn(x))
    assert all(t.isnan().all() for t in compiled(fn)(x))


def test_symbolic_images_through_two_convolutions() -> None:
    """The second size has no provable lower bound: torch writes strides as Max(1, size)."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3)
    )
    ours_fn = compiled(lambda x: torch.sigmoid(model(x)) * 2, dynamic=True)
    for shape in ((2, 3, 16, 16), (3, 3, 20, 17), (2, 3, 31, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(ours_fn(x), torch.sigmoid(model(x)) * 2)


def test_results_are_not_overwritten_by_later_calls() -> None:
    ours_fn = compiled(lambda x: torch.tanh(x) + 1)
    x = torch.randn(300, 300)
    first = ours_fn(x)
    kept = first.clone()
    for _ in range(3):
        ours_fn(torch.randn(300, 300))
    assert torch.equal(first, kept)


def test_threads_and_reentry() -> None:
    from concurrent.futures import ThreadPoolExecutor

    ours_fn = compiled(lambda x: torch.softmax(x, -1) @ x.t())
    inputs = [torch.randn(64, 64) for _ in range(16)]
    expected = [ours_fn(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ours_fn, inputs))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
