"""Scans as GPU kernels: held in a tile or walked, both ways, alone and among other stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_cases as cases
import numpy as np
import pytest
import triton.language as tl
from test_triton import FORMS, form, scheduled, stands  # noqa: F401 - `form` is a fixture
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from onetrip.base import dtype as dt
from onetrip.base.sym import Size, Var
from onetrip.codegen import schedule_gpu
from onetrip.codegen.prelude_triton import dialect_of
from onetrip.codegen.triton import emit
from onetrip.ir.expr import Apply, Expr, Load, Position, Scanned, apply
from onetrip.ir.nest import Axis, Nest, Store
from onetrip.runtime.triton_assemble import assemble
from onetrip.target import load

ROWS, LONG = 3, 290


@pytest.fixture(autouse=True)
def _splat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter spreads a comparison of numbers as numbers; here as the truth it is."""
    splat = InterpreterBuilder.create_splat

    def spread(self: Any, kind: Any, arg: Any) -> Any:
        if arg.data.dtype == bool and not isinstance(arg.dtype, tl.block_type):
            return TensorHandle(np.full(kind.shape, arg.data), tl.int1)
        return splat(self, kind, arg)

    monkeypatch.setattr(InterpreterBuilder, "create_splat", spread)


P, T = Var("p0", ROWS), Var("r0", LONG)
X = Load("x", (P * LONG + T,), dt.f32)


def scan(monoid: str, *lift: Expr, component: int = 0, reverse: bool = False) -> Expr:
    return Scanned(monoid, T, lift, component, lift[component].dtype, reverse)


def rows(*values: Expr) -> cases.Case:
    """Each value stored along whole rows."""
    stores = tuple(Store(f"y{k}", (P * LONG + T,), value, (T,)) for k, value in enumerate(values))
    written = (cases.written(s.buffer, s.value.dtype, ROWS * LONG) for s in stores)
    buffers = (cases.buffer("x", dt.f32, ROWS * LONG), *written)
    return cases.Case(Nest((Axis(P),), buffers, stores))


def centred() -> cases.Case:
    """cumsum(x - max(x)): a reduction before the scan."""
    r = Var("r1", LONG)
    top = cases.reduced("max", (r,), Load("x", (P * LONG + r,), dt.f32))
    return rows(scan("sum", apply("sub", X, top)))


def columns() -> cases.Case:
    """A scan along the strided axis, tiles of columns side by side."""
    c, t = Var("p0", 20), Var("r0", LONG)
    value = Scanned("sum", t, (Load("x", (t * 20 + c,), dt.f32),), 0, dt.f32)
    stores = (Store("y", (t * 20 + c,), value, (t,)),)
    buffers = (cases.buffer("x", dt.f32, 20 * LONG), cases.written("y", dt.f32, 20 * LONG))
    return cases.Case(Nest((Axis(c),), buffers, stores))


def widened() -> cases.Case:
    """A recurrence over more axes than any tensor it reads: rows times columns."""
    c, t = Var("p0", 20), Var("r0", LONG)
    rate, drive = Load("x", (t,), dt.f32), Load("w", (c,), dt.f32)
    value = Scanned("affine", t, (rate, apply("mul", rate, drive)), 1, dt.f32)
    stores = (Store("y", (t * 20 + c,), value, (t,)),)
    buffers = (
        cases.buffer("x", dt.f32, LONG),
        cases.buffer("w", dt.f32, 20),
        cases.written("y", dt.f32, 20 * LONG),
    )
    return cases.Case(Nest((Axis(c),), buffers, stores))


def symbolic() -> cases.Case:
    n = Size("n")
    t = Var("r0", n)
    value = Scanned("sum", t, (Load("x", (P * n + t,), dt.f32),), 0, dt.f32)
    buffers = (cases.buffer("x", dt.f32, n * ROWS), cases.written("y", dt.f32, n * ROWS))
    stores = (Store("y", (P * n + t,), value, (t,)),)
    return cases.Case(Nest((Axis(P),), buffers, stores), {n: LONG})


def summed() -> cases.Case:
    """The sum of a scan, and the scan."""
    total = cases.reduced("sum", (T,), scan("sum", X))
    case = rows(scan("sum", X))
    stores = (*case.nest.stores, Store("s", (P,), total))
    buffers = (*case.nest.buffers, cases.written("s", dt.f32, ROWS))
    return cases.Case(Nest(case.nest.space, buffers, stores))


CASES: dict[str, Callable[[], cases.Case]] = {
    "sum": lambda: rows(scan("sum", X)),
    "reversed": lambda: rows(scan("sum", X, reverse=True)),
    "both directions": lambda: rows(
        apply("add", scan("sum", X), scan("sum", X, reverse=True)), scan("max", X)
    ),
    "maximum and its place": lambda: rows(
        scan("argmax", X, Position(T)), scan("argmax", X, Position(T), component=1)
    ),
    "scan of a scan": lambda: rows(scan("max", scan("sum", X))),
    "used with its element": lambda: rows(Apply("sub", (scan("sum", X), X), dt.f32)),
    "after a reduction": centred,
    "before a reduction": summed,
    "columns": columns,
    "widened": widened,
    "symbolic": symbolic,
}


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_scans_stand(name: str, form: str) -> None:  # noqa: F811
    case = CASES[name]()
    arrays = case.inputs()
    made = scheduled(case, form)
    stands(case, cases.interpret(made, arrays, case.sizes), arrays)
    stands(case, cases.run_triton(made, arrays, case.sizes), arrays)


@pytest.mark.parametrize("chip", ["h100", "mi300x"])
@pytest.mark.parametrize("name", ["sum", "maximum and its place", "columns"])
def test_scans_assemble_without_spills(
    name: str, chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_gpu, "holds", lambda nest, row, whole, target: whole <= 16)
    target = load(chip)
    dialect = dialect_of(target)
    for kernel in cases.plan(CASES[name](), target).kernels:
        found = assemble(emit(kernel, dialect), target)
        assert found.spill_bytes == 0
        assert 0 < found.registers <= 255


def test_a_reversed_scan_is_one_kernel() -> None:
    made = cases.plan(CASES["reversed"]())
    assert len(made.kernels) == 1 and not made.scratch


def test_an_exclusive_use_reads_no_future() -> None:
    case = CASES["sum"]()
    arrays = case.inputs()
    arrays["x"][5] = np.nan
    found = cases.run_triton(cases.plan(case), arrays)["y0"]
    assert np.isnan(found[:LONG]).sum() == LONG - 5
    assert not np.isnan(found[LONG:]).any()


def test_tiles_lie_along_the_widest_tensor() -> None:
    """What is stored is 20 times what is read: its contiguous axis has the lanes."""
    (kernel,) = cases.plan(widened()).kernels
    assert kernel.family == "column"
