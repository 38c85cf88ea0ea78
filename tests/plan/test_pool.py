"""Merges keep the order of groups acyclic: closures against a search through the groups."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onetrip.plan.index import Index, index_graph
from onetrip.plan.pool import Part, Pool

from .graphs import Draft, lowered


@st.composite
def dags(draw: st.DrawFn) -> Index:
    d = Draft()
    values = [d.input("x", 4)]
    for k in range(draw(st.integers(2, 12))):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        values.append(d(f"v{k}", "add", a, b))
    primitive, nests = lowered(d.graph(*values[1:]))
    return index_graph(primitive, nests)


def depends(pool: Pool, part: Part, on: Part) -> bool:
    """Whether a group depends on another through groups, by walking from one to the next."""
    waiting, seen = [part], {part.key}
    while waiting:
        for source in pool.sources_of(waiting.pop()):
            if source.key == on.key:
                return True
            if source.key not in seen:
                seen.add(source.key)
                waiting.append(source)
    return False


def makes_circle(pool: Pool, a: Part, b: Part) -> bool:
    """Whether a path leads from one to the other through a third group."""
    for first, last in ((a, b), (b, a)):
        middle = [p for p in pool.sources_of(last) if p.key not in (a.key, b.key)]
        if any(depends(pool, p, first) for p in middle):
            return True
    return False


def check_all_pairs(pool: Pool) -> None:
    for a, b in combinations(pool.parts.values(), 2):
        assert (pool.between((a, b)) != 0) == makes_circle(pool, a, b)


@settings(max_examples=60, deadline=None)
@given(dags(), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12))
def test_a_merge_is_refused_exactly_when_it_makes_a_circle(
    index: Index, picks: list[tuple[int, int]]
) -> None:
    pool = Pool(index)
    for i, j in picks:
        parts = list(pool.parts.values())
        a, b = parts[i % len(parts)], parts[j % len(parts)]
        if a.key == b.key:
            continue
        if not pool.between((a, b)):
            pool.merge((a, b))
        check_all_pairs(pool)


@settings(max_examples=60, deadline=None)
@given(dags(), st.data())
def test_recomputing_a_group_leaves_no_order_behind(index: Index, data: st.DataObject) -> None:
    pool = Pool(index)
    candidates = [p for p in pool.parts.values() if len(pool.readers_of(p)) >= 2]
    if not candidates:
        return
    part = data.draw(st.sampled_from(candidates))
    pool.dissolve(part, pool.readers_of(part))
    check_all_pairs(pool)
    for _ in range(3):
        parts = list(pool.parts.values())
        a, b = (data.draw(st.sampled_from(parts)) for _ in range(2))
        if a.key != b.key and not pool.between((a, b)):
            pool.merge((a, b))
            check_all_pairs(pool)


@pytest.mark.parametrize("first", [("a", "b"), ("p", "q")])
def test_order_passes_through_groups_whose_atoms_have_none(first: tuple[str, str]) -> None:
    """c -> b, a -> p, q -> z: after {a, b} and {p, q} the path c -> ab -> pq -> z exists."""
    d = Draft()
    pairs = [(d(n, "exp", d.input(f"x{n}", 4)), m) for n, m in (("c", "b"), ("a", "p"), ("q", "z"))]
    ends = [d(m, "relu", v) for v, m in pairs]
    primitive, nests = lowered(d.graph(*ends, *(v for v, _ in pairs)))
    index = index_graph(primitive, nests)
    pool = Pool(index)

    def part(name: str) -> Part:
        return pool.parts[pool.owner[index.by_name[name].number]]

    assert not pool.between((part("c"), part("z")))
    for pair in (first, ("a", "b") if first == ("p", "q") else ("p", "q")):
        pool.merge(tuple(map(part, pair)))
    assert pool.between((part("c"), part("z")))
    check_all_pairs(pool)
