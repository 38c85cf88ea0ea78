"""Every entry of the table is complete, and what it names exists."""

from __future__ import annotations

import pytest

from conformance import kinds, node_of, overload
from onetrip.base.errors import Unsupported
from onetrip.ir.expr import Apply, Expr, Load, walk
from onetrip.ir.graph import Node, Value
from onetrip.ops import exactness
from onetrip.ops.element import element
from onetrip.ops.scalar import SCALAR_OPS, Result
from onetrip.ops.schema import Body, Composite, Elementwise, Kind, Movement, Op, Opaque, Reduce
from onetrip.ops.table import ALL, BY_TARGET, OPS
from onetrip.passes.expand import expand
from onetrip.passes.lower import lower_node

BODIES: dict[Kind, tuple[type[Body], ...]] = {
    Kind.ELEMENTWISE: (Elementwise, Movement),
    Kind.BROADCAST: (Movement,),
    Kind.MOVEMENT: (Movement, Composite),
    Kind.REDUCTION: (Reduce,),
    Kind.CONTRACTION: (Opaque,),
    Kind.COMPOSITE: (Composite,),
    Kind.OPAQUE: (Opaque,),
    Kind.SCATTER: (Opaque,),
    Kind.GATHER: (Movement,),
}
INTERNAL = {"log_sigmoid", "max_value", "min_value", "cummax_value", "cummax_place",
            "cummin_value", "cummin_place", "windows", "covering", "window_sizes", "tap_place",
            "sampled", "reached",
            "max_pool2d_values", "max_pool3d_values", "mantissa", "exponent"}  # fmt: skip
"""Operators that only composites use: no framework call is theirs."""


def missing(op: Op) -> list[str]:
    """The facts that an entry lacks."""
    facts = {
        "name": op.name.isidentifier(),
        "forms": bool(op.forms) or op.name in INTERNAL,
        "types": callable(op.types),
        "body": isinstance(op.body, BODIES.get(op.kind, (object,))),
        "reference": callable(op.reference),
        "samples": len(op.samples) > 0,
    }
    return [fact for fact, there in facts.items() if not there]


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.name)
def test_every_fact_is_there(op: Op) -> None:
    assert missing(op) == []
    stated = exactness.of(op)
    assert set(stated) == set(exactness.BACKENDS)
    assert all(e.ulp >= 0 for e in stated.values())


def test_a_missing_fact_is_found() -> None:
    from dataclasses import replace

    op = OPS["add"]
    assert missing(replace(op, samples=())) == ["samples"]
    assert missing(replace(op, forms=())) == ["forms"]
    assert missing(replace(op, kind=Kind.REDUCTION)) == ["body"]


def test_names_and_targets_are_unique() -> None:
    assert len(OPS) == len(ALL)
    assert len(BY_TARGET) == sum(len(op.forms) for op in ALL)


@pytest.mark.parametrize("target", sorted(BY_TARGET))
def test_overloads_exist_with_these_arguments(target: str) -> None:
    op, form = BY_TARGET[target]
    arguments = kinds(form)
    named = [n.rstrip("?") for n in form.operands] + list(form.attrs)
    assert set(named) <= set(arguments), f"{op.name}: {sorted(arguments)}"
    assert len(set(named)) == len(named)
    for name in form.operands:
        if name.endswith("?"):
            assert arguments[name[:-1]].startswith(("Optional", "List[Optional")), name


@pytest.mark.parametrize("target", sorted(BY_TARGET))
def test_no_argument_without_a_default_is_forgotten(target: str) -> None:
    _, form = BY_TARGET[target]
    named = {n.rstrip("?") for n in form.operands} | set(form.attrs)
    placed = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
    arguments = overload(form)._schema.arguments
    forgotten = {a.name for a in arguments if not a.has_default_value()} - named - placed
    assert not forgotten


def expressions(op: Op, number: int) -> list[Expr]:
    """Every scalar expression that a sample's nests hold."""
    node = node_of(op, number)
    from onetrip.ir.graph import Graph

    graph = expand(Graph(node.values, (node,), node.outputs))
    return [e for n in graph.nodes for e in lower_node(n).expressions]


@pytest.mark.parametrize(
    "op", [op for op in ALL if not isinstance(op.body, Opaque)], ids=lambda op: op.name
)
def test_scalar_operators_exist_and_are_typed(op: Op) -> None:
    for number in range(len(op.samples)):
        for e in expressions(op, number):
            if isinstance(e, Apply):
                leaf = SCALAR_OPS[e.op]
                assert len(e.args) == leaf.arity, e.op
                check_types(e, leaf.result is Result.BOOL)
            assert not isinstance(e, Apply) or e.dtype.compute is e.dtype, e.op


def check_types(e: Apply, tests: bool) -> None:
    """Operands of one dtype, in which the result is too unless it is a truth value."""
    operands = e.args[1:] if e.op == "where" else e.args
    assert len({x.dtype for x in operands}) == 1, e.op
    assert (e.dtype.name == "bool") if tests else (e.dtype is operands[0].dtype), e.op


@pytest.mark.parametrize(
    "op", [op for op in ALL if isinstance(op.body, Elementwise)], ids=lambda op: op.name
)
def test_bodies_follow_the_gpu_too(op: Op) -> None:
    for number in range(len(op.samples)):
        node = node_of(op, number)
        assert isinstance(op.body, Elementwise)
        loads = [operand(node, k) for k in range(len(node.inputs))]
        value = element(op.body, node, loads, gpu=True)
        assert value.dtype is node.output.type.dtype
        assert all(isinstance(e, Expr) for e in walk((value,)))


def operand(node: Node, k: int) -> Load:
    x = node.inputs[k]
    type = x.type if isinstance(x, Value) else node.output.type
    return Load(f"x{k}", (0,) * type.rank, type.dtype)


def test_flops_are_counted() -> None:
    def flops(name: str) -> object:
        op = OPS[name]
        assert isinstance(op.body, Opaque)
        return op.body.flops(node_of(op, 0))

    assert flops("mm") == 2 * 3 * 4 * 5
    assert flops("addmm") == 2 * 3 * 4 * 5 + 15
    assert flops("bmm") == 2 * 2 * 3 * 4 * 5
    assert flops("dot") == 8
    # (2, 6, 4, 6) outputs, each over 2 channels of a group and a 3 x 2 kernel
    assert flops("convolution") == 2 * (2 * 6 * 4 * 6) * (2 * 3 * 2)
    assert flops("attention") == 2 * (2 * 4) * 5 * 6 * (8 + 3)


def test_what_is_not_compiled_says_so() -> None:
    from onetrip.base.dtype import BY_NAME
    from onetrip.ir.types import TensorType

    for dtype in ("c64", "u32", "u16"):
        x = TensorType.dense(BY_NAME[dtype], (3,))
        for name in ("add", "sum", "view", "softmax", "to"):
            attrs = {"size": (3,), "dim": 0, "dtype": BY_NAME[dtype]}
            operands = (x, x) if name == "add" else (x,)
            with pytest.raises(Unsupported):
                OPS[name].types(operands, attrs)
