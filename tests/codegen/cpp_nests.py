"""Nests by hand, one for each schedule family, over any dtype and extents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onetrip.base.dtype import DType, bf16, bool_, f16, f32, i64
from onetrip.base.sym import Dim, Opaque, Var, add, mul
from onetrip.interp.arrays import carrier, round_bf16
from onetrip.ir.expr import (
    Apply,
    Cast,
    Const,
    Expr,
    Load,
    Position,
    Reduced,
    Reduction,
    Rng,
    Scanned,
    apply,
    compare,
)
from onetrip.ir.monoid import number
from onetrip.ir.nest import Access, Axis, Buffer, Combine, Nest, Store
from onetrip.ir.types import TensorType

Array = np.ndarray


def data(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    """Values of every sign; integers small enough not to divide by zero after `| 1`."""
    if dtype is bool_:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        x = rng.standard_normal(shape).astype(carrier(dtype))
        return round_bf16(x) if dtype is bf16 else x
    low = -100 if dtype.signed else 0
    return rng.integers(low, 100, shape).astype(carrier(dtype))


def read(name: str, dtype: DType, shape: Sequence[Dim]) -> Buffer:
    return Buffer(name, TensorType.dense(dtype, tuple(shape)), Access.READ)


def written(name: str, dtype: DType, shape: Sequence[Dim]) -> Buffer:
    return Buffer(name, TensorType.dense(dtype, tuple(shape)), Access.WRITE)


def computed(e: Expr) -> Expr:
    """The operand in its operation precision."""
    return Cast(e, f32) if e.dtype in (bf16, f16) else e


def rounded(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype is dtype else Cast(e, dtype)


def pointwise(dtype: DType, rows: Dim, columns: Dim) -> Nest:
    """y = (a + b) * a, b broadcast along the rows; bool: (a or b) and a."""
    p, q = Var("p", rows), Var("q", columns)
    a = computed(Load("a", (p, q), dtype))
    b = computed(Load("b", (q,), dtype))
    ops = ("logical_or", "logical_and") if dtype is bool_ else ("add", "mul")
    total = rounded(apply(ops[0], a, b), dtype)
    value = rounded(apply(ops[1], computed(total), a), dtype)
    shapes = (read("a", dtype, (rows, columns)), read("b", dtype, (columns,)))
    out = written("y", dtype, (rows, columns))
    return Nest((Axis(p), Axis(q)), (*shapes, out), (Store("y", (p, q), value),))


def converted(source: DType, target: DType, length: int) -> Nest:
    p = Var("p", length)
    value = Cast(Load("a", (p,), source), target)
    buffers = (read("a", source, (length,)), written("y", target, (length,)))
    return Nest((Axis(p),), buffers, (Store("y", (p,), value),))


def padded(length: int, before: int, after: int) -> Nest:
    """Zero padding: loads under a guard."""
    total = length + before + after
    p = Var("p", total)
    at = Position(p)
    inside = apply(
        "logical_and",
        compare("ge", at, number(before, i64)),
        compare("lt", at, number(before + length, i64)),
    )
    load = Load("a", (p - before,), f32, inside, Const(7.0, f32))
    buffers = (read("a", f32, (length,)), written("y", f32, (total,)))
    return Nest((Axis(p),), buffers, (Store("y", (p,), apply("add", load, load)),))


def rolled(length: int, by: int) -> Nest:
    p = Var("p", length)
    buffers = (read("a", f32, (length,)), written("y", f32, (length,)))
    return Nest((Axis(p),), buffers, (Store("y", (p,), Load("a", ((p - by) % length,), f32)),))


def regrouped(rows: int, columns: int, group: int) -> Nest:
    """y[i] = a[(i // group) * 2 * group + i % group]: every other group of a."""
    p = Var("p", rows * columns)
    at = add(mul(p // group, 2 * group), p % group)
    buffers = (
        read("a", f32, (2 * rows * columns + group,)),
        written("y", f32, (rows * columns,)),
    )
    return Nest((Axis(p),), buffers, (Store("y", (p,), Load("a", (at,), f32)),))


def transposed(rows: Dim, columns: Dim) -> Nest:
    p, q = Var("p", rows), Var("q", columns)
    value = apply("sub", Load("a", (p, q), f32), Load("b", (q, p), f32))
    buffers = (
        read("a", f32, (rows, columns)),
        read("b", f32, (columns, rows)),
        written("y", f32, (rows, columns)),
    )
    return Nest((Axis(p), Axis(q)), buffers, (Store("y", (p, q), value),))


def reduced(
    monoid: str, dtype: DType, shape: Sequence[Dim], dims: Sequence[int], state: DType | None = None
) -> Nest:
    """y = fold of a over `dims`, in operation precision (or in `state`)."""
    axes = tuple(Var(f"{'r' if k in dims else 'p'}{k}", n) for k, n in enumerate(shape))
    kept = tuple(v for k, v in enumerate(axes) if k not in dims)
    inner = tuple(v for k, v in enumerate(axes) if k in dims)
    lift = computed(Load("a", axes, dtype))
    lift = lift if state is None else Cast(lift, state)
    value = Reduced(Reduction(monoid, inner, (lift,)), 0, lift.dtype)
    out = dtype if state is None else state
    buffers = (read("a", dtype, shape), written("y", out, tuple(v.extent for v in kept)))
    return Nest(tuple(Axis(v) for v in kept), buffers, (Store("y", kept, rounded(value, out)),))


def extreme(monoid: str, dtype: DType, rows: int, columns: int, dim: int) -> Nest:
    """Position of the largest or smallest element along `dim`."""
    axes = (Var("p0", rows), Var("p1", columns))
    r, p = axes[dim], axes[1 - dim]
    lift = (computed(Load("a", axes, dtype)), Position(r))
    value = Reduced(Reduction(monoid, (r,), lift), 1, i64)
    buffers = (read("a", dtype, (rows, columns)), written("y", i64, (p.extent,)))
    return Nest((Axis(p),), buffers, (Store("y", (p,), value),))


def softmax(dtype: DType, rows: Dim, columns: Dim) -> Nest:
    p, r = Var("p", rows), Var("r", columns)
    x = computed(Load("a", (p, r), dtype))
    largest = Reduced(Reduction("max", (r,), (x,)), 0, x.dtype)
    e = apply("exp", apply("sub", x, largest))
    total = Reduced(Reduction("sum", (r,), (e,)), 0, x.dtype)
    buffers = (read("a", dtype, (rows, columns)), written("y", dtype, (rows, columns)))
    value = rounded(apply("div", e, total), dtype)
    return Nest((Axis(p),), buffers, (Store("y", (p, r), value, (r,)),))


def normalized(rows: Dim, columns: Dim, dim: int = 1) -> Nest:
    """(a - mean) / sqrt(variance + eps) over `dim`, and the mean itself."""
    axes = (Var("p0", rows), Var("p1", columns))
    r, p = axes[dim], axes[1 - dim]
    x = Load("a", axes, f32)
    w = Reduction("welford", (r,), (number(1, f32), x, number(0, f32)))
    n, mean, m2 = (Reduced(w, k, f32) for k in range(3))
    scale = apply("rsqrt", apply("add", apply("div", m2, n), number(1e-5, f32)))
    value = apply("mul", apply("sub", x, mean), scale)
    buffers = (
        read("a", f32, (rows, columns)),
        written("y", f32, (rows, columns)),
        written("m", f32, (p.extent,)),
    )
    stores = (Store("y", axes, value, (r,)), Store("m", (p,), mean))
    return Nest((Axis(p),), buffers, stores)


def both_sums(rows: int, columns: int) -> Nest:
    """Row sums and column sums of one input."""
    i, j = Var("i", rows), Var("j", columns)
    x = Load("a", (i, j), f32)
    buffers = (
        read("a", f32, (rows, columns)), written("y", f32, (rows,)), written("z", f32, (columns,))
    )  # fmt: skip
    stores = (
        Store("y", (i,), Reduced(Reduction("sum", (j,), (x,)), 0, f32), (i,)),
        Store("z", (j,), Reduced(Reduction("sum", (i,), (x,)), 0, f32), (j,)),
    )
    return Nest((), buffers, stores)


def scanned(
    monoid: str, dtype: DType, rows: int, columns: int, dim: int, reverse: bool = False
) -> Nest:
    axes = (Var("p0", rows), Var("p1", columns))
    r, p = axes[dim], axes[1 - dim]
    x = Load("a", axes, dtype)
    value = Scanned(monoid, r, (x,), 0, dtype, reverse)
    buffers = (read("a", dtype, (rows, columns)), written("y", dtype, (rows, columns)))
    return Nest((Axis(p),), buffers, (Store("y", axes, value, (r,)),))


def gathered(count: int, entries: int, width: int) -> Nest:
    """Rows of a table, by index."""
    p, q = Var("p", count), Var("q", width)
    row = Opaque(Load("i", (p,), i64), entries)
    buffers = (
        read("i", i64, (count,)),
        read("t", f32, (entries, width)),
        written("y", f32, (count, width)),
    )
    stores = (Store("y", (p, q), Load("t", (row, q), f32)),)
    return Nest((Axis(p), Axis(q)), buffers, stores)


def scattered(count: int, entries: int, width: int, combine: Combine) -> Nest:
    """Rows joined into a table, by index."""
    p, q = Var("p", count), Var("q", width)
    row = Opaque(Load("i", (p,), i64), entries)
    table = Buffer("y", TensorType.dense(f32, (entries, width)), Access.UPDATE)
    buffers = (read("i", i64, (count,)), read("a", f32, (count, width)), table)
    store = Store("y", (row, q), Load("a", (p, q), f32), (), combine)
    return Nest((Axis(p), Axis(q)), buffers, (store,))


def divided(dtype: DType, length: int, op: str) -> Nest:
    p = Var("p", length)
    value = Apply(op, (Load("a", (p,), dtype), Load("b", (p,), dtype)), dtype)
    buffers = (
        read("a", dtype, (length,)), read("b", dtype, (length,)), written("y", dtype, (length,))
    )  # fmt: skip
    return Nest((Axis(p),), buffers, (Store("y", (p,), value),))


def random(length: int, offset: int) -> Nest:
    p = Var("p", length)
    value = Rng(Load("s", (0,), i64), p + offset)
    buffers = (read("s", i64, (1,)), written("y", f32, (length,)))
    return Nest((Axis(p),), buffers, (Store("y", (p,), value),))


def in_place(rows: int, columns: int) -> Nest:
    """a -= row mean of a, in a's own memory."""
    p, r = Var("p", rows), Var("r", columns)
    x = Load("a", (p, r), f32)
    total = Reduced(Reduction("sum", (r,), (x,)), 0, f32)
    mean = apply("mul", total, number(1 / columns, f32))
    table = Buffer("a", TensorType.dense(f32, (rows, columns)), Access.UPDATE)
    return Nest((Axis(p),), (table,), (Store("a", (p, r), apply("sub", x, mean), (r,)),))


def in_place_twice(rows: int, columns: int) -> Nest:
    """a *= 2 in a's own memory, and y = a + 1 of the old a."""
    p, q = Var("p", rows), Var("q", columns)
    x = Load("a", (p, q), f32)
    table = Buffer("a", TensorType.dense(f32, (rows, columns)), Access.UPDATE)
    stores = (
        Store("a", (p, q), apply("mul", x, number(2, f32))),
        Store("y", (p, q), apply("add", x, number(1, f32))),
    )
    return Nest((Axis(p), Axis(q)), (table, written("y", f32, (rows, columns))), stores)


def activated(op: str, dtype: DType, rows: int, columns: int) -> Nest:
    """y = op(a * b) * op(a): array functions where there are any."""
    p, q = Var("p", rows), Var("q", columns)
    a, b = computed(Load("a", (p, q), dtype)), computed(Load("b", (q,), dtype))
    value = apply("mul", apply(op, apply("mul", a, b)), apply(op, a))
    buffers = (
        read("a", dtype, (rows, columns)),
        read("b", dtype, (columns,)),
        written("y", dtype, (rows, columns)),
    )
    return Nest((Axis(p), Axis(q)), buffers, (Store("y", (p, q), rounded(value, dtype)),))
