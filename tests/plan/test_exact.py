"""No plan is cheaper than `best`: not among all there are, nor what a heuristic finds."""

from __future__ import annotations

import random

import pytest

from onetrip.base.dtype import bf16, f32
from onetrip.ir.graph import Graph, Value
from onetrip.plan.evaluate import Evaluator
from onetrip.plan.index import index_graph
from onetrip.plan.search import plan_graph
from onetrip.target import load

from .brute import Brute
from .graphs import Draft, lowered

TARGETS = {name: load(name) for name in ("h200", "cpu:2")}
SHAPES = ((32, 64), (512, 512), (4096, 4096), (128, 8192))
ELEMENTWISE = ("relu", "neg", "exp", "erf")
BINARY = ("add", "mul", "maximum")


def random_graph(rng: random.Random, nodes: int) -> Graph:
    """Elementwise operators and reductions of rows and columns, with values read several times."""
    d = Draft()
    shape = rng.choice(SHAPES)
    kinds = [f32, f32, bf16]
    values = [d.input(f"x{k}", *shape, dtype=rng.choice(kinds)) for k in range(rng.randint(1, 3))]
    values += [d.input("row", 1, shape[1]), d.input("column", shape[0], 1)]
    while len(d.nodes) < nodes:
        name = f"v{len(d.nodes)}"
        pick = values if rng.random() < 0.4 else values[-4:]
        a, b = rng.choice(pick), rng.choice(values)
        values.append(_one(d, rng, name, a, b))
    used = {v.name for n in d.nodes for v in n.values}
    ends = [n.output for n in d.nodes if n.output.name not in used]
    more = rng.sample([n.output for n in d.nodes], 1) if rng.random() < 0.5 else []
    return d.graph(*dict.fromkeys([*ends, *more]))


def _one(d: Draft, rng: random.Random, name: str, a: Value, b: Value) -> Value:
    kind = rng.random()
    sizes = tuple(map(int, a.type.shape))
    if kind < 0.25 and 1 not in sizes:
        op = rng.choice(("sum", "amax"))
        return d(name, op, a, dim=(rng.choice((0, 1, 1)),), keepdim=True)
    if kind < 0.5:
        return d(name, rng.choice(BINARY), a, b)
    if kind < 0.55:
        return d(name, "to", a, dtype=f32 if a.type.dtype is bf16 else bf16)
    return d(name, rng.choice(ELEMENTWISE), a)


def check(seed: int) -> None:
    rng = random.Random(seed)
    target = TARGETS[rng.choice(("h200", "h200", "cpu:2"))]
    primitive, nests = lowered(random_graph(rng, rng.randint(8, 12)))
    index = index_graph(primitive, nests)
    plan = plan_graph(primitive, nests, target)
    cheapest = Brute(index, Evaluator(index, target, {})).cheapest()
    assert plan.estimated_us <= cheapest * (1 + 1e-6), f"seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_of_a_small_graph_is_cheaper(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_no_plan_of_five_hundred_small_graphs_is_cheaper(block: int) -> None:
    for seed in range(60 + 50 * block, 110 + 50 * block):
        check(seed)
