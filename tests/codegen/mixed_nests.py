"""Nests of reductions over rows and over columns, for the walks of cores and of multiprocessors."""

from __future__ import annotations

from collections.abc import Sequence

import cpp_nests as nests

from onetrip.base.dtype import DType, f32
from onetrip.base.sym import Dim, Var
from onetrip.ir.expr import Expr, Load, Reduced, Reduction, apply, cast
from onetrip.ir.monoid import number
from onetrip.ir.nest import Axis, Nest, Store


def fold(monoid: str, axes: Sequence[Var], *lift: Expr, component: int = 0) -> Expr:
    return Reduced(Reduction(monoid, tuple(axes), lift), component, lift[component].dtype)


def norm_backward(rows: Dim, columns: int, dtype: DType = f32) -> Nest:
    """dx = g w r - x r^3 mean(g w x), dw = sum of g x r, db = sum of g: RMSNorm with a bias."""
    i, j = Var("r0", rows), Var("r1", columns)
    at = i * columns + j
    g, x, w = (cast(Load(n, (k,), dtype), f32) for n, k in (("g", at), ("x", at), ("w", j)))
    scale = Load("r", (i,), f32)
    normed, weighted = apply("mul", x, scale), apply("mul", g, w)
    mean = fold("sum", (j,), apply("mul", weighted, normed))
    mean = apply("div", mean, number(columns, f32))
    dx = apply("mul", apply("sub", weighted, apply("mul", normed, mean)), scale)
    stores = (
        Store("dx", (at,), cast(dx, dtype), (i, j)),
        Store("dw", (j,), cast(fold("sum", (i,), apply("mul", g, normed)), dtype), (j,)),
        Store("db", (j,), cast(fold("sum", (i,), g), dtype), (j,)),
    )
    many = rows * columns
    buffers = (nests.read("g", dtype, (many,)), nests.read("x", dtype, (many,)),
               nests.read("w", dtype, (columns,)), nests.read("r", f32, (rows,)),
               nests.written("dx", dtype, (many,)),
               *(nests.written(n, dtype, (columns,)) for n in ("dw", "db")))  # fmt: skip
    return Nest((), buffers, stores)


def of_softmax(rows: int, columns: int) -> Nest:
    """sum over rows of softmax of each row: a column made of two reductions of its rows."""
    i, j = Var("r0", rows), Var("r1", columns)
    x = Load("x", (i * columns + j,), f32)
    e = apply("exp", apply("sub", x, fold("max", (j,), x)))
    share = apply("div", e, fold("sum", (j,), e))
    out = (nests.read("x", f32, (rows * columns,)), nests.written("y", f32, (columns,)))
    return Nest((), out, (Store("y", (j,), fold("sum", (i,), share), (j,)),))


def batched(batch: int, rows: int, columns: int) -> Nest:
    """Sums of rows and of columns of each matrix of a batch."""
    b, i, j = Var("p0", batch), Var("r0", rows), Var("r1", columns)
    x = Load("x", ((b * rows + i) * columns + j,), f32)
    stores = (Store("row", (b * rows + i,), fold("sum", (j,), x), (i,)),
              Store("column", (b * columns + j,), fold("sum", (i,), x), (j,)))  # fmt: skip
    sizes = {"row": batch * rows, "column": batch * columns}
    buffers = (nests.read("x", f32, (batch * rows * columns,)),
               *(nests.written(n, f32, (k,)) for n, k in sizes.items()))  # fmt: skip
    return Nest((Axis(b),), buffers, stores)
