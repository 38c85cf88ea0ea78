"""The share of eager's traffic that is generated: which calls count, and with which bytes."""

from __future__ import annotations

import pytest

from onetrip.ir.graph import Graph
from onetrip.plan.plan import Totals
from onetrip.plan.search import Search, plan_graph
from onetrip.target import load

from .graphs import Draft, lowered


def planned(graph: Graph, search: Search = "best") -> Totals:
    primitive, nests = lowered(graph)
    return plan_graph(primitive, nests, load("h200"), search=search).totals


@pytest.mark.parametrize("search", ["eager", "max", "best"])
def test_a_call_counts_with_what_enters_and_leaves_it_whatever_is_fused(search: Search) -> None:
    d = Draft()
    x, w = d.input("x", 64, 32), d.input("w", 32, 32)
    y = d("y", "relu", d("m", "mm", d("t", "exp", x), w))
    totals = planned(d.graph(y), search)
    assert totals.eligible_bytes == totals.generated_bytes == 4 * 64 * 32 * 4


def test_a_library_call_that_is_no_product_counts_against_the_share() -> None:
    d = Draft()
    x = d.input("x", 8, 8)
    y = d("y", "relu", d.extern("e", "aten.sort.default", d("t", "exp", x)))
    totals = planned(d.graph(y))
    assert (totals.eligible_bytes, totals.generated_bytes) == (6 * 256, 4 * 256)
    assert totals.generated_share == 4 / 6


def test_a_value_read_twice_by_a_call_counts_once() -> None:
    d = Draft()
    x = d.input("x", 8, 8)
    assert planned(d.graph(d("y", "mul", x, x))).eligible_bytes == 2 * 256
