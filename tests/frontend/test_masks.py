"""Masks that are functions of positions alone become flags of the attention call; others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onetrip.frontend import masks
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph, make_backend

LENGTH = 6


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def positions() -> tuple[Tensor, Tensor]:
    return torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]


def causal() -> Tensor:
    q, k = positions()
    return (k <= q + 0)[None, None].expand(2, 1, LENGTH, LENGTH)


def everywhere() -> Tensor:
    q, _ = positions()
    return (q >= 0)[None, None].expand(2, 1, LENGTH, LENGTH)


def zeros() -> Tensor:
    return torch.zeros(LENGTH, LENGTH)


def window() -> Tensor:
    q, k = positions()
    return (k <= q) & (k > q - 3)


def off_by_one() -> Tensor:
    q, k = positions()
    return k <= q + 1


def biased() -> Tensor:
    q, k = positions()
    return (q - k).to(torch.float32)


def calls(graph: CapturedGraph) -> list[tuple[Any, ...]]:
    """Mask and `is_causal` of each attention call, forward and backward."""
    names = {f"onetrip.attention{kind}.default": 3 for kind in ("", "_saving")}
    names["onetrip.attention_backward.default"] = 4
    nodes = [n for n in graph.module.graph.nodes if str(n.target) in names]
    return [n.args[names[str(n.target)] :][:2] for n in nodes]


def captured(program: Callable[..., Any], *args: Tensor) -> tuple[list[CapturedGraph], Any]:
    graphs: list[CapturedGraph] = []

    def compile_graph(graph: CapturedGraph) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.module.forward

    return graphs, torch.compile(program, backend=make_backend(compile_graph), dynamic=False)(*args)


def draw(grad: bool = False) -> Tensor:
    return torch.randn(2, 2, LENGTH, 8, requires_grad=grad)


@pytest.mark.parametrize(
    ("mask", "flag"),
    [(causal, True), (everywhere, False), (zeros, False)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_position_masks_become_flags(mask: Callable[[], Tensor], flag: bool, grad: bool) -> None:
    q = draw(grad)
    program = lambda q: functional.scaled_dot_product_attention(q, q, q, mask())  # noqa: E731
    graphs, result = captured(program, q)
    if grad:
        result.sum().backward()
    found = [c for g in graphs for c in calls(g)]
    assert found == [(None, flag)] * (2 if grad else 1)
    torch.testing.assert_close(result, program(q))


@pytest.mark.parametrize("mask", [window, off_by_one, biased], ids=lambda f: f.__name__)
def test_other_masks_stay(mask: Callable[[], Tensor]) -> None:
    q = draw()
    graphs, _ = captured(lambda q: functional.scaled_dot_product_attention(q, q, q, mask()), q)
    ((given, flag),) = calls(graphs[0])
    assert given is not None
    assert flag is False


def test_a_mask_with_an_input_stays() -> None:
    def program(q: Tensor, keep: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, q, q, causal() & keep)

    graphs, _ = captured(program, draw(), torch.ones(LENGTH, dtype=torch.bool))
    assert calls(graphs[0])[0][0] is not None


def test_an_expanded_scalar_is_a_mask_like_any_other() -> None:
    def program(q: Tensor) -> Tensor:
        mask = torch.ones((), dtype=torch.bool).expand(1, 1, LENGTH, LENGTH)
        return functional.scaled_dot_product_attention(q, q, q, mask)

    graphs, _ = captured(program, draw())
    assert calls(graphs[0]) == [(None, False)]


def test_scattered_rows_are_copied_for_a_gpu_without_their_repeats() -> None:
    """A bias from an embedding: heads innermost, one for the whole batch."""
    bias = nn.Embedding(8, 2)

    def program(q: Tensor) -> Tensor:
        at = torch.arange(LENGTH, device=q.device)
        q_at, k_at = at[:, None], at[None]
        mask = bias((q_at - k_at).abs()).permute(2, 0, 1)[None].expand(3, 2, LENGTH, LENGTH)
        return functional.scaled_dot_product_attention(q, q, q, mask)

    graphs = capture_graphs(
        program, torch.randn(3, 2, LENGTH, 8), device=torch.device("cuda", 0), training=False
    )
    (node,) = [n for n in graphs[0].module.graph.nodes if "attention" in str(n.target)]
    assert node.args[3].meta["val"].stride() == (0, LENGTH * LENGTH, LENGTH, 1)
    assert node.args[3].meta["val"].shape == (3, 2, LENGTH, LENGTH)


def test_gradients_of_a_mask_with_scattered_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call reads a copy; its gradient goes back to the mask as it was laid out."""
    monkeypatch.setattr(masks, "_NEEDS_ROWS", frozenset({"cpu"}))
    q, heads = torch.randn(3, 2, LENGTH, 8), torch.randn(LENGTH, LENGTH, 2, requires_grad=True)
    weight = torch.randn(LENGTH, LENGTH, 2)

    def program(heads: Tensor) -> Tensor:
        mask = (heads * weight).permute(2, 0, 1)[None]
        return functional.scaled_dot_product_attention(q, q, q, mask)

    graphs, result = captured(program, heads)
    found = torch.autograd.grad(result, heads, torch.ones_like(result))[0]
    plain = program(heads)
    wanted = torch.autograd.grad(plain, heads, torch.ones_like(plain))[0]
    torch.testing.assert_close(found, wanted)
    rows = [c[0].meta["val"].stride(-1) for g in graphs for c in calls(g)]
    assert rows == [1, 1]
