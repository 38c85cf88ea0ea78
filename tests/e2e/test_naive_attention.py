"""Attention that a model spells out runs as the library's, or stays as it is and stays right."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import watched
from checks import check, wide
from spellings import BATCH, HEADS, LENGTH, WIDTH, Spelling, spellings
from torch import Tensor, nn

import onetrip
from onetrip.base.sym import product
from onetrip.report.view import Plan

TARGETS = ("h200", "cpu")
FIVE = (
    Spelling("heads", "matmul", "quotient", "none", "plain", "matmul"),
    Spelling("tokens", "einsum", "query", "filled", "cast", "einsum"),
    Spelling("moved", "bmm", "product", "added", "float", "bmm"),
    Spelling("heads", "baddbmm", "product", "least", "positive", "bmm"),
    Spelling("tokens", "turned", "both", "where", "spelled", "turned"),
)
DRAWN = spellings(9, seed=7)


def groups_of(plan: Plan) -> list[str]:
    return [n.op for p in plan.planned for n in p.plan.graph.nodes if n.op in ("attention", "bmm")]


def score_buffers(plan: Plan, scores: int = BATCH * HEADS * LENGTH * LENGTH) -> list[str]:
    """Values in memory that have a number for each score."""
    graphs = [(p.plan.graph, b) for p in plan.planned for b in p.plan.memory.buffers]
    return [
        b.range.name
        for graph, b in graphs
        for n in graph.nodes
        for v in n.outputs
        if v.name == b.range.name
        and product(v.type.shape) == scores
        and v.type.shape.count(LENGTH) > 1
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("spelling", [*FIVE, *DRAWN], ids=str)
def test_every_spelling_is_one_call(spelling: Spelling, target: str) -> None:
    plan = onetrip.plan(spelling, spelling.inputs(torch.float32), target=target)
    assert groups_of(plan) == ["attention"]
    assert score_buffers(plan) == []
    assert [(a.kind, a.taken) for a in plan.alternatives] == [("attention", True)]
    assert "attention: the library's attention" in plan.text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spelling", [*FIVE, *DRAWN[:3]], ids=str)
def test_values(spelling: Spelling, dtype: torch.dtype) -> None:
    check(spelling, *spelling.inputs(dtype))


# ---------------------------------------------------------------- masks that are inputs


def padded(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(WIDTH)
    return scores.masked_fill(keep[:, None, None, :] == 0, -1e9).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, q @ k.mT * 0.3, -math.inf).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT + bias).softmax(-1) @ v


def qkv(dtype: torch.dtype = torch.float32, seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shape = (BATCH, HEADS, LENGTH, WIDTH)
    q, k, v = (torch.randn(shape, generator=draw).to(dtype) for _ in range(3))
    return q, k, v


def places(dtype: torch.dtype = torch.bool) -> Tensor:
    """A mask that leaves row 5 of the first sequence without a place."""
    draw = torch.Generator().manual_seed(11)
    keep = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=draw) > 0.3
    keep[0, 0, 5] = False
    return keep.to(dtype)


def added(low: float, dtype: torch.dtype) -> Tensor:
    return torch.where(places(), 0.0, low).to(dtype)


def mixed(dtype: torch.dtype) -> Tensor:
    """A sum of two masks: the row without a place has a finite number for some keys alone."""
    mask = added(torch.finfo(dtype).min, dtype)
    mask[0, 0, 5, LENGTH // 2 :] = -math.inf
    return mask


LEAST = torch.finfo(torch.float32).min
MASKED: dict[str, tuple[Callable[..., Tensor], Callable[[torch.dtype], Tensor]]] = {
    "padding": (padded, lambda _: (torch.arange(LENGTH) < torch.tensor([[15], [0]])).long()),
    "boolean": (masked, lambda _: places()),
    "infinite": (biased, lambda dtype: added(-math.inf, dtype)),
    "least": (biased, lambda dtype: added(torch.finfo(dtype).min, dtype)),
    "both": (biased, mixed),
    "bias": (biased, lambda dtype: torch.linspace(-2, 3, LENGTH).to(dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MASKED)
def test_rows_without_a_place_are_as_eager_has_them(name: str, dtype: torch.dtype) -> None:
    fn, mask = MASKED[name]
    args = (*qkv(dtype), mask(dtype))
    plan = onetrip.plan(fn, args, target="cpu", search="max")
    check(fn, *args)
    with torch.no_grad():
        ours, eager = torch.compile(fn, backend="onetrip")(*args), fn(*args)
    assert groups_of(plan) == ["attention"]
    assert torch.equal(ours.isnan(), eager.isnan())


# ---------------------------------------------------------------- what looks alike


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def scores_kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores


def weights_kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(q @ k.mT / 5) * 5).softmax(-1) @ v


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(1) @ v


ALIKE: dict[str, tuple[Callable[..., Any], str]] = {
    "over_queries": (over_queries, "the second product does not sum over the keys"),
    "over_heads": (over_heads, "the softmax does not run over the keys"),
    "scores_kept": (scores_kept, "is read elsewhere as well"),
    "weights_kept": (weights_kept, "is read elsewhere as well"),
    "capped": (capped, "tanh of the scores"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_look_alike_stays_and_says_why(name: str) -> None:
    fn, reason = ALIKE[name]
    plan = onetrip.plan(fn, qkv(), target="cpu")
    assert groups_of(plan) == ["bmm", "bmm"]
    (found,) = plan.alternatives
    assert (found.taken, found.code) == (False, "no-form")
    assert reason in found.reason
    check(fn, *qkv())


def test_a_cut_inside_keeps_the_attention_apart() -> None:
    plan = onetrip.plan(FIVE[0], FIVE[0].inputs(torch.float32), target="h200")
    apart = plan.cut("softmax", "bmm#1")
    assert groups_of(apart) == ["bmm", "bmm"]
    assert [a.code for a in apart.alternatives] == ["by-user"]
    assert apart.estimated_us > plan.estimated_us


def test_a_file_with_a_cut_inside_is_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, path = FIVE[0].inputs(torch.float32), tmp_path / "plan.json"
    planned = onetrip.plan(FIVE[0], inputs, target="cpu").cut("softmax", "bmm#1")
    planned.save(path)
    assert onetrip.load_plan(path) == planned
    built = watched(monkeypatch)
    torch._dynamo.reset()
    with torch.no_grad():
        onetrip.compile(FIVE[0].__call__, plan=path)(*inputs)
    assert [g.kind for b in built for g in b.analyzed.plan.groups].count("contraction") == 2


def test_eager_search_takes_no_alternative() -> None:
    inputs = FIVE[0].inputs(torch.float32)
    plan = onetrip.plan(FIVE[0], inputs, target="h200", search="eager")
    assert groups_of(plan) == ["bmm", "bmm"]
    assert [a.code for a in plan.alternatives] == ["search"]


# ---------------------------------------------------------------- transformers


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "intermediate_size": 40, "vocab_size": 50}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, use_cache=False, attn_implementation="eager")
    return LlamaModel(config).eval()


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "intermediate_size": 40, "vocab_size": 50}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, **heads, attn_implementation="eager")
    return BertModel(config, add_pooling_layer=False).eval()


MODELS = {"llama": llama, "bert": bert}
TOKENS = torch.arange(2 * LENGTH).reshape(2, LENGTH) % 50


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_eager_attention_is_the_library_s(name: str, target: str) -> None:
    plan = onetrip.plan(MODELS[name](), (TOKENS,), target=target)
    assert groups_of(plan) == ["attention", "attention"]
    assert score_buffers(plan, 2 * 4 * LENGTH * LENGTH) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_values(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)

    class First(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Tensor) -> Tensor:
            found: Tensor = self.inner(tokens).last_hidden_state
            return found

    assert wide(model) is not model
    check(First(model), TOKENS, calls=1)
