"""Regions too large to be searched whole: groups that follow one another become one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from onetrip.plan import exact, search
from onetrip.plan.evaluate import Evaluator
from onetrip.plan.peak import eager_peak
from onetrip.plan.plan import GraphPlan
from onetrip.plan.search import SLACK_BYTES, Search, plan_graph
from onetrip.target import load

from .graphs import arrays, lowered, run_nodes, run_plan
from .test_exact import random_graph
from .test_windows import recurrence

H200 = load("h200")
GREEDY: tuple[Search, ...] = ("greedy-bytes", "greedy-time")


@pytest.fixture(scope="module")
def steps_24() -> GraphPlan:
    """The longest loop, nearly, that is one kernel."""
    return plan_graph(*lowered(recurrence(24)), H200)


@pytest.mark.parametrize("steps", [32, pytest.param(48, marks=pytest.mark.slow)])
def test_a_loop_that_is_too_long_for_one_kernel_is_few(steps: int, steps_24: GraphPlan) -> None:
    """Each kernel holds 16 steps at least, and none costs more than that of 24."""
    plan = plan_graph(*lowered(recurrence(steps)), H200)
    assert plan.kernels <= steps // 16
    assert plan.estimated_us <= plan.kernels * steps_24.estimated_us
    assert plan.estimated_us / steps <= 1.5 * steps_24.estimated_us / 24


@pytest.fixture
def nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No columns are listed: groups are greedy ones and runs of them."""
    for limit in ("MOST_DIRECT", "MOST_UNITS", "MOST_POOLED"):
        monkeypatch.setattr(exact, limit, 0)


@pytest.mark.parametrize("seed", range(12))
def test_runs_are_right_need_no_more_memory_and_are_no_worse(
    seed: int, nothing_whole: None
) -> None:
    primitive, nests = lowered(random_graph(random.Random(seed), 24))
    plan = plan_graph(primitive, nests, H200)
    others = [plan_graph(primitive, nests, H200, search=s) for s in GREEDY]
    assert all(plan.estimated_us <= p.estimated_us * (1 + 1e-9) for p in others)
    index = search.indexed(primitive, nests).index
    limit = eager_peak(index, Evaluator(index, H200, {}).value_bytes) + SLACK_BYTES
    assert plan.totals.peak_bytes <= limit


@pytest.mark.parametrize("steps", [5, 9])
def test_runs_leave_what_the_nodes_leave(steps: int, nothing_whole: None) -> None:
    """The decay is computed again in each kernel, and each reads its part of the inputs."""
    primitive, nests = lowered(recurrence(steps))
    plan, given = plan_graph(primitive, nests, H200), arrays(primitive)
    assert plan.kernels == 1
    known, made = run_nodes(primitive, nests, given), run_plan(plan, given)
    for name in primitive.needed:
        np.testing.assert_array_equal(made[name], known[name])
