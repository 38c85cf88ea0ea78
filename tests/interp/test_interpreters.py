"""What the interpreters promise beyond values: masks, poison, order, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from near import assert_near
from onetrip.base.dtype import bf16, f32, i32, i64
from onetrip.base.sym import Size, Var, ceildiv, mul
from onetrip.interp.arrays import InterpreterError, convert
from onetrip.interp.graph_interp import outputs, run_graph
from onetrip.interp.kernel_interp import run_kernel
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.expr import (
    Const,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Prefix,
    Reduced,
    Reduction,
    apply,
    compare,
    indirect,
)
from onetrip.ir.graph import Graph, Node, Scalar, Value
from onetrip.ir.kernel import Assign, Carry, Kernel, Let, Loop, Mapping, Scratch, Stmt
from onetrip.ir.monoid import number
from onetrip.ir.nest import Access, Axis, Buffer, Combine, Nest, Store
from onetrip.ir.types import TensorType
from onetrip.ir.verify import verify

S = Size("s")
P, R = Var("p", 5), Var("r", 7)
X = Load("x", (P, R), f32)
GIVEN = np.random.default_rng(20).standard_normal((5, 7)).astype(np.float32)


def dense(name: str, *shape: object, access: Access = Access.WRITE, dtype: object = f32) -> Buffer:
    return Buffer(name, TensorType.dense(dtype, shape), access)  # type: ignore[arg-type]


READ = dense("x", 5, 7, access=Access.READ)


# ------------------------------------------------------------------ nests


def test_an_update_reads_what_was_there_before() -> None:
    """y[p] = y[4 - p]: no store is seen by a load of the same nest."""
    y = dense("y", 5, access=Access.UPDATE)
    nest = Nest((Axis(P),), (y,), (Store("y", (P,), Load("y", (4 - P,), f32)),))
    data = np.arange(5, dtype=np.float32)
    run_nest(nest, {"y": data})
    np.testing.assert_array_equal(data, [4, 3, 2, 1, 0])


@pytest.mark.parametrize("extent", [0, 1])
def test_reductions_of_nothing_are_neutral(extent: int) -> None:
    r = Var("r", S)
    value = Reduced(Reduction("max", (r,), (Load("x", (r,), f32),)), 0, f32)
    buffers = (dense("x", S, access=Access.READ), dense("y"))
    nest = Nest((), buffers, (Store("y", (), value),))
    found = run_nest(nest, {"x": np.full(extent, 3, np.float32)}, {S: extent})["y"]
    assert found.item() == (3 if extent else -np.inf)


def test_guards_of_loads_and_stores() -> None:
    inside = compare("lt", Position(P + R), Const(5, i64))
    value = Load("x", (P + R, 0), f32, inside)
    y = dense("y", 5, 7)
    nest = Nest((Axis(P), Axis(R)), (READ, y), (Store("y", (P, R), value, (), guard=inside),))
    found = run_nest(nest, {"x": GIVEN})["y"].reshape(5, 7)
    p, r = np.indices((5, 7))
    np.testing.assert_array_equal(found[p + r < 5], GIVEN[(p + r)[p + r < 5], 0])
    assert np.isnan(found[p + r >= 5]).all()


def test_a_constant_is_added_once_for_each_point() -> None:
    y = dense("y", access=Access.UPDATE, dtype=i64)
    nest = Nest((Axis(P), Axis(R)), (y,), (Store("y", (), Const(1, i64), (), Combine.ADD),))
    count = np.asarray([10])
    run_nest(nest, {"y": count})
    assert count == 45


@pytest.mark.parametrize(
    ("combine", "wanted"), [(Combine.MAX, 7), (Combine.MIN, -3), (Combine.MUL, -126)]
)
def test_other_joins(combine: Combine, wanted: int) -> None:
    r = Var("r", 3)
    buffers = (
        dense("x", 3, access=Access.READ, dtype=i32),
        dense("y", access=Access.UPDATE, dtype=i32),
    )
    nest = Nest((Axis(r),), buffers, (Store("y", (), Load("x", (r,), i32), (), combine),))
    y = np.asarray([1], np.int32)
    run_nest(nest, {"x": np.asarray([7, -3, 6], np.int32), "y": y})
    assert y == wanted


def test_buffers_are_checked() -> None:
    nest = Nest((Axis(P), Axis(R)), (READ, dense("y", 5, 7)), (Store("y", (P, R), X),))
    with pytest.raises(InterpreterError, match="not the declared ones"):
        run_nest(nest, {})
    with pytest.raises(InterpreterError, match="not the declared ones"):
        run_nest(nest, {"x": GIVEN, "z": GIVEN})
    read = Load("x", (indirect(Position(P + 1), 5), R), f32)
    far = replace(nest, stores=(Store("y", (P, R), read),))
    with pytest.raises(InterpreterError, match="out of range"):
        run_nest(far, {"x": GIVEN})


# ------------------------------------------------------------------ kernels


def kernel(*body: Stmt, rows: int = 2, y: Buffer | None = None) -> Kernel:
    return Kernel("k", (READ, y or dense("y", 5)), (Loop(P, rows, Mapping.GRID, body),))


def total(kernel: Kernel) -> np.ndarray:
    verify(kernel)
    return run_kernel(kernel, {"x": GIVEN})["y"]


def set_acc(name: str, value: Expr, over: tuple[Var, ...] = (P,)) -> tuple[Local, Assign]:
    acc = Local(name, f32, over)
    return acc, Assign((name,), (apply("add", acc, value),))


@pytest.mark.parametrize("tile", [1, 2, 4, 7, 16])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_lanes_beyond_the_end_take_no_part(tile: int, rows: int) -> None:
    acc, more = set_acc("acc", Fold("sum", (R,), (X,), 0, f32))
    body = (Carry("acc", number(0, f32), (P,)), Loop(R, tile, Mapping.SERIAL, (more,)))
    found = total(kernel(*body, Store("y", (P,), acc), rows=rows))
    assert_near(found, GIVEN.sum(1), GIVEN.astype(np.float64).sum(1))


@pytest.mark.parametrize("tile", [1, 2, 4, 16])
def test_held_lanes_are_joined_behind_the_loop(tile: int) -> None:
    acc, more = set_acc("acc", X, (P, R))
    body = (Carry("acc", number(0, f32), (P, R)), Loop(R, tile, Mapping.SERIAL, (more,)))
    found = total(kernel(*body, Store("y", (P,), Fold("sum", (R,), (acc,), 0, f32))))
    assert_near(found, GIVEN.sum(1), GIVEN.astype(np.float64).sum(1))


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("block", [2, 3, 7])
def test_a_loop_may_have_its_own_range(tile: int, block: int) -> None:
    """Blocks that are no multiple of the tile: a lane behind the block's end counts not twice."""
    b = Var("b", ceildiv(7, block))
    outer, collect = set_acc("outer", Local("acc", f32, (P, R)), (P, R))
    _, more = set_acc("acc", X, (P, R))
    start = mul(b, block)
    inner = Loop(R, tile, Mapping.SERIAL, (more,), start, start + block)
    blocks = Loop(b, 1, Mapping.SERIAL, (Carry("acc", number(0, f32), (P, R)), inner, collect))
    joined = Fold("sum", (R,), (outer,), 0, f32)
    found = total(kernel(Carry("outer", number(0, f32), (P, R)), blocks, Store("y", (P,), joined)))
    assert_near(found, GIVEN.sum(1), GIVEN.astype(np.float64).sum(1))


def test_an_assignment_reads_the_old_state() -> None:
    """(a, b) = (b, a + b): Fibonacci."""
    a, b = Local("a", i64), Local("b", i64)
    steps = Loop(R, 1, Mapping.SERIAL, (Assign(("a", "b"), (b, apply("add", a, b))),))
    y = dense("y", 5, dtype=i64)
    body = (Carry("a", Const(0, i64)), Carry("b", Const(1, i64)), steps, Store("y", (P,), a))
    np.testing.assert_array_equal(total(kernel(*body, y=y)), 13)


def test_scratch_is_poisoned_and_ends_with_its_iteration() -> None:
    t = TensorType.dense(f32, (7,))
    read = Store("y", (P,), Load("t", (0,), f32))
    assert np.isnan(total(kernel(Scratch("t", t), read))).all()
    fill = Loop(R, 4, Mapping.SERIAL, (Store("t", (R,), X),))
    found = total(kernel(Scratch("t", t), fill, Store("y", (P,), Load("t", (6,), f32)), rows=1))
    np.testing.assert_array_equal(found, GIVEN[:, 6])


def test_inactive_lanes_hold_poison() -> None:
    """A kernel that sums lanes through memory, without a mask, is found."""
    t = TensorType.dense(f32, (8,))
    lane = Var("lane", 8)
    body = (
        Scratch("t", t),
        Loop(R, 8, Mapping.SERIAL, (Store("t", (R,), X),)),
        Loop(
            lane,
            8,
            Mapping.SERIAL,
            (Store("y", (P,), Fold("sum", (lane,), (Load("t", (lane,), f32),), 0, f32)),),
        ),
    )
    assert np.isnan(total(kernel(*body, rows=1))).all()


def test_a_prefix_restarts_in_every_tile() -> None:
    y = dense("y", 5, 7)
    body = Loop(R, 4, Mapping.SERIAL, (Store("y", (P, R), Prefix("max", R, (X,), 0, f32)),))
    found = total(kernel(body, y=y)).reshape(5, 7)
    wanted = [np.maximum.accumulate(part, 1) for part in (GIVEN[:, :4], GIVEN[:, 4:])]
    np.testing.assert_array_equal(found, np.concatenate(wanted, 1))


def test_stores_of_lanes_that_are_equal_count_once_unless_named() -> None:
    y = Buffer("y", TensorType.dense(i64, (5,)), Access.UPDATE)
    for axes, wanted in (((), 2), ((R,), 7)):  # 7 lanes in tiles of 4: two tiles
        store = Store("y", (P,), Const(1, i64), axes, Combine.ADD)
        made = Kernel(
            "k", (y,), (Loop(P, 1, Mapping.GRID, (Loop(R, 4, Mapping.SERIAL, (store,)),)),)
        )
        verify(made)
        found = run_kernel(made, {"y": np.zeros(5, np.int64)})["y"]
        np.testing.assert_array_equal(found, wanted)


def test_bounds_that_differ_between_lanes_are_refused() -> None:
    loop = Loop(R, 1, Mapping.SERIAL, (), stop=P)
    with pytest.raises(InterpreterError, match="differs between lanes"):
        run_kernel(kernel(loop, Store("y", (P,), number(0, f32))), {"x": GIVEN})


def test_what_is_not_in_scope_is_refused() -> None:
    inside = Loop(R, 1, Mapping.SERIAL, (Let("t", X),))
    late = kernel(inside, Store("y", (P,), Local("t", f32, (P,))))
    with pytest.raises(InterpreterError, match="the local t has no value here"):
        run_kernel(late, {"x": GIVEN})
    with pytest.raises(InterpreterError, match="r has no value here"):
        run_kernel(kernel(Store("y", (P,), X)), {"x": GIVEN})


# ------------------------------------------------------------------ graphs


def value(name: str, dtype: object, *shape: object) -> Value:
    return Value(name, TensorType.dense(dtype, shape))  # type: ignore[arg-type]


def test_a_graph_runs_through_references() -> None:
    """softmax(x * 0.5 + b) over bf16 with a symbolic size; every node rounds once."""
    x, b = value("x", bf16, S, 4), value("b", bf16, 4)
    h, y, z = (value(n, bf16, S, 4) for n in "hyz")
    nodes = (
        Node("mul", (x, Scalar(0.5)), (h,)),
        Node("add", (h, b), (y,)),
        Node("softmax", (y,), (z,), (("dim", -1),)),
    )
    graph = Graph((x, b), nodes, (z, None, Scalar(S)), sizes=((S, "x", 0),))
    verify(graph)
    xs, bs = (
        convert(np.random.default_rng(n).standard_normal(s), f32, bf16).astype(np.float32)
        for n, s in enumerate(((3, 4), (4,)))
    )
    xs, bs = convert(xs, f32, bf16), convert(bs, f32, bf16)
    found = run_graph(graph, {"x": xs, "b": bs})
    step = convert(convert(xs * np.float32(0.5), f32, bf16) + bs, f32, bf16)
    np.testing.assert_array_equal(found["y"], step)
    weight = np.exp(step - step.max(-1, keepdims=True))
    np.testing.assert_array_equal(
        found["z"], convert(weight / weight.sum(-1, keepdims=True), f32, bf16)
    )
    results = outputs(graph, {"x": xs, "b": bs})
    np.testing.assert_array_equal(results[0], found["z"])
    assert results[1:] == (None, 3)


def test_what_a_graph_cannot_run_says_why() -> None:
    x, y = value("x", f32, 2), value("y", f32, 2)
    node = Node("extern", (x,), (y,), (("reason", "no entry"), ("target", "aten.special.default")))
    graph = Graph((x,), (node,), (y,))
    data = np.zeros(2, np.float32)
    with pytest.raises(InterpreterError, match=r"no reference[^$]*aten.special.default"):
        run_graph(graph, {"x": data})
    with pytest.raises(InterpreterError, match="the graph input x is missing"):
        run_graph(graph, {})
    for wrong in (np.zeros(3, np.float32), np.zeros(2)):
        with pytest.raises(InterpreterError, match="x has the wrong type"):
            run_graph(graph, {"x": wrong})
