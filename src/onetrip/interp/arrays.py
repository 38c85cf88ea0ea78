"""Element types, casts, random numbers and strided memory in numpy.

bf16 has no numpy type: its values are carried in float32 arrays whose low 16 bits are zero, and
`convert` rounds on the way in. The 8-bit floats are carried as bytes. Every other compiled type
carries itself.
Must not know: expressions, nests, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.dtype import DType, bf16, bool_, f16, f32, i32, i64, u8
from ..base.errors import OnetripError
from ..base.float8 import LAYOUTS, decode, encode
from ..base.sym import Sym
from ..ir.types import TensorType, concrete

Array = NDArray[Any]

_CARRIED = {"bfloat16": "float32", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
_NUMBERS = {d: np.array([decode(bits, d) for bits in range(256)], np.float32) for d in LAYOUTS}
"""The number of every byte."""
_HALVES = (bf16, f16)
_KEY_STEP = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WORD = 0xFFFFFFFF


class InterpreterError(OnetripError):
    """An IR that reads or writes outside a buffer, or that this interpreter cannot run."""


def carrier(dtype: DType) -> np.dtype[Any]:
    """The numpy type that holds values of `dtype`; float32 for bf16, bytes for 8-bit floats."""
    return np.dtype(_CARRIED.get(dtype.torch_name, dtype.torch_name))


def round_bf16(x: Array) -> Array:
    """float32 values rounded to the nearest bf16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded).reshape(np.shape(x))


def round_float8(x: Array, target: DType) -> Array:
    """float32 values as bytes of the nearest 8-bit float."""
    made = np.vectorize(lambda v: encode(float(v), target), otypes=[np.uint8])(x)
    return np.asarray(made, np.uint8).reshape(np.shape(x))


def convert(x: Array, source: DType, target: DType) -> Array:
    """`x.to(target)` as PyTorch does it on x86.

    Half types are rounded from float32 (a double is rounded twice). Floats become integers by
    truncation; what does not fit gives the least value of the type through which the processor
    converts: i64 for i64 and u8, i32 for the others, of which the low bits are kept.
    """
    if source is target:
        return x
    if source in LAYOUTS:
        return convert(_NUMBERS[source][x], f32, target)
    with np.errstate(all="ignore"):
        if target is bool_:
            return np.asarray(x != 0)
        if source.is_float and not target.is_float:
            wide = i64 if target in (i64, u8) else i32
            return _truncated(x, wide).astype(carrier(target))
        if target in LAYOUTS:
            return round_float8(x.astype(np.float32), target)
        if target in _HALVES:
            x = x.astype(np.float32)
            return round_bf16(x) if target is bf16 else x.astype(np.float16)
        return np.asarray(x.astype(carrier(target)))


def _truncated(x: Array, wide: DType) -> Array:
    least = -(2.0 ** (wide.bits - 1))
    whole = np.trunc(x.astype(np.float64))
    fits = (whole >= least) & (whole < -least)
    return np.where(fits, np.where(fits, whole, 0).astype(carrier(wide)), int(least))


def constant(value: bool | int | float, dtype: DType) -> Array:
    """A 0-d array of `value` in the carrier of `dtype`; integers wrap around."""
    if dtype in LAYOUTS:
        return np.asarray(encode(float(value), dtype), np.uint8)
    if dtype.is_integral:
        return np.asarray(int(value) & ((1 << dtype.bits) - 1), np.uint64).astype(carrier(dtype))
    with np.errstate(all="ignore"):
        made = np.asarray(value, carrier(dtype))
    return round_bf16(made) if dtype is bf16 else made


# ------------------------------------------------------------------ random numbers


def philox(seed: Array, block: Array, rounds: int) -> tuple[Array, Array, Array, Array]:
    """The four 32-bit words (as uint64) of Philox4x32 at counter (block, 0), key `seed`.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. Seed and block are 64-bit
    integers, their low words first.
    """
    mask, high = np.uint64(_WORD), np.uint64(32)
    wide_seed, wide_block = (np.asarray(x).astype(np.int64).view(np.uint64) for x in (seed, block))
    k0, k1 = wide_seed & mask, wide_seed >> high
    c0, c1 = wide_block & mask, wide_block >> high
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    for _ in range(rounds):
        p0, p1 = c0 * np.uint64(_MULTIPLIER[0]), c2 * np.uint64(_MULTIPLIER[1])
        c0, c1, c2, c3 = (
            (p1 >> high) ^ c1 ^ k0,
            p1 & mask,
            (p0 >> high) ^ c3 ^ k1,
            p0 & mask,
        )
        k0, k1 = (k0 + np.uint64(_KEY_STEP[0])) & mask, (k1 + np.uint64(_KEY_STEP[1])) & mask
    return c0, c1, c2, c3


def uniform(seed: Array, offset: Array, rounds: int) -> Array:
    """float32 in [0, 1): the upper 24 bits of word `offset % 4` of block `offset // 4`."""
    seed, offset = np.broadcast_arrays(seed, offset)
    words = np.stack(philox(seed.copy(), offset // 4, rounds))
    word = np.take_along_axis(words, (offset % 4)[None].astype(np.int64), 0)[0]
    return np.asarray((word >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24))


# ------------------------------------------------------------------ memory


@dataclass(frozen=True)
class Memory:
    """A buffer's contents, read and written by logical index.

    `data` either has the buffer's shape, or is its flat storage with `strides` in elements.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: Array

    @staticmethod
    def of(name: str, type: TensorType, data: Array, sizes: Mapping[Sym, int]) -> Memory:
        """The memory of a buffer over an array that the caller owns; writes go into it.

        Raises:
            InterpreterError: wrong element type, or neither the shape nor enough flat storage.
        """
        shape = tuple(concrete(d, dict(sizes)) for d in type.shape)
        strides = tuple(concrete(d, dict(sizes)) for d in type.strides)
        if data.dtype != carrier(type.dtype):
            raise InterpreterError(
                f"buffer {name} has the wrong element type",
                expected=str(carrier(type.dtype)),
                found=str(data.dtype),
            )
        needed = _storage(shape, strides)
        if data.shape != shape and (data.ndim != 1 or data.size < needed):
            raise InterpreterError(
                f"buffer {name} has the wrong size",
                expected=f"shape {shape} or flat storage of {needed} elements",
                found=f"shape {data.shape}",
            )
        return Memory(name, type.dtype, shape, strides, data)

    def read(self, index: tuple[Array, ...], active: Array | None, other: Array) -> Array:
        """The elements at `index`; `other` where `active` is false (nothing is read there)."""
        if active is not None and not active.any():
            return np.broadcast_to(other, np.broadcast_shapes(*(i.shape for i in index))).copy()
        safe = index if active is None else tuple(np.where(active, i, 0) for i in index)
        found = np.asarray(self.data[self._place(safe)])
        if active is None:
            return found
        return np.asarray(np.where(active, found, other))

    def write(self, index: tuple[Array, ...], value: Array) -> None:
        """Sets elements at 1-d indices, one for each value; the last of equal ones wins."""
        target, place = self._targets(index, len(value))
        target[place] = value

    def join(self, index: tuple[Array, ...], value: Array, ufunc: Any) -> None:
        """element = round(ufunc(element, value)), one after the other where indices repeat."""
        target, place = self._targets(index, len(value))
        if self.dtype.compute is self.dtype:
            ufunc.at(target, place, value)
            return
        for n in range(len(value)):
            here = tuple(p[n] for p in place)
            parts = (convert(np.asarray(v), self.dtype, f32) for v in (target[here], value[n]))
            target[here] = convert(np.asarray(ufunc(*parts)), f32, self.dtype)

    def _targets(self, index: tuple[Array, ...], count: int) -> tuple[Array, tuple[Array, ...]]:
        """A view of the data, and `count` places in it."""
        place = tuple(np.broadcast_to(p, (count,)) for p in self._place(index))
        if self.data.ndim == 0:
            return self.data.reshape(1), (np.zeros(count, np.int64),)
        return self.data, place

    def _place(self, index: tuple[Array, ...]) -> tuple[Array, ...]:
        index = tuple(np.broadcast_arrays(*index)) if index else ()
        for n, (i, extent) in enumerate(zip(index, self.shape, strict=True)):
            if i.size and (i.min() < 0 or i.max() >= extent):
                raise InterpreterError(
                    f"index out of range in dimension {n} of buffer {self.name}",
                    expected=f"0 <= index < {extent}",
                    found=f"{i.min()} to {i.max()}",
                )
        if self.data.shape == self.shape:
            return index
        flat = sum((i * s for i, s in zip(index, self.strides, strict=True)), np.asarray(0))
        return (np.asarray(flat),)


def _storage(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def storage(type: TensorType, sizes: Mapping[Sym, int] | None = None) -> Array:
    """Flat storage for a buffer, filled with a value that no correct kernel reads (`poison`)."""
    count = concrete(type.storage_elements, dict(sizes or {}))
    return np.full((count,), poison(type.dtype), carrier(type.dtype))


def poison(dtype: DType) -> Array:
    """What stands where nothing was computed: NaN, a large odd integer, True."""
    if dtype.is_float:
        return constant(float("nan"), dtype)
    if dtype is bool_:
        return constant(True, dtype)
    return constant((1 << (dtype.bits - 2)) + 37, dtype)
