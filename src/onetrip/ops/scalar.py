"""Scalar operators: the leaves of every body, one row each.

A row names the operator, its operands, what it costs, its reference in numpy and how each backend
dialect spells it where that is not the plain call (`ot::name(a, b)` in C++, `ot_name(a, b)` in
Triton). `{0}`, `{1}`, `{2}` stand for the operands. Operands have one dtype (the shift count and
the condition of `where` excepted); bf16 and f16 never reach a leaf: bodies compute in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from . import hurwitz

Array = Any


class Unit(Enum):
    """The functional unit that a leaf keeps busy."""

    ALU = "alu"
    SPECIAL = "special"


class Result(Enum):
    """The dtype of a leaf's result."""

    SAME = "same"
    BOOL = "bool"


@dataclass(frozen=True)
class ScalarOp:
    """One leaf.

    Attributes:
        arity: number of operands.
        unit: which unit does the work.
        flops: arithmetic operations for one element (a special function counts its polynomial).
        reference: numpy function on arrays of the operand dtype.
        result: dtype rule.
        spelling: text per dialect (`cpp`, `triton`) where it is not the plain call.
        integer_too: whether integer operands are allowed.
        stops: whether an integer 0 as the second operand is an error: eager raises.
    """

    name: str
    arity: int
    unit: Unit
    flops: int
    reference: Callable[..., Array]
    result: Result = Result.SAME
    spelling: dict[str, str] = field(default_factory=dict)
    integer_too: bool = False
    stops: bool = False

    def spell(self, dialect: str, args: Iterable[str]) -> str:
        """The text of a call in `cpp` or `triton`."""
        operands = list(args)
        template = self.spelling.get(dialect)
        if template is not None:
            return template.format(*operands)
        prefix = {"cpp": "ot::", "triton": "ot_"}[dialect]
        return f"{prefix}{self.name}({', '.join(operands)})"


def _lift(fn: Callable[..., float]) -> Callable[..., Array]:
    """A reference from a function of Python floats; domain errors are NaN, overflow is inf."""

    def guarded(*xs: float) -> float:
        try:
            return fn(*xs)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    wide = np.vectorize(guarded, otypes=[np.float64])
    return lambda *arrays: wide(*arrays).astype(np.asarray(arrays[0]).dtype)


def _log_gamma(x: float) -> float:
    """log |gamma(x)|, infinite at its poles."""
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


def _erf_inverse(y: float) -> float:
    """Winitzki's approximation, then Newton steps on erf (erfc in the tail, where erf is flat)."""
    size = abs(y)
    if not size < 1:
        return math.copysign(math.inf, y) if size == 1 else math.nan
    low = math.log1p(-size * size)
    mid = 2 / (math.pi * 0.147) + low / 2
    x = math.sqrt(math.sqrt(mid * mid - low / 0.147) - mid)
    for _ in range(3):
        miss = math.erf(x) - size if size < 0.5 else (1 - size) - math.erfc(x)
        x -= miss / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return math.copysign(x, y)


def _sigmoid(x: Array) -> Array:
    one = np.asarray(x).dtype.type(1)
    return one / (one + np.exp(-x))


def _floordiv(a: Array, b: Array) -> Array:
    if np.issubdtype(np.asarray(a).dtype, np.floating):
        return _float_floordiv(np.asarray(a), np.asarray(b))
    return np.floor_divide(a, np.where(np.asarray(b) == 0, 1, b))


def _float_floordiv(a: Array, b: Array) -> Array:
    """Python's floor division of floats, as PyTorch does it (c10::div_floor_floating)."""
    mod = np.fmod(a, b)
    div = (a - mod) / b
    div = np.where((mod != 0) & ((b < 0) != (mod < 0)), div - 1, div)
    floored = np.floor(div)
    floored = np.where(div - floored > 0.5, floored + 1, floored)
    rounded = np.where(div != 0, floored, np.copysign(np.zeros_like(a), a / b))
    return np.where(b == 0, a / b, rounded)


def _truncdiv(a: Array, b: Array) -> Array:
    if np.issubdtype(np.asarray(a).dtype, np.floating):
        return np.trunc(a / b)
    safe = np.where(np.asarray(b) == 0, 1, b)
    quotient: Array = np.floor_divide(a, safe)
    below = (np.remainder(a, safe) != 0) & ((a < 0) != (safe < 0))
    return quotient + below.astype(quotient.dtype)


def _remainder(a: Array, b: Array) -> Array:
    if np.issubdtype(np.asarray(a).dtype, np.floating):
        mod = np.fmod(a, b)
        return np.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)
    return np.remainder(a, np.where(np.asarray(b) == 0, 1, b))


def _maximum(a: Array, b: Array) -> Array:
    return np.maximum(a, b)


def _shift(
    op: Callable[[Array, Array], Array], fill: Callable[[Array], Array]
) -> Callable[..., Array]:
    """Shifts by a count outside [0, bits) as PyTorch defines them."""

    def shifted(a: Array, n: Array) -> Array:
        bits = np.asarray(a).dtype.itemsize * 8
        outside = (n < 0) | (n >= bits)
        found: Array = np.where(outside, fill(a), op(a, np.where(outside, 0, n)))
        return found.astype(a.dtype)

    return shifted


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x), 0, np.sign(x)).astype(np.asarray(x).dtype)


def _pow(a: Array, b: Array) -> Array:
    if np.issubdtype(np.asarray(a).dtype, np.integer):
        return _integer_pow(np.asarray(a), np.asarray(b))
    return np.power(a, b)


def _integer_pow(a: Array, b: Array) -> Array:
    """Wrapping powers; a negative exponent gives 1/a rounded to zero, as PyTorch does."""
    positive = np.power(a, np.where(b < 0, 0, b))
    odd = np.where(b % 2 == 0, 1, -1)
    negative = np.where(a == 1, 1, np.where(a == -1, odd, 0))
    return np.where(b < 0, negative, positive).astype(a.dtype)


def _fma(a: Array, b: Array, c: Array) -> Array:
    wide = np.longdouble
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)


def _three_term(first: Callable[..., Array], step: Callable[..., Array]) -> Callable[..., Array]:
    """p(n) of p(0) = 1, p(1) = first(*xs), p(k + 1) = step(x, k, p(k), p(k - 1)), to the first NaN.

    A reference of (*xs, n). The fraction of n is left out; NaN, negative numbers and those above
    2^63 count as 0.
    """

    def reference(*operands: Array) -> Array:
        *xs, n = np.broadcast_arrays(*operands)
        with np.errstate(all="ignore"):
            last = np.where((n > 0) & (n < 2.0**63), n, 0).astype(np.int64)
            p = np.ones_like(xs[0])
            q = np.where(last > 0, first(*xs), p)
            k = 1
            while (alive := (k < last) & (q == q)).any():
                made = step(xs[0], k, q, p)
                p, q, k = np.where(alive, q, p), np.where(alive, made, q), k + 1
        return q

    return reference


def _infix(symbol: str) -> dict[str, str]:
    return {"cpp": f"({{0}} {symbol} {{1}})", "triton": f"({{0}} {symbol} {{1}})"}


def _leaf(name: str, arity: int, fn: Callable[..., Array], flops: int = 1, **more: Any) -> ScalarOp:
    return ScalarOp(name, arity, Unit.ALU, flops, fn, integer_too=True, **more)


def _float(
    name: str, arity: int, fn: Callable[..., Array], flops: int = 1, **more: Any
) -> ScalarOp:
    return ScalarOp(name, arity, Unit.ALU, flops, fn, **more)


def _special(name: str, arity: int, fn: Callable[..., Array], flops: int) -> ScalarOp:
    return ScalarOp(name, arity, Unit.SPECIAL, flops, fn)


def _test(name: str, fn: Callable[..., Array], arity: int = 2, symbol: str = "") -> ScalarOp:
    spelling = _infix(symbol) if symbol else {}
    return ScalarOp(name, arity, Unit.ALU, 1, fn, Result.BOOL, spelling, integer_too=True)


TABLE: tuple[ScalarOp, ...] = (
    _leaf("add", 2, np.add, spelling=_infix("+")),
    _leaf("sub", 2, np.subtract, spelling=_infix("-")),
    _leaf("mul", 2, np.multiply, spelling=_infix("*")),
    _float("div", 2, np.true_divide, 8),
    _leaf("floordiv", 2, _floordiv, 10, stops=True),
    _leaf("truncdiv", 2, _truncdiv, 9, stops=True),
    _leaf("remainder", 2, _remainder, 10, stops=True),
    _leaf("fmod", 2, lambda a, b: np.fmod(a, np.where(b == 0, 1, b)) if a.dtype.kind in "iu"
          else np.fmod(a, b), 10, stops=True),
    _float("fma", 3, _fma, 2),
    _leaf("neg", 1, np.negative),
    _leaf("abs", 1, np.abs),
    _leaf("sign", 1, _sign),
    _leaf("maximum", 2, _maximum),
    _leaf("minimum", 2, np.minimum),
    _float("fmax", 2, np.fmax),
    _float("fmin", 2, np.fmin),
    _leaf("where", 3, np.where),
    _float("floor", 1, np.floor),
    _float("ceil", 1, np.ceil),
    _float("trunc", 1, np.trunc),
    _float("round", 1, np.rint),
    _float("copysign", 2, np.copysign),
    _float("nextafter", 2, np.nextafter, 4),
    _float("sqrt", 1, np.sqrt, 8),
    _float("rsqrt", 1, lambda x: np.asarray(x).dtype.type(1) / np.sqrt(x), 9),
    _special("exp", 1, np.exp, 14),
    _special("exp2", 1, np.exp2, 12),
    # Of a term of a sum, and of a weight that is the same in what it divides: a few ulp, and 0 for
    # what is less than any normal number. Schedules use them, operators' bodies do not.
    _special("near_exp", 1, np.exp, 3),
    _special("near_reciprocal", 1, np.reciprocal, 1),
    _special("expm1", 1, np.expm1, 20),
    _special("log", 1, np.log, 16),
    _special("log2", 1, np.log2, 16),
    _special("log10", 1, np.log10, 16),
    _special("log1p", 1, np.log1p, 20),
    _special("sin", 1, np.sin, 20),
    _special("cos", 1, np.cos, 20),
    _special("tan", 1, np.tan, 28),
    _special("asin", 1, np.arcsin, 24),
    _special("acos", 1, np.arccos, 24),
    _special("atan", 1, np.arctan, 24),
    _special("sinh", 1, np.sinh, 30),
    _special("cosh", 1, np.cosh, 30),
    _special("tanh", 1, np.tanh, 24),
    _special("asinh", 1, np.arcsinh, 30),
    _special("acosh", 1, np.arccosh, 30),
    _special("atanh", 1, np.arctanh, 30),
    _special("erf", 1, _lift(math.erf), 30),
    _special("erfc", 1, _lift(math.erfc), 40),
    _special("erfinv", 1, _lift(_erf_inverse), 40),
    _special("lgamma", 1, _lift(_log_gamma), 60),
    _special("sigmoid", 1, _sigmoid, 24),
    _special("pow", 2, _pow, 40),
    _special("atan2", 2, np.arctan2, 30),
    _special("hypot", 2, np.hypot, 20),
    _special("chebyshev", 3, _three_term(lambda x, q: q, lambda x, k, q, p: (x + x) * q - p), 100),
    _special("hermite_h", 2,
             _three_term(lambda x: x + x, lambda x, k, q, p: (x + x) * q - 2 * k * p), 100),
    _special("hermite_he", 2, _three_term(lambda x: x, lambda x, k, q, p: x * q - k * p), 100),
    _special("laguerre", 2, _three_term(
        lambda x: 1 - x, lambda x, k, q, p: ((2 * k + (1 - x)) * q - k * p) / (k + 1)), 200),
    _special("legendre", 2, _three_term(
        lambda x: x, lambda x, k, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1)), 200),
    _special("zeta", 2, lambda x, q: hurwitz.zeta(x, q).astype(x.dtype), 2000),
    _leaf("gcd", 2, np.gcd, 200),
    _test("eq", np.equal),
    _test("ne", np.not_equal),
    _test("lt", np.less),
    _test("le", np.less_equal),
    _test("gt", np.greater),
    _test("ge", np.greater_equal),
    _test("isnan", lambda x: np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool), 1),
    _test("isinf", lambda x: np.isinf(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool), 1),
    _test("signbit", lambda x: np.signbit(x) if x.dtype.kind == "f" else x < 0, 1),
    _test("logical_and", np.logical_and),
    _test("logical_or", np.logical_or),
    _test("logical_xor", np.logical_xor),
    _test("logical_not", np.logical_not, 1),
    _leaf("bitwise_and", 2, np.bitwise_and),
    _leaf("bitwise_or", 2, np.bitwise_or),
    _leaf("bitwise_xor", 2, np.bitwise_xor),
    _leaf("bitwise_not", 1, np.invert),
    _leaf("shl", 2, _shift(np.left_shift, np.zeros_like)),
    _leaf("shr", 2, _shift(np.right_shift, lambda a: np.where(a < 0, -1, 0))),
)  # fmt: skip

SCALAR_OPS: dict[str, ScalarOp] = {op.name: op for op in TABLE}
