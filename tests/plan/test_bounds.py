"""The bound that a column has before it is priced is never above its price."""

from __future__ import annotations

import random

import pytest

from onetrip.base.dtype import bf16
from onetrip.cost.sizes import NO_HINTS
from onetrip.ir.graph import Graph
from onetrip.plan import cover, exact, search
from onetrip.plan.constraints import NO_CONSTRAINTS
from onetrip.plan.enumerate import Column, enumerate_columns
from onetrip.plan.evaluate import Evaluator
from onetrip.plan.exact import Prices
from onetrip.plan.index import index_graph
from onetrip.plan.legality import Legality
from onetrip.plan.pool import Part, Pool
from onetrip.plan.regions import find_regions
from onetrip.plan.search import plan_graph
from onetrip.target import load

from .graphs import Draft, lowered
from .test_exact import BINARY, ELEMENTWISE, TARGETS, random_graph

ROWS, WIDTH = 256, 512


def priced_regions(graph: Graph, target: str) -> list[Prices]:
    """Every region of a graph."""
    primitive, nests = lowered(graph)
    index = index_graph(primitive, nests)
    evaluator = Evaluator(index, load(target), NO_HINTS)
    pool = Pool(index)
    legality = Legality(pool, evaluator, NO_CONSTRAINTS)

    def link(producer: Part, consumer: Part) -> bool:
        stored = pool.stored(consumer.atoms, (consumer,))
        return evaluator.has_nest(pool.union((producer, consumer)), stored)

    regions = find_regions(pool, link, evaluator.value_bytes)
    return [Prices(r, evaluator, legality) for r in regions]


def joined(parts: int) -> Graph:
    """Slices of one product, each made another value, some of them read twice."""
    d = Draft()
    width = parts * WIDTH
    x = d.input("x", ROWS, WIDTH, dtype=bf16)
    whole = d("whole", "mm", x, d.input("w", WIDTH, width, dtype=bf16))
    slices = [
        d(f"s{k}", "slice", whole, dim=1, start=k * WIDTH, end=(k + 1) * WIDTH, step=1)
        for k in range(parts)
    ]
    made = [d(f"r{k}", "relu", s) for k, s in enumerate(slices)]
    return d.graph(*made, d("again", "exp", slices[0]), d("all", "neg", whole))


def columns_of(prices: Prices) -> list[Column]:
    found = enumerate_columns(prices.region)
    assert found is not None
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(6))
def test_no_column_costs_less_than_its_bound(seed: int, target: str) -> None:
    rng = random.Random(500 + seed)
    for prices in priced_regions(random_graph(rng, 8), target):
        for column in rng.sample(found := columns_of(prices), min(40, len(found))):
            weight = prices.weight(column)
            assert weight is None or prices.at_least(column) <= weight * (1 + 1e-9)


def test_slices_of_one_value_count_side_by_side_and_once_each() -> None:
    (prices,) = priced_regions(joined(3), "h200")
    weights = {c: w for c in columns_of(prices) if (w := prices.weight(c)) is not None}
    assert all(prices.at_least(c) <= w * (1 + 1e-9) for c, w in weights.items())
    three = next(c for c in weights if c.units == c.stored == 0b111)
    one = next(c for c in weights if c.units == c.stored == 0b1)
    moved = 1e6 * 2 * 2 * ROWS * WIDTH / load("h200").copy_bandwidth  # a slice read, one written
    assert prices.at_least(three) - prices.at_least(one) == pytest.approx(2 * moved, rel=1e-3)


def windows(rng: random.Random) -> Graph:
    """Slices of a padded, scaled or turned value, combined: what a pooling is made of."""
    d = Draft()
    rows, width = rng.choice((8, 64)), 2 * rng.choice((8, 32))
    t = d.input("x", rows, width)
    if rng.random() < 0.5:
        t = d("scaled", rng.choice(BINARY), t, d.input("s", *rng.choice(((1, width), (rows, 1)))))
    if rng.random() < 0.5:
        t = d("padded", "pad", t, pad=(1, 1), value=0.0)
    t = d("base", rng.choice(ELEMENTWISE), t)
    wide = int(t.type.shape[1])
    step = rng.choice((1, 2))
    starts = rng.sample(range(step + 2), rng.randint(1, 3))
    cut = wide - step - 2
    parts = [d(f"s{k}", "slice", t, dim=1, start=k, end=k + cut, step=step) for k in sorted(starts)]
    total = parts[0]
    for k, part in enumerate(parts[1:]):
        total = d(f"t{k}", "maximum", total, part)
    ends = [d("end", "neg", total), *([t] if rng.random() < 0.2 else [])]
    return d.graph(*ends)


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_a_value_are_not_counted_twice(seed: int) -> None:
    for prices in priced_regions(windows(random.Random(700 + seed)), "h200"):
        for column in columns_of(prices):
            weight = prices.weight(column)
            assert weight is None or prices.at_least(column) <= weight * (1 + 1e-9)


def test_windows_as_large_together_as_the_whole_count_as_the_whole() -> None:
    """Three windows of every second element: what they are made from is read whole."""
    d = Draft()
    x = d.input("x", ROWS, WIDTH)
    padded = d("padded", "pad", d("r", "relu", x), pad=(0, 2), value=0.0)
    one, two, three = (
        d(f"n{k}", "neg", d(f"s{k}", "slice", padded, dim=1, start=k, end=k + WIDTH, step=2))
        for k in range(3)
    )
    most = d("most", "maximum", d("two", "maximum", one, two), three)
    (prices,) = priced_regions(d.graph(most), "h200")
    moved = 4 * ROWS * (WIDTH + WIDTH // 2)
    assert prices.moved_us(prices.whole) == pytest.approx(1e6 * moved / load("h200").copy_bandwidth)


def test_one_group_is_proved_by_the_launch_that_a_second_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A region that is too large to be listed, and whose price is above that of its bytes."""
    monkeypatch.setattr(exact, "MOST_DIRECT", 0)
    d = Draft()
    t = d.input("x", 64, 64)
    for k in range(12):
        t = d(f"t{k}", "erf", t)
    primitive, nests = lowered(d.graph(t))
    plan = plan_graph(primitive, nests, load("h200"))
    (prices,) = priced_regions(primitive, "h200")
    assert plan.kernels == 1
    assert prices.floor() < 0.99 * plan.estimated_us
    assert plan.totals.bound_kind == "exact"
    assert plan.bound_us == plan.estimated_us


def test_results_with_a_library_call_between_them_are_groups_of_their_own() -> None:
    d = Draft()
    t = w = d.input("w", ROWS, ROWS)
    table = d("table", "add", d.input("row", 1, ROWS), d.input("column", ROWS, 1))
    for k in range(4):
        t = d(f"m{k}", "mm", d(f"r{k}", "add", t, table), w)
    (prices,) = priced_regions(d.graph(t), "h200")
    target = load("h200")
    more = prices.floor() - prices.at_least(prices.whole)
    assert more == pytest.approx(3 * (target.replay_us + target.latency_us))


def test_what_shares_launches_is_bound_by_its_bytes_at_full_bandwidth() -> None:
    """Four small kernels that are one launch: no plan of them moves fewer bytes."""
    d = Draft()
    outs = []
    for k in range(4):
        x = d.input(f"x{k}", 64, 64 * (k + 1))
        outs.append(d(f"o{k}", "exp", x))
    primitive, nests = lowered(d.graph(*outs))
    plan = plan_graph(primitive, nests, load("h200"))
    assert plan.together and plan.totals.bound_kind == "floor"
    moved = 1e6 * plan.traffic_bytes / load("h200").copy_bandwidth
    assert moved * (1 - 1e-9) <= plan.bound_us <= plan.estimated_us


def row_and_column() -> Graph:
    """A reduction over rows and one over columns of one input: one kernel on a core."""
    d = Draft()
    x = d.input("x", 512, 256)
    row = d("row", "sum", x, dim=(1,), keepdim=False)
    return d.graph(row, d("column", "amax", x, dim=(0,), keepdim=False))


def test_kernels_that_were_not_tried_leave_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that is searched in parts could be cheaper as a whole: its parts prove nothing."""
    primitive, nests = lowered(row_and_column())
    whole = plan_graph(primitive, nests, TARGETS["cpu:2"])
    assert (whole.kernels, whole.totals.bound_kind) == (1, "exact")
    monkeypatch.setattr(search, "MOST_DIRECT", 0)
    monkeypatch.setattr(search, "MOST_JOINED", 0)
    parts = plan_graph(primitive, nests, TARGETS["cpu:2"])
    assert (parts.kernels, parts.totals.bound_kind) == (2, "floor")
    assert parts.bound_us <= whole.estimated_us < parts.estimated_us


def test_what_is_joined_depends_on_the_columns_of_a_region_and_not_on_the_graph() -> None:
    d = Draft()
    outs = []
    for k in range(40):
        x = d.input(f"x{k}", 512, 256)
        outs += [d(f"row{k}", "sum", x, dim=(1,), keepdim=False),
                 d(f"column{k}", "amax", x, dim=(0,), keepdim=False)]  # fmt: skip
    plan = plan_graph(*lowered(d.graph(*outs)), TARGETS["cpu:2"])
    assert (plan.kernels, plan.totals.bound_kind) == (40, "exact")


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each solution of a program: its columns, and whether none may be halved."""
    found: list[tuple[int, bool]] = []
    solve = cover._Solver.solve

    def counted(solver: cover._Solver) -> cover._Answer | None:
        found.append((solver._count, solver._whole))
        return solve(solver)

    monkeypatch.setattr(cover._Solver, "solve", counted)
    return found


def test_a_program_is_solved_as_often_as_its_columns_allow(
    monkeypatch: pytest.MonkeyPatch, solved: list[tuple[int, bool]]
) -> None:
    """Work is counted and not timed; what was proved until then still holds."""
    primitive, nests = lowered(random_graph(random.Random(1001), 10))
    whole = plan_graph(primitive, nests, TARGETS["h200"])
    columns = [count for count, _ in solved]
    enough, most = sum(columns), max(columns)
    assert enough > 2 * most, "one solution is enough: take another graph"
    solved.clear()
    monkeypatch.setattr(cover, "MOST_WORK", most)
    few = plan_graph(primitive, nests, TARGETS["h200"])
    assert sum(count for count, _ in solved) < enough
    assert few.bound_us <= whole.estimated_us * (1 + 1e-6) <= few.estimated_us * (1 + 2e-6)


def test_solutions_without_halves_are_as_many_as_their_columns_allow(
    monkeypatch: pytest.MonkeyPatch, solved: list[tuple[int, bool]]
) -> None:
    """Each is a search of its own: beyond the limit what was known is improved locally."""
    primitive, nests = lowered(random_graph(random.Random(1029), 12))
    best = plan_graph(primitive, nests, TARGETS["h200"])
    for ahead in ("_prices_ahead", "_links_ahead"):  # so that whole solutions find what is missing
        monkeypatch.setattr(cover, ahead, lambda *_: False)
    improved: list[bool] = []
    improve = exact._improved
    monkeypatch.setattr(exact, "_improved", lambda *a: improved.append(True) or improve(*a))
    solved.clear()
    plan_graph(primitive, nests, TARGETS["h200"])
    enough = sum(whole for _, whole in solved)
    assert enough > 2, "whole solutions learn nothing: take another graph"
    assert not improved
    solved.clear()
    monkeypatch.setattr(cover, "MOST_WHOLE", 0)
    few = plan_graph(primitive, nests, TARGETS["h200"])
    assert 0 < sum(whole for _, whole in solved) < enough
    assert improved
    assert few.bound_us <= best.estimated_us * (1 + 1e-6) <= few.estimated_us * (1 + 2e-6)
