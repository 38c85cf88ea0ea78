"""Calls that count from the start of a storage see the storage that eager sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from checks import compiled
from torch import Tensor

import onetrip

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "of an input that begins later": lambda x: x.as_strided((2, 2), (1, 2), 0) + 1,
    "of an input, from its own start": lambda x: x.as_strided((2, 2), (1, 2)) + 1,
    "of an input, at another place of the storage": lambda x: x.as_strided((2, 3), (3, 1), 1) + 1,
    "of an input, windows that overlap": lambda x: x.as_strided((4, 3), (1, 1), 2).sum(1),
    "of an input, twice": lambda x: x.as_strided((2,), (3,), 1) + x.as_strided((2,), (3,), 1),
    "of a view of an input, from its own start": lambda x: x[2:].as_strided((2, 2), (1, 2)) + 1,
    "of every other element": lambda x: x[::2].as_strided((2, 2), (1, 2)) + 1,
    "of a piece of an input": lambda x: x.split([4, 11])[1].as_strided((3, 2), (1, 3)) * 2,
    "of an input, and returned": lambda x: (x.sin(), x.as_strided((2, 2), (1, 2), 3))[1],
    "of no element": lambda x: x.as_strided((0, 2), (1, 2), 3) + 1,
    "copied from an input": lambda x: torch.as_strided_copy(x[1:], (2, 2), (3, 1), 3),
    "of a view of an input": lambda x: x[2:].as_strided((2, 2), (1, 2), 1) * 2,
    "of a view of a result": lambda x: x.sin()[2:].as_strided((2, 2), (1, 2), 1) + 1,
    "of a view, from its own start": lambda x: x.sin()[2:].as_strided((2, 2), (1, 2)) + 1,
    "of a transposed result": lambda x: x.sin().view(3, 5).t().as_strided((2, 2), (1, 2), 1) + 1,
    "of a reversed copy": lambda x: x.sin().flip(0)[2:].as_strided((2, 2), (1, 2), 1) + 1,
    "copied": lambda x: torch.as_strided_copy(x.sin()[1:], (2, 2), (3, 1), 3) * 2,
    "scattered into a result": lambda x: (
        torch.as_strided_scatter(x.sin() + x, x[:4].view(2, 2), (2, 2), (3, 1), 3) * 2
    ),
    "scattered into a view": lambda x: (
        torch.as_strided_scatter((x.sin() + x)[2:], x[:4].view(2, 2), (2, 2), (3, 1), 3) * 2
    ),
}


WITH_LIBRARY = {"scattered into a view"}
"""Where a call, or the graph around it, is left to the library."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:onetrip runs a graph:RuntimeWarning")
def test_strided_access(case: str) -> None:
    x = torch.arange(18.0)[3:]
    ours_fn = compiled(CASES[case], strict=case not in WITH_LIBRARY)
    for _ in range(2):
        torch.testing.assert_close(ours_fn(x), CASES[case](x))
    elsewhere = torch.arange(25.0)[7:22]
    torch.testing.assert_close(ours_fn(elsewhere), CASES[case](elsewhere))


Function = Callable[..., Tensor]
GRADIENTS: dict[str, Function] = {
    "of an input": lambda x: x.as_strided((2, 3), (1, 4), 3).exp(),
    "of a result": lambda x: x.sin().as_strided((2, 3), (1, 4), 5).exp(),
    "whose rows lie closer than its columns": lambda x: x.sin().as_strided((3, 2), (2, 7), 1).exp(),
    "of an element more often than once": lambda x: x.sin().as_strided((4, 3), (1, 1), 2).exp(),
    "of a scatter": lambda x: (
        torch.as_strided_scatter(x.sin(), x[:6].view(2, 3), (2, 3), (1, 4), 5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients(case: str) -> None:
    fn = GRADIENTS[case]
    x = torch.randn(18)[3:].requires_grad_()
    ours_fn = compiled(fn, strict="more often" not in case)
    weights = torch.randn(fn(x).shape)
    for _ in range(2):
        (ours,) = torch.autograd.grad((ours_fn(x) * weights).sum(), x)
        (eager,) = torch.autograd.grad((fn(x) * weights).sum(), x)
        assert eager.abs().max() > 0
        torch.testing.assert_close(ours, eager)


def test_a_scatter_by_strides_leaves_what_eager_leaves() -> None:
    """Every order of strides, offsets from none to the last that fits, sizes of one and of none."""
    x = torch.randn(24)
    forms = [((2, 3), (1, 4)), ((3, 2), (7, 2)), ((1, 4), (9, 3)), ((2, 2, 2), (2, 9, 4)), ((), ())]
    forms += [((0, 3), (1, 1)), ((24,), (1,)), ((2, 1, 3), (12, 5, 2))]
    for size, strides in forms:
        reach = sum((n - 1) * s for n, s in zip(size, strides, strict=True)) if 0 not in size else 0
        source = torch.randn(size)
        for offset in {0, 1, 23 - reach} & set(range(24 - reach)):

            def fn(x: Tensor, source: Tensor, at: tuple[object, ...]) -> Tensor:
                return torch.as_strided_scatter(x.sin() * 2, source, *at)

            at = (size, strides, offset)
            ours = compiled(fn, dynamic=False)(x, source, at)
            torch.testing.assert_close(ours, fn(x, source, at), rtol=1e-6, atol=0)


def test_strides_whose_elements_overlap_scatter_as_in_eager() -> None:
    def fn(x: Tensor, source: Tensor) -> Tensor:
        return torch.as_strided_scatter(x.sin(), source, (3, 3), (1, 2), 0)

    x, source = torch.randn(24), torch.arange(9.0).view(3, 3)
    torch.testing.assert_close(compiled(fn, strict=False)(x, source), fn(x, source))


def test_a_view_is_of_the_input_that_it_was_taken_of() -> None:
    """Two inputs shared a storage when the graph was captured, and share none later."""

    def fn(a: Tensor, b: Tensor) -> Tensor:
        return a.sum() + b.as_strided((2, 2), (1, 2), 9) + b[1:].as_strided((2, 2), (1, 2))

    ours_fn, whole = compiled(fn, dynamic=False), torch.arange(16.0)
    for a, b in [
        (whole[:8], whole[8:]),
        (torch.ones(8), torch.arange(20.0)[7:15]),
        (torch.arange(20.0)[7:15], torch.arange(20.0)[3:11]),
    ]:
        torch.testing.assert_close(ours_fn(a, b), fn(a, b))


def test_a_view_of_an_input_that_is_written_shows_what_eager_shows() -> None:
    def before(x: Tensor) -> Tensor:
        y = x.as_strided((2, 2), (1, 2), 3) * 2
        x.add_(1)
        return y

    def after(x: Tensor) -> Tensor:
        x.add_(1)
        return x.as_strided((2, 2), (1, 2), 3) * 2

    for fn in (before, after):
        ours, eager = torch.arange(18.0)[3:], torch.arange(18.0)[3:]
        ours_fn = compiled(fn, strict=False)
        for _ in range(2):
            torch.testing.assert_close(ours_fn(ours), fn(eager))
            torch.testing.assert_close(ours, eager)


def test_what_overlaps_a_written_input_is_seen_to_be_written() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return x.as_strided((2, 2), (1, 2), 3) * 2

    ours_fn = compiled(fn, strict=False, dynamic=False)
    for start in (0, 2):
        ours, eager = torch.arange(18.0), torch.arange(18.0)
        given = ours_fn(ours[:10], ours[start : start + 8])
        torch.testing.assert_close(given, fn(eager[:10], eager[start : start + 8]))
        torch.testing.assert_close(ours, eager)


def test_a_view_beyond_the_storage_raises_what_eager_raises() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.as_strided((2, 2), (1, 2), 9) + 1

    ours_fn = compiled(fn)
    torch.testing.assert_close(ours_fn(torch.arange(18.0)[:9]), fn(torch.arange(18.0)))
    with pytest.raises(RuntimeError, match="out of bounds"):
        ours_fn(torch.arange(9.0))


def test_sizes_that_vary() -> None:
    def fn(x: Tensor) -> Tensor:
        n = x.shape[0]
        return x.as_strided((n, 2), (1, 1), 1) * 2 + x.as_strided((2,), (3,), 2)

    ours_fn = compiled(fn, strict=False, dynamic=True)
    for n in (5, 8, 2):
        x = torch.arange(30.0)[3 : 3 + n]
        torch.testing.assert_close(ours_fn(x), fn(x))


def test_a_view_of_an_input_needs_no_kernel_of_its_own() -> None:
    plan = onetrip.plan(lambda x: x.as_strided((8, 4), (1, 8), 2).sin().sum(1), (torch.ones(64),))
    assert plan.kernels == 1


def test_gradient_that_scatters_into_planned_memory() -> None:
    """The squeeze in place of adaptive_avg_pool1d makes its gradient an as_strided_scatter."""

    def fn(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x.sin().transpose(1, 2), 1).flatten(1)

    x = torch.randn(2, 4, 16, requires_grad=True)
    (ours,) = torch.autograd.grad(compiled(fn, strict=False)(x).square().sum(), x)
    (eager,) = torch.autograd.grad(fn(x).square().sum(), x)
    assert eager.abs().max() > 0
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("size", [1, 2])
def test_a_view_with_a_size_of_one_has_the_strides_of_eager(size: int) -> None:
    def pooled(x: Tensor) -> Tensor:
        return torch.flatten(F.adaptive_avg_pool1d(x, 1), 1)

    x = torch.randn(size, 16, 24).transpose(1, 2)
    assert compiled(pooled)(x).stride() == pooled(x).stride()
