"""Composites become primitives; names, origins and outputs stay what they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onetrip.base.dtype import bf16, f32, i64
from onetrip.base.errors import VerifyError
from onetrip.ir.graph import Graph, Node, Origin, Value, freeze
from onetrip.ir.types import TensorType
from onetrip.ops.element import arguments
from onetrip.ops.schema import Composite
from onetrip.ops.table import OPS
from onetrip.passes.expand import expand

ORIGIN = Origin("model.layer", "model.py:7", "softmax")


def node(op: str, name: str, *inputs: Value, **attrs: object) -> Node:
    made = Node(op, inputs, (), freeze(attrs), ORIGIN, 3)
    types = OPS[op].types(arguments(made), attrs)
    outputs = tuple(Value(f"{name}{k or ''}", t) for k, t in enumerate(types))
    return Node(op, inputs, outputs, freeze(attrs), ORIGIN, 3)


def graph(*nodes: Node) -> Graph:
    made = {v.name for n in nodes for v in n.outputs}
    inputs = dict.fromkeys(v for n in nodes for v in n.values if v.name not in made)
    return Graph(tuple(inputs), nodes, nodes[-1].outputs)


X = Value("x", TensorType.dense(bf16, (4, 6)))


def test_softmax() -> None:
    found = expand(graph(node("softmax", "y", X, dim=-1)))
    assert [n.op for n in found.nodes] == ["to", "amax", "sub", "exp", "sum", "div", "to"]
    assert found.outputs == (found.nodes[-1].output,)
    assert found.nodes[-1].output.name == "y"
    assert {(n.origin, n.call) for n in found.nodes} == {(ORIGIN, 3)}


def test_names_are_unique_and_repeatable() -> None:
    soft = node("softmax", "y", X, dim=-1)
    taken = Value("y_e0", X.type)
    norm = node(
        "layer_norm", "z", soft.output, taken, normalized_shape=(6,), eps=1e-5,
        has_weight=False, has_bias=False,
    )  # fmt: skip
    norm = Node(norm.op, (soft.output,), norm.outputs, norm.attrs, norm.origin, 4)
    base = Graph((X, taken), (soft, norm), norm.outputs)
    found = expand(base)
    names = [v.name for v in found.values()]
    assert len(set(names)) == len(names)
    assert names == [v.name for v in expand(base).values()]
    known = {v.name for v in found.inputs}
    for n in found.nodes:
        assert {v.name for v in n.values} <= known
        known |= {v.name for v in n.outputs}


def test_nothing_composite_is_left() -> None:
    loss = node("mse_loss", "l", X, X, reduction=1)
    assert all(not isinstance(OPS[n.op].body, Composite) for n in expand(graph(loss)).nodes)


def test_outputs_keep_their_layout() -> None:
    made = node("softmax", "y", X, dim=0)
    column = TensorType(bf16, (4, 6), (1, 4))
    made = Node(made.op, made.inputs, (Value("y", column),), made.attrs, made.origin, 3)
    assert expand(graph(made)).nodes[-1].output.type == column


def test_absent_outputs_have_no_node() -> None:
    stat = Value("m", TensorType.dense(f32, (4, 1)))
    made = node(
        "layer_norm_backward", "d", X, X, stat, Value("r", stat.type), normalized_shape=(6,),
        has_weight=False, has_bias=False, output_mask=(True, False, True),
    )  # fmt: skip
    read = replace(graph(made), outputs=(made.outputs[0], made.outputs[2]))
    produced = {v.name for n in expand(read).nodes for v in n.outputs}
    assert "d" in produced and "d2" in produced and "d1" not in produced


def test_empty_statistics_exist_where_something_reads_them() -> None:
    x, stat = Value("x", TensorType.dense(f32, (2, 3, 4, 4))), TensorType.dense(f32, (3,))
    operands = (x, *(Value(n, stat) for n in "wbmv"))
    made = node("batch_norm", "y", *operands, has_weight=True, has_bias=True, eps=1e-5)
    found = expand(graph(made))
    absent = [v for v in made.outputs if v.type.numel == 0]
    assert absent
    assert {v.name for v in absent} <= found.producers.keys()


def test_statistics_follow_the_device() -> None:
    """A CPU keeps mean and deviation in the operand's dtype, a GPU in f32."""
    made = node(
        "layer_norm", "y", X, normalized_shape=(6,), eps=1e-5, has_weight=False, has_bias=False
    )
    narrow = TensorType.dense(bf16, (4, 1))
    outputs = (made.outputs[0], Value("m", narrow), Value("r", narrow))
    made = Node(made.op, made.inputs, outputs, made.attrs, made.origin, 3)
    found = {v.name: v.type for n in expand(graph(made)).nodes for v in n.outputs}
    assert found["m"] == narrow


def test_an_operand_that_is_returned_is_copied() -> None:
    y = Value("y", TensorType.dense(f32, (2, 3, 4, 4)))
    made = node("split", "s", y, split_size=3, dim=1)
    assert [n.op for n in expand(graph(made)).nodes] == ["slice"]


def test_a_wrong_expansion_is_found() -> None:
    made = node("softmax", "y", X, dim=0)
    wrong = Value("y", TensorType.dense(bf16, (4, 5)))
    with pytest.raises(VerifyError, match="softmax"):
        expand(graph(Node(made.op, made.inputs, (wrong,), made.attrs, ORIGIN, 3)))


def test_a_pooling_of_which_no_position_is_read_computes_values_alone() -> None:
    x = Value("x", TensorType.dense(f32, (1, 2, 8, 8)))
    outputs = (Value("y", TensorType.dense(f32, (1, 2, 4, 4))),
               Value("i", TensorType.dense(i64, (1, 2, 4, 4))))  # fmt: skip
    attrs = freeze({"kernel_size": (3, 3), "stride": (2, 2), "ceil_mode": True})
    made = Node("max_pool2d", (x,), outputs, attrs, ORIGIN, 3)
    alone = expand(Graph((x,), (made,), outputs[:1]))
    both = expand(Graph((x,), (made,), outputs))
    assert [n.op for n in alone.nodes] == ["windows", "amax"]
    assert {"argmax", "tap_place"} <= {n.op for n in both.nodes}


def test_externs_and_primitives_stay() -> None:
    relu = node("relu", "y", X)
    call = Node("extern", (relu.output,), (Value("z", X.type),), freeze({"target": "aten.foo"}))
    base = graph(relu, call)
    assert expand(base).nodes == base.nodes
