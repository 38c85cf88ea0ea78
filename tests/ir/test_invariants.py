"""Every invariant is broken by an example, and found by its name with the line at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import golden_kernels
import pytest

from onetrip.base.dtype import bf16, bool_, f32, i64
from onetrip.base.errors import VerifyError
from onetrip.base.sym import Size, Var
from onetrip.ir.expr import (
    Apply,
    Cast,
    Const,
    Contract,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Reduced,
    Reduction,
    Rng,
    Scanned,
    apply,
    compare,
    indirect,
)
from onetrip.ir.graph import Graph, Node, Value
from onetrip.ir.kernel import Assign, Carry, Kernel, Let, Loop, Mapping, Packed, Scratch
from onetrip.ir.nest import Access, Axis, Buffer, Combine, Nest, Store
from onetrip.ir.program import Alias, Alloc, Bind, Call, Free, Launch, Program, Update
from onetrip.ir.types import TensorType
from onetrip.ir.verify import INVARIANTS, verify
from onetrip.ir.verify_kernel import locals_along

ROW, SQUARE = TensorType.dense(f32, (4,)), TensorType.dense(f32, (4, 4))
P, R, N = Var("p", 4), Var("r", 4), Var("n", Size("s"))
X = Load("x", (P, R), f32)
ONE = Const(1.0, f32)


def total(lift: Expr, *axes: Var, monoid: str = "sum") -> Expr:
    return Reduced(Reduction(monoid, axes, (lift,)), 0, f32)


# ------------------------------------------------------------------ nests


def nest(value: Expr = X, **changes: Any) -> Nest:
    """y[p, r] = value over (r)."""
    store = Store("y", (P, R), value, (R,))
    buffers = (Buffer("x", SQUARE, Access.READ), Buffer("y", SQUARE, Access.WRITE))
    stores = changes.pop("stores", None) or (replace(store, **changes),)
    return Nest((Axis(P),), buffers, stores)


def with_buffers(*buffers: Buffer) -> Nest:
    return replace(nest(), buffers=(*nest().buffers, *buffers))


NESTS: dict[str, list[Nest]] = {
    "names are unique": [
        with_buffers(Buffer("x", ROW, Access.READ)),
        replace(nest(), space=(Axis(P), Axis(Var("r", 9)))),
    ],
    "a nest holds no expression of a kernel": [nest(Local("a", f32))],
    "accesses name declared buffers and have one index for each dimension": [
        nest(Load("z", (P,), f32)),
        nest(Load("x", (P,), f32)),
        nest(buffer="z"),
        nest(index=(P,)),
        nest(Load("x", (indirect(ONE, 4), P), f32)),
    ],
    "operands and results agree in dtype": [
        nest(Load("x", (P, R), bf16)),
        nest(Cast(X, bf16)),
        nest(Apply("add", (X, Const(1, i64)), f32)),
        nest(Apply("add", (X, X), i64)),
        nest(Cast(Apply("add", (Cast(X, bf16), Cast(X, bf16)), bf16), f32)),
        nest(Apply("where", (X, X, X), f32)),
        nest(Apply("where", (compare("lt", X, X), X), f32)),
        nest(Const(1, f32)),
        nest(Const(True, f32)),
        nest(Cast(Const(300, bool_), f32)),
        nest(Cast(Const(1 << 63, i64), f32)),
        nest(guard=X),
        nest(Load("x", (P, R), f32, X)),
        nest(Load("x", (P, R), f32, compare("lt", X, X), Const(0, i64))),
        nest(Rng(X, P)),
        nest(Rng(Const(5, i64), P, rounds=3)),
        nest(total(X, R, monoid="no_such")),
        nest(Reduced(Reduction("sum", (R,), (X, X)), 0, f32)),
        nest(Reduced(Reduction("sum", (R,), (X,)), 1, f32)),
        nest(Reduced(Reduction("sum", (R, R), (X,)), 0, f32)),
        nest(Cast(Reduced(Reduction("sum", (R,), (X,)), 0, i64), f32)),
        nest(Cast(Scanned("max", R, (Cast(X, bf16),), 0, bf16), f32)),
        nest(Cast(Position(P, f32), f32)),
    ],
    "buffers are accessed as they are declared": [
        with_buffers(Buffer("z", ROW, Access.WRITE)),
        nest(Load("y", (P, R), f32)),
        nest(stores=(*nest().stores, Store("x", (P, 0), ONE))),
    ],
    "every axis is bound once": [
        nest(axes=()),
        nest(X, index=(P, N)),
        nest(total(X, P)),
        nest(axes=(R, P)),
    ],
    "extents depend on sizes only": [
        replace(nest(), space=(Axis(P), Axis(Var("q", P)))),
        replace(nest(), space=(Axis(P), Axis(Var("q", -1)))),
    ],
    "no index certainly leaves its buffer": [
        nest(Load("x", (P, R + 1), f32)),
        nest(Load("x", (P, R - 1), f32)),
        nest(Load("x", (P, 4), f32)),
        nest(index=(2 * P, R)),
    ],
}


# ------------------------------------------------------------------ graphs

A, B, C = Value("a", ROW), Value("b", ROW), Value("c", ROW)
NEG, ADD = Node("neg", (A,), (B,)), Node("add", (A, B), (C,))


def graph(*nodes: Node, **changes: Any) -> Graph:
    return replace(Graph((A,), nodes or (NEG, ADD), (C,)), **changes)


GRAPHS: dict[str, list[Graph]] = {
    "names are unique": [graph(NEG, replace(ADD, outputs=(B,))), graph(inputs=(A, A))],
    "a value is made before it is used": [graph(ADD, NEG), graph(ADD)],
    "a value has one type wherever it stands": [
        graph(NEG, replace(ADD, inputs=(A, Value("b", SQUARE)))),
        graph(inputs=(A, Value("odd", TensorType(f32, (4,), ())))),
    ],
    "outputs and mutations are values of the graph": [
        graph(outputs=(Value("z", ROW),)),
        graph(outputs=(Value("c", SQUARE),)),
        graph(mutations=((B, C),)),
        graph(mutations=((A, Value("z", ROW)),)),
    ],
    "attributes are sorted": [
        graph(replace(NEG, attrs=(("b", 1), ("a", 2))), ADD),
        graph(replace(NEG, attrs=(("a", 1), ("a", 2))), ADD),
    ],
    "sizes are told by a dimension that exists": [graph(sizes=((Size("s"), "a", 1),))],
}


# ------------------------------------------------------------------ kernels

ACC = Local("acc", f32, (P,))
TILE = Load("x", (P, R), f32)


def kernel(
    *inner: Any, after: tuple[Any, ...] = (), first: tuple[Any, ...] = (), **changes: Any
) -> Kernel:
    """acc[p] = 0; for r: acc += sum of x[p, r]; y[p] = acc."""
    more = apply("add", ACC, Fold("sum", (R,), (TILE,), 0, f32))
    loop = Loop(R, 2, Mapping.SERIAL, inner or (Assign(("acc",), (more,)),))
    body = (*first, Carry("acc", Const(0.0, f32), (P,)), loop, *(after or (Store("y", (P,), ACC),)))
    buffers = (Buffer("x", SQUARE, Access.READ), Buffer("y", ROW, Access.WRITE))
    made = Kernel("k", buffers, (Loop(P, 2, Mapping.GRID, body),))
    return replace(made, **changes)


def lanes_outside(*tiles: int) -> Kernel:
    """A Carry over the lanes of loops that come after it, joined behind them."""
    each = Local("each", f32, (R,))
    more = apply("add", each, TILE)
    body = (
        Carry("each", Const(0.0, f32), (R,)),
        *(Loop(R, t, Mapping.SERIAL, (Assign(("each",), (more,)),)) for t in tiles),
        Store("y", (P,), Fold("sum", (R,), (each,), 0, f32)),
    )
    return replace(kernel(), body=(Loop(P, 1, Mapping.GRID, body),))


def grid(loop: Loop) -> Kernel:
    return replace(kernel(), body=(loop,))


WHOLE = kernel().body[0]
assert isinstance(WHOLE, Loop)
KERNELS: dict[str, list[Kernel]] = {
    "names are unique": [
        kernel(first=(Let("acc", ONE),)),
        kernel(first=(Scratch("x", ROW),)),
        kernel(first=(Loop(Var("r", 9), 1, Mapping.SERIAL, ()),)),
    ],
    "a kernel holds no expression of a nest": [kernel(first=(Let("t", total(X, R)),))],
    "every axis is bound by an enclosing loop": [
        kernel(first=(Let("t", X),)),
        kernel(first=(Let("t", Fold("sum", (R,), (ONE,), 0, f32)),)),
        kernel(after=(Store("y", (R,), ONE),)),
        kernel(after=(Store("y", (P,), ACC, (R,)),)),
        kernel(first=(Carry("t", ONE, (N,)),)),
        kernel(first=(Loop(Var("q", 4), 1, Mapping.SERIAL, (), stop=Var("z", 4)),)),
    ],
    "loops have lanes, bounds that are the same in all, and one axis each": [
        kernel(first=(Loop(P, 2, Mapping.SERIAL, ()),)),
        kernel(first=(Loop(Var("q", 4), 2, Mapping.SERIAL, (), start=P),)),
        kernel(Loop(Var("q", 4), 2, Mapping.GRID, ())),
        grid(replace(WHOLE, tile=0)),
    ],
    "locals are defined before they are used, with dtype and axes": [
        kernel(first=(Let("t", ACC),)),
        kernel(Let("t", TILE), after=(Store("y", (P,), Local("t", f32, (P,))),)),
        kernel(after=(Store("y", (P,), Cast(Local("acc", i64, (P,)), f32)),)),
        kernel(after=(Store("y", (P,), Local("acc", f32)),)),
    ],
    "a Carry keeps its dtype and axes": [
        kernel(Assign(("acc",), (TILE,))),
        kernel(Assign(("acc",), (Const(0, i64),))),
        kernel(Assign(("acc", "acc"), (ONE, ONE))),
        kernel(Assign(("acc",), ())),
        kernel(Assign(("other",), (ONE,))),
        kernel(Let("t", ONE), Assign(("t",), (ONE,))),
        kernel(first=(Carry("t", Load("x", (P, 0), f32)),)),
        kernel(first=(Carry("t", ONE, (R,)),)),
        lanes_outside(2, 4),
    ],
    "accesses name buffers in scope and have one index for each dimension": [
        kernel(Scratch("t", ROW), after=(Store("y", (P,), Load("t", (0,), f32)),)),
        kernel(after=(Store("z", (P,), ACC),)),
        kernel(after=(Store("y", (P, P), ACC),)),
    ],
    "operands and results agree in dtype": [
        kernel(after=(Store("y", (P,), Const(0, i64)),)),
        kernel(after=(Store("y", (P,), ACC, guard=ACC),)),
        kernel(Let("t", Contract(R, TILE, ONE, f32))),
        kernel(Let("t", Contract(R, TILE, Cast(TILE, bf16), f32))),
        kernel(Let("t", Load("x", (P, R), i64))),
        kernel(Let("t", Fold("welford", (R,), (TILE,), 0, f32))),
    ],
    "buffers are accessed as they are declared": [
        kernel(after=(Let("t", ACC),)),
        kernel(after=(Store("y", (P,), ACC), Store("x", (P, P), ACC))),
    ],
    "no index certainly leaves its buffer": [
        kernel(Let("t", Load("x", (P, R + 1), f32))),
        kernel(after=(Store("y", (P - 1,), ACC),)),
    ],
    "sizes are passed": [
        kernel(first=(Loop(N, 2, Mapping.SERIAL, ()),)),
        replace(
            golden_kernels.scatter_add(5, 3),
            sizes=(),
        ),
    ],
}


# ------------------------------------------------------------------ programs

COPY = Kernel(
    "copy",
    (Buffer("x", ROW, Access.READ), Buffer("y", ROW, Access.WRITE)),
    (Loop(P, 4, Mapping.GRID, (Store("y", (P,), Load("x", (P,), f32)),)),),
)
PAIR = Packed("pair", (COPY, COPY))
WIDE = Value("w", TensorType.dense(f32, (5,)))
STEPS = (
    Alloc(B, 0),
    Launch(COPY, ("a", "b")),
    Alloc(C),
    Launch(COPY, ("b", "c")),
    Free("b"),
)


def program(*steps: Any, **changes: Any) -> Program:
    return replace(Program((A,), steps or STEPS, ("c",), arena_bytes=64), **changes)


D = Value("d", ROW)
TWO = (Alloc(B, 0), Launch(COPY, ("a", "b")), Alloc(D, 8), Launch(COPY, ("b", "d")))
PROGRAMS: dict[str, list[Program]] = {
    "a value is used between its definition and its end": [
        program(*STEPS[1:]),
        program(*STEPS, Free("b")),
        program(*STEPS, Launch(COPY, ("b", "c"))),
        program(*STEPS, Alloc(C)),
        program(*STEPS, Free("c")),
        program(*STEPS, Alias(D, "b")),
        program(*STEPS, Update("a", "z")),
        program(*STEPS, Call("aten.neg", (B,), (D,), (), ())),
        program(outputs=("z",)),
    ],
    "arguments of a launch have the types of the kernel's buffers": [
        program(*STEPS[:-1], Launch(COPY, ("b",))),
        program(Alloc(WIDE), Launch(COPY, ("a", "w")), *STEPS),
        program(Alloc(Value("h", TensorType.dense(bf16, (4,)))), Launch(COPY, ("a", "h")), *STEPS),
    ],
    "an input changes by an update, or by a launch after its last use": [
        program(*STEPS, Launch(COPY, ("c", "a"))),
        program(*STEPS, Alias(D, "a"), Launch(COPY, ("c", "d")), Launch(COPY, ("a", "c"))),
        program(*STEPS, Alias(D, "a"), Launch(COPY, ("c", "d")), Update("a", "a")),
        program(*STEPS, Update("c", "c")),
    ],
    "memory of values that live together does not overlap": [
        program(*TWO, *STEPS[2:]),
        program(*STEPS, arena_bytes=8),
        program(  # the alias keeps the memory of b in use
            Alloc(B, 0),
            Alias(Value("v", ROW), "b"),
            Launch(COPY, ("a", "b")),
            Alloc(D, 0),
            Launch(COPY, ("a", "d")),
            Alloc(C),
            Launch(COPY, ("v", "c")),
        ),
    ],
    "kernels of one launch do not touch what another of them writes": [
        program(Alloc(B, 0), Alloc(C), Launch(PAIR, ("a", "b", "b", "c"))),
        program(Alloc(C), Launch(PAIR, ("a", "c", "a", "c"))),
        program(Alloc(C), Alias(D, "c"), Launch(PAIR, ("a", "c", "a", "d"))),
    ],
}
LEVELS: dict[type, dict[str, list[Any]]] = {
    Nest: NESTS, Graph: GRAPHS, Kernel: KERNELS, Program: PROGRAMS,
}  # fmt: skip
EXAMPLES = [
    pytest.param(name, ir, id=f"{level.__name__}-{name}-{n}")
    for level, table in LEVELS.items()
    for name, irs in table.items()
    for n, ir in enumerate(irs)
]


@pytest.mark.parametrize("ir", [nest(), graph(), kernel(), program()], ids=type)
def test_what_the_examples_are_made_from_is_right(ir: Any) -> None:
    verify(ir)


def test_every_invariant_has_an_example() -> None:
    for level, table in LEVELS.items():
        assert [i.name for i in INVARIANTS[level]] == list(table)


@pytest.mark.parametrize(("name", "ir"), EXAMPLES)
def test_a_breach_is_found(name: str, ir: Any) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(ir, after="a pass")
    assert caught.value.message.splitlines()[0].endswith(f"breaks the invariant: {name}")
    assert caught.value.expected
    assert caught.value.found
    assert caught.value.where == "after a pass"


def test_report(golden: Callable[[str, str], None]) -> None:
    """The lines around the fault, one of them marked."""
    bad = {
        "nest": nest(apply("exp", Load("x", (P, R + 1), f32))),
        "graph": graph(NEG, replace(ADD, inputs=(A, Value("b", SQUARE)))),
        "kernel": kernel(Assign(("acc",), (TILE,))),
        "program": program(*TWO, *STEPS[2:]),
    }
    reports = []
    for level, ir in bad.items():
        with pytest.raises(VerifyError) as caught:
            verify(ir, after="fuse")
        assert str(caught.value).count("-->") == 1
        reports.append(f"== {level}\n{caught.value}")
    golden("ir/verify_reports", "\n".join(reports))


def test_kernels_of_a_program_are_checked() -> None:
    loop = COPY.body[0]
    assert isinstance(loop, Loop)
    broken = replace(COPY, body=(replace(loop, tile=0),))
    with pytest.raises(VerifyError, match="a Kernel breaks"):
        verify(program(*STEPS[:-1], Launch(broken, ("b", "c"))))


def test_accumulating_stores_and_held_lanes_are_right() -> None:
    for k in (
        golden_kernels.scatter_add(5, 3),
        kernel(after=(Store("y", (P,), ACC, combine=Combine.SET),)),
        lanes_outside(2),
        lanes_outside(4, 4),
        kernel(first=(Loop(R, 4, Mapping.SERIAL, ()),)),
    ):
        verify(k)


def test_a_bind_may_read_a_number() -> None:
    verify(program(Bind(Size("s"), "n", -1), *STEPS))


def test_operands_that_are_shared_are_read_once() -> None:
    """2 ** 200 paths lead to the local: to follow each of them would not end."""
    value: Expr = Local("s", f32, (P,))
    for _ in range(200):
        value = Apply("add", (value, value), f32)
    assert locals_along(value, P) == {"s"}
