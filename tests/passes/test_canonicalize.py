"""What canonical form merges, drops and leaves alone; and the rewrite of fast numerics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onetrip.base.dtype import bf16, f32
from onetrip.ir.expr import Apply, Cast, Load
from onetrip.ir.graph import Graph, Node, Scalar, Value, freeze
from onetrip.ir.types import TensorType
from onetrip.passes.canonicalize import canonicalize
from onetrip.passes.relax import relax

from .nests import pointwise

T = TensorType.dense(f32, (3, 4))
X = Value("x", T)


def node(op: str, out: str, *inputs: Any, kind: TensorType = T, **attrs: Any) -> Node:
    operands = tuple(x if isinstance(x, Value) else Scalar(x) for x in inputs)
    return Node(op, operands, (Value(out, kind),), freeze(attrs))


def graph(*nodes: Node, outputs: tuple[str, ...]) -> Graph:
    made = {v.name: v for n in nodes for v in n.outputs} | {"x": X}
    return Graph((X,), nodes, tuple(made[o] for o in outputs))


def test_equal_nodes_become_one() -> None:
    found = canonicalize(graph(node("exp", "a", X), node("exp", "b", X), outputs=("a", "b")))
    assert [n.name for n in found.nodes] == ["a"]
    assert [v.name for v in found.outputs if isinstance(v, Value)] == ["a", "a"]


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0)])
def test_numbers_that_only_look_equal_stay_apart(one: Any, other: Any) -> None:
    nodes = node("add", "a", X, one), node("add", "b", X, other)
    assert len(canonicalize(graph(*nodes, outputs=("a", "b"))).nodes) == 2


def test_library_calls_are_never_merged() -> None:
    nodes = (node("extern", n, X, target="aten.rand_like.default") for n in "ab")
    assert len(canonicalize(graph(*nodes, outputs=("a", "b"))).nodes) == 2


def test_dead_nodes_go_and_externs_stay() -> None:
    check = Node("extern", (X,), (), freeze({"target": "aten._assert_async.default"}))
    write = node("extern", "w", X, target="mine.log.default")
    found = canonicalize(
        graph(node("exp", "a", X), node("tanh", "b", X), check, write, outputs="b")
    )
    assert [n.op for n in found.nodes] == ["tanh", "extern", "extern"]


def test_a_view_that_changes_nothing_goes() -> None:
    same = node("view", "a", X, size=(3, 4))
    other = node("view", "b", X, kind=TensorType.dense(f32, (12,)), size=(12,))
    found = canonicalize(graph(same, other, node("exp", "c", same.output), outputs=("b", "c")))
    assert [n.name for n in found.nodes] == ["b", "c"]
    assert found.nodes[1].inputs == (X,)


def test_fast_numerics_drop_only_roundings_between_operators() -> None:
    base = pointwise("y", "exp", (3, 4), x=(3, 4))
    load = Load("x", base.stores[0].index, f32)
    inner = Apply("exp", (load,), f32)
    rounded = Apply("tanh", (Cast(Cast(inner, bf16), f32),), f32)
    stored = replace(base, stores=(replace(base.stores[0], value=Cast(rounded, bf16)),))
    assert relax(stored).stores[0].value is Cast(Apply("tanh", (inner,), f32), bf16)
    narrowing = Cast(Cast(load, bf16), f32)
    asked = replace(base, stores=(replace(base.stores[0], value=Cast(narrowing, bf16)),))
    assert relax(asked).stores[0].value is Cast(load, bf16)
