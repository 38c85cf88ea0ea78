"""Attention is found by structure: what is made of it, how exact that is, and what it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.torch_fx import import_graph
from onetrip.interp.graph_interp import outputs, run_graph
from onetrip.ir.graph import Graph, Node
from onetrip.ir.verify import verify
from onetrip.passes.alternatives import Alternative, Declined, Exactness, taken
from onetrip.passes.attention import find
from onetrip.passes.canonicalize import canonicalize
from onetrip.passes.closed import Closed
from onetrip.passes.expand import expand
from onetrip.runtime.accuracy import judge

B, H, T, D = 2, 4, 12, 8
Fn = Callable[..., Tensor]


def graph_of(fn: Fn, *args: Tensor, device: str = "cpu", dynamic: Any = None) -> Graph:
    (captured,) = capture_graphs(
        fn, args, {}, device=torch.device(device), training=False, dynamic_shapes=dynamic
    )
    graph = canonicalize(import_graph(captured.module).graph)
    return canonicalize(expand(graph))


def only(graph: Graph, device: str = "cpu") -> Alternative:
    (found,) = find(graph, device)
    assert isinstance(found, Alternative), found
    chosen = canonicalize(taken(graph, [found]))
    verify(chosen, "attention")
    return found


def attention_of(found: Alternative) -> Node:
    (node,) = (n for n in found.made if n.op == "attention")
    return node


def qkv(*lead: int, dtype: torch.dtype = torch.float32, rows: int = T) -> list[Tensor]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randn(*lead, rows, D, generator=draw).to(dtype) for _ in range(3)]


# ---------------------------------------------------------------- values, in the interpreter


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(D)).softmax(-1) @ v


def windowed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Windows of images: a mask for each window, the same in all images and heads."""
    lead = (B, 3, H)
    scores = (q @ k.mT).view(*lead, T, T) + mask[None, :, None]
    return scores.view(-1, H, T, T).softmax(-1) @ v


def heads_last(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Scores as [batch, queries, keys, heads]."""
    scores = torch.einsum("bqhd,bkhd->bqkh", q, k) * 0.3
    weights = scores.masked_fill(mask[None, :, :, None], -math.inf).softmax(2)
    return torch.einsum("bqkh,bkhd->bqhd", weights, v)


def old_style(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Flat batches of heads, and a mask that is a product."""
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(B, H, T, T)
    scores = scores * 0.25 + (1.0 - keep[:, None, None, :]) * -10000.0
    return torch.bmm(scores.flatten(0, 1).softmax(-1), v.flatten(0, 1)).view(B, H, T, D)


def matrices(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.t() * 0.5).softmax(1) @ v


def turned(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Everything the other way around: keys by queries, and the result by width."""
    scores = torch.where(keep, k @ q.mT, -math.inf)
    return v.mT @ scores.softmax(-2)


def tokens(*args: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2).contiguous() for x in args]


def keep(*shape: int) -> Tensor:
    """A mask in which the first row is empty."""
    found = torch.rand(*shape, generator=torch.Generator().manual_seed(2)) > 0.3
    found[..., 0, :] = False
    return found


def tempered(q: Tensor, k: Tensor, v: Tensor, by: Tensor) -> Tensor:
    """A scale that is known when it runs."""
    return ((q @ k.mT) * by).softmax(-1) @ v


CASES: dict[str, tuple[Fn, list[Tensor]]] = {
    "plain": (plain, qkv(B, H)),
    "windowed": (windowed, [*qkv(B * 3, H), torch.where(keep(3, T, T), 0.0, -math.inf)]),
    "heads_last": (heads_last, [*tokens(*qkv(B, H)), ~keep(T, T)]),
    "old_style": (old_style, [*qkv(B, H), (torch.arange(T) < 7).float().expand(B, T).clone()]),
    "matrices": (matrices, qkv()),
    "tempered": (tempered, [*qkv(B, H), torch.tensor(-0.4)]),
    "turned": (turned, [*qkv(B, H), keep(T, T).mT.contiguous()]),
}


ORDERS = {"turned": (1, 0, 3, 2)}
"""Order in which a function first reads its arguments, where it is not query, key, mask, value."""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_the_graph_computes_the_same_with_it(name: str, device: str) -> None:
    fn, args = CASES[name]
    graph = graph_of(fn, *args)
    chosen = canonicalize(taken(graph, [only(graph, device)]))
    order = ORDERS.get(name, (0, 1, 3, 2) if len(args) == 4 else (0, 1, 2))
    given = {v.name: args[k].numpy() for v, k in zip(graph.inputs, order, strict=True)}
    before, after = (torch.from_numpy(np.asarray(outputs(g, given)[0])) for g in (graph, chosen))
    exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    verdict = judge((after,), (before,), (exact,))
    assert verdict.ok, verdict
    assert [n.op for n in chosen.nodes].count("bmm") == 0


# ---------------------------------------------------------------- masks


def filled(by: float) -> Fn:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT).masked_fill(mask, by).softmax(-1) @ v

    return fn


def banded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(T)
    near = (place[None, :] - place[:, None]).abs() < 3
    return (q @ k.mT).masked_fill(~near, -math.inf).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(T)
    mask = (place[None, :] > place[:, None]).to(q.dtype) * torch.finfo(q.dtype).min
    return (q @ k.mT + torch.where(mask < 0, -math.inf, 0.0)).softmax(-1) @ v


def test_a_mask_of_positions_is_a_flag_or_needs_no_repair() -> None:
    node = attention_of(only(graph_of(causal, *qkv(B, H))))
    assert node.attr["is_causal"] and len(node.values) == 3
    found = only(graph_of(banded, *qkv(B, H)))
    assert len(attention_of(found).values) == 4
    assert [n.op for n in found.made if n.op in ("any", "where")] == []


@pytest.mark.parametrize(
    ("by", "exactness", "repair"),
    [
        (-math.inf, Exactness.REASSOCIATES, ["any", "where"]),
        (-1e9, Exactness.REASSOCIATES, ["any", "mean", "where"]),
        (-1e4, Exactness.FINITE_ONLY, ["any", "mean", "where"]),
    ],
)
def test_what_is_filled_decides_rows_and_exactness(
    by: float, exactness: Exactness, repair: list[str]
) -> None:
    found = only(graph_of(filled(by), *qkv(B, H), ~keep(T, T)))
    assert found.exactness is exactness
    assert [n.op for n in found.made if n.op in ("any", "mean", "where")] == repair


LOW = torch.finfo(torch.float32).min
SUMS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], bool]] = {
    "one mask": (lambda s, a, b: s + torch.where(a, LOW, 0.0), True),
    "filled twice": (lambda s, a, b: s.masked_fill(a, LOW).masked_fill(b, LOW), True),
    "added, then filled": (
        lambda s, a, b: (s + torch.where(a, LOW, 0.0)).masked_fill(b, LOW),
        True,
    ),
    "added twice": (lambda s, a, b: s + torch.where(a, LOW, 0.0) + torch.where(b, LOW, 0.0), False),
    "filled, then added": (lambda s, a, b: s.masked_fill(a, LOW) + torch.where(b, LOW, 0.0), False),
    "filled with two numbers": (lambda s, a, b: s.masked_fill(a, LOW).masked_fill(b, -1e9), False),
    "biased after a fill": (lambda s, a, b: s.masked_fill(a, -1e9) + b * 1e3, False),
}


@pytest.mark.parametrize("name", SUMS)
def test_rows_of_several_large_numbers_make_it_inexact(name: str) -> None:
    """There the keys of the largest number alone share the weight."""
    change, even = SUMS[name]

    def fn(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return change(q @ k.mT, a, b).softmax(-1) @ v

    found = only(graph_of(fn, *qkv(B, H), ~keep(T, T), keep(T, T).roll(1, 0)))
    assert found.exactness is (Exactness.REASSOCIATES if even else Exactness.FINITE_ONLY)


def test_a_fill_that_leaves_the_range_is_infinite() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ((q @ k.mT).masked_fill(mask, LOW) * 2).softmax(-1) @ v

    found = only(graph_of(fn, *qkv(B, H), ~keep(T, T)))
    assert "NaN in rows" in found.note


def test_a_fill_that_leaves_a_weight_is_no_mask() -> None:
    (found,) = find(graph_of(filled(-3.0), *qkv(B, H), ~keep(T, T)), "cpu")
    assert isinstance(found, Declined) and "may leave a weight" in found.reason


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.mT).float() + bias).softmax(-1).to(v.dtype) @ v


def test_a_bias_is_wider_only_where_the_library_takes_it_so() -> None:
    args = (*qkv(B, H, dtype=torch.bfloat16), torch.zeros(H, T, T))
    graph = graph_of(biased, *args)
    cpu, gpu = only(graph, "cpu"), only(graph, "cuda")
    assert attention_of(cpu).values[3].type.dtype.name == "f32"
    assert cpu.exactness is Exactness.REASSOCIATES
    assert attention_of(gpu).values[3].type.dtype.name == "bf16"
    assert gpu.exactness is Exactness.FINITE_ONLY


@pytest.mark.parametrize(("device", "copied"), [("cpu", False), ("cuda", True)])
@pytest.mark.parametrize("shape", [(T, 1), (T, T)])
def test_rows_of_a_mask_are_contiguous_on_a_gpu(
    device: str, copied: bool, shape: tuple[int, int]
) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.mT, q @ k.mT, -math.inf).softmax(-1) @ v

    found = only(graph_of(fn, *qkv(B, H), keep(*shape[::-1])), device)
    mask = attention_of(found).values[3].type
    assert (mask.shape[3] == T and mask.strides[3] == 1) is copied


def unshifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.mT)
    return (e / e.sum(-1, keepdim=True)) @ v


def test_a_softmax_without_its_shift_differs_where_it_overflows() -> None:
    assert only(graph_of(unshifted, *qkv(B, H))).exactness is Exactness.FINITE_ONLY


# ---------------------------------------------------------------- what it reads and writes


def layer(x: Tensor, w: Tensor) -> Tensor:
    """Heads cut out of one product, and joined again."""
    q, k, v = (x @ w).view(B, T, 3, H, D).unbind(2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    o = (q * D**-0.5) @ k.transpose(-2, -1)
    return (o.softmax(-1) @ v).transpose(1, 2).reshape(B, T, H * D)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_copies_that_eager_makes_for_its_products_are_left_out(device: str) -> None:
    graph = graph_of(layer, torch.randn(B, T, H * D), torch.randn(H * D, 3 * H * D))
    found = only(graph, device)
    assert any(n.op == "clone" for n in graph.nodes)
    chosen = canonicalize(taken(graph, [found]))
    ops = {n.op for n in chosen.nodes}
    assert ops <= {"view", "permute", "select", "unsqueeze", "squeeze", "mm", "attention"}
    node = attention_of(found)
    assert node.attr["scale"] == pytest.approx(D**-0.5)
    assert node.output.type.strides == (T * H * D, D, H * D, 1)


def grouped(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    k, v = (x[:, :, None].expand(B, H // 2, 2, T, D).reshape(B, H, T, D) for x in (k, v))
    scores = q @ k.mT
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "shared"),
    [
        ("cpu", torch.float32, False, True),
        ("cpu", torch.float32, True, True),
        ("cuda", torch.bfloat16, False, True),
        ("cuda", torch.bfloat16, True, False),
        ("cuda", torch.float32, False, False),
    ],
)
def test_heads_that_queries_share_are_not_repeated(
    device: str, dtype: torch.dtype, masked: bool, shared: bool
) -> None:
    q, k, v = qkv(B, H, dtype=dtype)
    args = (q, k[:, ::2].contiguous(), v[:, ::2].contiguous(), *([keep(T, T)] if masked else ()))
    node = attention_of(only(graph_of(grouped, *args), device))
    assert node.attr["enable_gqa"] is shared
    assert node.values[1].type.shape[1] == (H // 2 if shared else H)


def test_sizes_may_be_symbolic() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(D)
        return scores.masked_fill(~keep[:, None, None], -math.inf).softmax(-1) @ v

    args = (*qkv(B, H), torch.ones(B, T, dtype=torch.bool))
    found = only(graph_of(fn, *args, dynamic=True))
    assert not all(isinstance(n, int) for n in attention_of(found).output.type.shape)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_widths_and_dtypes_that_the_kernels_do_not_take(device: str) -> None:
    q, k, v = qkv(B, H)
    wide = torch.randn(B, H, T, 3 * D)
    (by_width,) = find(graph_of(plain, q, k, wide), device)
    assert isinstance(by_width, Alternative) == (device == "cuda")
    (by_dtype,) = find(graph_of(plain, *(x.double() for x in (q, k, v))), device)
    assert isinstance(by_dtype, Alternative) == (device == "cpu")


# ---------------------------------------------------------------- closed values


def positions(x: Tensor) -> Tensor:
    place = torch.arange(T)
    return torch.where(place[None, :] <= place[:, None], 1.5, 0.0).triu(-2) + x


def test_closed_values_are_those_of_the_interpreter() -> None:
    graph = graph_of(positions, torch.zeros(T, T))
    closed = Closed(graph.producers)
    known = run_graph(graph, {graph.inputs[0].name: np.zeros((T, T), np.float32)})
    values = [v for n in graph.nodes[:-1] for v in n.outputs]
    assert len(values) > 4
    for v in values:
        assert np.array_equal(closed.value(v), known[v.name])
    assert closed.value(graph.nodes[-1].output) is None
