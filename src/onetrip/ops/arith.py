"""Spellings of scalar expressions for operator bodies; a number takes the dtype of its partner.

Nothing here knows tensors, shapes or nodes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np

from ..base.dtype import DType, bf16, bool_, f16, f32, f64, i64
from ..base.float8 import LAYOUTS, decode, encode
from ..base.sym import Dim
from ..ir.expr import Apply, Cast, Const, Expr, Position, cast, compare

Term = Expr | bool | int | float
_NUMPY = {
    d: np.dtype(d.torch_name)
    for d in (f16, f32, f64)
}  # fmt: skip


def round_bf16(value: float) -> float:
    """The nearest bf16, ties to even, of an f32 value."""
    (bits,) = struct.unpack("<I", struct.pack("<f", np.float32(value)))
    if bits & 0x7FFFFFFF > 0x7F800000:
        return math.nan
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", rounded & 0xFFFFFFFF))[0])


def const(value: bool | int | float, dtype: DType) -> Const:
    """`value` converted to dtype: rounded, truncated or wrapped as PyTorch's own conversion."""
    if dtype is bool_:
        return Const(bool(value), dtype)
    if dtype.is_integral:
        low = int(value) & ((1 << dtype.bits) - 1)
        top = 1 << (dtype.bits - 1)
        return Const(low - 2 * top if dtype.signed and low >= top else low, dtype)
    if dtype is bf16:
        return Const(round_bf16(float(value)), dtype)
    if dtype in LAYOUTS:
        return Const(decode(encode(float(value), dtype), dtype), dtype)
    with np.errstate(over="ignore"):
        return Const(float(_NUMPY[dtype].type(value)), dtype)


def _pair(a: Term, b: Term) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, b if isinstance(b, Expr) else const(b, a.dtype)
    assert isinstance(b, Expr), "one operand must be an expression"
    return const(a, b.dtype), b


def _binary(op: str) -> Callable[[Term, Term], Expr]:
    def make(a: Term, b: Term) -> Expr:
        left, right = _pair(a, b)
        return Apply(op, (left, right), left.dtype)

    make.__doc__ = f"{op}(a, b), in the dtype of the operands."
    return make


def _unary(op: str) -> Callable[[Expr], Expr]:
    def make(x: Expr) -> Expr:
        return Apply(op, (x,), x.dtype)

    make.__doc__ = f"{op}(x)."
    return make


def _test(op: str) -> Callable[[Term, Term], Expr]:
    def make(a: Term, b: Term) -> Expr:
        return compare(op, *_pair(a, b))

    make.__doc__ = f"a {op} b, as bool."
    return make


add, sub, mul, div = (_binary(op) for op in ("add", "sub", "mul", "div"))
maximum, minimum, power = (_binary(op) for op in ("maximum", "minimum", "pow"))
both, either = (_binary(op) for op in ("logical_and", "logical_or"))
eq, ne, lt, le, gt, ge = (_test(op) for op in ("eq", "ne", "lt", "le", "gt", "ge"))
_FUNCTIONS = (
    "neg", "exp", "log", "log1p", "expm1", "tanh", "erf", "sqrt", "rsqrt", "abs",
)  # fmt: skip
neg, exp, log, log1p, expm1, tanh, erf, sqrt, rsqrt, absolute = map(_unary, _FUNCTIONS)


def negation(x: Expr) -> Expr:
    """not x."""
    return Apply("logical_not", (x,), bool_)


def isnan(x: Expr) -> Expr:
    """Whether x is NaN; false for integers."""
    return Apply("isnan", (x,), bool_) if x.dtype.is_float else Const(False, bool_)


def where(condition: Expr, a: Term, b: Term) -> Expr:
    """a where the condition holds, else b."""
    left, right = _pair(a, b)
    return Apply("where", (condition, left, right), left.dtype)


def select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """a where the condition holds, else b, in their storage dtype: nothing is rounded."""
    wide = a.dtype.compute
    return cast(where(condition, to(a, wide), to(b, wide)), a.dtype)


def fma(a: Term, b: Expr, c: Expr) -> Expr:
    """a * b + c with one rounding."""
    return Apply("fma", (a if isinstance(a, Expr) else const(a, b.dtype), b, c), c.dtype)


def clamp(x: Expr, low: Term | None, high: Term | None) -> Expr:
    """min(max(x, low), high); NaN stays NaN."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def truth(x: Expr) -> Expr:
    """x != 0; NaN is true."""
    return x if x.dtype is bool_ else ne(x, 0)


def place(d: Dim, dtype: DType = i64) -> Expr:
    """An index or size as a number of `dtype`."""
    if isinstance(d, int):
        return const(d, dtype)
    return Position(d) if dtype is i64 else Cast(Position(d), dtype)


def to(e: Expr, dtype: DType) -> Expr:
    """e converted to dtype; constants are folded, so a body sees a plain Const."""
    return const(e.value, dtype) if isinstance(e, Const) else cast(e, dtype)


def rounded(e: Expr, dtype: DType) -> Expr:
    """e rounded to a storage dtype that computes in e's own, and widened again."""
    narrow = dtype is not e.dtype and dtype.compute is e.dtype
    return cast(cast(e, dtype), e.dtype) if narrow else e
