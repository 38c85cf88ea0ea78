"""Inputs that overlap in memory, when the graph writes one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.frontend.overlap import check_overlap


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


BASE = torch.arange(24.0)
PAIRS: dict[str, tuple[Tensor, Tensor, bool]] = {
    "apart": (torch.zeros(4), torch.zeros(4), False),
    "neighbours": (BASE[:4], BASE[4:8], False),
    "one element": (BASE[:5], BASE[4:8], True),
    "inside": (BASE, BASE[7:9], True),
    "even and odd": (BASE[::2], BASE[1::2], True),  # in doubt, the slow path
    "crossing strides": (BASE[::2], BASE[::3], True),
    "columns of one matrix": (BASE.view(4, 6)[:, :3], BASE.view(4, 6)[:, 3:], False),
    "empty": (BASE[:4], BASE[:0], False),
    "two dtypes": (BASE, BASE.view(torch.int32)[3:], True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    x, y, expected = PAIRS[name]
    if name == "two dtypes":
        assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert check_overlap((x, y), [0]) is expected
    assert check_overlap((y, 3, None, x), [0, 3]) is expected


def test_inputs_that_are_only_read_may_overlap() -> None:
    assert not check_overlap((torch.zeros(3), BASE, BASE), [0])


def counting() -> tuple[list[int], Callable[..., Any]]:
    """A backend, and a list that grows at every run of a compiled graph."""
    runs: list[int] = []

    def compile_graph(graph: CapturedGraph) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            runs.append(1)
            return graph.module(*inputs)

        return run

    return runs, make_backend(compile_graph)


def double_then_add(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("order", ["apart first", "overlapping first"])
def test_each_call_sees_its_own_overlap(order: str, dynamic: bool | None) -> None:
    runs, backend = counting()
    compiled = torch.compile(double_then_add, backend=backend, dynamic=dynamic)
    offsets = [8, 3, 8, 1, 0] if order == "apart first" else [3, 8, 1, 8, 0]
    for offset in offsets:
        ours, eager = torch.arange(16.0), torch.arange(16.0)
        found = compiled(ours[:5], ours[offset : offset + 5])
        assert torch.equal(found, double_then_add(eager[:5], eager[offset : offset + 5]))
        assert torch.equal(ours, eager)
    if order == "apart first":
        assert runs  # the calls without overlap ran the compiled graph


def test_gradients_on_the_slow_path() -> None:
    def fn(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (x + y) * w

    _, backend = counting()
    compiled = torch.compile(fn, backend=backend)
    for offset in (8, 3):
        gradients = []
        for run in (compiled, fn):
            base, w = torch.arange(16.0), torch.ones(5, requires_grad=True)
            run(base[:5], base[offset : offset + 5], w).sum().backward()
            gradients.append(w.grad)
        assert torch.equal(gradients[0], gradients[1])


def test_a_graph_that_writes_nothing_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> bool:
        raise AssertionError("checked")

    monkeypatch.setattr("onetrip.frontend.capture.check_overlap", forbidden)
    monkeypatch.setattr("onetrip.frontend.overlap.check_overlap", forbidden)
    _, backend = counting()
    x = torch.arange(6.0)
    assert torch.equal(torch.compile(lambda a, b: a + b, backend=backend)(x, x[:1]), x + x[:1])
