"""Our operators in torch: the published random stream, attention, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn import functional

import onetrip.frontend.capture  # noqa: F401  registers the operators
from onetrip.frontend.philox import (
    DROPOUT_ROUNDS,
    dropout_scale,
    philox_block,
    philox_words,
    uniform_numbers,
)

ours = torch.ops.onetrip
ONES = 0xFFFFFFFF

# The known-answer vectors that the authors of the generator publish: counter, key, words.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], words: list[int]) -> None:
    found = philox_block([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key], 10)
    assert [int(w) for w in found] == words


def test_element_i_takes_word_i_mod_4_of_counter_i_div_4() -> None:
    seed = torch.tensor(0x1234567_89ABCDEF)
    words = philox_words(seed, 11, 10)
    for i in range(11):
        counter = [torch.tensor(c) for c in (i // 4, 0, 0, 0)]
        block = philox_block(counter, [torch.tensor(0x89ABCDEF), torch.tensor(0x1234567)], 10)
        assert int(words[i]) == int(block[i % 4])


def test_chunks_do_not_change_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = torch.tensor(-5)
    whole = philox_words(seed, 103, 7)
    monkeypatch.setattr("onetrip.frontend.philox._CHUNK", 7)
    assert torch.equal(philox_words(seed, 103, 7), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_uniform_numbers_are_below_one_and_even(dtype: torch.dtype) -> None:
    numbers = uniform_numbers(torch.tensor(7), (40000,), dtype)
    assert numbers.dtype == dtype
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = torch.histc(numbers.float(), 8, 0, 1)
    # Standard deviation of a bin of n/8 is sqrt(7n/64), here 66.
    assert (counts - 5000).abs().max() < 5 * math.sqrt(7 * 40000 / 64)


def test_empty_shapes() -> None:
    assert uniform_numbers(torch.tensor(7), (0, 3), torch.float32).shape == (0, 3)
    assert uniform_numbers(torch.tensor(7), (), torch.float32).shape == ()


# ---------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_dropout_is_its_definition_at_operation_precision(p: float) -> None:
    seed = torch.tensor(99)
    x = torch.randn(6, 50).to(torch.bfloat16).t()
    kept = uniform_numbers(seed, (50, 6), torch.float32, DROPOUT_ROUNDS) >= p
    expected = torch.where(kept, x.float() * dropout_scale(p, torch.float32), x.float() * 0)
    found = ours.dropout(x, p, seed)
    assert torch.equal(found, expected.to(torch.bfloat16))
    assert found.stride() == x.stride()


def test_dropout_of_special_values_follows_eager() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, -1.0] * 50)
    found = ours.dropout(x, 0.5, torch.tensor(3)).view(50, 4)
    assert found[:, 2].isnan().all()
    assert set(found[:, 0].nan_to_num(0.0, 1.0).tolist()) == {0.0, 1.0}
    assert ((found[:, 3] == -2) | (torch.signbit(found[:, 3]) & (found[:, 3] == 0))).all()


def test_the_gradient_uses_the_forward_mask_and_saves_no_mask() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = ours.dropout(x, 0.4, torch.tensor(11))
    g = torch.randn(5, 7)
    y.backward(g)
    assert torch.equal(x.grad, ours.dropout(g, 0.4, torch.tensor(11)))
    assert [(t.shape, t.dtype) for t in saved] == [(torch.Size([]), torch.int64)]


def test_seeds_follow_the_default_generator() -> None:
    def draw() -> list[int]:
        torch.manual_seed(5)
        return [int(ours.seed(torch.device("cpu"), salt)) for salt in range(3)]

    first = draw()
    assert first == draw()
    assert len(set(first)) == 3


# ---------------------------------------------------------------- attention


def inputs(layout: str, grad: bool = True) -> list[Tensor]:
    def one() -> Tensor:
        t = torch.randn(2, 4, 5, 8) if layout == "heads first" else torch.randn(2, 5, 4, 8)
        t = t if layout == "heads first" else t.transpose(1, 2)
        return t.detach().requires_grad_(grad)

    return [one() for _ in range(3)]


def mask_of(kind: str) -> Tensor | None:
    return {
        "none": None,
        "bool": torch.rand(2, 1, 5, 5) > 0.3,
        "float": torch.randn(2, 4, 5, 5),
        "learned": torch.randn(2, 4, 5, 5, requires_grad=True),
    }[kind]


@pytest.mark.parametrize("layout", ["heads first", "heads inside"])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "learned"])
def test_attention_and_its_gradients_are_the_library_s(layout: str, kind: str) -> None:
    qkv, mask = inputs(layout), mask_of("none" if kind == "causal" else kind)
    found = ours.attention(*qkv, mask, kind == "causal", 0.3, False)
    right = functional.scaled_dot_product_attention(
        *qkv, mask, is_causal=kind == "causal", scale=0.3
    )
    assert torch.equal(found, right)
    sources = [*qkv, mask] if kind == "learned" else qkv
    g = torch.randn_like(right)
    gradients = (torch.autograd.grad(out, sources, g) for out in (found, right))
    assert all(map(torch.equal, *gradients))


SHAPES: list[tuple[list[tuple[int, ...]], bool]] = [
    ([(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)], False),
    ([(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)], True),
    ([(1, 4, 5, 8), (2, 1, 7, 8), (2, 4, 7, 6)], False),
    ([(4, 5, 8), (4, 7, 8), (4, 7, 6)], False),
    ([(5, 8), (7, 8), (7, 6)], False),
]


@pytest.mark.parametrize(("shapes", "grouped"), SHAPES)
def test_fake_kernels_agree_with_the_real_ones(
    shapes: list[tuple[int, ...]], grouped: bool
) -> None:
    qkv = [torch.randn(s, requires_grad=True) for s in shapes]
    torch.library.opcheck(ours.attention.default, (*qkv, None, False, None, grouped))
    torch.library.opcheck(ours.attention_saving.default, (*qkv, None, False, None, grouped, False))
    result = ours.attention(*qkv, None, False, None, grouped)
    plain = [t.detach() for t in qkv]
    torch.library.opcheck(
        ours.attention_backward.default,
        (torch.randn_like(result), *plain, None, False, None, grouped, False, None),
    )


def test_random_operators_pass_torch_s_own_check() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    torch.library.opcheck(ours.dropout.default, (x, 0.3, torch.tensor(1)))
    torch.library.opcheck(ours.uniform.default, (torch.tensor(1), [3, 4], torch.float16))


def forward_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    runs: list[int] = []
    library = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(args[0], FakeTensor):  # asks for strides, and runs nothing
            runs.append(1)
        return library(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    return runs


@pytest.mark.parametrize("kind", ["none", "bool", "learned"])
def test_the_token_saves_the_forward_and_gives_the_same_gradients(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    qkv, mask = inputs("heads first", grad=False), mask_of(kind)
    flags = (False, 0.3, False, kind == "learned")
    runs = forward_runs(monkeypatch)
    result, token = ours.attention_saving(*qkv, mask, *flags)
    g = torch.randn_like(result)
    kept = ours.attention_backward(g, *qkv, mask, *flags, token)
    again = ours.attention_backward(g, *qkv, mask, *flags, token)
    assert len(runs) == 1
    fresh = ours.attention_backward(g, *qkv, mask, *flags, None)
    assert len(runs) == 2
    assert len(kept) == (4 if kind == "learned" else 3)
    for a, b, c in zip(kept, again, fresh, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_a_token_of_other_memory_is_not_believed() -> None:
    """A saved operand may have been computed anew elsewhere, its first memory overwritten."""
    qkv = inputs("heads first", grad=False)
    flags = (False, None, False, False)
    result, token = ours.attention_saving(*qkv, None, *flags)
    g = torch.randn_like(result)
    right = ours.attention_backward(g, *qkv, None, *flags, None)
    copies = [t.clone() for t in qkv]
    qkv[0].zero_()
    found = ours.attention_backward(g, *copies, None, *flags, token)
    assert all(map(torch.equal, found, right))


def test_a_compiled_training_step_runs_the_library_s_forward_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(x: Tensor) -> Tensor:
        q, k, v = (part.reshape(2, 5, 4, 8).transpose(1, 2) for part in x.chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v).exp()

    x = torch.randn(2, 5, 96, requires_grad=True)
    (right,) = torch.autograd.grad(program(x).sum(), x)
    fast = torch.compile(program, backend="onetrip")
    fast(x).sum().backward()
    runs = forward_runs(monkeypatch)
    x.grad = None
    fast(x).sum().backward()
    assert len(runs) == 1
    assert x.grad is not None
    assert torch.allclose(x.grad, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["heads first", "heads inside"])
def test_a_gpu_result_follows_the_query_in_memory(layout: str) -> None:
    with torch._subclasses.FakeTensorMode():
        q, k, v = (t.detach().to("meta") for t in inputs(layout, grad=False))
        found: Any = ours.attention(q, k, v, None, False, None, False)
    assert found.stride() == q.stride()


@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("mask", [None, torch.ones(16, 16, dtype=torch.bool)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2)])
def test_a_result_lies_as_the_library_s(
    order: tuple[int, ...], mask: torch.Tensor | None, width: int
) -> None:
    shape = (2, 3, 16, 8)
    stored = torch.randn([shape[axis] for axis in order])
    query = stored.permute([order.index(axis) for axis in range(4)])
    key, value = torch.randn(shape), torch.randn(2, 3, 16, width)
    wanted = functional.scaled_dot_product_attention(query, key, value, mask)
    found = ours.attention(query, key, value, mask, False, None, False)
    assert found.stride() == wanted.stride()
