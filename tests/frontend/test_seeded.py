"""Random programs: one seed is saved, never a mask, and the stream follows torch's seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph, make_backend

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def collecting() -> tuple[list[CapturedGraph], Callable[..., Any]]:
    graphs: list[CapturedGraph] = []

    def compile_graph(graph: CapturedGraph) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.module.forward

    return graphs, make_backend(compile_graph)


def targets(graph: CapturedGraph) -> set[str]:
    return {str(n.target) for n in graph.module.graph.nodes if n.op == "call_function"}


def library_randomness(graphs: list[CapturedGraph]) -> set[str]:
    """Calls left that draw from torch's generator, but for our seeds."""
    return {
        str(n.target)
        for g in graphs
        for n in g.module.graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
        and "onetrip.seed" not in str(n.target)
    }


def saved(forward: CapturedGraph) -> list[Tensor]:
    nodes = forward.module.graph.output_node().args[0]
    values = [n.meta["val"] for n in nodes[forward.results :]]  # type: ignore[index, union-attr]
    return [v for v in values if isinstance(v, Tensor)]


def both_dropouts(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.3) + torch.dropout(x, 0.5, True)


def in_place_dropout(x: Tensor) -> Tensor:
    y = x * 1
    functional.dropout(y, 0.3, inplace=True)
    return y


def channels(x: Tensor) -> Tensor:
    return functional.dropout2d(x.view(8, 8, 4, 4), 0.5) * 2


def alpha(x: Tensor) -> Tensor:
    return functional.alpha_dropout(x, 0.3, training=True)


def drawn_numbers(x: Tensor) -> Tensor:
    noise = torch.rand(32, 32) + torch.rand_like(x.t()).t() + torch.empty_like(x).uniform_(2, 5)
    return x * noise


def drawn_bits(x: Tensor) -> Tensor:
    odds = torch.full_like(x, 0.25)
    return x * (torch.bernoulli(odds) + torch.empty_like(x).bernoulli_(0.5))


def attention_with_dropout(x: Tensor) -> Tensor:
    q = x.view(2, 4, 8, 16)
    return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.25)


def leaky(x: Tensor) -> Tensor:
    return functional.rrelu(x, 0.1, 0.4, training=True)


PROGRAMS = [
    both_dropouts,
    leaky,
    in_place_dropout,
    channels,
    alpha,
    drawn_numbers,
    drawn_bits,
    attention_with_dropout,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_no_library_randomness_is_left(fn: Callable[[Tensor], Tensor]) -> None:
    graphs, backend = collecting()
    x = torch.randn(32, 32, requires_grad=True)
    compiled = torch.compile(fn, backend=backend)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        results.append((y.detach(), gradient))
    assert library_randomness(graphs) == set()
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[2][0])


@pytest.mark.parametrize("fn", [both_dropouts, in_place_dropout])
def test_gradient_is_the_forward_mask(fn: Callable[[Tensor], Tensor]) -> None:
    """A dropout is linear: with x = 1, its value is its own gradient."""
    graphs, backend = collecting()
    x = torch.ones(64, 64, requires_grad=True)
    y = torch.compile(fn, backend=backend)(x)
    y.backward(torch.ones_like(y))
    assert torch.equal(y.detach(), x.grad)
    assert {t.dtype for t in saved(graphs[0])} == {torch.int64}
    assert all(t.dim() == 0 for t in saved(graphs[0]))


def test_slopes_drawn_at_random_are_the_gradient_and_lie_where_they_should() -> None:
    _, backend = collecting()
    x = torch.cat([torch.tensor([0.0, -0.0, torch.inf, 2.0]), torch.linspace(-3, -1, 4092)])
    x.requires_grad_()
    y = torch.compile(leaky, backend=backend)(x)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y.detach(), x.detach() * slopes)
    assert torch.equal(slopes[2:4], torch.ones(2))
    drawn = slopes[torch.arange(4096) // 2 != 1]
    assert 0.1 <= drawn.min() < 0.11 and 0.39 < drawn.max() <= 0.4
    assert abs(drawn.mean() - 0.25) < 5 * 0.3 / 12**0.5 / 64


def test_slopes_are_not_drawn_in_evaluation() -> None:
    graphs, backend = collecting()
    fn = torch.compile(lambda x: functional.rrelu(x, 0.1, 0.4, training=False), backend=backend)
    x = torch.linspace(-3, 3, 64)
    assert torch.equal(fn(x), functional.rrelu(x, 0.1, 0.4, training=False))
    assert not any("onetrip" in t for t in targets(graphs[0]))


def test_two_dropouts_draw_two_masks() -> None:
    _, backend = collecting()
    fn = torch.compile(
        lambda x: (functional.dropout(x, 0.5), functional.dropout(x, 0.5)), backend=backend
    )
    first, second = fn(torch.ones(64, 64))
    assert not torch.equal(first, second)
    # Independent masks of p = 1/2 agree in half of 4096 places, within 5 standard deviations.
    assert abs((first == second).float().mean() - 0.5) < 5 * 0.5 / 64


def test_each_call_draws_anew_and_the_share_is_right() -> None:
    _, backend = collecting()
    fn = torch.compile(lambda x: functional.dropout(x, 0.2), backend=backend)
    x = torch.ones(64, 64)
    first, second = fn(x), fn(x)
    assert not torch.equal(first, second)
    assert abs((first == 0).float().mean() - 0.2) < 5 * 0.4 / 64
    assert set(first.unique().tolist()) == {0.0, 1.25}


def test_drawn_values_lie_where_they_should() -> None:
    _, backend = collecting()

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.rand(64, 64),
            torch.empty(64, 64).uniform_(2, 5),
            torch.bernoulli(torch.full((64, 64), 0.25)),
            torch.rand(64, 64, dtype=torch.bfloat16) + 0 * x,
        )

    rand, between, bits, narrow = torch.compile(fn, backend=backend)(torch.zeros(64, 64).bfloat16())
    assert rand.min() >= 0 and rand.max() < 1
    assert 2 <= between.min() < 2.1 and 4.9 < between.max() <= 5
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    assert abs(bits.mean() - 0.25) < 5 * 0.433 / 64
    assert narrow.dtype == torch.bfloat16 and narrow.max() < 1


def test_strides_of_drawn_numbers_follow_eager() -> None:
    _, backend = collecting()

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.rand_like(x), torch.bernoulli(x * 0 + 0.5)

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for found, eager in zip(torch.compile(fn, backend=backend)(x), fn(x), strict=True):
        assert found.stride() == eager.stride()


def test_attention_with_dropout_matches_its_definition_on_average() -> None:
    _, backend = collecting()
    q = torch.randn(1, 2, 6, 8)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[2] = False  # a row that is masked out whole

    def fn(t: Tensor) -> Tensor:
        t = t.expand(4000, 2, 6, 8)
        return functional.scaled_dot_product_attention(t, t, t, mask, dropout_p=0.1)

    found = torch.compile(fn, backend=backend)(q)
    right = functional.scaled_dot_product_attention(q, q, q, mask)
    error = found.std(0) / 4000**0.5
    assert ((found.mean(0) - right[0]).abs() <= 5 * error + 1e-6).all()
    assert (found[:, :, 2] == 0).all()


def test_multi_head_attention_is_redirected_inside() -> None:
    layer, x = nn.MultiheadAttention(16, 2, dropout=0.25, batch_first=True), torch.randn(2, 5, 16)
    for device in (CPU, torch.device("cuda")):
        for train in (True, False):
            layer.train(train)
            (graph,) = capture_graphs(
                lambda t: layer(t, t, t, need_weights=False)[0], x, device=device, training=False
            )
            expected = "onetrip.dropout.default" if train else "onetrip.attention.default"
            assert expected in targets(graph)
            assert not any("scaled_dot_product" in t for t in targets(graph))


def test_multi_head_attention_in_training() -> None:
    layer = nn.MultiheadAttention(16, 2, dropout=0.25, batch_first=True)
    x = torch.randn(2, 5, 16)
    for weights in (False, True):
        torch._dynamo.reset()
        graphs, backend = collecting()
        compiled = torch.compile(
            lambda t, w=weights: layer(t, t, t, need_weights=w)[0], backend=backend
        )
        compiled(x).sum().backward()
        assert library_randomness(graphs) == set()
        assert "onetrip.dropout.default" in targets(graphs[0])


def test_a_checkpointed_region_recomputes_the_same_mask() -> None:
    def region(x: Tensor) -> Tensor:
        return functional.dropout(x.sin(), 0.5).cos()

    graphs, backend = collecting()
    x = torch.randn(32, 32, requires_grad=True)
    fn = torch.compile(lambda t: checkpoint(region, t, use_reentrant=False), backend=backend)
    y = fn(x)
    y.sum().backward()
    sine = x.detach().sin()
    # cos(0) = 1 where dropped; elsewhere the argument is 2 sin(x).
    kept = y.detach() != 1
    right = torch.where(kept, -(2 * sine).sin() * 2 * x.detach().cos(), torch.zeros(()))
    assert torch.allclose(x.grad, right, rtol=1e-5, atol=1e-6)
    assert library_randomness(graphs) == set()


def test_evaluation_draws_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    (graph,) = capture_graphs(model, torch.randn(2, 4), device=CPU, training=False)
    assert not any("onetrip" in t for t in targets(graph))


def test_a_batched_program_falls_back_to_the_library() -> None:
    _, backend = collecting()
    fn = torch.vmap(lambda x: functional.dropout(x, 0.5), randomness="different")
    found = torch.compile(fn, backend=backend)(torch.ones(8, 64))
    assert set(found.unique().tolist()) == {0.0, 2.0}


def test_symbolic_sizes() -> None:
    graphs, backend = collecting()
    fn = torch.compile(lambda x: both_dropouts(drawn_bits(x)), backend=backend, dynamic=True)
    for n in (6, 9):
        x = torch.randn(n, 5, requires_grad=True)
        fn(x).sum().backward()
        assert x.grad is not None
    assert [g.role for g in graphs] == ["forward", "backward"]
    assert library_randomness(graphs) == set()
