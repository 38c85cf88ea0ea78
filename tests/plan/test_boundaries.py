"""The three boundaries of the field on one block: pressure, a compute-bound anchor, recompute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onetrip.cost.occupancy import Assembled
from onetrip.ir.expr import Apply
from onetrip.ir.graph import Graph
from onetrip.ir.nest import Nest
from onetrip.plan.decision import Evidence
from onetrip.plan.plan import Boundary, GraphPlan
from onetrip.plan.reasons import TIME
from onetrip.plan.search import Search, plan_graph
from onetrip.target import Target, load

from .graphs import Draft, lowered

H200 = load("h200")
FEW = replace(H200, name="few-registers", registers_per_thread=48)
EPILOGUE = {"bias", "gelu", "add"}
ROWS, WIDTH, INNER = 4096, 16384, 1024


def assembler(nest: Nest, target: Target) -> Assembled:
    """Stands for the assembler, with figures made up: gelu and norm together spill."""
    erf = any(isinstance(e, Apply) and e.op == "erf" for e in nest.expressions)
    if nest.reductions:
        return Assembled(48, 416 if erf else 0, 64)
    return Assembled(39, 0, 0)


def block() -> Graph:
    """layer_norm(gelu(x @ w + b) + r) in f32: 32 elements of each row lie in a thread."""
    d = Draft()
    x, w = d.input("x", ROWS, INNER), d.input("w", INNER, WIDTH)
    b, g, c = (d.input(n, WIDTH) for n in "bgc")
    r = d.input("r", ROWS, WIDTH)
    m = d("bias", "add", d("matmul", "mm", x, w), b)
    s = d("add", "add", d("gelu", "gelu", m, approximate="none"), r)
    y = d("norm", "layer_norm", s, g, c, normalized_shape=(WIDTH,), eps=1e-5,
          has_weight=True, has_bias=True)  # fmt: skip
    return d.graph(y)


def planned(graph: Graph, target: Target = H200, search: Search = "best") -> GraphPlan:
    primitive, nests = lowered(graph, gpu=True)
    asked = assembler if target is FEW else None
    return plan_graph(primitive, nests, target, search=search, resources=asked)


def evidence(boundary: Boundary) -> dict[str, Evidence]:
    return {e.limit: e for e in boundary.evidence}


# ------------------------------------------------------------------ all cut, and best


def test_all_cut_is_a_kernel_for_each_call() -> None:
    plan = planned(block(), search="eager")
    assert plan.kernels >= 5
    assert {b.code for b in plan.boundaries} <= {"search-eager", "compute-bound-anchor"}


def test_best_puts_what_follows_a_product_into_one_kernel_and_says_why_not_into_the_product() -> (
    None
):
    plan = planned(block())
    assert [g.kind for g in plan.groups] == ["contraction", "reduction"]
    assert set(plan.groups[1].nodes) >= EPILOGUE
    assert plan.groups[1].spill_bytes == 0
    assert plan.estimated_us < planned(block(), search="eager").estimated_us
    (anchor,) = plan.boundaries
    assert (anchor.code, anchor.cls) == ("compute-bound-anchor", "extern")


def test_an_anchor_says_its_intensity_and_the_ridge() -> None:
    (anchor,) = planned(block()).boundaries
    (found,) = [e for e in anchor.evidence if e.unit == "FLOP/byte"]
    moved = 4 * (ROWS * INNER + INNER * WIDTH + ROWS * WIDTH)
    assert found.value == pytest.approx(2 * ROWS * INNER * WIDTH / moved)
    assert found.bound == pytest.approx(H200.reached_flops("matrix", "f32") / H200.copy_bandwidth)
    assert found.value > found.bound, "the product is bound by its arithmetic"
    assert f"{found.value:.3g}" in anchor.reason and f"{found.bound:.3g}" in anchor.reason


# ------------------------------------------------------------------ pressure


def test_on_few_registers_max_spills_and_moves_more_than_best() -> None:
    most, best = planned(block(), FEW, "max"), planned(block(), FEW)
    (fused,) = [g for g in most.groups if g.generated]
    assert (fused.spill_bytes, fused.registers, fused.source) == (416, 48, "assembled")
    assert fused.cost.spill_bytes == 2 * 416 * ROWS * 512
    assert best.kernels == most.kernels + 1
    assert best.estimated_us < most.estimated_us
    stored = 2 * 4 * ROWS * WIDTH
    spilled = fused.cost.spill_bytes
    assert most.traffic_bytes - best.traffic_bytes == pytest.approx(spilled - stored, rel=0.01)
    assert not any(g.spill_bytes for g in best.groups)


def test_the_cut_says_how_much_would_spill_and_what_it_would_cost() -> None:
    best = planned(block(), FEW)
    (pressed,) = [b for b in best.boundaries if b.code == "pressure-registers"]
    assert pressed.cls == "unprofitable"
    figures, fused = evidence(pressed), pressed.if_fused
    assert fused is not None
    assert (fused.kernels, fused.registers, fused.spill_bytes) == (1, 48, 416)
    wanted = figures["registers of a thread"]
    assert (wanted.value, wanted.bound) == (48 + 416 // 4, 48)
    assert f"{48 + 416 // 4} registers" in pressed.reason
    assert figures["spilled bytes of a thread"].value == 416
    time, spilled = figures[TIME], figures["traffic of spilled registers"].value
    assert time.bound is not None and time.value == fused.us > time.bound
    saved = 1e6 * spilled / FEW.spill_bandwidth
    assert fused.us - saved < time.bound, "without the spills one kernel would be faster"


def test_with_the_chips_own_registers_nothing_is_cut_for_pressure() -> None:
    assert "pressure-registers" not in {b.code for b in planned(block()).boundaries}
    assert planned(block()).kernels < planned(block(), FEW).kernels


# ------------------------------------------------------------------ recompute


def two_directions(op: str, length: int) -> Graph:
    """A chain that sums of rows and maxima of columns read: no kernel holds such a row for both."""
    d = Draft()
    t = d.input("x", 4096, 32768)
    for k in range(length):
        t = d(f"t{k}", op, t)
    rows = d("rows", "sum", t, dim=(1,), keepdim=False)
    return d.graph(rows, d("cols", "amax", t, dim=(0,), keepdim=False))


def test_a_recomputed_value_says_both_times() -> None:
    plan = planned(two_directions("neg", 1))
    kept = [b for b in plan.boundaries if b.verdict == "recomputed"]
    assert len(kept) == 2 and {b.code for b in kept} == {"recompute"}
    for b in kept:
        (found,) = b.evidence
        assert found.bound is not None and 0 < found.value < found.bound
        assert found.unit == "us" and f"{found.bound:.3g}" in b.reason
        assert b.bytes == 4 * 4096 * 32768
