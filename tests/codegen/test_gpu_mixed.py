"""Reductions over rows and over columns in one walk: values, parts, loads, registers on four chips.

The chip is made small, so that small arrays are walked in parts.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import gpu_cases as cases
import mixed_nests
import numpy as np
import pytest
from gpu_cases import Case, buffer, reduced, written

from onetrip.base import dtype as dt
from onetrip.base.sym import Dim, Size, Var
from onetrip.codegen.scheduled import Scheduled
from onetrip.codegen.triton import emit
from onetrip.cost.mixed import HELD_ROW, mixed_of, too_long
from onetrip.cost.occupancy import estimate
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.expr import Expr, Load, apply, cast
from onetrip.ir.kernel import Carry, Loop, statements
from onetrip.ir.kernel import Mapping as Runs
from onetrip.ir.nest import Buffer, Nest, Store
from onetrip.passes.mixed import is_mixed, walks
from onetrip.runtime.triton_assemble import assemble
from onetrip.target import load

Array = Any
SIZES = ((3, 8), (1, 8), (0, 8), (8, 1), (1, 1), (67, 31), (127, 257), (200, 5), (96, 500))
CHIPS = ("a100", "h200", "b200", "mi300x")


def norm_backward(rows: Dim, columns: int, dtype: dt.DType = dt.bf16) -> Case:
    return Case(mixed_nests.norm_backward(rows, columns, dtype))


def sums(rows: Dim, columns: int, dtype: dt.DType = dt.f32) -> Case:
    """Sums of rows, maxima of columns, the sum of all squares."""
    i, j = Var("r0", rows), Var("r1", columns)
    x = cast(Load("x", (i * columns + j,), dtype), dt.f32)
    stores = [Store("row", (i,), reduced("sum", (j,), x), (i,)),
              Store("column", (j,), reduced("max", (i,), x), (j,)),
              Store("all", (0,), reduced("sum", (i, j), apply("mul", x, x)))]  # fmt: skip
    out = [written("row", dt.f32, rows), written("column", dt.f32, columns)]
    out.append(written("all", dt.f32, 1))
    return Case(Nest((), (buffer("x", dtype, rows * columns), *out), tuple(stores)))


CASES = {f"sums {r} x {c}": sums(r, c) for r, c in SIZES}
CASES |= {f"sums bf16 {r} x {c}": sums(r, c, dt.bf16) for r, c in ((67, 31), (96, 500))}
CASES |= {f"norm {r} x {c}": norm_backward(r, c) for r, c in SIZES}
CASES |= {f"norm f32 {r} x {c}": norm_backward(r, c, dt.f32) for r, c in ((67, 31), (127, 257))}
CASES |= {
    "softmax": Case(mixed_nests.of_softmax(61, 37)),
    "softmax in parts": Case(mixed_nests.of_softmax(101, 700)),
}
CASES |= {
    "batch": Case(mixed_nests.batched(3, 40, 24)),
    "large batch": Case(mixed_nests.batched(9, 67, 130)),
}


def stands(case: Case, found: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """As near to the exact result as the plain evaluation, twice its distance + 4 ulp allowed."""
    plain = run_nest(case.nest, {n: a.copy() for n, a in arrays.items()}, case.sizes)
    wide = {n: cases.wide(a) for n, a in arrays.items()}
    truth = run_nest(cases.widened(case.nest), wide, case.sizes)
    for name, value in plain.items():
        exact = truth[name].astype(np.float64)
        step = 2.0**-7 if case.nest.buffer(name).type.dtype.bits == 16 else 2.0**-23
        top = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        np.testing.assert_array_equal(np.isfinite(found[name]), np.isfinite(exact), name)
        finite = np.isfinite(exact)
        allowed = 2 * np.abs(value - exact)[finite].max(initial=0) + 4 * step * top
        assert np.abs(found[name] - exact)[finite].max(initial=0) <= allowed, name


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_values_stand(name: str, programs: int) -> None:
    case = CASES[name]
    arrays = case.inputs()
    made = cases.plan(case, dataclasses.replace(cases.SMALL, multiprocessors=programs))
    stands(case, cases.interpret(made, arrays), arrays)
    stands(case, cases.run_triton(made, arrays), arrays)


@pytest.mark.parametrize("rows", [1, 2, 67, 300])
def test_rows_of_any_number_are_one_build(rows: int) -> None:
    n = Size("n", 1)
    case = dataclasses.replace(norm_backward(n, 40), sizes={n: rows})
    arrays = case.inputs()
    made = cases.plan(case)
    assert made.kernels[0].sizes == (n,)
    stands(case, cases.run_triton(made, arrays, case.sizes), arrays)


@pytest.mark.parametrize("seed", range(12))
def test_random_nests_stand(seed: int) -> None:
    rng = random.Random(seed)
    rows, columns = rng.randint(1, 90), rng.randint(1, 90)
    case = random_case(rng, rows, columns)
    assert is_mixed(case.nest) == (rows > 1 or columns > 1)
    arrays = case.inputs(seed)
    chip = dataclasses.replace(cases.SMALL, multiprocessors=rng.choice((1, 2, 5)))
    stands(case, cases.run_triton(cases.plan(case, chip), arrays), arrays)


def random_case(rng: random.Random, rows: int, columns: int) -> Case:
    """A few sums and maxima of rows, columns and all, of an input and of its centered rows."""
    i, j = Var("r0", rows), Var("r1", columns)
    at = i * columns + j
    x: Expr = Load("x", (at,), dt.f32)
    centered = apply("sub", x, reduced("max", (j,), x))
    stores = [Store("y", (at,), centered, (i, j)),
              Store("c", (j,), reduced("sum", (i,), centered), (j,))]  # fmt: skip
    out: list[Buffer] = [written("y", dt.f32, rows * columns), written("c", dt.f32, columns)]
    for k in range(rng.randint(1, 3)):
        axes, left = rng.choice((((i,), (j,)), ((j,), (i,)), ((i, j), ())))
        value = rng.choice((x, centered, apply("mul", x, x)))
        index = left[0] if left else 0
        result = reduced(rng.choice(("sum", "max")), axes, value)
        stores.append(Store(f"z{k}", (index,), result, left))
        out.append(written(f"z{k}", dt.f32, left[0].extent if left else 1))
    return Case(Nest((), (buffer("x", dt.f32, rows * columns), *out), tuple(stores)))


# ------------------------------------------------------------------ the form of the kernels


def made(case: Case, chip: str = "h200") -> Scheduled:
    return cases.plan(case, load(chip))


def loads_of(kernel: Any) -> str:
    return emit(kernel, "nvidia").text


def test_one_walk_reads_each_input_once_and_a_second_kernel_joins_the_parts() -> None:
    first, join = made(norm_backward(16384, 4096)).kernels
    text = emit(first, "nvidia").text
    assert text.count("tl.load(g + ") == text.count("tl.load(x + ") == 1
    assert "atomic" not in text
    assert {b.name for b in join.buffers} >= {"dw", "db"}
    assert not {"g", "x"} & {b.name for b in join.buffers}


def test_parts_are_counted_by_the_chip() -> None:
    counts = []
    for chip in ("a100", "h200"):
        target = load(chip)
        (parts,) = (s for s in statements(made(sums(1 << 17, 4096), chip).kernels[0].body)
                    if isinstance(s, Loop) and s.mapping is Runs.GRID)  # fmt: skip
        counts.append(parts.axis.extent)
        assert 2 * target.multiprocessors < counts[-1] <= 4 * target.multiprocessors
    assert counts[0] != counts[1]


def test_a_walk_of_many_values_has_half_the_parts() -> None:
    """What a thread holds of them leaves no room for more warps."""
    (parts,) = (s for s in statements(made(norm_backward(1 << 17, 4096)).kernels[0].body)
                if isinstance(s, Loop) and s.mapping is Runs.GRID)  # fmt: skip
    multiprocessors = load("h200").multiprocessors
    assert multiprocessors < parts.axis.extent <= 2 * multiprocessors


def test_loads_go_ahead_of_the_walk() -> None:
    first = made(norm_backward(16384, 4096)).kernels[0]
    assert first.stages > 1
    assert f"num_stages={first.stages}" in emit(first, "nvidia").text


def test_where_registers_are_short_each_step_loads_what_all_share() -> None:
    """Short rows keep the weight in registers; long ones would spill for it."""
    short, long = (made(norm_backward(4096, n)).kernels[0] for n in (4096, 14336))
    assert not short.reload and long.reload
    for kernel in (short, long):
        before, walk = emit(kernel, "nvidia").text.split("for r0_run")
        assert ("tl.load(w + " in walk) == kernel.reload
        assert ("tl.load(w + " in before) != kernel.reload
    held = dataclasses.replace(long, reload=False)
    found = [assemble(emit(k, "nvidia"), load("h200")) for k in (long, held)]
    assert found[0].spill_bytes < found[1].spill_bytes / 4


@pytest.mark.parametrize("name", ["norm 67 x 31", "softmax in parts", "sums 127 x 257"])
def test_steps_that_load_what_all_share_make_the_same(name: str) -> None:
    case = CASES[name]
    arrays = case.inputs()
    plan = cases.plan(case)
    kernels = tuple(dataclasses.replace(k, reload=True) for k in plan.kernels)
    again = cases.run_triton(dataclasses.replace(plan, kernels=kernels), arrays)
    for result, value in cases.run_triton(plan, arrays).items():
        np.testing.assert_array_equal(again[result], value, result)


def test_equal_accumulators_are_one() -> None:
    """The sum of all is that of the columns' sums: both walk with one accumulator."""
    i, j = Var("r0", 512), Var("r1", 256)
    x = Load("x", (i * 256 + j,), dt.f32)
    stores = (Store("c", (j,), reduced("sum", (i,), x), (j,)),
              Store("t", (0,), reduced("sum", (i, j), x)))  # fmt: skip
    buffers = (buffer("x", dt.f32, 512 * 256), written("c", dt.f32, 256), written("t", dt.f32, 1))
    first = cases.plan(Case(Nest((), buffers, stores))).kernels[0]
    assert sum(isinstance(s, Carry) for s in statements(first.body)) == 1


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("shape", [(16384, 4096), (4096, 768), (2048, 5120)])
def test_kernels_assemble_without_spills_as_estimated(chip: str, shape: tuple[int, int]) -> None:
    target = load(chip)
    case = norm_backward(*shape)
    supposed = estimate(case.nest, target)
    found = [assemble(emit(k, target.vendor), target) for k in made(case, chip).kernels]
    assert all(k.spill_bytes == 0 for k in found)
    assert supposed.spill_bytes == 0
    assert supposed.registers == pytest.approx(found[0].registers, rel=0.5)
    assert found[0].shared_bytes <= 1.01 * supposed.shared_bytes


# ------------------------------------------------------------------ what is no walk


def test_a_row_that_is_too_long_to_be_held_is_refused_by_its_length() -> None:
    target = load("h200")
    assert too_long(norm_backward(64, HELD_ROW).nest, target) is None
    assert too_long(norm_backward(64, HELD_ROW + 1).nest, target) == 2 * HELD_ROW
    assert mixed_of(norm_backward(64, HELD_ROW + 1).nest, target) is None


def test_a_row_of_unknown_length_is_no_walk() -> None:
    n = Size("n", 1)
    i, j = Var("r0", 64), Var("r1", n)
    x = Load("x", (i * n + j,), dt.f32)
    row, column = (
        reduced("sum", (j,), apply("sub", x, reduced("max", (j,), x))),
        reduced("sum", (i,), x),
    )
    stores = (Store("row", (i,), row, (i,)), Store("column", (j,), column, (j,)))
    buffers = (
        buffer("x", dt.f32, n * 64),
        written("row", dt.f32, 64),
        written("column", dt.f32, n),
    )
    nest = Nest((), buffers, stores)
    assert is_mixed(nest)
    assert walks(nest) == ()


def test_what_needs_a_finished_column_in_its_rows_is_no_walk() -> None:
    i, j = Var("r0", 64), Var("r1", 32)
    x = Load("x", (i * 32 + j,), dt.f32)
    off = apply("sub", x, reduced("sum", (i,), x))
    stores = (Store("y", (i * 32 + j,), off, (i, j)),
              Store("row", (i,), reduced("sum", (j,), x), (i,)))  # fmt: skip
    buffers = (buffer("x", dt.f32, 2048), written("y", dt.f32, 2048), written("row", dt.f32, 64))
    (way,) = walks(Nest((), buffers, stores)) or (None,)
    assert way is None or i not in way.walked
