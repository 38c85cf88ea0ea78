"""Every scalar operator and cast in Triton: right in the interpreter, accepted for GPUs."""

from __future__ import annotations

import gpu_cases as cases
import numpy as np
import pytest

from onetrip.base import dtype as dt
from onetrip.base.errors import Unsupported
from onetrip.base.float8 import LAYOUTS
from onetrip.base.sym import Var
from onetrip.codegen.prelude_triton import DIALECTS, dialect_of, functions
from onetrip.codegen.triton import emit
from onetrip.interp.arrays import convert
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.expr import Apply, Cast, Const, Expr, Load
from onetrip.ir.nest import Axis, Nest, Store
from onetrip.ops.scalar import TABLE, Result, ScalarOp
from onetrip.runtime.triton_assemble import assemble
from onetrip.target import load

COUNT = 24
FLOATS = (dt.f32, dt.f64)
INTS = (dt.u8, dt.i8, dt.i16, dt.i32, dt.i64)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, np.inf, -np.inf, np.nan, 0.0625, 7.25]
OTHER = [2.0, -3.0, 0.0, -0.0, np.nan, 0.25, np.inf, -1.5, 2.0, 1.0, 3.0, -7.0]
WHOLE = [0, 1, 2, 3, 7, -1, -2, -5, 100, 5, 6, 9]
WHOLE_OTHER = [2, 3, -2, 0, 1, 5, 4, 2, -3, 9, 31, 1]


def operands(op: ScalarOp, dtype: dt.DType) -> list[Expr]:
    p0 = Var("p0", COUNT)
    names = ("a", "b", "c")[: op.arity]
    kinds = [dtype] * op.arity
    if op.name == "where":
        kinds = [dt.bool_, dtype, dtype]
    return [Load(n, (p0,), k) for n, k in zip(names, kinds, strict=True)]


def case_of(loads: list[Expr], value: Expr) -> cases.Case:
    p0 = Var("p0", COUNT)
    read = tuple(cases.buffer(e.buffer, e.dtype, COUNT) for e in loads if isinstance(e, Load))
    buffers = (*read, cases.written("y", value.dtype, COUNT))
    return cases.Case(Nest((Axis(p0),), buffers, (Store("y", (p0,), value),)))


def op_case(op: ScalarOp, dtype: dt.DType) -> cases.Case:
    loads = operands(op, dtype)
    result = dt.bool_ if op.result is Result.BOOL else dtype
    return case_of(loads, Apply(op.name, tuple(loads), result))


def samples(case: cases.Case) -> dict[str, cases.Array]:
    """Special values in every operand, each met by several of the other's."""
    made = {}
    for number, b in enumerate(case.nest.buffers[:-1]):
        d = b.type.dtype
        rows = ((SPECIAL, OTHER) if d.is_float else (WHOLE, WHOLE_OTHER))[number % 2]
        values = np.array(rows + rows[::-1] if number else rows * 2)
        if d is dt.bool_:
            made[b.name] = values % 2 == 1
        else:
            with np.errstate(all="ignore"):
                made[b.name] = convert(values, dt.f64 if d.is_float else dt.i64, d)
    return made


WHOLE_ONLY = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shl", "shr", "gcd"}
OPS = [
    (op, d)
    for op in TABLE
    for d in (*FLOATS, *INTS)
    if (op.name not in WHOLE_ONLY if d.is_float else op.integer_too)
]
ZERO_OF_EITHER_SIGN = frozenset({"fmax", "fmin"})
"""Of 0.0 and -0.0 both are the larger, as in eager, whose vector kernels give either."""
CASTS = [(a, b) for a in dt.COMPILED for b in dt.COMPILED if a is not b]


def label(pair: tuple[ScalarOp, dt.DType]) -> str:
    return f"{pair[0].name}-{pair[1].name}"


@pytest.mark.parametrize("pair", OPS, ids=label)
def test_operator_in_the_interpreter(pair: tuple[ScalarOp, dt.DType]) -> None:
    case = op_case(*pair)
    arrays = samples(case)
    with np.errstate(all="ignore"):
        want = run_nest(case.nest, arrays)["y"]
        found = cases.run_triton(cases.plan(case), arrays)["y"]
    np.testing.assert_array_equal(found, want)
    if pair[0].name not in ZERO_OF_EITHER_SIGN:
        assert not (differs_in_sign(found, want)).any()


def differs_in_sign(a: cases.Array, b: cases.Array) -> cases.Array:
    """Where one is 0.0 and the other -0.0."""
    if a.dtype.kind != "f":
        return np.zeros(a.shape, bool)
    return (np.signbit(a) != np.signbit(b)) & ~np.isnan(a)


@pytest.mark.parametrize("op", [o.name for o in TABLE if o.integer_too and o.name != "sign"])
def test_operator_on_bool(op: str) -> None:
    """The one spelling of bools, where the operator has one."""
    row = next(o for o in TABLE if o.name == op)
    case = op_case(row, dt.bool_)
    arrays = samples(case)
    try:
        made = emit(cases.plan(case).kernels[0], "interpreter")
    except Unsupported:
        return
    assert made.text
    found = cases.run_triton(cases.plan(case), arrays)["y"]
    np.testing.assert_array_equal(found, run_nest(case.nest, arrays)["y"])


def numbers(x: cases.Array, dtype: dt.DType) -> cases.Array:
    """What bytes of 8-bit floats stand for, so that every NaN is one."""
    return convert(x, dtype, dt.f32) if dtype in LAYOUTS else x


@pytest.mark.parametrize("pair", CASTS, ids=lambda p: f"{p[0].name}-{p[1].name}")
def test_cast_in_the_interpreter(pair: tuple[dt.DType, dt.DType]) -> None:
    source, target = pair
    load_ = Load("a", (Var("p0", COUNT),), source)
    case = case_of([load_], Cast(load_, target))
    arrays = samples(case)
    if source.is_float and target.is_integral:
        arrays["a"] = np.nan_to_num(arrays["a"], posinf=3.0, neginf=-3.0)
        if not target.signed:
            arrays["a"] = np.abs(arrays["a"])
    want = run_nest(case.nest, arrays)["y"]
    found = cases.run_triton(cases.plan(case), arrays)["y"]
    np.testing.assert_array_equal(numbers(found, target), numbers(want, target))


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["h100", "mi300x"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=lambda d: d.name)
def test_operators_are_accepted_by_the_compiler(chip: str, dtype: dt.DType) -> None:
    """All operators of a dtype in one kernel."""
    target = load(chip)
    dialect = dialect_of(target)
    p0 = Var("p0", COUNT)
    stores, buffers = [], {}
    for op in (o for o, d in OPS if d is dtype):
        case = op_case(op, dtype)
        for b in case.nest.buffers[:-1]:
            buffers[f"{b.name}_{b.type.dtype.name}"] = cases.buffer(
                f"{b.name}_{b.type.dtype.name}", b.type.dtype, COUNT)  # fmt: skip
        args = tuple(Load(f"{e.buffer}_{e.dtype.name}", (p0,), e.dtype)
                     for e in operands(op, dtype) if isinstance(e, Load))  # fmt: skip
        result = dt.bool_ if op.result is Result.BOOL else dtype
        stores.append(Store(f"y_{op.name}", (p0,), Apply(op.name, args, result)))
        buffers[f"y_{op.name}"] = cases.written(f"y_{op.name}", result, COUNT)
    nest = Nest((Axis(p0),), tuple(buffers.values()), tuple(stores))
    kernel = cases.plan(cases.Case(nest)).kernels[0]
    assert assemble(emit(kernel, dialect), target).registers > 0


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["h100", "mi300x"])
def test_casts_are_accepted_by_the_compiler(chip: str) -> None:
    target = load(chip)
    dialect = dialect_of(target)
    p0 = Var("p0", COUNT)
    buffers = [cases.buffer(f"a_{d.name}", d, COUNT) for d in dt.COMPILED]
    stores = []
    for a, b in CASTS:
        name = f"y_{a.name}_{b.name}"
        buffers.append(cases.written(name, b, COUNT))
        stores.append(Store(name, (p0,), Cast(Load(f"a_{a.name}", (p0,), a), b)))
    kernel = cases.plan(cases.Case(Nest((Axis(p0),), tuple(buffers), tuple(stores)))).kernels[0]
    assert assemble(emit(kernel, dialect), target).registers > 0


def test_erf_is_within_two_ulp() -> None:
    """The polynomials of the hardware body, evaluated in double with each step rounded."""
    import math
    import re

    body = functions("nvidia")["ot_erf"]
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d+(?:e-\d+)?", body.split("s = x * x")[1])]
    small, big = numbers[:6], numbers[8:15]
    x = np.linspace(-5, 5, 40001).astype(np.float32)
    f = np.float32

    def horner(coefficients: list[float], at: cases.Array) -> cases.Array:
        total = np.full_like(at, f(coefficients[0]))
        for c in coefficients[1:]:
            total = (at.astype(np.float64) * total + f(c)).astype(np.float32)
        return total

    near = (x.astype(np.float64) * horner(small, x * x) + x).astype(np.float32)
    t = np.minimum(np.abs(x), f(4.0))
    far = np.copysign(f(1.0) - np.exp2(horner(big, t)), x)
    found = np.where(np.abs(x) < f(0.92), near, far)
    exact = np.array([math.erf(float(v)) for v in x])
    assert (np.abs(found - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_function_that_is_called_exists(dialect: str) -> None:
    import re

    known = functions(dialect)
    for name, text in known.items():
        called = set(re.findall(r"\bot_\w+(?=\()", text))
        assert called <= set(known), f"{name} calls {called - set(known)}"


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.bf16], ids=str)
def test_a_constant_zero_keeps_its_sign(dtype: dt.DType) -> None:
    """Triton makes one zero of every constant that equals it."""
    a = Load("a", (Var("p0", COUNT),), dt.bool_)
    minus, plus = (Cast(Const(z, dtype), dtype.compute) for z in (-0.0, 0.0))
    case = case_of([a], Apply("where", (a, minus, plus), dtype.compute))
    arrays = samples(case)
    found = cases.run_triton(cases.plan(case), arrays)["y"]
    np.testing.assert_array_equal(np.signbit(found), arrays["a"])
