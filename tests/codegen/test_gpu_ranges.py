"""Ranges of values hold for every number that is put in."""

from __future__ import annotations

import gpu_cases as cases
import numpy as np
import pytest

from onetrip.base.dtype import bf16, f32
from onetrip.base.sym import Var
from onetrip.codegen.gpu_ranges import ANY, LARGEST, Range, range_of
from onetrip.codegen.triton import emit
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.expr import Apply, Cast, Const, Expr, Load, Reduced, Reduction, apply, compare
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType

P, R = Var("p", 64), Var("r", 4)
X = Load("x", (P * 4 + R,), f32)
Y = Load("y", (P * 4 + R,), f32)
SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-38, 1.0, -448.0, 3.3e38, np.inf, -np.inf, np.nan, 7e-13,
                    65504.0], np.float32)  # fmt: skip


def const(value: float) -> Const:
    return Const(value, f32)


def larger(e: Expr, least: float) -> Expr:
    return Apply("where", (compare("lt", e, const(least)), const(least), e), f32)


def largest(e: Expr) -> Expr:
    return Reduced(Reduction("max", (R,), (e,)), 0, f32)


SIZE = apply("abs", X)
CASES: dict[str, tuple[Expr, Range]] = {
    "load": (X, ANY),
    "abs": (SIZE, Range(0.0, LARGEST, True)),
    "largest": (largest(SIZE), Range(0.0, LARGEST, True)),
    "largest of any": (largest(X), ANY),
    "clamped": (larger(largest(SIZE), 1e-12), Range(1e-12, LARGEST, True)),
    "clamped, of any sign": (larger(X, 0.5), Range(0.5, LARGEST, True)),
    "scaled": (apply("mul", larger(largest(SIZE), 1e-12), const(1 / 448)),
               Range(2.2e-15, 7.7e35, True)),
    "divided": (apply("div", larger(SIZE, 1.0), const(448.0)), Range(2.2e-3, 7.7e35, True)),
    "narrow": (Cast(Cast(larger(SIZE, 1.0), bf16), f32), Range(0.98, LARGEST, True)),
    "product of any": (apply("mul", X, Y), ANY),
    "sum": (apply("add", SIZE, SIZE), ANY),
    "small": (apply("mul", larger(SIZE, 1e-30), const(1e-30)), Range(0.0, 3.5e8, True)),
    "minus zero": (const(-0.0), ANY),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_range_is_known_and_holds(name: str) -> None:
    e, known = CASES[name]
    found = range_of(e)
    for bound, near in zip(found[:2], known[:2], strict=True):
        assert abs(bound - near) <= 0.03 * abs(near)
    assert found.infinite == known.infinite
    rng = np.random.default_rng(1)
    numbers = [np.concatenate([rng.choice(SPECIAL, 128), rng.standard_normal(128).astype("f4")])
               for _ in "xy"]  # fmt: skip
    for n in numbers:
        rng.shuffle(n)
    kind = TensorType.dense(f32, (256,))
    buffers = (*(Buffer(n, kind, Access.READ) for n in "xy"), Buffer("z", kind, Access.WRITE))
    nest = Nest((Axis(P), Axis(R)), buffers, (Store("z", (P * 4 + R,), e),))
    with np.errstate(all="ignore"):
        z = run_nest(nest, dict(zip("xy", numbers, strict=True)), {})["z"]
    z = z[~np.isnan(z)]
    finite = z[np.isfinite(z)]
    assert ((finite >= found.low) & (finite <= found.high)).all()
    assert found.infinite or len(finite) == len(z)
    assert not found.is_positive or not np.signbit(z).any()


def test_operands_that_are_shared_are_looked_at_once() -> None:
    """3,000 clamps, each of which reads the one before it twice."""
    e: Expr = SIZE
    for k in range(3000):
        e = larger(e, 1e-12 * (k + 1))
    assert range_of(e).low == pytest.approx(3e-9)


def test_quotients_of_quotients_are_written_once() -> None:
    """Each step reads the one before it twice, which makes 2^20 of the first."""
    e: Expr = X
    for _ in range(20):
        e = apply("add", apply("div", e, largest(SIZE)), apply("mul", e, const(0.5)))
    buffers = (cases.buffer("x", f32, 256), cases.written("y", f32, 256))
    nest = Nest((Axis(P),), buffers, (Store("y", (P * 4 + R,), e, (R,)),))
    (kernel,) = cases.plan(cases.Case(nest)).kernels
    text = emit(kernel, "nvidia").text.partition(f"def {kernel.name}(")[2]
    assert text.count("tl.where((ot_abs(") == 20
