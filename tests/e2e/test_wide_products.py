"""Products of 16 bits that are computed in f32: values, gradients and layouts are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from checks import check, compiled, wide
from torch import Tensor, nn
from torch.nn import functional

from onetrip.frontend import attention_ops
from onetrip.runtime.accuracy import judge

LOOPED = "cpu:2-bf16-f16"
DTYPES = [torch.bfloat16, torch.float16]


class Convolved(nn.Module):
    """Convolutions with a norm, a residual and a head; its images leave as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.relu(self.norm(self.first(x)))
        y = y + self.second(y)
        return y, self.head(y.mean((2, 3)))


class Attending(nn.Module):
    """Attention between two products, over a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.reshape(4, 24, 2, 16).transpose(1, 2) for t in self.into(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def model_of(kind: type[nn.Module], dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(5)
    shape = (4, 4, 16, 16) if kind is Convolved else (4, 24, 32)
    return kind().eval().to(dtype), torch.randn(shape).to(dtype)


@pytest.mark.parametrize("kind", [Convolved, Attending])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results(kind: type[nn.Module], dtype: torch.dtype) -> None:
    model, x = model_of(kind, dtype)
    check(model, x, target=LOOPED)


@pytest.mark.parametrize("kind", [Convolved, Attending])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(
    kind: type[nn.Module], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "has_instructions", lambda dtype: False)
    model, x = model_of(kind, dtype)

    def gradients(run: nn.Module, source: nn.Module, x: Tensor) -> Sequence[Tensor]:
        result = run(x)
        first = result if isinstance(result, Tensor) else result[0]
        given = torch.linspace(-1, 1, first.numel()).reshape(first.shape).to(first.dtype)
        sources = [p for p in source.parameters() if kind is Attending or p.dim() > 2]
        return torch.autograd.grad(first, sources, given)

    exact = gradients(*[copy.deepcopy(wide(model))] * 2, x.double())
    eager = gradients(model, model, x)
    ours = gradients(compiled(model, target=LOOPED), model, x)
    verdict = judge(tuple(ours), tuple(eager), tuple(exact))
    assert verdict.ok, verdict
    assert [g.stride() for g in ours] == [g.stride() for g in eager]


def test_a_looped_gradient_of_attention_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_ops, "has_instructions", lambda dtype: False)
    qkv = [torch.randn(2, 4, 24, 16, dtype=torch.bfloat16) for _ in range(3)]
    flags = (None, True, None, False, False)
    result, token = torch.ops.onetrip.attention_saving(*qkv, *flags)
    assert not hasattr(token, "recorded")
    found = torch.ops.onetrip.attention_backward(result, *qkv, *flags, token)
    leaves = [t.double().requires_grad_() for t in qkv]
    exact = functional.scaled_dot_product_attention(*leaves, is_causal=True)
    right = torch.autograd.grad(exact, leaves, result.double())
    assert [g.dtype for g in found] == [torch.bfloat16] * 3
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
@pytest.mark.parametrize("lengths", [(9, 0), (0, 9), (0, 0)])
def test_attention_of_no_rows_and_to_no_rows(
    lengths: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "has_instructions", lambda dtype: False)
    queries, keys = lengths

    def step(run: Callable[..., Tensor]) -> list[Tensor]:
        rows = (queries, keys, keys)
        leaves = [torch.ones(2, 4, n, 20, dtype=dtype, requires_grad=True) for n in rows]
        result = run(*leaves)
        result.sum().backward()
        return [result, *(t.grad for t in leaves if t.grad is not None)]

    attention = functional.scaled_dot_product_attention
    ours, eager = step(compiled(attention)), step(attention)
    assert len(ours) == len(eager) == 4
    for mine, theirs in zip(ours, eager, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
