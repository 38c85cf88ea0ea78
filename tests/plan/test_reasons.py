"""The record of each boundary is complete, and each reason of the table can be met.

Reasons that need a captured program (`rng`, `dtype`, `mutation`) are met in
tests/api/test_reasons_of_calls.py, `peak-memory` in tests/plan/test_peak.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onetrip.base.dtype import bf16, i64
from onetrip.cost.occupancy import Assembled, Resources
from onetrip.ir.graph import Graph
from onetrip.ir.nest import Nest
from onetrip.plan.constraints import Constraints
from onetrip.plan.decision import REASONS, decide
from onetrip.plan.evaluate import Evaluator
from onetrip.plan.index import index_graph
from onetrip.plan.legality import MOST_MEMBERS, Legality
from onetrip.plan.plan import Boundary, GraphPlan
from onetrip.plan.pool import Pool
from onetrip.plan.reasons import as_drawn, reason
from onetrip.plan.search import plan_graph
from onetrip.target import Target, load

from .graphs import Draft, bias_dropout_norm, layers, lowered

H200 = load("h200")


def planned(graph: Graph, search: str = "best", **more: object) -> GraphPlan:
    primitive, nests = lowered(graph)
    return plan_graph(primitive, nests, H200, search=search, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------ a zoo of small graphs


def chain() -> Graph:
    d = Draft()
    return d.graph(d("y", "relu", d("t", "exp", d.input("x", 64, 64))))


def product() -> Graph:
    d = Draft()
    h = d("h", "mm", d.input("x", 64, 64), d.input("w", 64, 64))
    return d.graph(d("y", "relu", h))


def path_through_a_product() -> Graph:
    d = Draft()
    a = d("a", "exp", d.input("x", 64, 64))
    return d.graph(d("y", "add", a, d("h", "mm", a, d.input("w", 64, 64))))


def rows_and_total() -> Graph:
    d = Draft()
    x = d.input("x", 512, 256)
    total = d("total", "sum", x, dim=(0, 1), keepdim=True)
    return d.graph(d("rows", "amax", d("s", "mul", x, total), dim=(1,), keepdim=False))


def rows_and_columns() -> Graph:
    d = Draft()
    x = d.input("x", 512, 20000)
    row = d("row", "sum", x, dim=(1,), keepdim=True)
    return d.graph(d("col", "sum", d("s", "add", x, row), dim=(0,), keepdim=False))


def own_call() -> Graph:
    d = Draft()
    return d.graph(d("y", "relu", d.extern("e", "test.call", d.input("x", 64, 64))))


def sorted_rows() -> Graph:
    d = Draft()
    s = d("s", "sort", d("t", "exp", d.input("x", 64, 64)), axis=1, descending=False)
    return d.graph(d("y", "relu", s))


def scattered() -> Graph:
    d = Draft()
    index = d.input("i", 64, 64, dtype=i64)
    s = d("s", "scatter_add", d.input("x", 64, 64), index, d.input("u", 64, 64), axis=0)
    return d.graph(d("y", "relu", s))


def costly_and_read_twice() -> Graph:
    d = Draft()
    x = d.input("x", 1024, 1024, dtype=bf16)
    t = d("t", "exp", x)
    return d.graph(
        d("a", "sum", t, dim=(1,), keepdim=False), d("b", "sum", t, dim=(0,), keepdim=False)
    )


ZOO: dict[str, Callable[[], Graph]] = {
    f.__name__: f
    for f in (
        chain,
        product,
        path_through_a_product,
        rows_and_total,
        rows_and_columns,
        own_call,
        sorted_rows,
        scattered,
        costly_and_read_twice,
    )
} | {"layers": lambda: layers(2, 256, 128), "norm": lambda: bias_dropout_norm(64, 128)}


def check(boundary: Boundary) -> None:
    """What every record says."""
    decision = boundary.decision
    assert decision.sentence and decision.remedy, boundary
    assert "{" not in decision.sentence + decision.remedy, boundary
    row = REASONS[decision.code]
    assert decision.cls in (row.cls, row.milder)
    if decision.cls in ("over-limit", "unprofitable"):
        assert decision.evidence, boundary
        assert all(e.unit and e.bound is not None for e in decision.evidence), boundary
    if decision.cls == "unprofitable" and boundary.verdict == "stored":
        assert decision.if_fused is not None, boundary


@pytest.mark.parametrize("search", ["eager", "max", "best"])
@pytest.mark.parametrize("name", ZOO)
def test_every_record_is_complete(name: str, search: str) -> None:
    for boundary in planned(ZOO[name](), search).boundaries:
        check(boundary)


@pytest.mark.parametrize("search", ["eager", "best"])
def test_what_could_be_one_kernel_has_its_figures(search: str) -> None:
    cut = Constraints(cut=(("t", "y"),))
    (boundary,) = planned(chain(), search, constraints=cut).boundaries
    whole = planned(chain())
    fused = boundary.if_fused
    assert fused is not None and fused.registers
    assert (fused.kernels, fused.bytes) == (1, whole.traffic_bytes)


# ------------------------------------------------------------------ each code


def only(plan: GraphPlan) -> str:
    found = {b.code for b in plan.boundaries}
    assert len(found) == 1, found
    return found.pop()


def test_reasons_of_the_zoo() -> None:
    wanted = {
        "product": "compute-bound-anchor",
        "rows_and_total": "iteration-space",
        "rows_and_columns": "held-rows",
        "own_call": "extern",
        "sorted_rows": "opaque-call",
    }
    for name, code in wanted.items():
        assert code in {b.code for b in planned(ZOO[name]()).boundaries}, name
    assert "convexity" in {b.code for b in planned(path_through_a_product()).boundaries}


def test_a_scatter_is_alone() -> None:
    assert only(planned(scattered())) in ("scatter", "opaque-call")


def test_a_reduction_behind_a_guard() -> None:
    d = Draft()
    rows = d("r", "sum", d.input("x", 64, 64), dim=(1,), keepdim=True)
    padded = d("p", "cat", rows, d.input("z", 64, 1), axis=1)
    assert only(planned(d.graph(padded), "max")) == "guarded-reduction"


def test_wishes_are_reasons() -> None:
    cut = planned(chain(), constraints=Constraints(cut=(("t", "y"),)))
    pin = planned(chain(), constraints=Constraints(pin=(("t",),)))
    assert [only(p) for p in (cut, pin, planned(chain(), "eager"))] == [
        "user-cut",
        "user-pin",
        "search-eager",
    ]


def test_a_kernel_has_a_largest_size() -> None:
    d = Draft()
    x = d.input("x", 64)
    for k in range(MOST_MEMBERS + 8):
        x = d(f"t{k}", "exp", x)
    boundaries = planned(d.graph(x), "max").boundaries
    assert {b.code for b in boundaries} == {"size"}
    assert boundaries[0].evidence[0].value > boundaries[0].evidence[0].bound  # type: ignore[operator]


def needing(registers: int, spill: int, shared: int) -> Resources:
    """An assembler by which a kernel of two results needs this."""

    def answer(nest: Nest, target: Target) -> Assembled:
        return Assembled(registers, spill, shared) if len(nest.stores) > 1 else Assembled(32, 0, 0)

    return answer


@pytest.mark.parametrize(
    ("resources", "code"),
    [
        (needing(255, 4 * 100_000, 0), "pressure-registers"),
        (needing(32, 0, 10**9), "pressure-shared-memory"),
    ],
)
def test_a_chip_has_limits(resources: Resources, code: str) -> None:
    d = Draft()
    t = d("t", "exp", d.input("x", 4096, 4096))
    plan = planned(d.graph(t, d("y", "relu", t)), resources=resources)
    (boundary,) = plan.boundaries
    assert boundary.code == code and boundary.if_fused is not None
    check(boundary)


@pytest.mark.parametrize(("apart_us", "code"), [(1e6, "not-reached"), (0.0, "unprofitable")])
def test_a_merge_that_is_legal_has_its_price_as_the_reason(apart_us: float, code: str) -> None:
    primitive, nests = lowered(chain())
    index = index_graph(primitive, nests)
    evaluator, pool = Evaluator(index, H200, {}), Pool(index)
    legality = Legality(pool, evaluator, Constraints())
    found = reason(legality, "best", (pool.parts[0], pool.parts[1]), apart_us)
    (time,) = found.evidence
    assert (found.code, time.bound) == (code, apart_us)
    assert found.if_fused is not None and time.value == found.if_fused.us
    assert time.limit.startswith("time of one kernel")
    drawn = as_drawn(found)
    if code == "not-reached":
        assert (drawn.code, drawn.cls) == ("as-drawn", "by-user") and "plan" not in drawn.sentence
        assert (drawn.evidence, drawn.if_fused) == (found.evidence, found.if_fused)
    else:
        assert drawn == found


MET_ELSEWHERE = {"rng", "dtype", "mutation", "peak-memory", "recompute"}


def test_every_reason_can_be_written() -> None:
    """A row of the table whose words nobody fills in would fail at its first use."""
    words = dict.fromkeys(
        ("producer", "consumer", "detail", "node", "neighbour", "between", "value", "a", "b"), "w"
    )
    numbers = dict.fromkeys(("intensity", "ridge", "fused", "apart", "readers", "bound"), 1.0)
    for code in REASONS:
        made = decide(code, **words, **numbers)
        assert made.sentence and made.remedy
    assert set(REASONS) >= MET_ELSEWHERE
