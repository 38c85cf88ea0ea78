"""What planning costs as a graph gets deeper: equal layers are lowered, fused, priced and decided
once."""

from __future__ import annotations

from typing import Any

import pytest

from onetrip.base.dtype import bf16
from onetrip.ir.graph import Graph, Node, Value
from onetrip.ir.nest import Nest
from onetrip.passes import lower
from onetrip.passes.canonicalize import canonicalize
from onetrip.passes.expand import expand
from onetrip.passes.fuse import fuse
from onetrip.passes.lower import lower_node
from onetrip.plan import evaluate, search
from onetrip.plan.plan import GraphPlan
from onetrip.plan.search import plan_graph
from onetrip.target import load

from .graphs import Draft, lowered

ROWS, WIDTH = 512, 256
H200 = load("h200")


def decoder(count: int) -> Graph:
    """Layers of a normalized, turned product and a gated one; what turns is shared by all."""
    d = Draft()
    x = d.input("x", ROWS, WIDTH, dtype=bf16)
    angle = d.input("angle", ROWS, WIDTH)
    cos, sin = d("cos", "cos", angle), d("sin", "sin", angle)
    weights = [d.input(f"w{k}", WIDTH, WIDTH, dtype=bf16) for k in range(4)]
    for k in range(count):
        q = d(f"q{k}", "mm", _normal(d, f"a{k}", x), weights[0])
        low = d(f"low{k}", "slice", q, dim=1, start=0, end=WIDTH // 2, step=1)
        high = d(f"high{k}", "slice", q, dim=1, start=WIDTH // 2, end=WIDTH, step=1)
        half = d(f"half{k}", "cat", d(f"minus{k}", "neg", high), low, dim=1)
        turned = d(f"turned{k}", "add", d(f"c{k}", "mul", q, cos), d(f"s{k}", "mul", half, sin))
        x = d(f"b{k}", "add", x, d(f"o{k}", "mm", d(f"t{k}", "to", turned, dtype=bf16), weights[1]))
        h = _normal(d, f"m{k}", x)
        gate, up = d(f"g{k}", "mm", h, weights[2]), d(f"u{k}", "mm", h, weights[3])
        x = d(f"y{k}", "add", x, d(f"p{k}", "mul", d(f"silu{k}", "silu", gate), up))
    return d.graph(x)


def _normal(d: Draft, name: str, x: Value) -> Value:
    wide = d(f"{name}_wide", "to", x, dtype=bf16)
    square = d(f"{name}_square", "mul", wide, wide)
    mean = d(f"{name}_mean", "mean", square, dim=(1,), keepdim=True)
    return d(f"{name}_out", "mul", wide, d(f"{name}_root", "rsqrt", mean))


def planned(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[GraphPlan, int]:
    """The plan of so many layers, and how often nests were fused for it."""
    calls = 0

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        return fuse(*given, **more)

    for module in (evaluate, search):
        monkeypatch.setattr(module, "fuse", counted)
    return plan_graph(*lowered(decoder(count)), H200), calls


def test_a_deep_graph_fuses_no_more_than_one_of_two_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for its groups nor for its boundaries, aliases and recorded reasons."""
    shallow, few = planned(2, monkeypatch)
    deep, many = planned(96, monkeypatch)
    assert deep.kernels > 40 * shallow.kernels
    assert many == few


def lowered_for(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many nodes are lowered for the plan of so many layers."""
    made: list[str] = []

    def counted(node: Node, gpu: bool = False) -> Nest:
        made.append(node.name)
        return lower_node(node, gpu)

    monkeypatch.setattr(lower, "lower_node", counted)
    graph = canonicalize(expand(canonicalize(decoder(count))))
    plan_graph(graph, lower.Lowering(gpu=True)(graph), H200)
    assert len(made) == len(set(made))
    return len(made)


def test_a_deep_graph_lowers_no_more_nodes_than_one_of_three_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first layer, one between others and the last have neighbours of their own."""
    assert lowered_for(96, monkeypatch) == lowered_for(3, monkeypatch)


def test_nests_of_equal_layers_are_those_that_fusing_each_gives() -> None:
    graph, nests = lowered(decoder(12))
    plan = plan_graph(graph, nests, H200)
    made = [g for g in plan.groups if g.nest is not None]
    assert len(made) > 24
    for group in made:
        again = fuse(group.nodes, nests, frozenset(group.stored), bounded=len(group.nodes) > 1)
        assert isinstance(again, Nest)
        assert group.nest == again
