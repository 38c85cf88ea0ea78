"""Kernels for the CPU, compiled and run beside the interpreter: every family, dtype and edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cpp_nests as nests
import numpy as np
import pytest
from cpp_run import Case, built, call, check, kernel_of, memory_of, text_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onetrip.base.dtype import COMPILED, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8
from onetrip.base.sym import Size, Var
from onetrip.ir.expr import (
    Apply,
    Cast,
    Expr,
    Load,
    Reduced,
    Reduction,
    Rewriter,
    Scanned,
    apply,
    compare,
)
from onetrip.ir.monoid import number
from onetrip.ir.nest import Access, Axis, Combine, Nest, Store
from onetrip.passes.indices import harmless

# 0, 1, and around the lanes of every vector unit; primes; more than several vectors at a time.
LENGTHS = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 61, 64, 65, 127, 257)
SHAPES = ((1, 1), (3, 15), (3, 16), (3, 17), (7, 100), (64, 256), (5, 5000), (2, 70000), (600, 33))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def plain(nest: Nest, rng: np.random.Generator) -> Case:
    """The nest on random inputs; updated buffers start random too."""
    inputs = {
        b.name: nests.data(rng, b.type.dtype, *(int(str(d)) for d in b.type.shape))
        for b in nest.buffers
        if b.access is not Access.WRITE
    }
    return nest, inputs, {}


def families(kernels: list[object]) -> set[str]:
    return {k.family for k in kernels}  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", COMPILED, ids=str)
def test_pointwise_of_every_length(dtype: object, rng: np.random.Generator) -> None:
    check(*(plain(nests.pointwise(dtype, 3, n), rng) for n in LENGTHS))  # type: ignore[arg-type]


def test_pointwise_over_threads(rng: np.random.Generator) -> None:
    shapes = ((1, 70001), (70001, 1), (129, 1000), (2, 40000))
    kernels = check(*(plain(nests.pointwise(f32, *s), rng) for s in shapes))
    assert all("#pragma omp" in text_of(k) for k in kernels)


@pytest.mark.parametrize("source", COMPILED, ids=str)
def test_casts(source: object, rng: np.random.Generator) -> None:
    cases = []
    for target in COMPILED:
        cases.append(plain(nests.converted(source, target, 37), rng))  # type: ignore[arg-type]
    check(*cases)


def test_moved_elements(rng: np.random.Generator) -> None:
    made = [nests.padded(n, 3, 5) for n in (1, 16, 40)]
    made += [nests.rolled(n, 5) for n in (7, 16, 100)]
    made += [nests.regrouped(3, 64, g) for g in (3, 16, 64)]
    check(*(plain(n, rng) for n in made))


def test_transposes(rng: np.random.Generator) -> None:
    shapes = ((1, 1), (5, 17), (100, 257), (128, 128), (160, 33))
    kernels = check(*(plain(nests.transposed(*s), rng) for s in shapes))
    assert "transpose" in families(kernels)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [0, 1])
def test_sums(dim: int, rng: np.random.Generator) -> None:
    shapes = (*SHAPES, (3001, 65))
    kernels = check(*(plain(nests.reduced("sum", f32, s, (dim,)), rng) for s in shapes))
    assert families(kernels) >= {"column" if dim == 0 else "row", "split"}  # type: ignore[arg-type]


def test_folds_of_every_dtype(rng: np.random.Generator) -> None:
    made = []
    for shape in ((3, 37), (37, 20)):
        for dim in (0, 1):
            made += [nests.reduced("sum", d, shape, (dim,), i64) for d in (u8, i8, i16, i32, bool_)]
            made += [nests.reduced("sum", d, shape, (dim,)) for d in (f64, bf16, f16, i64)]
            made += [nests.reduced(m, d, shape, (dim,)) for m in ("max", "min")
                     for d in (f32, f64, bf16, i32, u8)]  # fmt: skip
            made += [nests.reduced(m, bool_, shape, (dim,)) for m in ("any", "all")]
            made.append(nests.reduced("prod", f64, shape, (dim,)))
            made.append(nests.reduced("xor_sum", i32, shape, (dim,)))
    check(*(plain(n, rng) for n in made))


def test_mixed_axes(rng: np.random.Generator) -> None:
    shape = (6, 5, 7, 20)
    dims = ((0, 2), (1, 3), (0, 1, 2), (0, 1, 2, 3), (3,), (0,), (1,))
    made = [nests.reduced("sum", f32, shape, d) for d in dims]
    made.append(nests.reduced("sum", f32, (40, 64, 64), (0, 2)))
    check(*(plain(n, rng) for n in made))


def test_long_sums_stay_exact(rng: np.random.Generator) -> None:
    """Ones and a tiny rest: a plain running sum would lose digits."""
    nest = nests.reduced("sum", f32, (100003,), (0,))
    columns = nests.reduced("sum", f32, (20011, 3), (0,))
    check(
        (nest, {"a": np.full(100003, 0.1, np.float32)}, {}),
        (columns, {"a": np.full((20011, 3), 0.1, np.float32)}, {}),
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_positions_of_extremes(dim: int, rng: np.random.Generator) -> None:
    cases: list[Case] = []
    for shape in SHAPES:
        for monoid, dtype in (("argmax", f32), ("argmin", i32)):
            nest = nests.extreme(monoid, dtype, *shape, dim)
            values = np.round(rng.standard_normal(shape) * 3)
            if dtype is f32 and shape[0] > 3:
                values[2, 1] = np.nan
            cases.append((nest, {"a": values.astype(dtype.torch_name)}, {}))
    check(*cases)


def test_rows_in_stages(rng: np.random.Generator) -> None:
    made = [nests.softmax(d, *s) for s in SHAPES for d in (f32, bf16)]
    made += [nests.normalized(*s, dim) for s in SHAPES for dim in (0, 1)]
    check(*(plain(n, rng) for n in made))


def test_special_values_pass_through(rng: np.random.Generator) -> None:
    x = np.array([[np.nan, 1, -np.inf, np.inf, -0.0] * 7], np.float32)
    check(
        (nests.reduced("max", f32, x.shape, (1,)), {"a": x}, {}),
        (nests.reduced("sum", f32, x.shape, (1,)), {"a": x}, {}),
        (nests.softmax(f32, 1, 35), {"a": np.where(np.isnan(x), -np.inf, -np.abs(x))}, {}),
    )


def test_row_and_column_sums_in_one_kernel(rng: np.random.Generator) -> None:
    check(*(plain(nests.both_sums(*s), rng) for s in (*SHAPES, (3001, 65))))


def test_scans(rng: np.random.Generator) -> None:
    shapes = ((1, 1), (3, 17), (40, 33), (5, 700))
    made = [nests.scanned("sum", f32, *s, dim, back) for s in shapes
            for dim in (0, 1) for back in (False, True)]  # fmt: skip
    made.append(nests.scanned("max", i32, 9, 20, 1))
    check(*(plain(n, rng) for n in made))


def test_scan_inside_a_reduction(rng: np.random.Generator) -> None:
    """y = max of the running sum, z = the running sum of what is left of it."""
    p, r = Var("p", 5), Var("r", 40)
    running = Scanned("sum", r, (Load("a", (p, r), f32),), 0, f32)
    run = Reduced(Reduction("max", (r,), (running,)), 0, f32)
    left = apply("sub", Load("a", (p, r), f32), run)
    again = Scanned("sum", r, (left,), 0, f32)
    buffers = (
        nests.read("a", f32, (5, 40)),
        nests.written("y", f32, (5,)),
        nests.written("z", f32, (5, 40)),
    )
    nest = Nest((Axis(p),), buffers, (Store("y", (p,), run), Store("z", (p, r), again, (r,))))
    check(plain(nest, rng))


def test_gather_and_scatter(rng: np.random.Generator) -> None:
    index = np.array([4, 0, 4, 2, 1, 4, 0], np.int64)
    cases: list[Case] = []
    for width in (1, 5, 16, 40):
        table = nests.data(rng, f32, 5, width)
        rows = nests.data(rng, f32, 7, width)
        cases.append((nests.gathered(7, 5, width), {"i": index, "t": table}, {}))
        for combine in (Combine.ADD, Combine.MAX, Combine.SET):
            nest = nests.scattered(7, 5, width, combine)
            cases.append((nest, {"i": index, "a": rows, "y": table}, {}))
    check(*cases)


@pytest.mark.parametrize("bad", [5, -1])
def test_index_out_of_range_is_an_error(bad: int, rng: np.random.Generator) -> None:
    for width in (1, 20):
        kernel = kernel_of(nests.gathered(3, 5, width))
        inputs = {"i": np.array([1, bad, 2]), "t": nests.data(rng, f32, 5, width)}
        memory = memory_of(kernel, inputs, {})
        assert call(built([kernel])[0], kernel, memory, {}, 2) == 2


@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "remainder", "fmod"])
def test_integer_division(op: str, rng: np.random.Generator) -> None:
    nest = nests.divided(i32, 21, op)
    a, b = nests.data(rng, i32, 21), nests.data(rng, i32, 21) | 1
    check((nest, {"a": a, "b": b}, {}))
    kernel = kernel_of(nest)
    b[20] = 0
    memory = memory_of(kernel, {"a": a, "b": b}, {})
    assert call(built([kernel])[0], kernel, memory, {}, 1) == 1


@pytest.mark.parametrize("behind", [True, False])
def test_division_is_no_error_where_it_is_behind_a_guard(behind: bool) -> None:
    """Lanes beside the loaded part hold 0, and only in front of the guard it is divided by."""
    p = Var("p", 40)
    on = compare("lt", nests.Position(p), number(21, i64))
    a, b = (Load(n, (p,), i32, on, number(0, i32)) for n in "ab")
    divided: Expr = Apply("floordiv", (a, b), i32)
    if behind:
        divided = Rewriter(node=lambda e: harmless(e, on))(divided)
    value = Apply("where", (on, divided, number(9, i32)), i32)
    buffers = (
        nests.read("a", i32, (21,)), nests.read("b", i32, (21,)), nests.written("y", i32, (40,))
    )  # fmt: skip
    nest = Nest((Axis(p),), buffers, (Store("y", (p,), value),))
    ones = np.ones(21, np.int32)
    kernel = kernel_of(nest)
    memory = memory_of(kernel, {"a": 6 * ones, "b": 2 * ones}, {})
    assert call(built([kernel])[0], kernel, memory, {}, 1) == (0 if behind else 1)
    if behind:
        assert memory["y"].tolist() == [3] * 21 + [9] * 19


def test_random_numbers(rng: np.random.Generator) -> None:
    seed = np.array([123456789012], np.int64)
    lengths = (1, 16, 100, 5000)
    check(*((nests.random(n, at), {"s": seed}, {}) for n in lengths for at in (0, 3, 64)))


def test_update_in_place(rng: np.random.Generator) -> None:
    shapes = ((1, 1), (5, 100), (40, 700))
    check(*(plain(nests.in_place(*s), rng) for s in shapes))
    check(*(plain(nests.in_place_twice(*s), rng) for s in shapes))


@pytest.mark.parametrize("op", ["tanh", "erf", "exp", "log1p"])
def test_special_functions_of_every_length(op: str, rng: np.random.Generator) -> None:
    made = [nests.activated(op, d, 2, n) for d in (f32, f64, bf16) for n in (1, 17, 256, 600)]
    check(*((n, {k: abs(v) for k, v in inputs.items()}, s) for n, inputs, s in
            (plain(n, rng) for n in made)))  # fmt: skip


def test_symbolic_extents(rng: np.random.Generator) -> None:
    n, m = Size("n"), Size("m", 1)
    made: list[tuple[Nest, Callable[[int, int], dict[str, np.ndarray]]]] = [
        (nests.pointwise(f32, n, m),
         lambda a, b: {"a": nests.data(rng, f32, a, b), "b": nests.data(rng, f32, b)}),
        (nests.softmax(f32, n, m), lambda a, b: {"a": nests.data(rng, f32, a, b)}),
        (nests.normalized(n, m), lambda a, b: {"a": nests.data(rng, f32, a, b)}),
        (nests.reduced("sum", f32, (n, m), (0,)), lambda a, b: {"a": nests.data(rng, f32, a, b)}),
        (nests.reduced("sum", f32, (n, m), (0, 1)), lambda a, b: {"a": nests.data(rng, f32, a, b)}),
        (nests.transposed(n, m),
         lambda a, b: {"a": nests.data(rng, f32, a, b), "b": nests.data(rng, f32, b, a)}),
    ]  # fmt: skip
    sizes = ((1, 1), (3, 17), (40, 33), (300, 257), (2, 70000))
    for nest, inputs in made:
        check(*((nest, inputs(a, b), {n: a, m: b}) for a, b in sizes))
    check(*((nest, inputs(0, 5), {n: 0, m: 5}) for nest, inputs in made[:1]))


def test_results_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    made = (nests.reduced("sum", f32, (300000,), (0,)), nests.reduced("sum", f32, (5000, 70), (0,)),
            nests.softmax(f32, 3, 50000), nests.normalized(300, 500))  # fmt: skip
    kernels = [kernel_of(nest, f"kernel{k}") for k, nest in enumerate(made)]
    for function, kernel, nest in zip(built(kernels), kernels, made, strict=True):
        _, inputs, _ = plain(nest, rng)
        seen = []
        for threads in (1, 2, 5):
            memory = memory_of(kernel, inputs, {})
            assert call(function, kernel, memory, {}, threads) == 0
            seen.append(memory["y"].tobytes())
        assert seen[0] == seen[1] == seen[2]


def test_tail_has_the_bits_of_the_body(rng: np.random.Generator) -> None:
    """The same values, once in whole tiles and once moved, in single vectors and the rest."""
    x = nests.data(rng, f32, 512)
    p, q = Var("p", 512), Var("q", 501)

    def gelu(v: Var, buffer: str) -> Expr:
        a = Load(buffer, (v,), f32)
        inner = apply("erf", apply("mul", a, number(0.70710678, f32)))
        one = apply("add", inner, number(1, f32))
        return apply("exp", apply("div", one, apply("add", apply("abs", a), number(0.3, f32))))

    def nest(v: Var) -> Nest:
        buffers = (nests.read("a", f32, (v.extent,)), nests.written("y", f32, (v.extent,)))
        return Nest((Axis(v),), buffers, (Store("y", (v,), gelu(v, "a")),))

    kernels = [kernel_of(nest(v), f"kernel{k}") for k, v in enumerate((p, q))]
    found = []
    for function, kernel, values in zip(built(kernels), kernels, (x, x[11:]), strict=True):
        memory = memory_of(kernel, {"a": values}, {})
        call(function, kernel, memory, {}, 1)
        found.append(memory["y"])
    assert found[0][11:].tobytes() == found[1].tobytes()


# ---------------------------------------------------------------- composed at random

UNARY = ("neg", "abs", "exp", "tanh", "sqrt", "floor", "sigmoid", "sign")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


@st.composite
def expressions(draw: st.DrawFn, leaves: list[Expr], depth: int = 4) -> Expr:
    """f32 expressions over the leaves, with roundings, comparisons and choices."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(leaves))
    part = expressions(leaves, depth - 1)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return apply(draw(st.sampled_from(UNARY)), draw(part))
    if kind == 1:
        return Cast(Cast(draw(part), draw(st.sampled_from((bf16, f16)))), f32)
    if kind == 2:
        test = compare(draw(st.sampled_from(("lt", "ge", "ne"))), draw(part), draw(part))
        return Apply("where", (test, draw(part), draw(part)), f32)
    return apply(draw(st.sampled_from(BINARY)), draw(part), draw(part))


@st.composite
def composed(draw: st.DrawFn) -> Nest:
    """A group of stores over up to three axes: broadcasts, permutations, reductions, stages."""
    rank = draw(st.integers(1, 3))
    extents = [draw(st.sampled_from((1, 2, 5, 16, 17, 40))) for _ in range(rank)]
    axes = [Var(f"v{k}", n) for k, n in enumerate(extents)]
    inner = tuple(v for v in axes if draw(st.booleans()))
    space = [v for v in axes if v not in inner]
    buffers, leaves = [], []
    for k in range(draw(st.integers(1, 3))):
        order = [v for v in draw(st.permutations(axes)) if draw(st.integers(0, 3))]
        buffers.append(nests.read(f"a{k}", f32, [v.extent for v in order]))
        leaves.append(Load(f"a{k}", tuple(order), f32))
    value = draw(expressions(leaves))
    if inner:
        monoid = draw(st.sampled_from(("sum", "max", "min")))
        total = Reduced(Reduction(monoid, inner, (value,)), 0, f32)
        value = draw(expressions([*leaves, total, value]))
    order = draw(st.permutations(axes))
    out = nests.written("y", f32, [v.extent for v in order])
    stores = [Store("y", tuple(order), value, inner)]
    if inner:
        buffers.append(nests.written("z", f32, [v.extent for v in space]))
        stores.append(Store("z", tuple(space), total))
    return Nest(tuple(Axis(v) for v in space), (*buffers, out), tuple(stores))


@settings(max_examples=3, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.lists(composed(), min_size=25, max_size=25))
def test_composed_nests(made: list[Nest]) -> None:
    rng = np.random.default_rng(3)
    check(*(plain(n, rng) for n in made))


def test_a_special_function_below_another_one_is_computed_once() -> None:
    """softmax(tanh(a)): the maximum needs tanh, the sum needs exp of it, the quotient exp alone."""
    p, r = Var("p", 40), Var("r", 256)
    x = apply("tanh", Load("a", (p, r), f32))
    e = apply("exp", apply("sub", x, Reduced(Reduction("max", (r,), (x,)), 0, f32)))
    value = apply("div", e, Reduced(Reduction("sum", (r,), (e,)), 0, f32))
    buffers = (nests.read("a", f32, (40, 256)), nests.written("y", f32, (40, 256)))
    nest = Nest((Axis(p),), buffers, (Store("y", (p, r), value, (r,)),))
    (kernel,) = check(plain(nest, np.random.default_rng(3)))
    assert [text_of(kernel).count(f"ot::{f}(") for f in ("tanh_short", "exp")] == [1, 1]


def _cases() -> Iterator[tuple[str, Nest]]:
    yield "pointwise", nests.pointwise(bf16, 64, 1000)
    yield "softmax", nests.softmax(f32, 100, 1024)
    yield "column_sum", nests.reduced("sum", f32, (4096, 1024), (0,))


@pytest.mark.parametrize(("name", "nest"), list(_cases()), ids=[name for name, _ in _cases()])
def test_golden(name: str, nest: Nest, golden: Callable[[str, str], None]) -> None:
    golden(f"cpp_{name}", text_of(kernel_of(nest, name)))
