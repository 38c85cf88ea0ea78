"""Nests written by hand as text: read, verified, printed again, run against numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from near import assert_near
from onetrip.base.dtype import bf16, f32
from onetrip.base.sym import Size
from onetrip.interp.arrays import convert, uniform
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.nest import Nest
from onetrip.ir.parser import parse
from onetrip.ir.printer import text
from onetrip.ir.verify import verify

FOLDER = Path(__file__).parents[1] / "golden" / "ir"
NAMES = sorted(p.stem for p in FOLDER.glob("nest_*.txt"))
S = Size("s", 1)
Array = Any


def nest(name: str) -> Nest:
    made = parse((FOLDER / f"nest_{name}.txt").read_text(encoding="utf-8"))
    assert isinstance(made, Nest)
    return made


def run(name: str, sizes: Mapping[Any, int] | None = None, **buffers: Array) -> dict[str, Array]:
    """The written buffers, in their shapes."""
    return run_nest(nest(name), buffers, sizes)


def normal(*shape: int, seed: int = 20) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(*arrays: Array) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


def test_every_nest_is_here() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_text_is_read_verified_and_written(name: str, golden: Callable[[str, str], None]) -> None:
    made = nest(name.removeprefix("nest_"))
    verify(made)
    golden(f"ir/{name}", text(made))
    assert parse(text(made)) == made


def softmax(x: Array) -> Array:
    weight = np.exp(x - x.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def test_softmax_rounds_once() -> None:
    x = convert(normal(3, 7), f32, bf16)
    found = run("softmax", x=x)["y"].reshape(3, 7)
    np.testing.assert_array_equal(found, convert(softmax(x), f32, bf16))


@pytest.mark.parametrize("rows", [1, 5])
def test_layer_norm(rows: int) -> None:
    def norm(x: Array, w: Array, b: Array) -> Array:
        off = x - x.mean(-1, keepdims=True)
        return off / np.sqrt((off * off).mean(-1, keepdims=True) + x.dtype.type(1e-5)) * w + b

    x, w, b = normal(rows, 6), normal(6, seed=1), normal(6, seed=2)
    found = run("layer_norm", {S: rows}, x=x, weight=w, bias=b)
    assert_near(found["y"].reshape(x.shape), norm(x, w, b), norm(*wide(x, w, b)))
    assert_near(found["mean"], x.mean(-1), wide(x)[0].mean(-1))


@pytest.mark.parametrize("length", [1, 6])
def test_attention(length: int) -> None:
    def attention(q: Array, k: Array, v: Array) -> Array:
        score = q @ k.transpose(0, 2, 1) * q.dtype.type(8**-0.5)
        hidden = np.triu(np.ones((length, length), bool), 1)
        return softmax(np.where(hidden, -np.inf, score)) @ v

    q, k, v = (normal(2, length, n, seed=s) for s, n in enumerate((8, 8, 4)))
    found = run("attention", {S: length}, Q=q, K=k, V=v)["out"]
    assert_near(found.reshape(v.shape), attention(q, k, v), attention(*wide(q, k, v)))


def test_swiglu() -> None:
    def swiglu(x: Array, g: Array, u: Array) -> Array:
        gate = x @ g.T
        return gate / (1 + np.exp(-gate)) * (x @ u.T)

    x, g, u = normal(4, 12), normal(5, 12, seed=1), normal(5, 12, seed=2)
    found = run("swiglu", {S: 4}, X=x, G=g, U=u)["out"]
    assert_near(found.reshape(4, 5), swiglu(x, g, u), swiglu(*wide(x, g, u)))


def test_scans() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 9))
    a, b = normal(3, 9), normal(3, 9, seed=1)
    found = run("scans", x=x, a=a, b=b)
    np.testing.assert_array_equal(found["y"].reshape(x.shape), np.cumsum(x, 1))
    back = np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1]
    np.testing.assert_array_equal(found["z"].reshape(x.shape), back)

    def recurrence(a: Array, b: Array) -> Array:
        state = np.zeros(3, a.dtype)
        return np.stack([state := a[:, t] * state + b[:, t] for t in range(9)], 1)

    assert_near(found["h"].reshape(a.shape), recurrence(a, b), recurrence(*wide(a, b)))


@pytest.mark.parametrize("length", [0, 7])
def test_scatter_add(length: int) -> None:
    index, source = np.arange(length) * 3 % 4, normal(length, 3)
    out = np.ones((5, 3), np.float32)
    eager, exact = out.copy(), out.astype(np.float64)
    np.add.at(eager, index, source)
    np.add.at(exact, index, source)
    run("scatter_add", {Size("s"): length}, index=index, source=source, out=out)
    assert_near(out, eager, exact)


def test_moves() -> None:
    x, y = normal(4, 5), normal(4, 5, seed=1)
    found = run("moves", x=x, y=y)
    np.testing.assert_array_equal(found["rolled"].reshape(4, 5), np.roll(x, (1, -2), (0, 1)))
    padded = np.pad(x, ((0, 0), (2, 0)), constant_values=-1.5)[:, :5]
    np.testing.assert_array_equal(found["padded"].reshape(4, 5), padded)
    np.testing.assert_array_equal(found["joined"].reshape(4, 10), np.concatenate([x, y], 1))
    np.testing.assert_array_equal(found["flat"][::2], x.reshape(-1))
    np.testing.assert_array_equal(found["turned"].reshape(4, 5), x)


def test_gather() -> None:
    index = np.asarray([0, 4, -1, 2, -5, 2], np.int32)
    table = normal(5, 3).astype(np.float16)
    found = run("gather", index=index, table=table)["out"]
    np.testing.assert_array_equal(found.reshape(6, 3), table[index])


def test_dropout() -> None:
    x, seed = normal(4, 6), np.asarray(2**40 + 17)
    kept = uniform(seed, np.arange(24), 10).reshape(4, 6) >= np.float32(0.25)
    found = run("dropout", x=x, seed=seed)["y"].reshape(4, 6)
    np.testing.assert_array_equal(found, np.where(kept, x * np.float32(1.3333334), 0))
    assert 0 < kept.sum() < 24
