"""Live ranges share no byte, whatever the order and the sizes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onetrip.base.sym import Size
from onetrip.cost.sizes import number
from onetrip.plan.memory import ALIGNMENT, MemoryPlan, Placed, Range, peak, plan_memory

N, M = Size("n", 1), Size("m", 1)


@st.composite
def ranges(draw: st.DrawFn, symbolic: bool = False) -> list[Range]:
    found: list[Range] = []
    for k in range(draw(st.integers(0, 14))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 6))
        size: object = draw(st.integers(0, 5000))
        if symbolic:
            size = draw(st.sampled_from([N * 4, N * 8, M * 4, N * M, N * 4 + M, 100, 0]))
        where = draw(st.sampled_from(["arena", "arena", "arena", "output", "library"]))
        found.append(Range(f"v{k}", size, first, last, where))  # type: ignore[arg-type]
    return sorted(found, key=lambda r: r.first)


def overlaps(plan: MemoryPlan, sizes: dict[Size, int]) -> list[tuple[str, str]]:
    """Pairs of buffers that are alive together and share a byte; reuse in place is no overlap."""

    def span(p: Placed) -> tuple[int, int]:
        start = number(p.offset, sizes)  # type: ignore[arg-type]
        return start, start + number(p.range.bytes, sizes)

    placed = [p for p in plan.buffers if p.offset is not None]
    return [
        (a.range.name, b.range.name)
        for a, b in combinations(placed, 2)
        if a.range.first <= b.range.last
        and b.range.first <= a.range.last
        and max(span(a)[0], span(b)[0]) < min(span(a)[1], span(b)[1])
        and b.range.reuses != a.range.name
    ]


@given(ranges())
def test_overlapping_live_ranges_share_no_byte(found: list[Range]) -> None:
    plan = plan_memory(found)
    assert overlaps(plan, {}) == []
    for p in plan.buffers:
        assert (p.offset is None) == (p.range.where != "arena")
        if isinstance(p.offset, int):
            assert p.offset % ALIGNMENT == 0
            assert p.offset + number(p.range.bytes) <= number(plan.arena_bytes)


@given(ranges(symbolic=True), st.integers(1, 300), st.integers(1, 300))
def test_a_plan_of_symbolic_sizes_holds_for_every_size(found: list[Range], n: int, m: int) -> None:
    plan = plan_memory(found, {N: 16, M: 16})
    sizes = {N: n, M: m}
    assert overlaps(plan, sizes) == []
    for p in plan.buffers:
        if p.offset is not None:
            end = number(p.offset, sizes) + number(p.range.bytes, sizes)
            assert end <= number(plan.arena_bytes, sizes)


def test_overlap_is_found_where_there_is_one() -> None:
    a, b = Range("a", 100, 0, 2), Range("b", 100, 1, 3)
    wrong = MemoryPlan((Placed(a, 0), Placed(b, 64)), 164, 200, 200, 200)
    assert overlaps(wrong, {}) == [("a", "b")]


@given(ranges())
def test_the_arena_is_no_larger_than_separate_buffers_and_no_smaller_than_the_peak(
    found: list[Range],
) -> None:
    arena = [r for r in found if r.where == "arena"]
    plan = plan_memory(arena)
    aligned = sum(-(-number(r.bytes) // ALIGNMENT) * ALIGNMENT for r in arena)
    assert peak(arena) <= number(plan.arena_bytes) <= aligned


def test_a_chain_needs_two_buffers() -> None:
    chain = [Range(f"v{k}", 640, k, k + 1) for k in range(10)]
    plan = plan_memory(chain)
    assert plan.arena_bytes == 2 * 640
    assert (plan.peak_bytes, plan.total_bytes) == (2 * 640, 10 * 640)


def test_reuse_in_place_halves_a_chain() -> None:
    chain = [Range("v0", 640, 0, 1)]
    chain += [Range(f"v{k}", 640, k, k + 1, reuses=f"v{k - 1}") for k in range(1, 10)]
    plan = plan_memory(chain)
    assert plan.arena_bytes == 640
    assert {p.offset for p in plan.buffers} == {0}
    assert plan.peak_bytes == 640 and plan.unplanned_peak_bytes == 2 * 640


def test_a_symbolic_chain_shares_its_slots() -> None:
    plan = plan_memory([Range(f"v{k}", N * 4, k, k + 1) for k in range(10)], {N: 100})
    assert number(plan.arena_bytes, {N: 1000}) == 2 * 4032


def test_sizes_that_cannot_be_compared_share_nothing() -> None:
    plan = plan_memory([Range("a", N * 4, 0, 0), Range("b", M * 4, 1, 1)])
    offsets = {p.offset for p in plan.buffers}
    assert len(offsets) == 2


@pytest.mark.parametrize("where", ["output", "library"])
def test_memory_of_its_own_counts_in_the_peak_and_not_in_the_arena(where: str) -> None:
    plan = plan_memory([Range("a", 640, 0, 1), Range("b", 64, 0, 2, where)])  # type: ignore[arg-type]
    assert plan.arena_bytes == 640
    assert plan.peak_bytes == 704
    assert plan.offset("b") is None


def test_what_lies_in_an_input_takes_no_memory() -> None:
    ranges = [Range("a", 256, 0, 1), Range("b", 512, 1, 2, "input", "x")]
    plan = plan_memory(ranges)
    assert plan.offset("b") is None and plan.inside("b") == "x"
    assert plan.offset("a") == 0 and plan.inside("a") is None
    assert plan.arena_bytes == plan.peak_bytes == plan.unplanned_peak_bytes == 256
