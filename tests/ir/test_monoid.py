"""The laws of every monoid, with special values, and what its fold means."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from near import assert_near
from onetrip.base.dtype import DType, bf16, bool_, f32, f64, i8, i64, u8
from onetrip.interp.arrays import carrier, constant
from onetrip.interp.evaluate import combine, fold, prefix
from onetrip.ir.monoid import MONOIDS, highest, lowest

Array = Any
FLOATS = (0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, 3e38, 1e-45)
FINITE = (0.0, -0.0, 1.5, -2.0, 0.1, 7.0)
INTS = (0, 1, -1, 3, -128, 127)

EXACT: list[tuple[str, tuple[DType, ...], tuple[tuple[Any, ...], ...]]] = [
    ("max", (f32,), tuple((x,) for x in FLOATS)),
    ("min", (f32,), tuple((x,) for x in FLOATS)),
    ("max", (i8,), tuple((x,) for x in INTS)),
    ("min", (u8,), ((0,), (1,), (255,))),
    ("max", (bool_,), ((False,), (True,))),
    ("sum", (i8,), tuple((x,) for x in INTS)),
    ("prod", (i8,), tuple((x,) for x in INTS)),
    ("xor_sum", (i8,), tuple((x,) for x in INTS)),
    ("any", (bool_,), ((False,), (True,))),
    ("all", (bool_,), ((False,), (True,))),
    ("argmax", (f32, i64), tuple((x, n) for n, x in enumerate((*FLOATS[:7], 1.5, math.nan)))),
    ("argmin", (f32, i64), tuple((x, n) for n, x in enumerate((*FLOATS[:7], 1.5, math.nan)))),
    ("argmax", (i8, i64), tuple((x, n) for n, x in enumerate((*INTS, 127, -128)))),
    ("argmin", (u8, i64), tuple((x, n) for n, x in enumerate((0, 255, 3, 0, 255)))),
    ("last_argmax", (f32, i64), tuple((x, n) for n, x in enumerate((*FLOATS[:7], 1.5, math.nan)))),
    ("last_argmin", (i8, i64), tuple((x, n) for n, x in enumerate((*INTS, 127, -128)))),
]
CLOSE: list[tuple[str, tuple[tuple[float, ...], ...]]] = [
    ("sum", tuple((x,) for x in FINITE)),
    ("prod", tuple((x,) for x in FINITE)),
    ("welford", (*((1.0, x, 0.0) for x in FINITE), (0.0, 0.0, 0.0), (3.0, 2.0, 5.0))),
    ("online_softmax", (*((x, 1.0) for x in FINITE), (-math.inf, 0.0))),
    ("logaddexp", tuple((x,) for x in (*FINITE, -math.inf))),
    ("affine", tuple(itertools.product((0.0, 1.0, -0.5), (0.0, 2.0)))),
]


def states(dtypes: tuple[DType, ...], values: Any) -> tuple[Array, ...]:
    columns = zip(*values, strict=True)
    return tuple(
        np.asarray([constant(v, d) for v in column], carrier(d))
        for column, d in zip(columns, dtypes, strict=True)
    )


def joined(monoid: str, dtypes: tuple[DType, ...], values: Any) -> tuple[tuple[Array, ...], ...]:
    """(a . b) . c and a . (b . c) for all triples."""
    picks = list(itertools.product(range(len(values)), repeat=3))
    a, b, c = (states(dtypes, [values[p[n]] for p in picks]) for n in range(3))
    left = combine(monoid, dtypes, combine(monoid, dtypes, a, b), c)
    return left, combine(monoid, dtypes, a, combine(monoid, dtypes, b, c))


def same(a: tuple[Array, ...], b: tuple[Array, ...]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("monoid", "dtypes", "values"), EXACT, ids=str)
def test_exact_laws(monoid: str, dtypes: tuple[DType, ...], values: Any) -> None:
    same(*joined(monoid, dtypes, values))
    neutral = states(dtypes, [[c.value for c in MONOIDS[monoid].identity(dtypes)]] * len(values))
    own = states(dtypes, values)
    same(combine(monoid, dtypes, neutral, own), own)
    same(combine(monoid, dtypes, own, neutral), own)


@pytest.mark.parametrize(("monoid", "values"), CLOSE, ids=str)
def test_laws_of_rounded_monoids(monoid: str, values: Any) -> None:
    dtypes = (f64,) * len(values[0])
    for x, y in zip(*joined(monoid, dtypes, values), strict=True):
        finite = np.isfinite(x)
        np.testing.assert_array_equal(x[~finite], y[~finite])
        off = np.abs(x[finite] - y[finite]).max()
        assert off <= 4 * np.finfo(np.float64).eps * np.abs(x[finite]).max()
    neutral = states(dtypes, [[c.value for c in MONOIDS[monoid].identity(dtypes)]] * len(values))
    own = states(dtypes, values)
    same(combine(monoid, dtypes, neutral, own), own)
    same(combine(monoid, dtypes, own, neutral), own)


def test_order_matters_only_where_it_should() -> None:
    a, b = states((f32, f32), [(2.0, 1.0)]), states((f32, f32), [(3.0, 5.0)])
    with pytest.raises(AssertionError):
        same(combine("affine", (f32, f32), a, b), combine("affine", (f32, f32), b, a))
    for monoid, dtypes, values in EXACT:
        pairs = list(itertools.product(values, repeat=2))
        x, y = (states(dtypes, [p[n] for p in pairs]) for n in (0, 1))
        same(combine(monoid, dtypes, x, y), combine(monoid, dtypes, y, x))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("seed", range(8))
def test_arg_extremes_are_those_of_numpy(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.choice(np.asarray(FLOATS, np.float32), (3, 5, 4))
    position = np.arange(20).reshape(5, 4) * np.ones_like(x, np.int64)
    value, index = fold(name, (f32, i64), (x, position), (1, 2))
    wanted = getattr(np, name)(x.reshape(3, -1), -1)
    np.testing.assert_array_equal(index.reshape(3), wanted)
    np.testing.assert_array_equal(value.reshape(3), x.reshape(3, -1)[np.arange(3), wanted])


def test_a_neutral_value_that_is_real_keeps_its_index() -> None:
    x, n = np.full(5, -np.inf, np.float32), np.arange(5)
    assert fold("argmax", (f32, i64), (x, n), (0,))[1].item() == 0


def test_welford_is_the_variance() -> None:
    x = (np.random.default_rng(2).standard_normal(37) + 10).astype(np.float32)
    state = (np.ones_like(x), x, np.zeros_like(x))
    count, mean, squares = fold("welford", (f32,) * 3, state, (0,))
    assert count.item() == 37
    exact = x.astype(np.float64)
    assert_near(mean, x.mean(keepdims=True), exact.mean(keepdims=True))
    assert_near(squares / count, x.var(keepdims=True), exact.var(keepdims=True))


def test_welford_of_one_large_number_does_not_overflow() -> None:
    own = states((f32,) * 3, [(1.0, 3e38, 0.0)])
    neutral = states((f32,) * 3, [(0.0, 0.0, 0.0)])
    same(combine("welford", (f32,) * 3, neutral, own), own)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_folds_of_any_length(count: int) -> None:
    x = np.arange(2 * count, dtype=np.int64).reshape(2, count)
    (total,) = fold("sum", (i64,), (x,), (1,))
    np.testing.assert_array_equal(total, x.sum(1, keepdims=True))
    (running,) = prefix("sum", (i64,), (x,), 1, back=False)
    np.testing.assert_array_equal(running, np.cumsum(x, 1))
    (back,) = prefix("sum", (i64,), (x,), 1, back=True)
    np.testing.assert_array_equal(back, np.cumsum(x[:, ::-1], 1)[:, ::-1])


@pytest.mark.parametrize("dims", [(1, 2), (2, 1)])
def test_folds_keep_the_order_of_the_axes(dims: tuple[int, ...]) -> None:
    shape = (2, 3, 4)
    decay, shift = (
        np.random.default_rng(n).standard_normal(shape).astype(np.float32) for n in (0, 1)
    )

    def recurrence(decay: Array, shift: Array) -> Array:
        state = np.zeros(2, decay.dtype)
        for place in itertools.product(*(range(shape[n]) for n in dims)):
            i, j = (place[dims.index(n)] for n in (1, 2))
            state = decay[:, i, j] * state + shift[:, i, j]
        return state

    found = fold("affine", (f32, f32), (decay, shift), dims)[1].reshape(2)
    wide = recurrence(decay.astype(np.float64), shift.astype(np.float64))
    assert_near(found, recurrence(decay, shift), wide)


@pytest.mark.parametrize("dtype", [f32, bf16, i8, u8, i64, bool_])
def test_extreme_constants(dtype: DType) -> None:
    low, high = lowest(dtype), highest(dtype)
    assert low.dtype is high.dtype is dtype
    if dtype.is_float:
        assert (low.value, high.value) == (-math.inf, math.inf)
    elif dtype is bool_:
        assert (low.value, high.value) == (False, True)
    else:
        limits = np.iinfo(carrier(dtype))
        assert (low.value, high.value) == (limits.min, limits.max)
