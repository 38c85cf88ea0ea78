"""Graphs by hand, through the operators' own type rules, lowered as the compiler does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onetrip.base.dtype import DType, bf16, f32, i64
from onetrip.base.sym import Dim
from onetrip.interp.arrays import carrier
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.graph import Graph, Node, Origin, Ref, Scalar, Value, freeze
from onetrip.ir.nest import Nest
from onetrip.ir.types import TensorType
from onetrip.ops.element import argument
from onetrip.ops.table import OPS
from onetrip.passes.canonicalize import canonicalize
from onetrip.passes.expand import expand
from onetrip.passes.lower import lower
from onetrip.plan.plan import GraphPlan


class Draft:
    """Collects the nodes of a graph, each a call of its own."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []

    def input(self, name: str, *shape: Dim, dtype: DType = f32) -> Value:
        self.inputs.append(Value(name, TensorType.dense(dtype, shape)))
        return self.inputs[-1]

    def __call__(self, name: str, op: str, *operands: Any, **attrs: Any) -> Value:
        """The first output of `op`; the others are `<name>_1`, ..."""
        inputs = tuple(x if isinstance(x, Value) else Scalar(x) for x in operands)
        types = OPS[op].types(tuple(map(argument, inputs)), attrs)
        outputs = tuple(Value(f"{name}_{k}" if k else name, t) for k, t in enumerate(types))
        if op in ("mm", "linear"):
            attrs |= _template(f"aten.{op}.default", inputs)
        origin = Origin("", "", f"aten.{op}.default")
        self.nodes.append(Node(op, inputs, outputs, freeze(attrs), origin, len(self.nodes)))
        return outputs[0]

    def extern(self, name: str, target: str, *operands: Value) -> Value:
        out = Value(name, operands[0].type)
        attrs = {**_template(target, operands), "reason": "a test's own call"}
        self.nodes.append(
            Node("extern", operands, (out,), freeze(attrs), Origin(), len(self.nodes))
        )
        return out

    def graph(self, *outputs: Value, mutations: tuple[tuple[Value, Value], ...] = ()) -> Graph:
        return Graph(tuple(self.inputs), tuple(self.nodes), outputs, mutations)


def _template(target: str, operands: tuple[Any, ...]) -> dict[str, Any]:
    return {"target": target, "args": tuple(Ref(k) for k in range(len(operands))), "kwargs": ()}


def lowered(graph: Graph, gpu: bool = False) -> tuple[Graph, dict[str, Nest]]:
    """The graph without composites and the nests of its nodes, as on a CPU or a GPU."""
    primitive = canonicalize(expand(canonicalize(graph)))
    return primitive, lower(primitive, gpu)


def bias_dropout_norm(rows: int, width: int, dtype: DType = bf16) -> Graph:
    """layer_norm(dropout(x + b))."""
    d = Draft()
    x = d.input("x", rows, width, dtype=dtype)
    b, w, c = (d.input(n, width, dtype=dtype) for n in ("b", "w", "c"))
    seed = d.input("seed", dtype=i64)
    t = d("t", "add", x, b)
    u = d("u", "dropout", t, seed, p=0.1)
    y = d("y", "layer_norm", u, w, c, normalized_shape=(width,), eps=1e-5,
          has_weight=True, has_bias=True)  # fmt: skip
    return d.graph(y)


def layers(count: int, rows: int = 4096, width: int = 1024) -> Graph:
    """Blocks of product, bias, activation, residual and normalization: 24 nodes or so each."""
    d = Draft()
    x = d.input("x", rows, width, dtype=bf16)
    w, b = d.input("w", width, width, dtype=bf16), d.input("b", width, dtype=bf16)
    for k in range(count):
        h = d(f"mm{k}", "mm", x, w)
        h = d(f"bias{k}", "add", h, b)
        h = d(f"gelu{k}", "gelu", h, approximate="tanh")
        h = d(f"scale{k}", "mul", h, 0.5)
        s = d(f"sum{k}", "add", h, x)
        x = d(f"norm{k}", "layer_norm", s, b, b, normalized_shape=(width,), eps=1e-5,
              has_weight=True, has_bias=True)  # fmt: skip
    return d.graph(x)


Arrays = dict[str, np.ndarray]


def arrays(graph: Graph, seed: int = 0) -> Arrays:
    """Random values of the graph's inputs."""
    rng = np.random.default_rng(seed)
    made: Arrays = {}
    for v in graph.inputs:
        shape = tuple(int(s) for s in v.type.shape)
        numbers = rng.standard_normal(shape) if v.type.dtype.is_float else np.full(shape, 7)
        made[v.name] = numbers.astype(carrier(v.type.dtype))
    return made


def run_nodes(graph: Graph, nests: Mapping[str, Nest], known: Arrays) -> Arrays:
    """Every value, node by node; `known` are the inputs."""
    values = dict(known)
    for node in graph.nodes:
        values.update(_run(nests[node.name], values))
    return values


def run_plan(plan: GraphPlan, known: Arrays) -> Arrays:
    """What the groups of a plan store, group by group, reading only what was stored before."""
    values = dict(known)
    for group in plan.groups:
        assert group.nest is not None
        values.update(_run(group.nest, values))
    return values


def _run(nest: Nest, values: Arrays) -> Arrays:
    return run_nest(nest, {n: values[n] for n in {e.buffer for e in nest.loads}})
