"""Siblings on one input: pointwise ones share a kernel, products are joined where that pays."""

from __future__ import annotations

from typing import Any

import pytest

from onetrip.base.dtype import bf16
from onetrip.ir.graph import Graph
from onetrip.passes.canonicalize import canonicalize
from onetrip.passes.expand import expand
from onetrip.passes.finders import find_alternatives
from onetrip.passes.lower import lower
from onetrip.passes.sibling_products import KIND
from onetrip.plan.choose import Problem, plan_problem
from onetrip.plan.plan import GraphPlan
from onetrip.target import load

from .graphs import Draft

COUNT = 24


def planned(graph: Graph, target: str = "h200") -> GraphPlan:
    expanded = canonicalize(expand(canonicalize(graph)))
    chip = load(target)
    found = find_alternatives(expanded, chip.device)
    return plan_problem(Problem(expanded, found, lower, chip))


@pytest.mark.parametrize("target", ["h200", "mi300x", "cpu"])
def test_pointwise_siblings_are_one_kernel(target: str) -> None:
    d = Draft()
    x = d.input("x", 64, 1024, dtype=bf16)
    results = [d(f"y{k}", "mul", d(f"s{k}", "silu", x), 1.0 + k) for k in range(COUNT)]
    plan = planned(d.graph(*results), target)
    assert plan.kernels == 1
    (group,) = plan.groups
    assert dict(group.reads) == {"x": 64 * 1024 * 2}
    assert len(group.stored) == COUNT


def products(rows: int, inner: int, columns: int, count: int = COUNT) -> Graph:
    d = Draft()
    x = d.input("x", rows, inner, dtype=bf16)
    weights = [d.input(f"w{k}", inner, columns, dtype=bf16) for k in range(count)]
    made = [d(f"p{k}", "mm", x, w) for k, w in enumerate(weights)]
    total: Any = made[0]
    for k, p in enumerate(made[1:]):
        total = d(f"t{k}", "add", total, p)
    return d.graph(total)


def test_small_products_are_joined() -> None:
    plan = planned(products(64, 256, 16))
    (choice,) = [a for a in plan.alternatives if a.kind == KIND]
    assert choice.taken
    assert plan.kernels == 3  # the weights, the product, the sum


def test_products_with_large_weights_stay_apart() -> None:
    plan = planned(products(8, 4096, 4096, 3))
    (choice,) = [a for a in plan.alternatives if a.kind == KIND]
    assert not choice.taken and choice.code == "cost"
    assert plan.kernels == 4
