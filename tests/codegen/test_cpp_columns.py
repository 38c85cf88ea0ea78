"""Columns reduced row by row, with what is stored for each element on the way."""

from __future__ import annotations

from dataclasses import replace

import cpp_nests as nests
import numpy as np
import pytest
from cpp_run import Case, check

from onetrip.base.dtype import DType, bf16, f32, f64
from onetrip.base.sym import Var, add
from onetrip.ir.expr import Load, Reduced, Reduction, apply, cast
from onetrip.ir.kernel import Loop, Scratch, statements
from onetrip.ir.nest import Axis, Nest, Store
from onetrip.ir.verify import verify


def gradient(rows: int, columns: int, dtype: DType = f32, sums: DType = f32) -> Case:
    """y[r, c] = x[r, c] w[c], and the sums over r of x[r, c] g[r] and of x[r, c]."""
    r, c = Var("r0", rows), Var("p0", columns)
    at = add(r * columns, c)
    x = cast(Load("x", (at,), dtype), sums)
    g, w = (cast(Load(n, (v,), dtype), sums) for n, v in (("g", r), ("w", c)))
    over = (Reduction("sum", (r,), (apply("mul", x, g),)), Reduction("sum", (r,), (x,)))
    shapes = {"x": rows * columns, "g": rows, "w": columns}
    buffers = (*(nests.read(n, dtype, (k,)) for n, k in shapes.items()),
               nests.written("y", dtype, (rows * columns,)),
               *(nests.written(n, sums, (columns,)) for n in ("s", "t")))  # fmt: skip
    first = Store("y", (at,), cast(apply("mul", x, w), dtype), (r,))
    stores = (
        first,
        *(Store(n, (c,), Reduced(k, 0, sums)) for n, k in zip("st", over, strict=True)),
    )
    rng = np.random.default_rng(3)
    inputs = {n: nests.data(rng, dtype, k) for n, k in shapes.items()}
    return Nest((Axis(c),), buffers, stores), inputs, {}


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_rows_are_walked_once_for_sums_and_elements(dtype: DType) -> None:
    for case in (gradient(300, 512, dtype), gradient(700, 333, dtype), gradient(130, 5000, dtype)):
        (kernel,) = check(case)
        verify(kernel)
        loops = [s for s in kernel.body if isinstance(s, Loop)]
        assert len(loops) == 3, "the walk, the parts joined, and their results stored"
        columns = case[0].space[0].var
        inner = [s for s in statements((loops[0],)) if isinstance(s, Loop) and s.axis == columns]
        assert all(s.tile > 1 for s in inner)


def test_long_sums_are_joined_from_sums_of_few_terms() -> None:
    (long, short) = check(gradient(64 * 100, 128), gradient(100, 512))
    assert sum("sums" in s.name for s in statements(long.body) if isinstance(s, Scratch)) == 2
    assert not any("sums" in s.name for s in statements(short.body) if isinstance(s, Scratch))


@pytest.mark.parametrize("case", [gradient(4000, 32), gradient(300, 512, sums=f64)])
def test_registers_hold_few_columns_and_wide_sums(case: Case) -> None:
    (kernel,) = check(case)
    assert kernel.family == "pointwise+split"


def test_an_element_that_waits_for_a_sum_is_stored_after_it() -> None:
    nest, inputs, sizes = gradient(300, 512)
    y, s, t = nest.stores
    assert isinstance(s.value, Reduced)
    late = replace(y, value=apply("mul", y.value, s.value))
    (kernel,) = check((replace(nest, stores=(late, s, t)), inputs, sizes))
    assert kernel.family == "split"
    assert len([x for x in kernel.body if isinstance(x, Loop)]) > 3
