"""Random well-formed nests and graphs, for the texts."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from onetrip.base.dtype import bf16, bool_, f32, f64, i64, u8
from onetrip.base.sym import Dim, Size, Var, add, floordiv, mod, mul
from onetrip.ir.expr import (
    Const,
    Expr,
    Load,
    Position,
    Reduced,
    Reduction,
    Rng,
    Scanned,
    apply,
    cast,
    compare,
    indirect,
)
from onetrip.ir.graph import Graph, Literal, Node, Origin, Ref, Scalar, Value, freeze
from onetrip.ir.nest import Access, Axis, AxisKind, Buffer, Combine, Nest, Store
from onetrip.ir.types import TensorType

S, T = Size("s", 2), Size("t.1")
P0, P1 = Var("p0", 4), Var("p 1", mul(S, 3))
R0, R1 = Var("r0", S), Var("r1", 7)
SPACE = (Axis(P0), Axis(P1, AxisKind.SCAN))
BUFFERS = (
    Buffer("x", TensorType(f32, (4, mul(S, 3)), (1, 4)), Access.READ),
    Buffer("read", TensorType.dense(bf16, (7,)), Access.READ),
    Buffer('odd name"', TensorType.dense(i64, ()), Access.READ),
    Buffer("y", TensorType.dense(f32, (4, add(T, 1))), Access.UPDATE),
)

FLOATS = st.sampled_from([0.0, -0.0, 1.5, 1e-45, 1e300, math.inf, -math.inf, math.nan])


@st.composite
def dims(draw: Any, depth: int = 2) -> Dim:
    """Any index expression; where it points is not asked."""
    leaf = st.one_of(st.integers(-9, 9), st.sampled_from([P0, P1, R0, R1, S, T]))
    if depth == 0 or draw(st.booleans()):
        return draw(leaf)
    a, b = draw(dims(depth - 1)), draw(dims(depth - 1))
    step = draw(st.sampled_from([2, 3, S, mul(S, 2)]))
    join = draw(st.sampled_from(["+", "*", "//", "%", "[]"]))
    if join == "[]":
        return add(indirect(draw(integers()), 7), a)
    made: dict[str, Any] = {"+": add, "*": mul}
    return made[join](a, b) if join in made else (floordiv if join == "//" else mod)(a, step)


@st.composite
def integers(draw: Any) -> Expr:
    place = Position(draw(dims(0)))
    number = Const(draw(st.integers(-(2**40), 2**40)), i64)
    loaded = Load('odd name"', (), i64)
    return draw(st.sampled_from([place, number, loaded, apply("add", place, loaded)]))


@st.composite
def conditions(draw: Any) -> Expr:
    return compare(draw(st.sampled_from(["lt", "eq"])), draw(integers()), draw(integers()))


@st.composite
def floats(draw: Any, depth: int = 3) -> Expr:
    """An f32 expression of every kind that a nest may hold."""
    if depth == 0:
        return Const(draw(FLOATS), f32)
    inner = floats(depth - 1)
    kind = draw(st.integers(0, 8))
    a = draw(inner)
    if kind == 0:
        return apply("add", a, draw(inner))
    if kind == 1:
        return apply("where", draw(conditions()), a, draw(inner), dtype=f32)
    if kind == 2:
        return cast(cast(a, draw(st.sampled_from([bf16, f64, u8]))), f32)
    if kind == 3:
        guard = draw(st.none() | conditions())
        other = draw(st.none() | FLOATS.map(lambda v: Const(v, f32)))
        return Load("x", (draw(dims()), draw(dims())), f32, guard, other if guard else None)
    if kind == 4:
        return Rng(draw(integers()), draw(dims()), rounds=draw(st.sampled_from([7, 10])))
    if kind == 5:
        axes = draw(st.sampled_from([(R0,), (R1,), (R0, R1)]))
        return Reduced(Reduction("sum", axes, (a,)), 0, f32)
    if kind == 6:
        lift = (Const(1.0, f32), a, Const(0.0, f32))
        return Reduced(Reduction("welford", (R1,), lift), draw(st.integers(0, 2)), f32)
    if kind == 7:
        return Scanned("affine", P1, (a, draw(inner)), 1, f32, draw(st.booleans()))
    return cast(Load("read", (draw(dims()),), bf16), f32)


@st.composite
def nests(draw: Any) -> Nest:
    stores = tuple(
        Store(
            "y",
            (draw(dims()), draw(dims())),
            draw(floats()),
            draw(st.sampled_from([(), (R0,), (R0, R1)])),
            draw(st.sampled_from(list(Combine))),
            draw(st.none() | conditions()),
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    return Nest(draw(st.sampled_from([(), SPACE, SPACE[:1]])), BUFFERS, stores)


NAMES = st.sampled_from(["a", "size", "input", "none", "return", "x.1", "with space", "true"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    FLOATS,
    st.text(max_size=6),
    st.sampled_from([f32, bool_, u8]),
    st.sampled_from([S, mul(S, T), add(S, -3)]),
    st.builds(Ref, st.integers(0, 3)),
    st.builds(Literal, st.sampled_from(["device", "layout"]), st.text(max_size=4)),
    st.just(Scalar(2)),
    st.just(complex(0.5, -0.0)),
)
ATTRS = st.recursive(LEAVES, lambda x: st.lists(x, max_size=3).map(tuple), max_leaves=5)
TYPES = st.sampled_from(
    [
        TensorType.dense(f32, (2, S)),
        TensorType(bf16, (2, S), (1, 2)),
        TensorType(f32, (1, 4), (9, 1)),
        TensorType.dense(i64, ()),
        TensorType.dense(bool_, (0, 3)),
    ]
)


@st.composite
def graphs(draw: Any) -> Graph:
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    values = [Value(n, draw(TYPES)) for n in names]
    inputs, made = values[:1], values[1:]
    nodes = []
    known: list[Any] = list(inputs)
    for v in made:
        operands = draw(st.lists(st.sampled_from(known), max_size=2))
        scalars = [Scalar(draw(LEAVES))] if draw(st.booleans()) else []
        attrs = draw(st.dictionaries(st.sampled_from(["dim", "max", "keep"]), ATTRS, max_size=2))
        words = draw(st.tuples(*[st.sampled_from(["", "layers.0", 'a "b"'])] * 3))
        asked = draw(st.sampled_from([((), 0), (((1, False), (2, True)), 0), ((), 3)]))
        origin = Origin(*words, *asked)
        call = draw(st.integers(-1, 9))
        nodes.append(Node("add", (*operands, *scalars), (v,), freeze(attrs), origin, call))
        known.append(v)
    outputs = (draw(st.sampled_from(known)), None, Scalar(S))
    sizes = ((S, inputs[0].name, 1),) if draw(st.booleans()) else ()
    mutations = ((inputs[0], known[-1]),) if draw(st.booleans()) else ()
    return Graph(tuple(inputs), tuple(nodes), outputs, mutations, sizes)
