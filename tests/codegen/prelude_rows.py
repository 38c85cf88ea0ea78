"""The prelude's functions beside eager's: one row each, its C++ spelling and its torch function."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional as F  # noqa: N812

from onetrip.codegen.cpp_prelude import prelude_text
from onetrip.runtime.build_cpp import CppUnit, build
from onetrip.runtime.cache import Cache

Tensor = torch.Tensor

CTYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
INTS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


@dataclass(frozen=True)
class Row:
    """A spelling over `x` (and `y`), lanes of `T`, and what eager calls it."""

    spelling: str
    eager: Callable[..., Tensor]
    binary: bool = False


def _direct(*names: str) -> dict[str, Row]:
    return {n: Row(f"ot::{n}(x)", getattr(torch, n)) for n in names}


def _vml(*names: str) -> dict[str, Row]:
    return {f"vml::{n}": Row(f"ot::vml::{n}(x)", getattr(torch, n)) for n in names}


def _binary(**rows: Callable[..., Tensor]) -> dict[str, Row]:
    return {n: Row(f"ot::{n}(x, y)", f, binary=True) for n, f in rows.items()}


UNARY: dict[str, Row] = {
    **_direct(
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
        "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma",
        "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "trunc", "round", "abs", "sign",
        "sigmoid", "relu", "erfinv",
    ),
    **_vml(
        "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "tanh", "erf",
        "erfc", "sqrt", "erfinv",
    ),
    "silu": Row("x / (T(1) + ot::exp(-x))", F.silu),
    "tanh_short": Row("ot::tanh_short(x)", torch.tanh),
    "erf_short": Row("ot::erf_short(x)", torch.erf),
    "gelu": Row(f"x * T(0.5) * (T(1) + ot::erf(x * T({math.sqrt(0.5)!r})))", F.gelu),
    "gelu_tanh": Row(
        "T(0.5) * x * (T(1) + ot::tanh("
        f"T({math.sqrt(2 / math.pi)!r}) * ot::fma(vec<T>(T(0.044715)), x * x * x, x)))",
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "softplus": Row("ot::where(x > T(20), x, ot::log1p(ot::exp(x)))", F.softplus),
    "mish": Row("x * ot::tanh(ot::log1p(ot::exp(x)))", F.mish),
    "elu": Row("ot::where(x < T(0), ot::expm1(x), x)", F.elu),
    "log_sigmoid": Row(
        "ot::minimum(ot::vec<T>(T(0)), x) - ot::log1p(ot::exp(-ot::abs(x)))", F.logsigmoid
    ),
    "frac": Row("x - ot::trunc(x)", torch.frac),
    "neg": Row("-x", torch.neg),
    "square": Row("x * x", torch.square),
}  # fmt: skip

BINARY: dict[str, Row] = _binary(
    pow=torch.pow, atan2=torch.atan2, hypot=torch.hypot, fmod=torch.fmod,
    floor_mod=torch.remainder, maximum=torch.maximum, minimum=torch.minimum, fmax=torch.fmax,
    fmin=torch.fmin, copysign=torch.copysign, nextafter=torch.nextafter,
)  # fmt: skip
BINARY |= {
    "floor_div": Row("ot::floor_div_in<M>(x, y)", torch.floor_divide, binary=True),
    "trunc_div": Row(
        "ot::trunc(round_to<M>(x / y))",
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        binary=True,
    ),
    "add": Row("x + y", torch.add, binary=True),
    "div": Row("x / y", torch.div, binary=True),
    "logaddexp": Row(
        "ot::where(ot::isinf(x) & (x == y), x, ot::maximum(x, y)"
        " + ot::log1p(ot::exp(-ot::abs(x - y))))",
        torch.logaddexp,
        binary=True,
    ),
}
ROWS: dict[str, Row] = UNARY | BINARY


def symbol(name: str, dtype: torch.dtype) -> str:
    """The exported name of a row's loop."""
    return f"{name.replace('::', '_')}_{NAMES[dtype]}"


def loops_of(name: str, row: Row) -> str:
    """One exported loop over contiguous arrays per element type."""
    function = f"loop_{name.replace('::', '_')}"
    lines = [
        f"template <class M> static void {function}(const M* p, const M* q, M* r, int64_t n) {{",
        "  typedef register_type<M> T;",
        "  for (int64_t i = 0; i < n; i += W) {",
        "    int64_t k = n - i < W ? n - i : W;",
        "    vec<T> x = load(p + i, k);",
        "    vec<T> y = load(q + i, k);",
        f"    store(r + i, {row.spelling}, k);",
        "  }",
        "}",
    ]
    for dtype, ctype in CTYPES.items():
        arguments = f"const {ctype}* p, const {ctype}* q, {ctype}* r, int64_t n"
        lines.append(
            f'extern "C" __attribute__((visibility("default"))) void {symbol(name, dtype)}'
            f"({arguments}) {{ {function}(p, q, r, n); }}"
        )
    return "\n".join(lines) + "\n"


_ROWS_IN_A_UNIT = 12


@cache
def libraries(root: str) -> dict[str, ctypes.CDLL]:
    """The library of every row, built in `root`."""
    names = list(ROWS)
    groups = [names[i : i + _ROWS_IN_A_UNIT] for i in range(0, len(names), _ROWS_IN_A_UNIT)]
    units = [
        CppUnit(" ".join(g), "using namespace ot;\n" + "".join(loops_of(n, ROWS[n]) for n in g))
        for g in groups
    ]
    built = build(units, prelude_text(), cache=Cache(root))
    return {n: lib for g, lib in zip(groups, built, strict=True) for n in g}


def pointer(x: Tensor) -> ctypes.c_void_p:
    """Address of a tensor's first element."""
    return ctypes.c_void_p(x.data_ptr())


def run_row(root: str, name: str, x: Tensor, y: Tensor) -> Tensor:
    """The row's loop over contiguous x and y."""
    result = torch.empty_like(x)
    loop = getattr(libraries(root)[name], symbol(name, x.dtype))
    loop(pointer(x), pointer(y), pointer(result), ctypes.c_int64(x.numel()))
    return result


SPECIAL = (
    0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-40, -1e-40, 2.0**-149, 3e38, -3e38,
    0.5, -0.5, 2.0, 3.0, -2.0, 10.0, 88.8, -103.9, 65504.0, 6e-8,
)  # fmt: skip
_COUNT = 1 << 14


@cache
def samples(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pairs of values: every bit pattern is possible, likely ranges and special values abound.

    Their number is a multiple of 4096, since eager leaves its vector loop in the last elements.
    """
    g = torch.Generator().manual_seed(7)
    ints = INTS[dtype]
    info = torch.iinfo(ints)
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    n = len(SPECIAL)

    def bits() -> Tensor:
        high = torch.randint(info.min, info.max, (_COUNT,), generator=g, dtype=torch.int64)
        return high.to(ints).view(dtype).nan_to_num(math.nan, math.inf, -math.inf)

    def scaled(scale: float) -> Tensor:
        return (torch.randn(_COUNT, generator=g, dtype=torch.float64) * scale).to(dtype)

    first = [bits(), scaled(1), scaled(10), scaled(0.01), scaled(1), scaled(100)]
    second = [bits(), scaled(1), scaled(1), scaled(1), scaled(100), scaled(10)]
    x = torch.cat([*first, special.repeat_interleave(n)])
    y = torch.cat([*second, special.repeat(n)])
    keep = -x.numel() % 4096
    return torch.cat([x, x[:keep]]), torch.cat([y, y[:keep]])


def ulps(a: Tensor, b: Tensor) -> int:
    """The most representable values between a and b; 0 when bit-equal (any NaN equals any NaN).

    0.0 and -0.0 are one apart; values of opposite sign count half their distance.
    """
    ints = INTS[a.dtype]
    lowest = torch.iinfo(ints).min

    def ordered(x: Tensor) -> Tensor:
        i = x.view(ints).to(torch.int64)
        return torch.where(i < 0, lowest - i, i)

    i, j = ordered(a), ordered(b)
    gap = (i - j).abs()
    gap = torch.where((i < 0) != (j < 0), (i.abs() >> 1) + (j.abs() >> 1), gap)
    gap = torch.where((gap == 0) & (a.signbit() != b.signbit()), torch.ones_like(gap), gap)
    gap = torch.where(a.isnan() & b.isnan(), torch.zeros_like(gap), gap)
    gap = torch.where(a.isnan() ^ b.isnan(), torch.full_like(gap, 2**40), gap)
    return int(gap.max())
