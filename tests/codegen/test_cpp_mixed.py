"""Reductions over rows and over columns of one input on a CPU: one walk, whatever its shape."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import cpp_nests as nests
import numpy as np
import pytest
from cpp_run import Case, built, call, check, kernel_of, memory_of
from mixed_nests import batched, fold, norm_backward, of_softmax

from onetrip.base.dtype import DType, bf16, f32, i64
from onetrip.base.sym import Dim, Size, Sym, Var, add, mul
from onetrip.cost.mixed import LEAST_ROWS, PIECES, mixed_of, most_held, partial_bytes, too_long
from onetrip.ir.expr import Expr, Load, Position, apply, cast
from onetrip.ir.kernel import Kernel, Loop, Scratch, statements
from onetrip.ir.nest import Buffer, Nest, Store
from onetrip.ir.verify import verify
from onetrip.target.load import load

CPU = load("cpu")
SIZES = ((3, 8), (1, 8), (8, 1), (0, 8), (67, 31), (127, 257), (200, 5), (700, 96), (2100, 40))


def case_of(nest: Nest, n: Size | None = None, rows: int = 0) -> Case:
    """A nest with data for what it reads."""
    rng = np.random.default_rng(5)
    sizes: dict[Sym, int] = {} if n is None else {n: rows}
    read = [b for b in nest.buffers if b.name in {e.buffer for e in nest.loads}]
    counts = {b.name: b.type.numel for b in read}
    known = {k: rows * 40 if not isinstance(c, int) else c for k, c in counts.items()}
    known |= {k: rows for k, c in counts.items() if n is not None and c == n}
    return nest, {b.name: nests.data(rng, b.type.dtype, known[b.name]) for b in read}, sizes


def three_kinds(rows: int, columns: int, dtype: DType = f32) -> Case:
    """Sums of rows, maxima of columns, the sum of all squares, and where the greatest is."""
    i, j = Var("r0", rows), Var("r1", columns)
    x = cast(Load("x", (i * columns + j,), dtype), f32)
    stores = (
        Store("row", (i,), fold("sum", (j,), x), (i,)),
        Store("column", (j,), fold("max", (i,), x), (j,)),
        Store("all", (0,), fold("sum", (i, j), apply("mul", x, x))),
        Store("at", (j,), fold("argmax", (i,), x, Position(i), component=1), (j,)),
    )
    out = {"row": (f32, rows), "column": (f32, columns), "all": (f32, 1), "at": (i64, columns)}
    buffers = (nests.read("x", dtype, (rows * columns,)),
               *(nests.written(name, d, (size,)) for name, (d, size) in out.items()))  # fmt: skip
    return case_of(Nest((), buffers, stores))


def of_images(images: int, channels: int, pixels: int) -> Case:
    """Sums over the pixels of each channel of each image, and over images and pixels."""
    n, c, h = Var("r0", images), Var("r1", channels), Var("r2", pixels)
    x = Load("x", ((n * channels + c) * pixels + h,), f32)
    y = apply("sub", x, fold("max", (c, h), x))
    stores = (
        Store("y", ((n * channels + c) * pixels + h,), y, (n, c, h)),
        Store("s", (c,), fold("sum", (n, h), y), (c,)),
        Store("t", (0,), fold("sum", (n, c, h), x)),
    )
    sizes = {"y": images * channels * pixels, "s": channels, "t": 1}
    buffers = (nests.read("x", f32, (images * channels * pixels,)),
               *(nests.written(k, f32, (size,)) for k, size in sizes.items()))  # fmt: skip
    return case_of(Nest((), buffers, stores))


def of_positions(batch: int, rows: int, columns: int, *, weights: bool = False) -> Nest:
    """Centered rows, summed over the batch for each position; `weights`: and the rows themselves
    over batch and positions."""
    b, i, j = Var("r0", batch), Var("r1", rows), Var("r2", columns)
    at = (b * rows + i) * columns + j
    x = Load("x", (at,), f32)
    y = apply("sub", x, fold("max", (j,), x))
    many = rows * columns
    stores = [Store("y", (at,), y, (b, i, j)),
              Store("p", (i * columns + j,), fold("sum", (b,), y), (i, j))]  # fmt: skip
    out = [nests.written("y", f32, (batch * many,)), nests.written("p", f32, (many,))]
    if weights:
        stores.append(Store("w", (j,), fold("sum", (b, i), x), (j,)))
        out.append(nests.written("w", f32, (columns,)))
    return Nest((), (nests.read("x", f32, (batch * many,)), *out), tuple(stores))


def drawn_of_three(seed: int) -> Nest:
    """A few reductions over any of three axes, of an input, or of it beside one of them."""
    rng = random.Random(seed)
    extents = [rng.choice((1, 2, 5, 17, 40)) for _ in range(3)]
    axes = tuple(Var(f"r{k}", n) for k, n in enumerate(extents))
    many = math.prod(extents)

    def place(left: Sequence[Var]) -> Dim:
        index: Dim = 0
        for a in left:
            index = add(mul(index, a.extent), a)
        return index

    def over() -> tuple[Var, ...]:
        return tuple(rng.sample(axes, rng.randint(1, 2)))

    x: Expr = Load("x", (place(axes),), f32)
    beside = apply("sub", x, fold("max", over(), x))
    stores, out = [], [nests.read("x", f32, (many,))]
    for k in range(rng.randint(1, 4)):
        value, reduced = rng.choice((x, beside)), over()
        if rng.random() < 0.3:
            stores.append(Store(f"y{k}", (place(axes),), beside, axes))
            out.append(nests.written(f"y{k}", f32, (many,)))
            continue
        left = tuple(a for a in axes if a not in reduced)
        size = math.prod(extents[axes.index(a)] for a in left)
        result = fold(rng.choice(("sum", "max")), reduced, value)
        stores.append(Store(f"z{k}", (place(left),), result, left))
        out.append(nests.written(f"z{k}", f32, (size,)))
    return Nest((), tuple(out), tuple(stores))


def of_both_sides(batch: int, rows: int, columns: int) -> Nest:
    """Elements beside the greatest of their row and of their column, summed over the batch."""
    b, i, j = Var("r0", batch), Var("r1", rows), Var("r2", columns)
    at = (b * rows + i) * columns + j
    x = Load("x", (at,), f32)
    y = apply("sub", apply("sub", x, fold("max", (j,), x)), fold("max", (i,), x))
    many = rows * columns
    out = (nests.read("x", f32, (batch * many,)), nests.written("p", f32, (many,)))
    return Nest((), out, (Store("p", (i * columns + j,), fold("sum", (b,), y), (i, j)),))


def drawn(seed: int) -> Case:
    """A few sums and maxima of rows, columns and all, of an input and of its centered rows."""
    rng = random.Random(seed)
    rows, columns = rng.randint(1, 150), rng.randint(1, 90)
    i, j = Var("r0", rows), Var("r1", columns)
    at = i * columns + j
    x: Expr = Load("x", (at,), f32)
    centered = apply("sub", x, fold("max", (j,), x))
    stores = [Store("y", (at,), centered, (i, j)),
              Store("c", (j,), fold("sum", (i,), centered), (j,))]  # fmt: skip
    out: list[Buffer] = [nests.written("y", f32, (rows * columns,)),
                         nests.written("c", f32, (columns,))]  # fmt: skip
    for k in range(rng.randint(1, 3)):
        axes, left = rng.choice((((i,), (j,)), ((j,), (i,)), ((i, j), ())))
        value = rng.choice((x, centered, apply("mul", x, x)))
        index = left[0] if left else 0
        result = fold(rng.choice(("sum", "max")), axes, value)
        stores.append(Store(f"z{k}", (index,), result, left))
        out.append(nests.written(f"z{k}", f32, (left[0].extent if left else 1,)))
    return case_of(Nest((), (nests.read("x", f32, (rows * columns,)), *out), tuple(stores)))


def is_walked_once(kernel: Kernel) -> bool:
    verify(kernel)
    return "mixed" in kernel.family


def test_values_stand() -> None:
    cases = [three_kinds(r, c) for r, c in SIZES if r]
    cases += [three_kinds(67, 31, bf16), three_kinds(96, 500, bf16)]
    cases += [case_of(norm_backward(r, c)) for r, c in SIZES]
    cases += [case_of(norm_backward(r, c, bf16)) for r, c in ((67, 31), (127, 257))]
    cases += [case_of(of_softmax(61, 37)), case_of(of_softmax(101, 700))]
    cases += [case_of(batched(3, 40, 24)), case_of(batched(9, 67, 130))]
    cases += [of_images(5, 7, 30), of_images(70, 3, 65), *map(drawn, range(12))]
    kernels = check(*cases)
    large = [k for k, (nest, _, _) in zip(kernels, cases, strict=True) if mixed_of(nest, CPU)]
    assert len(large) > len(cases) // 2
    assert all(map(is_walked_once, large))


@pytest.mark.parametrize("sizes", [(3, 5, 24), (40, 7, 33), (70, 1, 16), (9, 6, 1)])
def test_reductions_of_rows_stand_in_a_loop_over_what_they_vary_over(
    sizes: tuple[int, int, int],
) -> None:
    case = case_of(of_positions(*sizes))
    assert mixed_of(case[0], CPU) is not None
    assert all(map(is_walked_once, check(case)))


def test_reductions_over_any_of_three_axes() -> None:
    walked = [n for n in map(drawn_of_three, range(200)) if mixed_of(n, CPU) is not None]
    assert len(walked) > 60
    assert all(map(is_walked_once, check(*map(case_of, walked))))


@pytest.mark.parametrize("nest", [of_positions(8, 32, 64, weights=True), of_both_sides(8, 16, 24)])
def test_what_no_loops_inside_each_other_compute_is_no_walk_of_a_core(nest: Nest) -> None:
    """Within a row one reduction varies over what another reduces; a chip holds the whole row."""
    assert mixed_of(nest, load("h100")) is not None
    assert mixed_of(nest, CPU) is None


def test_rows_of_any_number_are_one_build() -> None:
    n = Size("n", 1)
    nest = norm_backward(n, 40)
    assert is_walked_once(kernel_of(nest))
    check(*(case_of(nest, n, rows) for rows in (1, 2, 67, 3000)))


def test_results_do_not_depend_on_threads() -> None:
    nest, inputs, _ = case_of(norm_backward(1030, 130))
    kernel = kernel_of(nest)
    (function,) = built([kernel])
    found = []
    for threads in (1, 2, 3):
        memory = memory_of(kernel, inputs, {})
        call(function, kernel, memory, {}, threads)
        found.append(memory)
    for name in ("dx", "dw", "db"):
        assert all(np.array_equal(found[0][name], m[name]) for m in found[1:])


def test_long_sums_are_joined_from_sums_of_few_terms() -> None:
    def sums(rows: int) -> int:
        kernel = kernel_of(norm_backward(rows, 64))
        return sum("sums" in s.name for s in statements(kernel.body) if isinstance(s, Scratch))

    assert sums(PIECES * LEAST_ROWS) == 0
    assert sums(PIECES * LEAST_ROWS * 4) == 2


def test_the_price_and_the_schedule_have_the_same_parts() -> None:
    nest = norm_backward(PIECES * 100, 64)
    tiled = mixed_of(nest, CPU)
    assert tiled is not None and tiled.parts == PIECES
    assert partial_bytes(nest, CPU, {}) == 2 * 4 * 64 * PIECES
    walk = next(s for s in kernel_of(nest).body if isinstance(s, Loop))
    assert walk.axis.extent == PIECES


@pytest.mark.parametrize("chip", ["cpu", "cpu:2"])
def test_rows_are_held_as_far_as_a_cache_has_room(chip: str) -> None:
    target = load(chip)
    most = most_held(target)
    assert too_long(norm_backward(64, most), target) is None
    assert too_long(norm_backward(64, most + 1), target) == most + 1
