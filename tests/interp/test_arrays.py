"""numpy's emulation of element types against torch, Philox against published words, memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onetrip.base.dtype import COMPILED, DType, bf16, bool_, f8e4m3, f16, f32, f64, i8, i64
from onetrip.base.float8 import LAYOUTS, decode, encode
from onetrip.base.sym import Size, mul
from onetrip.frontend.float8 import SATURATES
from onetrip.frontend.philox import philox_words
from onetrip.interp.arrays import (
    InterpreterError,
    Memory,
    carrier,
    constant,
    convert,
    philox,
    poison,
    storage,
    uniform,
)
from onetrip.ir.types import TensorType

SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -1.5, 2.5, 255.0, 256.5, 300.7, -300.7, 32767.5,
    65519.999, 65520.0, 70000.0, 1e-8, 6e-8, 1e-41, 2.0**31, -(2.0**31), 2.0**31 + 5, 2.0**32 + 6,
    -(2.0**33) - 3, 2.0**63, -(2.0**63), 2.0**64, 1e19, 1e38, 3.4e38, 1e300,
    1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-11 + 2.0**-30, 3.396e38,
]  # fmt: skip
WHOLE = [0, 1, -1, 127, 128, 255, 256, 2**24 + 1, 2**53 + 1, 2**62 + 1, -(2**63), 257 * 2**20 + 1]


def values() -> np.ndarray:
    rng = np.random.default_rng(20)
    drawn = rng.standard_normal(400) * 10.0 ** rng.integers(-9, 12, 400)
    return np.concatenate([np.asarray(SPECIAL), drawn])


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.torch_name)
    assert isinstance(found, torch.dtype)
    return found


def carried(t: torch.Tensor) -> np.ndarray:
    if t.dtype.itemsize == 1 and t.is_floating_point():
        return t.view(torch.uint8).numpy()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy()


def numbers(x: np.ndarray, dtype: DType) -> np.ndarray:
    """What bytes of 8-bit floats stand for; other values as they are."""
    return convert(x, dtype, f32) if dtype in LAYOUTS else x


@pytest.mark.parametrize("source", COMPILED, ids=repr)
@pytest.mark.parametrize("target", COMPILED, ids=repr)
def test_casts_are_those_of_torch(source: DType, target: DType) -> None:
    if target is f8e4m3 and not SATURATES:
        pytest.skip("this torch makes NaN of what is too large: the importer says so")
    kinds = [torch.tensor(WHOLE)] if source.is_integral else [torch.tensor(values())]
    for given in (t.to(torch_dtype(source)) for t in kinds):
        found = convert(carried(given), source, target)
        wanted = carried(given.to(torch_dtype(target)))
        assert found.dtype == wanted.dtype == carrier(target)
        found, wanted = numbers(found, target), numbers(wanted, target)
        np.testing.assert_array_equal(found, wanted)
        if target.is_float:
            number = ~np.isnan(wanted)
            np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(wanted[number]))


@pytest.mark.parametrize("dtype", COMPILED, ids=repr)
@pytest.mark.parametrize("value", [0, 1, 0.5, -0.0, 1e-8, 3.396e38])
def test_constants_are_those_of_torch(dtype: DType, value: float) -> None:
    if isinstance(value, float) and not dtype.is_float:
        return
    wanted = carried(torch.tensor(value, dtype=torch.float64).to(torch_dtype(dtype)))
    np.testing.assert_array_equal(constant(value, dtype), wanted)


@pytest.mark.parametrize("dtype", LAYOUTS, ids=repr)
def test_every_byte_stands_for_its_number(dtype: DType) -> None:
    every = torch.arange(256, dtype=torch.uint8)
    wanted = every.view(torch_dtype(dtype)).float().numpy()
    np.testing.assert_array_equal(convert(every.numpy(), dtype, f32), wanted)
    kept = [encode(decode(b, dtype), dtype) for b in range(256) if not np.isnan(wanted[b])]
    assert kept == [b for b in range(256) if not np.isnan(wanted[b])]


def test_integer_constants_wrap() -> None:
    assert constant(300, i8) == 44
    assert constant(-(2**63), i64) == -(2**63)


@pytest.mark.parametrize(("rounds", "published"), [
    (7, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    (10, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
])  # fmt: skip
def test_philox_gives_the_published_words(rounds: int, published: list[int]) -> None:
    """Random123's known answers for philox4x32: counter and key of zeros."""
    words = philox(np.asarray(0), np.asarray(0), rounds)
    assert [int(w) for w in words] == published


@pytest.mark.parametrize("rounds", [7, 10])
@pytest.mark.parametrize("seed", [0, 20, 2**40 + 17, -5])
def test_philox_is_the_stream_of_the_frontend(seed: int, rounds: int) -> None:
    words = philox_words(torch.tensor(seed), 23, rounds).numpy()
    found = uniform(np.asarray(seed), np.arange(23), rounds)
    np.testing.assert_array_equal(found, (words >> 8).astype(np.float32) * np.float32(2.0**-24))


def test_uniform_numbers_of_far_blocks() -> None:
    near, far = (uniform(np.asarray(1), np.asarray(n), 10) for n in (8, 2**34 + 8))
    assert near != far
    assert 0 <= far < 1


# ------------------------------------------------------------------ memory

S = Size("s", 1)
TURNED = TensorType(f32, (S, 3), (1, S))


def test_storage_and_shape_are_the_same_memory() -> None:
    flat = np.arange(6, dtype=np.float32)
    index = (np.asarray([1, 0]), np.asarray([2, 1]))
    strided = Memory.of("x", TURNED, flat, {S: 2})
    np.testing.assert_array_equal(strided.read(index, None, np.zeros(())), [5, 2])
    shaped = Memory.of("x", TURNED, flat.reshape(3, 2).T, {S: 2})
    np.testing.assert_array_equal(shaped.read(index, None, np.zeros(())), [5, 2])
    strided.write(index, np.asarray([7.0, 8.0], np.float32))
    assert flat[5] == 7
    assert flat[2] == 8


def test_storage_is_as_large_as_its_last_element() -> None:
    assert storage(TensorType(bf16, (S, 3), (5, 1)), {S: 2}).shape == (8,)
    assert storage(TensorType.dense(f32, (0, 3))).shape == (0,)
    assert storage(TensorType.dense(f32, ())).shape == (1,)
    assert storage(TensorType.dense(f32, (mul(S, 2),)), {S: 2}).shape == (4,)


@pytest.mark.parametrize("dtype", COMPILED, ids=repr)
def test_fresh_storage_is_poisoned(dtype: DType) -> None:
    (found,) = storage(TensorType.dense(dtype, ()))
    found = numbers(found, dtype)
    assert np.isnan(found) if dtype.is_float else found == poison(dtype) != 0


@pytest.mark.parametrize(
    "data",
    [np.zeros(5, np.float32), np.zeros((3, 2), np.float32), np.zeros(6), np.zeros((2, 3))],
)
def test_wrong_arrays_are_refused(data: np.ndarray) -> None:
    with pytest.raises(InterpreterError):
        Memory.of("x", TURNED, data, {S: 2})


def test_indices_out_of_range_are_refused() -> None:
    x = Memory.of("x", TensorType.dense(f32, (4,)), np.arange(4, dtype=np.float32), {})
    at = np.asarray([0, 4])
    for read in (at, at - 1):
        with pytest.raises(InterpreterError, match="out of range in dimension 0 of buffer x"):
            x.read((read,), None, np.zeros(2, np.float32))
    inside = x.read((at,), at < 4, np.full(2, -1.0, np.float32))
    np.testing.assert_array_equal(inside, [0, -1])


@pytest.mark.parametrize(("dtype", "total"), [(bf16, 256), (f16, 300), (f64, 300)])
def test_joining_rounds_each_time(dtype: DType, total: float) -> None:
    """256 + 1 is 256 in bf16: one after the other, 300 ones never get past it."""
    x = Memory.of("x", TensorType.dense(dtype, (1,)), np.zeros(1, carrier(dtype)), {})
    x.join((np.zeros(300, np.int64),), np.ones(300, carrier(dtype)), np.add)
    assert x.data[0] == total


def test_truth_values_join() -> None:
    x = Memory.of("x", TensorType.dense(bool_, (2,)), np.zeros(2, bool), {})
    x.join((np.asarray([1, 1]),), np.asarray([True, False]), np.maximum)
    np.testing.assert_array_equal(x.data, [False, True])
