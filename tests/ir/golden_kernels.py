"""Four kernels written by hand: what the Kernel IR must be able to say.

Buffers: causal flash attention over `s` positions, a gate and an up projection with one epilogue,
running sums and a linear recurrence with a carry from tile to tile, and a scatter that adds.
"""

from __future__ import annotations

import math

from onetrip.base.dtype import DType, f32, i64
from onetrip.base.sym import Dim, Size, Var, add, ceildiv, mul
from onetrip.ir.expr import (
    Apply,
    Const,
    Contract,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Prefix,
    apply,
    compare,
    indirect,
)
from onetrip.ir.kernel import Assign, Carry, Facts, Kernel, Let, Loop, Mapping
from onetrip.ir.monoid import MONOIDS, lowest, number
from onetrip.ir.nest import Access, Buffer, Combine, Store
from onetrip.ir.types import TensorType

S = Size("s", 1)
ZERO = number(0, f32)


def buffer(name: str, shape: tuple[Dim, ...], access: Access, dtype: DType = f32) -> Buffer:
    return Buffer(name, TensorType.dense(dtype, shape), access)


def flash_attention(heads: int, dim: int, values: int, rows: int, columns: int) -> Kernel:
    """out[h, q] = softmax over k <= q of (Q[h, q] . K[h, k] / sqrt(dim)) times V[h, k].

    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
    "FlashAttention", 2022. One program for each head and `rows` queries; keys come `columns` at a
    time, up to the last query of the tile; the accumulator is rescaled when the maximum rises.
    """
    h, tile = Var("h", heads), Var("q_tile", ceildiv(S, rows))
    q, k, c, d = Var("q", S), Var("k", S), Var("c", dim), Var("d", values)
    first, last = mul(tile, rows), add(mul(tile, rows), rows)
    query, key = Load("Q", (h, q, c), f32), Load("K", (h, k, c), f32)
    m, total = Local("m", f32, (q,)), Local("total", f32, (q,))
    acc = Local("acc", f32, (q, d))
    score, high = Local("score", f32, (q, k)), Local("high", f32, (q,))
    weight, shrink = Local("weight", f32, (q, k)), Local("shrink", f32, (q,))
    scaled = apply("mul", Contract(c, query, key, f32), Const(1 / math.sqrt(dim), f32))
    seen = compare("le", Position(k), Position(q))
    over_keys = Loop(
        k,
        columns,
        Mapping.SERIAL,
        (
            Let("score", Apply("where", (seen, scaled, lowest(f32)), f32)),
            Let("high", apply("maximum", m, Fold("max", (k,), (score,), 0, f32))),
            Let("shrink", apply("exp", apply("sub", m, high))),
            Let("weight", apply("exp", apply("sub", score, high))),
            Assign(
                ("m", "total", "acc"),
                (
                    high,
                    apply(
                        "add",
                        apply("mul", total, shrink),
                        Fold("sum", (k,), (weight,), 0, f32),
                    ),
                    apply(
                        "add",
                        apply("mul", acc, shrink),
                        Contract(k, weight, Load("V", (h, k, d), f32), f32),
                    ),
                ),
            ),
        ),
        stop=last,
    )
    body = (
        Carry("m", lowest(f32), (q,)),
        Carry("total", ZERO, (q,)),
        Carry("acc", ZERO, (q, d)),
        over_keys,
        Store("out", (h, q, d), apply("div", acc, total)),
    )
    one_tile = Loop(c, dim, Mapping.SERIAL, (Loop(d, values, Mapping.SERIAL, body),))
    queries = Loop(q, rows, Mapping.SERIAL, (one_tile,), first, last)
    grid = Loop(tile, 1, Mapping.GRID, (queries,))
    shapes = {"Q": (heads, S, dim), "K": (heads, S, dim), "V": (heads, S, values)}
    return Kernel(
        "flash_attention",
        (
            *(buffer(name, shape, Access.READ) for name, shape in shapes.items()),
            buffer("out", (heads, S, values), Access.WRITE),
        ),
        (Loop(h, 1, Mapping.GRID, (grid,)),),
        (S,),
        "attention",
        facts=Facts(
            bytes_read=mul(S, 4 * heads * (2 * dim + values)),
            bytes_written=mul(S, 4 * heads * values),
            flops=mul(mul(S, S), heads * (dim + values)),
            ops=("attention",),
        ),
    )


def swiglu_product(n: int, inner: int, tiles: tuple[int, int, int]) -> Kernel:
    """out = silu(X G^T) * (X U^T): one pass over X, two accumulators, one epilogue."""
    i, j, k = Var("i", S), Var("j", n), Var("k", inner)
    x = Local("x", f32, (i, k))
    gate, up = Local("gate", f32, (i, j)), Local("up", f32, (i, j))

    def more(acc: Local, weights: str) -> Expr:
        return apply("add", acc, Contract(k, x, Load(weights, (j, k), f32), f32))

    products = Loop(
        k,
        tiles[2],
        Mapping.SERIAL,
        (
            Let("x", Load("X", (i, k), f32)),
            Assign(("gate", "up"), (more(gate, "G"), more(up, "U"))),
        ),
    )
    silu = apply("div", gate, apply("add", number(1, f32), apply("exp", apply("neg", gate))))
    body = (
        Carry("gate", ZERO, (i, j)),
        Carry("up", ZERO, (i, j)),
        products,
        Store("out", (i, j), apply("mul", silu, up)),
    )
    columns = Loop(j, tiles[1], Mapping.GRID, body)
    return Kernel(
        "swiglu_product",
        (
            buffer("X", (S, inner), Access.READ),
            buffer("G", (n, inner), Access.READ),
            buffer("U", (n, inner), Access.READ),
            buffer("out", (S, n), Access.WRITE),
        ),
        (Loop(i, tiles[0], Mapping.GRID, (columns,)),),
        (S,),
        "contraction",
    )


def running_sum(rows: int, tile: int, dtype: DType = f32) -> Kernel:
    """y[r, t] = x[r, 0] + ... + x[r, t]: a prefix in each tile, the total carried on."""
    r, t = Var("r", rows), Var("t", S)
    x, total = Local("x", dtype, (r, t)), Local("total", dtype, (r,))
    body = (
        Carry("total", number(0, dtype), (r,)),
        Loop(
            t,
            tile,
            Mapping.SERIAL,
            (
                Let("x", Load("x_in", (r, t), dtype)),
                Store("y", (r, t), apply("add", total, Prefix("sum", t, (x,), 0, dtype))),
                Assign(("total",), (apply("add", total, Fold("sum", (t,), (x,), 0, dtype)),)),
            ),
        ),
    )
    return Kernel(
        "running_sum",
        (
            buffer("x_in", (rows, S), Access.READ, dtype),
            buffer("y", (rows, S), Access.WRITE, dtype),
        ),
        (Loop(r, 2, Mapping.GRID, body),),
        (S,),
        "scan",
    )


def recurrence(rows: int, tile: int) -> Kernel:
    """h[r, t] = a[r, t] * h[r, t - 1] + b[r, t], h[r, -1] = 0: a scan with a state of two parts."""
    r, t = Var("r", rows), Var("t", S)
    lift = (Load("a", (r, t), f32), Load("b", (r, t), f32))
    state = (Local("decay", f32, (r,)), Local("shift", f32, (r,)))

    def after(tile_state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return MONOIDS["affine"].combine(state, tile_state)

    prefix = tuple(Prefix("affine", t, lift, n, f32) for n in (0, 1))
    whole = tuple(Fold("affine", (t,), lift, n, f32) for n in (0, 1))
    body = (
        Carry("decay", number(1, f32), (r,)),
        Carry("shift", ZERO, (r,)),
        Loop(
            t,
            tile,
            Mapping.SERIAL,
            (Store("h", (r, t), after(prefix)[1]), Assign(("decay", "shift"), after(whole))),
        ),
    )
    return Kernel(
        "recurrence",
        (
            buffer("a", (rows, S), Access.READ),
            buffer("b", (rows, S), Access.READ),
            buffer("h", (rows, S), Access.WRITE),
        ),
        (Loop(r, 2, Mapping.GRID, body),),
        (S,),
        "scan",
    )


def scatter_add(places: int, columns: int, dtype: DType = f32) -> Kernel:
    """out[index[i], j] += source[i, j], and count[index[i]] += 1, in whatever order of i."""
    i, j = Var("i", S), Var("j", columns)
    place = indirect(Load("index", (i,), i64), places)
    source = Load("source", (i, j), dtype)
    body = (
        Store("out", (place, j), source, combine=Combine.ADD),
        Store("count", (place,), Const(1, i64), combine=Combine.ADD),
    )
    return Kernel(
        "scatter_add",
        (
            buffer("index", (S,), Access.READ, i64),
            buffer("source", (S, columns), Access.READ, dtype),
            buffer("out", (places, columns), Access.UPDATE, dtype),
            buffer("count", (places,), Access.UPDATE, i64),
        ),
        (Loop(i, 4, Mapping.GRID, (Loop(j, 4, Mapping.SERIAL, body),)),),
        (S,),
        "scatter",
    )
