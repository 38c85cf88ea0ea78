"""Seeded random operators: functions of a seed and of the element's linear index.

The seed is the last operand; the uniform number (f32, 24 bits) comes from ir.expr.Rng.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtype import DType, bf16, f16, f32
from ..base.errors import Unsupported
from ..ir.expr import Expr, apply, cast
from ..ir.types import TensorType
from . import arith as m
from .rows import sample
from .rules import Arg, as_dtype, check_compiled, laid_out
from .schema import Attrs, Form, Kind, Op, Random

BITS = {f32: 24, f16: 11, bf16: 8}
"""Random bits of a uniform number: as many as its dtype has precision."""
MASK = 0xFFFFFFFF
ROUNDS = 10
DROPOUT_ROUNDS = 7
"""Of the generator: for a mask, the fewest that pass every test of Salmon et al., table 2."""


def philox_uniform(seed: int, count: int, rounds: int) -> Any:
    """`count` uniform f32 numbers of the stream of `seed`.

    Philox4x32; number i is word i % 4 of block i // 4.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    c = [block & MASK, block >> np.uint64(32), np.zeros_like(block), np.zeros_like(block)]
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    for _ in range(rounds):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c = [high1 ^ c[1] ^ np.uint64(k0), p1 & MASK, high0 ^ c[3] ^ np.uint64(k1), p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    words = np.stack(c, -1).reshape(-1)[:count]
    return (words >> np.uint64(8)).astype(np.float64) * 2.0**-24


def keep_scale(p: float, dtype: DType) -> float:
    """What dropout multiplies a kept element by: the reciprocal of the rounded 1 - p, rounded."""
    kept = m.const(1.0 - p, dtype).value
    return float(m.const(1.0 / kept if kept else np.inf, dtype).value)


def _dropout(xs: tuple[Expr, ...], uniform: Expr, at: Attrs) -> Expr:
    """x * (scale where uniform >= p, else 0)."""
    (x,) = xs
    scale = m.const(keep_scale(at["p"], x.dtype), x.dtype)
    return m.mul(x, m.where(m.ge(uniform, at["p"]), scale, 0))


def _dropout_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x = operands[0]
    if not check_compiled(x.dtype).is_float:
        raise Unsupported(f"dropout of {x.dtype.torch_name}")
    return (laid_out(x.dtype, x.shape, (x,)),)


def _np_dropout(x: Any, seed: Any, at: Attrs) -> Any:
    kept = philox_uniform(int(seed), x.size, DROPOUT_ROUNDS).reshape(x.shape) >= np.float32(at["p"])
    return x * np.where(kept, keep_scale(at["p"], f32), 0.0)


def _uniform(xs: tuple[Expr, ...], uniform: Expr, at: Attrs) -> Expr:
    """The number, with the low bits cut that its dtype cannot hold."""
    bits = BITS[as_dtype(at["dtype"])]
    if bits == 24:
        return uniform
    cut = apply("floor", m.mul(uniform, 2.0**bits))
    return cast(m.mul(cut, 2.0**-bits), f32)


def _uniform_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    dtype = as_dtype(at["dtype"])
    if dtype not in BITS:
        raise Unsupported(f"uniform numbers of {dtype.torch_name}")
    return (TensorType.dense(dtype, tuple(at["size"])),)


def _np_uniform(seed: Any, at: Attrs) -> Any:
    bits = BITS[as_dtype(at["dtype"])]
    count = int(np.prod(at["size"]))
    u = np.floor(philox_uniform(int(seed), count, ROUNDS) * 2.0**bits) * 2.0**-bits
    return u.reshape(at["size"])


SEED = ("i64", ())
OPS: tuple[Op, ...] = (
    Op("dropout", Kind.RANDOM, (Form("onetrip.dropout.default", ("x", "seed"), ("p",)),),
       _dropout_type, Random(_dropout, DROPOUT_ROUNDS), _np_dropout,
       (sample(("f32", (3, 5)), SEED, p=0.3), sample(("bf16", (7,)), SEED, p=0.5)),
       onnx=("Dropout",)),
    Op("uniform", Kind.RANDOM,
       (Form("onetrip.uniform.default", ("seed",), ("size", "dtype")),), _uniform_type,
       Random(_uniform, ROUNDS), _np_uniform,
       (sample(SEED, size=(3, 5), dtype="f32"), sample(SEED, size=(6,), dtype="bf16"))),
)  # fmt: skip
