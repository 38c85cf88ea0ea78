"""Promotion, broadcasting, reshapes and slices, symbolic sizes included."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from conformance import torch_dtype
from onetrip.base.dtype import COMPILED, bf16, f32, i64
from onetrip.base.errors import Unsupported
from onetrip.base.sym import Size, Var, product, substitute
from onetrip.ir.types import TensorType
from onetrip.ops import rules, shapes
from onetrip.ops.table import OPS

NUMBERS = (True, 3, 0.5)


def operand(dtype: Any, rank: int) -> TensorType:
    return TensorType.dense(dtype, (2,) * rank)


@pytest.mark.parametrize("ranks", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_promotion_of_tensors(ranks: tuple[int, int]) -> None:
    for a, b in itertools.product(COMPILED, COMPILED):
        given = (operand(a, ranks[0]), operand(b, ranks[1]))
        tensors = [torch.empty(t.shape, dtype=torch_dtype(t.dtype)) for t in given]
        try:
            theirs = torch.result_type(*tensors)
        except RuntimeError:  # an 8-bit float has no common dtype with another
            with pytest.raises(Unsupported):
                rules.promoted(given)
            continue
        assert torch_dtype(rules.promoted(given)) == theirs, (a, b)


@pytest.mark.parametrize("rank", [0, 1])
def test_promotion_of_numbers(rank: int) -> None:
    for dtype, number in itertools.product(COMPILED, NUMBERS):
        tensor = torch.empty((2,) * rank, dtype=torch_dtype(dtype))
        ours = rules.promoted((operand(dtype, rank), number))
        assert torch_dtype(ours) == torch.result_type(tensor, number), (dtype, number)


def test_three_ranks_at_once() -> None:
    found = rules.promoted((operand(bf16, 1), operand(f32, 0), 0.5))
    assert found is bf16
    assert rules.promoted((operand(i64, 1), operand(bf16, 0), 0.5)) is bf16
    assert rules.promoted((operand(i64, 1), operand(i64, 0), 0.5)) is f32


S, T = Size("s0", 2), Size("s1", 2)


def test_broadcast() -> None:
    assert rules.broadcast([(3, 1), (4,), ()]) == (3, 4)
    assert rules.broadcast([(S, 1), (1, T)]) == (S, T)
    assert rules.broadcast([(S, 3), (S, 1)]) == (S, 3)
    assert rules.broadcast([(S,), (7,)]) == (7,)
    assert rules.broadcast([(0,), (1,)]) == (0,)
    with pytest.raises(Unsupported):
        rules.broadcast([(3,), (4,)])
    with pytest.raises(Unsupported):
        rules.broadcast([(S,), (T,)])


RESHAPES = [
    ((6, 4), (24,)), ((24,), (6, 4)), ((2, 3, 4), (6, 4)), ((2, 3, 4), (4, 3, 2)),
    ((4, 6), (6, 4)), ((1, 6), (2, 3)), ((6,), (1, 6, 1)), ((2, 1, 3), (2, 3)), ((1,), ()),
    ((), (1, 1)), ((4, 3, 5, 2), (12, 10)), ((8, 9), (2, 4, 3, 3)), ((2, 3, 2), (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), RESHAPES)
def test_reshape_index(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    axes = tuple(0 if n == 1 else Var(f"i{k}", n) for k, n in enumerate(after))
    index = shapes.reshape_index(axes, before, after)
    source = torch.arange(product(before)).reshape(before)
    moved = source.reshape(after)
    for place in itertools.product(*map(range, after)):
        known = {a: p for a, p in zip(axes, place, strict=True) if isinstance(a, Var)}
        at = tuple(substitute(i, known) for i in index)
        assert source[at] == moved[place]


@pytest.mark.parametrize(("before", "after"), RESHAPES)
@pytest.mark.parametrize("order", ["rows", "columns", "gaps"])
def test_reshape_strides(before: Any, after: Any, order: str) -> None:
    """Strides exactly where torch can make a view, and then torch's own where size is not 1."""
    x = torch.zeros(before)
    if order == "columns" and before:
        x = torch.zeros(before[::-1]).permute(*reversed(range(len(before))))
    if order == "gaps" and before:
        x = torch.zeros((*before[:-1], before[-1] * 2))[..., ::2]
    ours = shapes.reshape_strides(TensorType(f32, before, tuple(x.stride())), after)
    try:
        theirs = x.view(after).stride()
    except RuntimeError:
        assert ours is None
        return
    assert ours is not None
    for mine, true, size in zip(ours, theirs, after, strict=True):
        assert size == 1 or mine == true


def test_symbolic_reshapes_stay_simple() -> None:
    b, s, h, d = Var("b", S), Var("s", T), Var("h", 4), Var("d", 16)
    assert shapes.reshape_index((b, s, h, d), (S, T, 64), (S, T, 4, 16)) == (b, s, 16 * h + d)
    flat, inner = Var("r", S * T), Var("d", 16)
    index = shapes.reshape_index((flat, inner), (S, T, 16), (S * T, 16))
    assert index == (flat // T, flat % T, inner)
    assert shapes.reshape_index((b, s, h), (S * T, 4), (S, T, 4)) == (b * T + s, h)
    x = TensorType.dense(f32, (S, T, 64))
    assert shapes.reshape_strides(x, (S * T, 64)) == (64, 1)
    assert shapes.infer_shape((S, -1), x.numel) == (S, T * 64)
    with pytest.raises(Unsupported):
        shapes.segments((S, 3), (T, 3))


def test_slices() -> None:
    def length(n: Any, **attrs: Any) -> Any:
        x = TensorType.dense(f32, (n,))
        return OPS["slice"].types((x,), {"dim": 0, **attrs})[0].shape[0]

    for n, start, end, step in itertools.product(
        (0, 1, 5), (None, -7, -2, 0, 3, 9), (None, -7, -2, 0, 3, 9), (1, 2)
    ):
        assert length(n, start=start, end=end, step=step) == len(range(n)[start:end:step])
    top = (1 << 63) - 1
    assert length(S, start=0, end=top) == S
    assert length(S, start=1, end=top) == S - 1
    assert length(S, start=0, end=-1) == S - 1
    with pytest.raises(Unsupported):
        length(S, start=0, end=5)


def test_layout_is_kept() -> None:
    """Pointwise operators keep a dense layout that their full operands share, as eager does."""
    x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    typed = TensorType(f32, tuple(x.shape), tuple(x.stride()))
    scalar, row = TensorType.dense(f32, ()), TensorType.dense(f32, (5,))
    for others, torches in (((), ()), ((scalar,), (torch.zeros(()),)), ((row,), (torch.zeros(5),))):
        found = rules.pointwise()((typed, *others), {})[0]
        eager = torch.relu(x) if not torches else x + torches[0]
        assert found.strides == tuple(eager.stride())
    holes = TensorType(f32, (3, 4), (8, 2))
    assert rules.pointwise()((holes,), {})[0].is_contiguous
