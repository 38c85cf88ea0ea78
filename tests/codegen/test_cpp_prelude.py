"""What the prelude does beside functions of analysis: memory, casts, integers, folds, Philox."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from functools import cache
from itertools import product

import pytest
import torch
from prelude_rows import SPECIAL, pointer, samples, ulps

from onetrip.codegen.cpp_prelude import prelude_text
from onetrip.runtime.build_cpp import CppUnit, build
from onetrip.runtime.cache import Cache, default_root
from onetrip.runtime.toolchain import COMMON_FLAGS, UNITS, toolchain

Tensor = torch.Tensor

TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.bfloat16: "ot::bf16",
    torch.float16: "ot::f16",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
W = toolchain().lanes
EXPORT = 'extern "C" __attribute__((visibility("default"))) '


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def library(text: str) -> ctypes.CDLL:
    return build([CppUnit("a test", text)], prelude_text(), cache=Cache(default_root()))[0]


CASTS = "using namespace ot;\n" + "".join(
    f"{EXPORT}void {short(a)}_{short(b)}(const {TYPES[a]}* p, {TYPES[b]}* q, int64_t n) {{\n"
    "  for (int64_t i = 0; i < n; i += W)\n"
    f"    store(q + i, cast<register_type<{TYPES[b]}>>(load(p + i, n - i)), n - i);\n}}\n"
    for a, b in product(TYPES, TYPES)
)


def values_of(dtype: torch.dtype) -> Tensor:
    """Values of a type, its extremes among them; an odd number, so that there is a tail."""
    if dtype.is_floating_point:
        small = torch.linspace(-300, 300, 700, dtype=torch.float64).to(dtype)
        return torch.cat([samples(dtype)[0][-2000:], small])[:2301]
    if dtype is torch.bool:
        return torch.arange(2301) % 3 == 0
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, info.min // 2, info.max // 3, 0, 1])
    return torch.cat([ends, torch.randint(info.min, info.max, (2295,))]).to(dtype)


@pytest.mark.parametrize("source", TYPES, ids=short)
@pytest.mark.parametrize("target", TYPES, ids=short)
def test_cast_is_eagers(source: torch.dtype, target: torch.dtype) -> None:
    x = values_of(source)
    if platform.machine() != "x86_64" and source.is_floating_point:
        # What does not fit 32 bits is settled by the machine; the table of x86 is the one measured.
        x = torch.where(x.abs() < 2**31, x, torch.ones_like(x))
    result = torch.empty(x.shape, dtype=target)
    function = getattr(library(CASTS), f"{short(source)}_{short(target)}")
    function(pointer(x), pointer(result), ctypes.c_int64(x.numel()))
    expected = x.to(target)
    if target.is_floating_point:
        assert ulps(result, expected) == 0
    else:
        assert torch.equal(result, expected)


def test_bf16_and_f16_round_as_eager_at_every_boundary() -> None:
    """Halfway cases, carries into the exponent, overflow to infinity, denormals."""
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).float()
        bits = every.view(torch.int32)
        half = {torch.bfloat16: 1 << 15, torch.float16: 1 << 12}[dtype]
        x = torch.cat([(bits + d).view(torch.float32) for d in (0, 1, half - 1, half, half + 1)])
        x = x.nan_to_num(float("nan"), float("inf"), float("-inf"))
        result = torch.empty(x.shape, dtype=dtype)
        function = getattr(library(CASTS), f"float32_{short(dtype)}")
        function(pointer(x), pointer(result), ctypes.c_int64(x.numel()))
        assert ulps(result, x.to(dtype)) == 0


DIVISIONS = ("trunc_div", "trunc_mod", "floor_div", "floor_mod")
POWERS = ("int_pow", "shift_left", "shift_right", "maximum", "minimum")


def _integer_loop(name: str, dtype: torch.dtype, call: str) -> str:
    t = TYPES[dtype]
    return (
        f"{EXPORT}int {name}_{short(dtype)}(const {t}* p, const {t}* q, {t}* r, int64_t n) {{\n"
        "  ot::faults f;\n"
        "  for (int64_t i = 0; i < n; i += ot::W) {\n"
        "    f.active = ot::first_lanes(n - i);\n"
        "    auto x = ot::load(p + i, n - i), y = ot::load(q + i, n - i);\n"
        f"    ot::store(r + i, {call}, n - i);\n"
        "  }\n"
        "  return f.first.code;\n}\n"
    )


WHOLE = "".join(
    [_integer_loop(n, d, f"ot::{n}(x, y, f)") for n, d in product(DIVISIONS, INTEGERS)]
    + [_integer_loop(n, d, f"ot::{n}(x, y)") for n, d in product(POWERS, INTEGERS)]
)


def run_integers(name: str, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    result = torch.empty_like(x)
    function = getattr(library(WHOLE), f"{name}_{short(x.dtype)}")
    code = function(pointer(x), pointer(y), pointer(result), ctypes.c_int64(x.numel()))
    return result, code


EAGER = {
    "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "trunc_mod": torch.fmod,
    "floor_div": torch.floor_divide,
    "floor_mod": torch.remainder,
    "int_pow": torch.pow,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("dtype", INTEGERS, ids=short)
def test_integers_are_eagers(name: str, dtype: torch.dtype) -> None:
    x, y = values_of(dtype), values_of(dtype).flip(0)
    small = torch.randint(-9 if dtype.is_signed else 1, 70, y.shape).to(dtype)
    for divisor in (y, small):
        if name in DIVISIONS:  # eager traps on both of these
            lowest = (x == torch.iinfo(dtype).min) & (divisor == -1)
            divisor = torch.where((divisor == 0) | lowest, torch.ones_like(divisor), divisor)
        if name == "int_pow":
            divisor = divisor.clamp(-3 if dtype.is_signed else 0, 40)
        result, code = run_integers(name, x, divisor)
        assert code == 0
        assert torch.equal(result, EAGER[name](x, divisor))


TRUTHS = {
    "less": ("x < y", torch.lt),
    "at_most": ("x <= y", torch.le),
    "greater": ("x > y", torch.gt),
    "at_least": ("x >= y", torch.ge),
    "equal": ("x == y", torch.eq),
    "unequal": ("x != y", torch.ne),
    "both": ("x & y", torch.logical_and),
    "either": ("x | y", torch.logical_or),
    "one": ("x ^ y", torch.logical_xor),
    "maximum": ("ot::maximum(x, y)", torch.maximum),
    "minimum": ("ot::minimum(x, y)", torch.minimum),
}
LOGIC = "".join(_integer_loop(n, torch.bool, call) for n, (call, _) in TRUTHS.items())


@pytest.mark.parametrize("name", TRUTHS)
def test_truth_values_are_ordered_as_eagers(name: str) -> None:
    x, y = torch.arange(2 * W + 3) % 2 == 0, torch.arange(2 * W + 3) % 4 < 2
    result = torch.empty_like(x)
    function = getattr(library(LOGIC), f"{name}_bool")
    assert function(pointer(x), pointer(y), pointer(result), ctypes.c_int64(x.numel())) == 0
    assert torch.equal(result, TRUTHS[name][1](x, y))


@pytest.mark.parametrize("name", DIVISIONS)
def test_division_by_zero_is_reported(name: str) -> None:
    x, y = torch.arange(1, 2 * W + 4), torch.ones(2 * W + 3, dtype=torch.int64)
    assert run_integers(name, x, y)[1] == 0, "lanes past the end are no faults"
    y[W + 1] = 0
    assert run_integers(name, x, y)[1] == 1


def test_the_most_negative_integer_divided_by_minus_one_wraps() -> None:
    lowest = torch.tensor([torch.iinfo(torch.int32).min] * W, dtype=torch.int32)
    quotient, code = run_integers("trunc_div", lowest, torch.full_like(lowest, -1))
    assert code == 0 and torch.equal(quotient, lowest)
    assert torch.equal(
        run_integers("trunc_mod", lowest, torch.full_like(lowest, -1))[0], torch.zeros_like(lowest)
    )


PLACES = "using namespace ot;\n" + "".join(
    f"""
{EXPORT}void strided_{short(d)}(const {TYPES[d]}* p, int64_t step, {TYPES[d]}* q, int64_t n) {{
  store(q, load_strided(p, step, first_lanes(n)), n);
}}
{EXPORT}void spread_{short(d)}(const {TYPES[d]}* p, int64_t step, {TYPES[d]}* q, int64_t n) {{
  store_strided(q, step, load(p, n), first_lanes(n));
}}
{EXPORT}int gather_{short(d)}(const {TYPES[d]}* p, const int64_t* at, int64_t size,
                              {TYPES[d]}* q, int64_t n) {{
  faults f;
  f.active = first_lanes(n);
  vec<int64_t> i = checked_index(load(at, n), size, f);
  store(q, gather(p, i, f.active), n);
  return f.first.code;
}}
"""
    for d in TYPES
)


@pytest.mark.parametrize("dtype", TYPES, ids=short)
@pytest.mark.parametrize("n", sorted({0, 1, 3, W - 1, W}))
def test_memory_outside_the_lanes_is_neither_read_nor_written(dtype: torch.dtype, n: int) -> None:
    """Arrays end exactly where the last lane does; guards stand behind what is written."""
    lib, name, step = library(PLACES), short(dtype), 3
    x = values_of(dtype)[: step * W].clone()
    packed = values_of(dtype)[100 : 100 + W].clone()
    guard = packed.clone()
    getattr(lib, f"strided_{name}")(pointer(x), ctypes.c_int64(step), pointer(packed),
                                    ctypes.c_int64(n))  # fmt: skip
    assert torch.equal(packed[:n].nan_to_num(), x[: step * n : step].nan_to_num())
    assert torch.equal(packed[n:].nan_to_num(), guard[n:].nan_to_num())

    spread = values_of(dtype)[200 : 200 + step * W].clone()
    guard = spread.clone()
    getattr(lib, f"spread_{name}")(pointer(x), ctypes.c_int64(step), pointer(spread),
                                   ctypes.c_int64(n))  # fmt: skip
    guard[: step * n : step] = x[:n]
    assert torch.equal(spread.nan_to_num(), guard.nan_to_num())


@pytest.mark.parametrize("dtype", TYPES, ids=short)
def test_gather_counts_negative_indices_from_the_end_and_reports_others(
    dtype: torch.dtype,
) -> None:
    gather = getattr(library(PLACES), f"gather_{short(dtype)}")
    x, n = values_of(dtype)[:37].clone(), W - 1
    at = torch.randint(-37, 37, (W,))
    result = torch.zeros(W, dtype=dtype)

    def run() -> int:
        return gather(pointer(x), pointer(at), ctypes.c_int64(37), pointer(result),
                      ctypes.c_int64(n))  # fmt: skip

    at[n] = 10**9
    assert run() == 0, "a lane past the end is no fault"
    assert torch.equal(result[:n].nan_to_num(), x[at[:n]].nan_to_num())
    for wrong in (37, -38):
        at[1] = wrong
        assert run() == 2
        assert result[1].nan_to_num() == x[0].nan_to_num()


SCATTERS = f"""
using namespace ot;
{EXPORT}void scatter_set(float* p, const int64_t* at, const float* x) {{
  scatter(p, load(at), load(x), vec<bool>(true));
}}
{EXPORT}void scatter_sum(bf16* p, const int64_t* at, const float* x) {{
  scatter(p, load(at), load(x), vec<bool>(true), [](float a, float b) {{ return a + b; }});
}}
{EXPORT}void scatter_shared(float* p, const int64_t* at, const float* x, int64_t n) {{
  #pragma omp parallel for num_threads(4)
  for (int64_t i = 0; i < n; i += W)
    scatter_atomic(p, load(at + i), load(x + i), vec<bool>(true),
                   [](float a, float b) {{ return a + b; }});
}}
"""


def test_scatter_keeps_the_last_of_equal_indices_and_adds_all() -> None:
    lib = library(SCATTERS)
    at, x = torch.arange(W) // 2, torch.arange(1.0, W + 1)
    p = torch.zeros(W)
    lib.scatter_set(pointer(p), pointer(at), pointer(x))
    assert torch.equal(p[: W // 2], x[1::2])
    q = torch.zeros(W, dtype=torch.bfloat16)
    lib.scatter_sum(pointer(q), pointer(at), pointer(x))
    assert torch.equal(q[: W // 2].float(), x.view(-1, 2).sum(1))


def test_scatter_from_several_threads_loses_nothing() -> None:
    n = 1024 * W
    at, x, p = torch.arange(n) % 5, torch.ones(n), torch.zeros(5)
    library(SCATTERS).scatter_shared(pointer(p), pointer(at), pointer(x), ctypes.c_int64(n))
    assert torch.equal(p, torch.bincount(at).float())


FOLDS = f"""
using namespace ot;
{EXPORT}void folds(const float* p, float* q, int64_t* at) {{
  vec<float> x = load(p);
  q[0] = sum_lanes(x);
  q[1] = prod_lanes(x);
  q[2] = max_lanes(x);
  q[3] = min_lanes(x);
  q[4] = any(x > 0.0f);
  q[5] = all(x > 0.0f);
}}
template <bool greatest> int64_t arg(const float* p, int64_t n) {{
  best<float> b = {{load(p), iota<int64_t>(0)}};
  for (int64_t i = W; i < n; i += W) b = better<greatest>(b, load(p + i), iota(i));
  return best_of_lanes<greatest>(b).index;
}}
{EXPORT}int64_t arg_max(const float* p, int64_t n) {{ return arg<true>(p, n); }}
{EXPORT}int64_t arg_min(const float* p, int64_t n) {{ return arg<false>(p, n); }}
"""


def test_folds_over_lanes() -> None:
    lib = library(FOLDS)
    for first in (1.0, -3.0, float("nan"), float("inf")):
        x = torch.linspace(0.5, 1.5, W)
        x[W // 2] = first
        q = torch.zeros(6)
        lib.folds(pointer(x), pointer(q), None)
        halves = x.clone()
        while halves.numel() > 1:  # the order of the fold is part of its promise
            halves = halves[: halves.numel() // 2] + halves[halves.numel() // 2 :]
        positive = x > 0
        rest = torch.stack([x.max(), x.min(), positive.any().float(), positive.all().float()])
        assert ulps(q[:1], halves) == 0
        assert ulps(q[1:2], x.prod()[None]) <= W
        assert ulps(q[2:], rest) == 0


@pytest.mark.parametrize("name", ["arg_max", "arg_min"])
def test_arg_folds_take_the_first_and_nan_beats_all(name: str) -> None:
    function = getattr(library(FOLDS), name)
    function.restype = ctypes.c_int64
    eager = {"arg_max": torch.argmax, "arg_min": torch.argmin}[name]
    n = 8 * W
    for trial in range(40):
        x = torch.randint(0, 4, (n,)).float()
        if trial % 2:
            x[torch.randint(0, n, (3,))] = float("nan")
        first = int(eager(x)) if trial % 2 else int((x == x[eager(x)]).nonzero()[0])
        assert function(pointer(x), ctypes.c_int64(n)) == first
        if trial % 2:
            assert first == int(x.isnan().nonzero()[0])


RANDOM = f"""
using namespace ot;
{EXPORT}void words(uint64_t seed, uint64_t first, uint32_t* q) {{
  store(q, random_word<7>(seed, iota<uint64_t>(first)));
}}
{EXPORT}void run_of_words(uint64_t seed, uint64_t first, uint32_t* q, int64_t n) {{
  random_run<7> run(seed);
  for (int64_t i = 0; i < n; i += W) store(q + i, run.at(first + i));
}}
{EXPORT}void uniforms(uint64_t seed, float* q) {{
  store(q, uniform(random_word<10>(seed, iota<uint64_t>(0))));
}}
"""


def philox_by_hand(seed: int, counter: int, rounds: int = 7) -> list[int]:
    """Philox4x32 in Python, as its authors publish it."""
    low = (1 << 32) - 1
    c, key = [counter & low, counter >> 32, 0, 0], [seed & low, seed >> 32]
    for _ in range(rounds):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ key[0], b & low, (a >> 32) ^ c[3] ^ key[1], a & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return c


def test_philox_by_hand_gives_the_published_words() -> None:
    """Known answers of the Random123 distribution."""
    assert philox_by_hand(0, 0, 10) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("first", [0, 4 * W, 5, (1 << 34) - 2 * W, 1 << 40])
def test_random_words_depend_on_seed_and_place_only(first: int) -> None:
    seed, n = 0x0123456789ABCDEF, 6 * W
    lib = library(RANDOM)
    expected = [philox_by_hand(seed, e // 4)[e % 4] for e in range(first, first + n)]
    run = torch.zeros(n, dtype=torch.int32)
    lib.run_of_words(ctypes.c_uint64(seed), ctypes.c_uint64(first), pointer(run),
                     ctypes.c_int64(n))  # fmt: skip
    assert [w % (1 << 32) for w in run.tolist()] == expected
    alone = torch.zeros(W, dtype=torch.int32)
    lib.words(ctypes.c_uint64(seed), ctypes.c_uint64(first), pointer(alone))
    assert [w % (1 << 32) for w in alone.tolist()] == expected[:W]


def test_uniform_keeps_the_top_24_bits() -> None:
    q = torch.zeros(W)
    library(RANDOM).uniforms(ctypes.c_uint64(7), pointer(q))
    words = [philox_by_hand(7, e // 4, 10)[e % 4] for e in range(W)]
    assert q.tolist() == [(w >> 8) * 2.0**-24 for w in words]


SCALARS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
    "sigmoid", "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "trunc", "round", "abs",
    "sign", "relu",
)  # fmt: skip
FLAVOURS = "".join(
    f"{EXPORT}void {n}_{t}(const {t}* p, {t}* scalar, {t}* vector, int64_t n) {{\n"
    f"  for (int64_t i = 0; i < n; i++) scalar[i] = ot::{n}(p[i]);\n"
    "  for (int64_t i = 0; i < n; i += ot::W)\n"
    f"    ot::store(vector + i, ot::{n}(ot::load(p + i, n - i)), n - i);\n}}\n"
    for n, t in product(SCALARS, ("float", "double"))
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=short)
def test_the_scalar_flavour_has_the_vectors_bits(dtype: torch.dtype) -> None:
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), torch.randn(41).double()]).to(dtype)
    for name in SCALARS:
        scalar, vector = torch.empty_like(x), torch.empty_like(x)
        function = getattr(library(FLAVOURS), f"{name}_{TYPES[dtype]}")
        function(pointer(x), pointer(scalar), pointer(vector), ctypes.c_int64(x.numel()))
        assert ulps(scalar, vector) == 0, name


def gcc_version() -> int:
    """GCC's, 0 for another compiler."""
    chain = toolchain()
    command = [chain.compiler, "-dumpversion"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(found.split(".")[0]) if chain.precompiles else 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="intrinsics of x86")
@pytest.mark.skipif(gcc_version() not in range(9, 15), reason="known of these headers alone")
@pytest.mark.parametrize(("unit", "wide"), [("AVX2", False), ("AVX512", True)])
def test_narrow_vectors_do_without_the_headers_of_wide_ones(unit: str, wide: bool) -> None:
    """They are most of what the compiler reads, each time that a cache is empty."""
    flags = [*COMMON_FLAGS, *UNITS[unit].flags, "-DOT_SLEEF=1", "-DOT_VML=1"]
    command = [toolchain().compiler, *flags, "-x", "c++", "-M", "-"]
    run = subprocess.run(command, input=prelude_text(), capture_output=True, text=True, check=True)
    assert "avx2intrin.h" in run.stdout
    assert ("avx512fintrin.h" in run.stdout) == wide
