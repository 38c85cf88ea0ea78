"""Collapsed nests to schedule for a GPU, and how to run what comes of them on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from onetrip.base import dtype as dt
from onetrip.base.float8 import LAYOUTS
from onetrip.base.sym import Dim, Size, Sym, Var
from onetrip.codegen import triton as codegen
from onetrip.codegen.schedule_gpu import schedule
from onetrip.codegen.scheduled import Scheduled
from onetrip.interp.kernel_interp import run_kernel
from onetrip.ir.expr import (
    Apply,
    Cast,
    Const,
    Expr,
    Load,
    Position,
    Reduced,
    Reduction,
    Rewriter,
    Rng,
    apply,
    cast,
    compare,
    indirect,
)  # fmt: skip
from onetrip.ir.kernel import Facts
from onetrip.ir.monoid import number
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType, concrete
from onetrip.ir.verify import verify
from onetrip.runtime.cache import Cache
from onetrip.runtime.triton_build import TritonLaunch
from onetrip.target import Target, load

Array = Any
TORCH = {d: torch.uint8 if d in LAYOUTS else getattr(torch, d.torch_name) for d in dt.COMPILED}
SMALL = dataclasses.replace(load("h200"), multiprocessors=2, launch_us=0.0)


def buffer(name: str, dtype: dt.DType, count: Dim, access: Access = Access.READ) -> Buffer:
    return Buffer(name, TensorType.dense(dtype, (count,)), access)


def written(name: str, dtype: dt.DType, count: Dim) -> Buffer:
    return buffer(name, dtype, count, Access.WRITE)


def reduced(monoid: str, axes: tuple[Var, ...], *lift: Expr, component: int = 0) -> Expr:
    return Reduced(Reduction(monoid, axes, lift), component, lift[component].dtype)


def f32(value: float) -> Const:
    return Const(float(value), dt.f32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A nest and what its inputs hold; `sizes` where extents are symbolic."""

    nest: Nest
    sizes: dict[Sym, int] = dataclasses.field(default_factory=dict)

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """Numbers for every buffer that is read; bf16 ones as float32 of the same value."""
        rng = np.random.default_rng(seed)
        return {
            b.name: fill(rng, b.type.dtype, concrete(b.type.shape[0], self.sizes))
            for b in self.nest.buffers
            if b.access is not Access.WRITE
        }


def fill(rng: np.random.Generator, dtype: dt.DType, count: int) -> Array:
    if dtype is dt.bool_:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_integral:
        return rng.integers(0, 7, count).astype(dtype.torch_name)
    values = rng.standard_normal(count).astype(np.float32)
    return torch.from_numpy(values).to(TORCH[dtype]).to(carrier(dtype)).numpy()


def carrier(dtype: dt.DType) -> torch.dtype:
    return torch.float32 if dtype is dt.bf16 else TORCH[dtype]


# Running


def interpret(
    scheduled: Scheduled, arrays: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> dict[str, Array]:
    """The kernels through the IR's own interpreter."""
    memory = {n: a.copy() for n, a in arrays.items()}
    for kernel in scheduled.kernels:
        mine = {b.name: memory[b.name] for b in kernel.buffers if b.name in memory}
        memory |= run_kernel(kernel, mine, sizes)
    return memory


def run_triton(
    scheduled: Scheduled, arrays: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> dict[str, Array]:
    """The kernels as Triton text, through Triton's interpreter."""
    known = dict(sizes or {})
    memory: dict[str, torch.Tensor] = {}
    for kernel in scheduled.kernels:
        for b in kernel.buffers:
            if b.name not in memory:
                memory[b.name] = tensor(b, arrays.get(b.name), known)
        module = codegen.emit(kernel, "interpreter")
        values = [known[s] for s in kernel.sizes]
        TritonLaunch(module, Cache())([memory[b.name] for b in kernel.buffers], values)
    return {n: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for n, t in memory.items()}


def tensor(b: Buffer, array: Array | None, sizes: dict[Sym, int]) -> torch.Tensor:
    if array is not None:
        return torch.from_numpy(array.copy()).to(TORCH[b.type.dtype])
    count = concrete(b.type.shape[0], sizes)
    poison = float("nan") if TORCH[b.type.dtype].is_floating_point else 1
    return torch.full((count,), poison, dtype=TORCH[b.type.dtype])


def plan(case: Case, target: Target = SMALL, name: str = "kernel") -> Scheduled:
    verify(case.nest)
    made = schedule(case.nest, target, name=name, facts=Facts())
    for kernel in made.kernels:
        verify(kernel)
    return made


# Pointwise


def broadcast(rows: Dim = 7, columns: Dim = 100, dtype: dt.DType = dt.bf16) -> Case:
    """y = tanh(round(x + b)) with b along the columns."""
    p0, p1 = Var("p0", rows), Var("p1", columns)
    at = p0 * columns + p1
    x, b = (cast(Load(n, (i,), dtype), dt.f32) for n, i in (("x", at), ("b", p1)))
    total = cast(cast(apply("add", x, b), dtype), dt.f32)
    store = Store("y", (at,), cast(apply("tanh", total), dtype))
    count = rows * columns
    buffers = (buffer("x", dtype, count), buffer("b", dtype, columns), written("y", dtype, count))
    return Case(Nest((Axis(p0), Axis(p1)), buffers, (store,)))


def scaled(rows: int, columns: int) -> Case:
    """(x - m) * s + b, a line of each of m, s and b for all rows."""
    i, j = Var("i", rows), Var("j", columns)
    at = i * columns + j
    m, s, b = (Load(n, (j,), dt.f32) for n in "msb")
    off = apply("sub", cast(Load("x", (at,), dt.bf16), dt.f32), m)
    y = cast(apply("fma", off, s, b), dt.bf16)
    lines = tuple(buffer(n, dt.f32, columns) for n in "msb")
    whole = (buffer("x", dt.bf16, rows * columns), written("y", dt.bf16, rows * columns))
    return Case(Nest((Axis(i), Axis(j)), (*whole, *lines), (Store("y", (at,), y),)))


def symbolic_broadcast() -> Case:
    n = Size("n", 1)
    return dataclasses.replace(broadcast(n, 48, dt.f32), sizes={n: 9})


def transpose_add(n: int = 70, m: int = 90) -> Case:
    """y = relu(x + z^T)."""
    p0, p1 = Var("p0", n), Var("p1", m)
    x, z = Load("x", (p0 * m + p1,), dt.f32), Load("z", (p1 * n + p0,), dt.f32)
    value = apply("maximum", apply("add", x, z), f32(0.0))
    buffers = (buffer("x", dt.f32, n * m), buffer("z", dt.f32, n * m), written("y", dt.f32, n * m))
    return Case(Nest((Axis(p0), Axis(p1)), buffers, (Store("y", (p0 * m + p1,), value),)))


def padded() -> Case:
    """y = x with 3 fives before it and 4 after: a guard and a shifted index."""
    p0 = Var("p0", 57)
    inside = apply("logical_and", compare("ge", Position(p0), Position(3)),
                   compare("lt", Position(p0), Position(53)))  # fmt: skip
    value = Load("x", (p0 - 3,), dt.f32, inside, f32(5.0))
    buffers = (buffer("x", dt.f32, 50), written("y", dt.f32, 57))
    return Case(Nest((Axis(p0),), buffers, (Store("y", (p0,), value),)))


def joined(rows: int = 5, half: int = 20) -> Case:
    """y = [x * z, exp(x) + z] along the last axis: guards that cut it in the middle."""
    p0, p1 = Var("p0", rows), Var("p1", 2 * half)
    left = compare("lt", Position(p1), Position(half))
    right = compare("ge", Position(p1), Position(half))

    def at(name: str, start: int, guard: Expr) -> Expr:
        return Load(name, (p0 * half + p1 - start,), dt.f32, guard, f32(0.0))

    first = apply("mul", at("x", 0, left), at("z", 0, left))
    second = apply("add", apply("exp", at("x", half, right)), at("z", half, right))
    value = Apply("where", (left, first, second), dt.f32)
    count = rows * half
    buffers = (buffer("x", dt.f32, count), buffer("z", dt.f32, count),
               written("y", dt.f32, 2 * count))  # fmt: skip
    store = Store("y", (p0 * 2 * half + p1,), value)
    return Case(Nest((Axis(p0), Axis(p1)), buffers, (store,)))


def rolled() -> Case:
    """y[i] = x[(i - 3) mod 50]: a remainder of a negative number."""
    p0 = Var("p0", 50)
    buffers = (buffer("x", dt.i64, 50), written("y", dt.i64, 50))
    store = Store("y", (p0,), Load("x", ((p0 - 3) % 50,), dt.i64))
    return Case(Nest((Axis(p0),), buffers, (store,)))


def gathered() -> Case:
    """y[i, j] = x[index[i], j]."""
    p0, p1 = Var("p0", 6), Var("p1", 40)
    row = indirect(Load("index", (p0,), dt.i64), 7)
    value = Load("x", (row * 40 + p1,), dt.f32)
    buffers = (buffer("index", dt.i64, 6), buffer("x", dt.f32, 280), written("y", dt.f32, 240))
    return Case(Nest((Axis(p0), Axis(p1)), buffers, (Store("y", (p0 * 40 + p1,), value),)))


def typed() -> Case:
    """Integers, bools, and conversions between all categories."""
    p0 = Var("p0", 130)
    a, b = Load("a", (p0,), dt.i32), Load("b", (p0,), dt.i32)
    m, x = Load("m", (p0,), dt.bool_), Load("x", (p0,), dt.f32)
    fewer = apply("sub", a, Const(3, dt.i32))
    stores = {
        "floored": apply("floordiv", fewer, b),
        "rest": apply("remainder", fewer, b),
        "bit": apply("logical_xor", m, compare("lt", a, b)),
        "narrow": Cast(apply("mul", x, f32(100.0)), dt.i8),
        "half": Cast(Cast(m, dt.f32), dt.f16),
        "single": Apply("where", (m, x, Cast(a, dt.f32)), dt.f32),
        "short": Cast(Cast(x, dt.f64), dt.bf16),
        "sign": apply("sign", x),
        "shifted": apply("shl", a, b),
    }
    buffers = [buffer("a", dt.i32, 130), buffer("b", dt.i32, 130), buffer("m", dt.bool_, 130)]
    buffers += [buffer("x", dt.f32, 130), *(written(n, e.dtype, 130) for n, e in stores.items())]
    made = tuple(Store(n, (p0,), e) for n, e in stores.items())
    return Case(Nest((Axis(p0),), tuple(buffers), made))


def dropped(at: Dim) -> Expr:
    """x where a uniform number of this offset is below 0.9, else 0; the seed lies in memory."""
    keep = compare("lt", Rng(Load("seed", (0,), dt.i64), at), f32(0.9))
    return Apply("where", (keep, Load("x", (at,), dt.f32), f32(0.0)), dt.f32)


def dropout(rows: int = 6, columns: int = 64) -> Case:
    """y = x * (u < 0.9), u from a seed in memory."""
    p0, p1 = Var("p0", rows), Var("p1", columns)
    at = p0 * columns + p1
    value = dropped(at)
    count = rows * columns
    buffers = (buffer("seed", dt.i64, 1), buffer("x", dt.f32, count), written("y", dt.f32, count))
    return Case(Nest((Axis(p0), Axis(p1)), buffers, (Store("y", (at,), value),)))


def dropped_columns(rows: int = 48, columns: int = 64) -> Case:
    """Sums of columns of x * (u < 0.9): counters lie along the columns, sums along the rows."""
    p0, r0 = Var("p0", columns), Var("r0", rows)
    at = r0 * columns + p0
    value = dropped(at)
    count = rows * columns
    buffers = (buffer("seed", dt.i64, 1), buffer("x", dt.f32, count), written("y", dt.f32, columns))
    return Case(Nest((Axis(p0),), buffers, (Store("y", (p0,), reduced("sum", (r0,), value)),)))


def dropped_rows(rows: int = 5, columns: int = 320) -> Case:
    """max(x * (u < 0.9)) of rows whose length is no power of two."""
    p0, r0 = Var("p0", rows), Var("r0", columns)
    at = p0 * columns + r0
    x = dropped(at)
    count = rows * columns
    buffers = (buffer("seed", dt.i64, 1), buffer("x", dt.f32, count), written("y", dt.f32, count))
    store = Store("y", (at,), apply("sub", x, reduced("max", (r0,), x)), (r0,))
    return Case(Nest((Axis(p0),), buffers, (store,)))


def uniform_rows() -> Case:
    """u - mean(u) over rows: random numbers inside a row reduction."""
    p0, r0 = Var("p0", 5), Var("r0", 48)
    u = Rng(Load("seed", (0,), dt.i64), p0 * 48 + r0)
    top = reduced("max", (r0,), u)
    buffers = (buffer("seed", dt.i64, 1), written("y", dt.f32, 240))
    store = Store("y", (p0 * 48 + r0,), apply("sub", u, top), (r0,))
    return Case(Nest((Axis(p0),), buffers, (store,)))


def in_place() -> Case:
    """x = x + 1 and y = x of before."""
    p0 = Var("p0", 77)
    x = Load("x", (p0,), dt.f32)
    buffers = (buffer("x", dt.f32, 77, Access.UPDATE), written("y", dt.f32, 77))
    stores = (Store("x", (p0,), apply("add", x, f32(1.0))), Store("y", (p0,), x))
    return Case(Nest((Axis(p0),), buffers, stores))


# Reductions


def softmax(rows: int = 5, columns: Dim = 300, dtype: dt.DType = dt.f32) -> Case:
    p0, r0 = Var("p0", rows), Var("r0", columns)
    at = p0 * columns + r0
    x = cast(Load("x", (at,), dtype), dt.f32)
    grown = apply("exp", apply("sub", x, reduced("max", (r0,), x)))
    value = cast(apply("div", grown, reduced("sum", (r0,), grown)), dtype)
    buffers = (buffer("x", dtype, rows * columns), written("y", dtype, rows * columns))
    return Case(Nest((Axis(p0),), buffers, (Store("y", (at,), value, (r0,)),)))


def symbolic_softmax() -> Case:
    n = Size("n", 1)
    return dataclasses.replace(softmax(4, n), sizes={n: 350})


def half_softmax() -> Case:
    return softmax(3, 1270, dt.bf16)


def layer_norm(rows: int = 6, columns: int = 300) -> Case:
    """y = (x - mean) * rsqrt(var + eps) * w, and the mean."""
    p0, r0 = Var("p0", rows), Var("r0", columns)
    at = p0 * columns + r0
    x, w = Load("x", (at,), dt.f32), Load("w", (r0,), dt.f32)
    state = Reduction("welford", (r0,), (f32(1.0), x, f32(0.0)))
    mean, squares = (Reduced(state, k, dt.f32) for k in (1, 2))
    variance = apply("div", squares, f32(columns))
    scale = apply("rsqrt", apply("add", variance, f32(1e-5)))
    y = apply("mul", apply("mul", apply("sub", x, mean), scale), w)
    count = rows * columns
    buffers = (buffer("x", dt.f32, count), buffer("w", dt.f32, columns),
               written("y", dt.f32, count), written("mean", dt.f32, rows))  # fmt: skip
    stores = (Store("y", (at,), y, (r0,)), Store("mean", (p0,), mean))
    return Case(Nest((Axis(p0),), buffers, stores))


def centred(rows: int = 5, columns: int = 300, shift: float = 30.0) -> Case:
    """sum of (x - mean)^2 of rows, in two steps, the mean beside it and what it normalizes."""
    p0, r0 = Var("p0", rows), Var("r0", columns)
    return _centred(p0, r0, p0 * columns + r0, shift)


def centred_columns(rows: int = 300, columns: int = 24, shift: float = 30.0) -> Case:
    """The same of columns, as batch norm asks for it."""
    p0, r0 = Var("p0", columns), Var("r0", rows)
    return _centred(p0, r0, r0 * columns + p0, shift)


def _centred(p0: Var, r0: Var, at: Dim, shift: float) -> Case:
    count = f32(float(str(r0.extent)))
    x = apply("add", Load("x", (at,), dt.f32), f32(shift))
    mean = apply("div", reduced("sum", (r0,), x), count)
    off = apply("sub", x, mean)
    variance = apply("div", reduced("sum", (r0,), apply("mul", off, off)), count)
    y = apply("mul", off, apply("rsqrt", apply("add", variance, f32(1e-5))))
    whole = p0.extent * r0.extent
    buffers = (buffer("x", dt.f32, whole), written("y", dt.f32, whole),
               written("mean", dt.f32, p0.extent), written("variance", dt.f32, p0.extent),
               written("total", dt.f32, p0.extent))  # fmt: skip
    stores = (Store("y", (at,), y, (r0,)), Store("mean", (p0,), mean),
              Store("variance", (p0,), variance),
              Store("total", (p0,), reduced("sum", (r0,), x)))  # fmt: skip
    return Case(Nest((Axis(p0),), buffers, stores))


def add_rms_norm(rows: int = 4, columns: int = 290) -> Case:
    """h = x + residual, stored while its squares are summed; y = h * rsqrt(mean(h^2))."""
    p0, r0 = Var("p0", rows), Var("r0", columns)
    at = p0 * columns + r0
    h = apply("add", Load("x", (at,), dt.f32), Load("residual", (at,), dt.f32))
    mean = apply("div", reduced("sum", (r0,), apply("mul", h, h)), f32(columns))
    y = apply("mul", h, apply("rsqrt", mean))
    count = rows * columns
    buffers = (*(buffer(n, dt.f32, count) for n in ("x", "residual")),
               *(written(n, dt.f32, count) for n in ("h", "y")))  # fmt: skip
    stores = (Store("h", (at,), h, (r0,)), Store("y", (at,), y, (r0,)))
    return Case(Nest((Axis(p0),), buffers, stores))


def argmax(rows: int = 5, columns: int = 290) -> Case:
    p0, r0 = Var("p0", rows), Var("r0", columns)
    lift = (Load("x", (p0 * columns + r0,), dt.f32), Position(r0))
    stores = tuple(
        Store(n, (p0,), reduced("argmax", (r0,), *lift, component=k))
        for k, n in enumerate(("value", "index"))
    )
    buffers = (buffer("x", dt.f32, rows * columns),
               written("value", dt.f32, rows), written("index", dt.i64, rows))  # fmt: skip
    return Case(Nest((Axis(p0),), buffers, stores))


def column_sum(rows: int = 300, columns: int = 20) -> Case:
    p0, r0 = Var("p0", columns), Var("r0", rows)
    x = Load("x", (r0 * columns + p0,), dt.f32)
    buffers = (buffer("x", dt.f32, rows * columns), written("y", dt.f32, columns))
    return Case(Nest((Axis(p0),), buffers, (Store("y", (p0,), reduced("sum", (r0,), x)),)))


def column_sum_and_product(rows: int = 300, columns: int = 20) -> Case:
    """The gradients of a scale: a sum of x * y over the rows, and x * w for each element."""
    p0, r0 = Var("p0", columns), Var("r0", rows)
    at = r0 * columns + p0
    x, y, w = Load("x", (at,), dt.f32), Load("y", (at,), dt.f32), Load("w", (p0,), dt.f32)
    buffers = (
        buffer("x", dt.f32, rows * columns),
        buffer("y", dt.f32, rows * columns),
        buffer("w", dt.f32, columns),
        written("total", dt.f32, columns),
        written("scaled", dt.f32, rows * columns),
    )
    stores = (
        Store("total", (p0,), reduced("sum", (r0,), Apply("mul", (x, y), dt.f32))),
        Store("scaled", (at,), Apply("mul", (x, w), dt.f32), axes=(r0,)),
    )
    return Case(Nest((Axis(p0),), buffers, stores))


def full_reduce(count: int = 1000) -> Case:
    """Sum of squares, maximum, and whether any is above 3."""
    r0 = Var("r0", count)
    x = Load("x", (r0,), dt.f32)
    stores = (
        Store("total", (0,), reduced("sum", (r0,), apply("mul", x, x))),
        Store("top", (0,), reduced("max", (r0,), x)),
        Store("high", (0,), reduced("any", (r0,), compare("gt", x, f32(3.0)))),
    )
    buffers = (buffer("x", dt.f32, count), written("total", dt.f32, 1), written("top", dt.f32, 1),
               written("high", dt.bool_, 1))  # fmt: skip
    return Case(Nest((), buffers, stores))


def channel_norm(batch: int = 4, channels: int = 3, inner: int = 150) -> Case:
    """x - mean over (batch, inner) per channel: two inner axes."""
    p0, r0, r1 = Var("p0", channels), Var("r0", batch), Var("r1", inner)
    at = (r0 * channels + p0) * inner + r1
    x = Load("x", (at,), dt.f32)
    mean = apply("div", reduced("sum", (r0, r1), x), f32(batch * inner))
    count = batch * channels * inner
    buffers = (buffer("x", dt.f32, count), written("y", dt.f32, count))
    return Case(Nest((Axis(p0),), buffers, (Store("y", (at,), apply("sub", x, mean), (r0, r1)),)))


def group_norm(groups: int = 3, channels: int = 5, inner: int = 24) -> Case:
    """(x - mean of the group) * w of the channel: one reduced axis, two axes of the store."""
    p0, r0 = Var("p0", groups), Var("r0", channels * inner)
    r1, r2 = Var("r1", channels), Var("r2", inner)
    whole = channels * inner
    sums = reduced("sum", (r0,), Load("x", (p0 * whole + r0,), dt.f32))
    at = p0 * whole + r1 * inner + r2
    off = apply("sub", Load("x", (at,), dt.f32), apply("div", sums, f32(whole)))
    value = apply("mul", off, Load("w", (p0 * channels + r1,), dt.f32))
    buffers = (buffer("x", dt.f32, groups * whole), buffer("w", dt.f32, groups * channels),
               written("y", dt.f32, groups * whole))  # fmt: skip
    return Case(Nest((Axis(p0),), buffers, (Store("y", (at,), value, (r1, r2)),)))


def integer_rows() -> Case:
    """Sum, least and product of small integers."""
    p0, r0 = Var("p0", 4), Var("r0", 30)
    x = Load("x", (p0 * 30 + r0,), dt.i32)
    stores = tuple(
        Store(m, (p0,), reduced(m, (r0,), Cast(x, dt.i64))) for m in ("sum", "min", "prod")
    )
    buffers = (buffer("x", dt.i32, 120), *(written(m, dt.i64, 4) for m in ("sum", "min", "prod")))
    return Case(Nest((Axis(p0),), buffers, stores))


POINTWISE: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (broadcast, symbolic_broadcast, transpose_add, padded, rolled, gathered, typed,
              dropout, in_place, joined)
}  # fmt: skip
REDUCTIONS: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (softmax, symbolic_softmax, half_softmax, layer_norm, centred, centred_columns,
              add_rms_norm, argmax,
              column_sum, column_sum_and_product, full_reduce, channel_norm, group_norm,
              integer_rows, uniform_rows, dropped_columns, dropped_rows)
}  # fmt: skip


# Random nests


def random_case(seed: int) -> Case:
    """A row nest of random operators, broadcasts, casts and dependent reductions."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 6)), int(rng.integers(2, 70))
    dtype = [dt.f32, dt.bf16][int(rng.integers(2))]
    p0, r0 = Var("p0", rows), Var("r0", columns)
    at = p0 * columns + r0
    pool: list[Expr] = [cast(Load(n, (i,), dtype), dt.f32)
                        for n, i in (("x", at), ("w", r0), ("s", p0))]  # fmt: skip
    for _ in range(int(rng.integers(2, 7))):
        pool.append(_random_step(rng, pool, r0, dtype))
    inner = apply("add", pool[-1], pool[0])
    stores = [Store("y", (at,), cast(inner, dtype), (r0,))]
    buffers = [buffer("x", dtype, rows * columns), buffer("w", dtype, columns),
               buffer("s", dtype, rows), written("y", dtype, rows * columns)]  # fmt: skip
    if rng.integers(2):
        stores.append(Store("top", (p0,), reduced("max", (r0,), inner)))
        buffers.append(written("top", dt.f32, rows))
    used = {s.buffer for s in stores} | {e.buffer for e in Nest((), (), tuple(stores)).loads}
    kept = tuple(b for b in buffers if b.name in used)
    return Case(Nest((Axis(p0),), kept, tuple(stores)))


def _random_step(rng: np.random.Generator, pool: list[Expr], r0: Var, dtype: dt.DType) -> Expr:
    a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
    kind = int(rng.integers(6))
    if kind == 0 and r0 in a.free:
        return reduced(["sum", "max", "min"][int(rng.integers(3))], (r0,), a)
    if kind == 1:
        return apply(["sigmoid", "tanh", "neg", "abs"][int(rng.integers(4))], a)
    if kind == 2:
        return cast(cast(a, dtype), dt.f32)
    if kind == 3:
        return Apply("where", (compare("lt", a, b), a, number(0.5, dt.f32)), dt.f32)
    return apply(["add", "sub", "mul", "maximum"][int(rng.integers(4))], a, b)


# The same in double precision


def widened(nest: Nest) -> Nest:
    """The nest with every floating-point dtype replaced by f64."""

    def kind(d: dt.DType) -> dt.DType:
        return dt.f64 if d.is_float else d

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Const | Apply | Reduced | Rng) and not isinstance(e, Rng):
            return dataclasses.replace(e, dtype=kind(e.dtype))
        if isinstance(e, Rng):
            return Cast(e, dt.f64)
        if isinstance(e, Load):
            return dataclasses.replace(e, dtype=kind(e.dtype))
        if isinstance(e, Cast):
            return cast(e.arg, kind(e.dtype))
        return None

    rewrite = Rewriter(node=node)
    stores = tuple(dataclasses.replace(s, value=rewrite(s.value)) for s in nest.stores)
    buffers = tuple(
        dataclasses.replace(b, type=TensorType.dense(kind(b.type.dtype), b.type.shape))
        for b in nest.buffers
    )
    return Nest(nest.space, buffers, stores)


def wide(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind == "f" else a.copy()
