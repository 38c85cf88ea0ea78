"""Inputs that a program changes: stored straight into where that is safe, else copied back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from builds import steps_of, watched
from checks import compiled
from torch import Tensor

from onetrip.api.pipeline import Built
from onetrip.ir.program import Update


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Built]:
    """Grows by what each compilation built."""
    return watched(monkeypatch)


def count_up(x: Tensor) -> None:
    x.add_(1)


def two_of_each_other(x: Tensor, y: Tensor) -> None:
    a, b = x + y, x - y
    x.copy_(a)
    y.copy_(b)


def swapped(x: Tensor, y: Tensor) -> None:
    a = x.clone()
    x.copy_(y)
    y.copy_(a)


def chained(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.mul_(x)
    return (x + y).sum()


def twice(x: Tensor) -> Tensor:
    x.add_(1)
    y = x * 2
    x.mul_(y)
    return y


def a_slice(x: Tensor, y: Tensor) -> None:
    x[:, 1:3] = y[:, :2]


def read_by_a_product(x: Tensor, y: Tensor) -> Tensor:
    z = x + 1
    x.copy_(z * 2)
    return z @ x


def rows_of_a_cache(x: Tensor, y: Tensor) -> Tensor:
    x.index_copy_(1, torch.tensor([4, 2]), y[:, :2])
    return x.sum()


def caches_of_two_layers(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    at = torch.tensor([4, 2])
    x.index_copy_(0, at, z[:2])
    y.index_copy_(0, at, x[:2] + 1)
    return y @ x


def transposed(x: Tensor) -> None:
    x.copy_(x.t() + 1)


def shifted(x: Tensor) -> None:
    x[1:] = x[:-1].clone()


def less_its_mean(x: Tensor) -> None:
    x.sub_(x.mean(0))


def its_softmax(x: Tensor) -> None:
    x.copy_(torch.softmax(x, -1))


def running_sum(x: Tensor) -> None:
    x.copy_(x.cumsum(0))


def returned_too(x: Tensor, y: Tensor) -> Tensor:
    a = x + y
    x.copy_(a)
    return a


def returned_view(x: Tensor) -> Tensor:
    x.add_(1)
    return x[1:]


def view_of_the_old(x: Tensor) -> Tensor:
    y = x[1:] * 1
    x.add_(1)
    return y


def one_value_for_two(x: Tensor, y: Tensor) -> None:
    a = x + y
    x.copy_(a)
    y.copy_(a)


IN_PLACE = (
    count_up, two_of_each_other, swapped, twice, a_slice, read_by_a_product, rows_of_a_cache,
    caches_of_two_layers, returned_too, one_value_for_two,
)  # fmt: skip
COPIED_BACK = (transposed, shifted, less_its_mean, its_softmax, running_sum, returned_view)
EITHER = (view_of_the_old, chained)


def assert_changes_alike(fn: Callable[..., Any], ours_fn: Any) -> None:
    """Inputs, results and what the results are after one more change of the inputs."""
    count = fn.__code__.co_argcount
    for _ in range(2):
        mine = [torch.randn(6, 6) for _ in range(count)]
        theirs = [t.clone() for t in mine]
        ours, eager = ours_fn(*mine), fn(*theirs)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
            a.zero_()
            b.zero_()
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("fn", [*IN_PLACE, *COPIED_BACK, *EITHER])
def test_changed_inputs(fn: Callable[..., Any], built: list[Built]) -> None:
    assert_changes_alike(fn, compiled(fn, strict=False))
    assert len(built) == 1
    if fn in IN_PLACE:
        assert steps_of(built, Update) == []
    if fn in COPIED_BACK:
        assert steps_of(built, Update) != []


@pytest.mark.parametrize("fn", [two_of_each_other, returned_too, a_slice])
def test_inputs_that_overlap_on_a_later_call(fn: Callable[..., Any]) -> None:
    ours_fn = compiled(fn)
    for offset in (36, 0, 6, 36):
        mine, theirs = torch.arange(72.0), torch.arange(72.0)
        x, y = (t[:36].view(6, 6) for t in (mine, theirs))
        ours = ours_fn(x, mine[offset : offset + 36].view(6, 6))
        eager = fn(y, theirs[offset : offset + 36].view(6, 6))
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("fn", IN_PLACE[:6])
def test_symbolic_sizes_are_written_in_place(fn: Callable[..., Any], built: list[Built]) -> None:
    ours_fn = compiled(fn, dynamic=True)
    for n in (5, 9):
        mine = [torch.randn(n, n) for _ in range(fn.__code__.co_argcount)]
        theirs = [t.clone() for t in mine]
        torch.testing.assert_close(ours_fn(*mine), fn(*theirs))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
    assert len(built) == 1
    assert steps_of(built, Update) == []


def test_a_bad_index_writes_nothing_that_comes_after_it() -> None:
    def fn(x: Tensor, table: Tensor, ids: Tensor) -> Tensor:
        found = table[ids]
        x.add_(1)
        return found

    ours_fn = compiled(fn)
    x, table = torch.zeros(6), torch.randn(4, 3)
    ours_fn(x, table, torch.tensor([1, 3]))
    assert x.eq(1).all()
    with pytest.raises(IndexError):
        ours_fn(x, table, torch.tensor([1, 4]))
    assert x.eq(1).all()


@pytest.mark.parametrize("first", ["normal", "in inference mode", "not at all"])
def test_a_tensor_of_inference_mode_is_written_nowhere_else(first: str) -> None:
    """Whatever the graph was compiled for: the guards do not tell the two kinds apart."""

    def fn(x: Tensor) -> Tensor:
        y = x * 2
        x.add_(1)
        return y

    ours_fn = compiled(fn)
    with torch.inference_mode():
        frozen, eager = torch.ones(4), torch.ones(4)
        if first == "in inference mode":
            ours_fn(torch.ones(4))
    if first == "normal":
        ours_fn(torch.ones(4))
    for grads in (torch.enable_grad, torch.no_grad):
        for call, x in ((fn, eager), (ours_fn, frozen)):
            with grads(), pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                call(x)
        assert torch.equal(frozen, eager)
    with torch.inference_mode():
        assert torch.equal(ours_fn(frozen), fn(eager))
        assert torch.equal(frozen, eager)
