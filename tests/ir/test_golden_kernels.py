"""The hand-written kernels: their texts, their invariants, their values against numpy."""

from __future__ import annotations

from collections.abc import Callable

import golden_kernels as kernels
import numpy as np
import pytest

from near import assert_near
from onetrip.base.dtype import f32, i32
from onetrip.interp.kernel_interp import run_kernel
from onetrip.ir.kernel import Kernel
from onetrip.ir.printer import text
from onetrip.ir.verify import verify

ALL: dict[str, Kernel] = {
    "flash_attention": kernels.flash_attention(2, 8, 4, 4, 8),
    "swiglu_product": kernels.swiglu_product(5, 12, (4, 4, 8)),
    "running_sum": kernels.running_sum(3, 4),
    "recurrence": kernels.recurrence(3, 4),
    "scatter_add": kernels.scatter_add(5, 3),
}
LENGTHS = (1, 3, 8, 13)
Array = np.ndarray


@pytest.mark.parametrize("name", ALL)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"ir/kernel_{name}", text(ALL[name], comments=True))


@pytest.mark.parametrize("name", ALL)
def test_invariants_hold(name: str) -> None:
    verify(ALL[name])


def normal(*shape: int, seed: int = 20) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(q: Array, k: Array, v: Array) -> Array:
    score = q @ k.transpose(0, 2, 1) / np.asarray(np.sqrt(q.shape[-1]), q.dtype)
    rows = np.arange(q.shape[1])
    score = np.where(rows[:, None] >= rows[None], score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    return (weight / weight.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("tiles", [(4, 8), (2, 2), (16, 4)])
def test_flash_attention(length: int, tiles: tuple[int, int]) -> None:
    q, k, v = (normal(2, length, n, seed=s) for s, n in enumerate((8, 8, 4)))
    kernel = kernels.flash_attention(2, 8, 4, *tiles)
    found = run_kernel(kernel, {"Q": q, "K": k, "V": v}, {kernels.S: length})["out"]
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)))
    assert_near(found.reshape(exact.shape), attention(q, k, v), exact)


def swiglu(x: Array, g: Array, u: Array) -> Array:
    gate = x @ g.T
    return gate / (1 + np.exp(-gate)) * (x @ u.T)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("tiles", [(4, 4, 8), (2, 8, 16), (1, 1, 1)])
def test_swiglu_product(length: int, tiles: tuple[int, int, int]) -> None:
    x, g, u = normal(length, 12), normal(5, 12, seed=1), normal(5, 12, seed=2)
    kernel = kernels.swiglu_product(5, 12, tiles)
    found = run_kernel(kernel, {"X": x, "G": g, "U": u}, {kernels.S: length})["out"]
    exact = swiglu(*(a.astype(np.float64) for a in (x, g, u)))
    assert_near(found.reshape(exact.shape), swiglu(x, g, u), exact)


@pytest.mark.parametrize("length", LENGTHS)
def test_running_sum(length: int) -> None:
    x = normal(3, length)
    found = run_kernel(kernels.running_sum(3, 4), {"x_in": x}, {kernels.S: length})["y"]
    assert_near(found.reshape(x.shape), np.cumsum(x, 1), np.cumsum(x.astype(np.float64), 1))


def test_running_sum_of_integers_wraps() -> None:
    x = np.full((3, 7), 2**30 + 1, np.int32)
    found = run_kernel(kernels.running_sum(3, 4, i32), {"x_in": x}, {kernels.S: 7})["y"]
    np.testing.assert_array_equal(found.reshape(x.shape), np.cumsum(x, 1, dtype=np.int32))


def recurrence(a: Array, b: Array) -> Array:
    state, found = np.zeros_like(a[:, 0]), np.empty_like(a)
    for t in range(a.shape[1]):
        state = found[:, t] = a[:, t] * state + b[:, t]
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_recurrence(length: int) -> None:
    a, b = normal(3, length), normal(3, length, seed=1)
    found = run_kernel(kernels.recurrence(3, 4), {"a": a, "b": b}, {kernels.S: length})["h"]
    exact = recurrence(a.astype(np.float64), b.astype(np.float64))
    assert_near(found.reshape(a.shape), recurrence(a, b), exact)


@pytest.mark.parametrize("dtype", [f32, i32])
@pytest.mark.parametrize("length", LENGTHS)
def test_scatter_add(length: int, dtype: object) -> None:
    source = (normal(length, 3) * 100).astype(np.float32 if dtype is f32 else np.int32)
    index = np.arange(length) * 7 % 3  # every place is hit by several rows
    out, count = normal(5, 3, seed=1).astype(source.dtype), np.arange(5)
    wanted, wanted_count = out.astype(np.float64), count.copy()
    eager = out.copy()
    np.add.at(wanted, index, source)
    np.add.at(eager, index, source)
    np.add.at(wanted_count, index, 1)
    given = {"index": index, "source": source, "out": out, "count": count}
    kernel = kernels.scatter_add(5, 3, dtype)
    run_kernel(kernel, given, {kernels.S: length})
    np.testing.assert_array_equal(count, wanted_count)
    if dtype is f32:
        assert_near(out, eager, wanted)
    else:
        np.testing.assert_array_equal(out, wanted)
