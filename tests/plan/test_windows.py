"""The steps of an unrolled loop: groups that read the same parts farther on are priced as one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from onetrip.ir.graph import Graph, Value
from onetrip.ir.nest import Nest
from onetrip.passes.close import Unfusable
from onetrip.plan.evaluate import Evaluator, Priced
from onetrip.plan.index import Index, index_graph
from onetrip.plan.search import plan_graph
from onetrip.plan.structure import Structures
from onetrip.target import load

from .graphs import Draft, lowered

H200 = load("h200")
BATCH, WIDTH = 4, 32


def recurrence(steps: int) -> Graph:
    """A state that each step scales and adds its own slice of the inputs to."""
    d = Draft()
    flat = d.input("k", BATCH * steps, WIDTH)
    k = d("rows", "view", flat, shape=(BATCH, steps, WIDTH))
    v, w = d.input("v", BATCH, steps, WIDTH), d.input("w", WIDTH)
    state = d.input("state", BATCH, WIDTH)
    outs = []
    for t in range(steps):
        key = d(f"key_{t}", "select", k, dim=1, index=t)
        value = d(f"value_{t}", "select", v, dim=1, index=t)
        decayed = d(f"decayed_{t}", "mul", state, d(f"decay_{t}", "exp", w))
        state = d(f"state_{t}", "add", decayed, d(f"product_{t}", "mul", key, value))
        outs.append(d(f"out_{t}", "sigmoid", d(f"mixed_{t}", "mul", state, key)))
    return d.graph(*outs, state)


def indexed(graph: Graph) -> Index:
    return index_graph(*lowered(graph))


def keys(index: Index, *groups: tuple[str, ...]) -> list[object]:
    """The loose key of each group of nodes, which stores its last one."""
    structures = Structures(index)
    found = []
    for names in groups:
        members = index.members([index.by_name[n].number for n in names])
        found.append(structures.loose(members, frozenset(names[-1:]))[0])
    return found


def test_a_step_is_the_step_before_it_farther_on() -> None:
    index = indexed(recurrence(4))
    one, two = keys(index, ("product_1", "mixed_1"), ("product_3", "mixed_3"))
    assert one == two
    structures = Structures(index)
    strict = [structures.of(index.members([index.by_name[n].number]), frozenset({n}))[0]
              for n in ("product_1", "product_3")]  # fmt: skip
    assert strict[0] != strict[1]


def chained(graph: Draft, x: Value, *starts: int) -> None:
    """Slices of x that begin there, one after the other added up."""
    total: Value | None = None
    for k, start in enumerate(starts):
        part = graph(f"s{start}_{k}_{len(graph.nodes)}", "slice", x, dim=1, start=start,
                     end=start + 4, step=1)  # fmt: skip
        total = part if total is None else graph(f"a{len(graph.nodes)}", "add", total, part)


def distance_keys(*pairs: tuple[int, int]) -> list[object]:
    """The keys of sums of two slices of one value."""
    d = Draft()
    x = d.input("x", 8, 64)
    for pair in pairs:
        chained(d, x, *pair)
    sums = [n.name for n in d.nodes if n.op == "add"]
    index = indexed(d.graph(*(d.nodes[k].output for k, n in enumerate(d.nodes) if n.op == "add")))
    return keys(index, *((name,) for name in sums))


def test_the_distance_between_two_slices_of_one_value_counts() -> None:
    near, far, same = distance_keys((0, 2), (0, 8), (9, 11))
    assert near == same
    assert near != far
    twice, apart = distance_keys((5, 5), (5, 6))
    assert twice != apart


def test_a_value_that_is_read_whole_as_well_counts_from_its_own_beginning() -> None:
    d = Draft()
    x, y = d.input("x", 8, 1), d.input("y", 8, 64)
    parts = [d(f"s{k}", "slice", y, dim=1, start=k, end=k + 1, step=1) for k in (3, 7)]
    alone = [d(f"alone{k}", "mul", x, p) for k, p in enumerate(parts)]
    whole = [d(f"whole{k}", "add", y, p) for k, p in enumerate(parts)]
    index = indexed(d.graph(*alone, *whole))
    names = [(v.name,) for v in (*alone, *whole)]
    first, second, third, fourth = keys(index, *names)
    assert first == second and third != fourth


def test_what_is_computed_in_the_group_is_told_apart_by_where_it_is_read() -> None:
    d = Draft()
    x = d.input("x", 8, 64)
    made = d("made", "exp", x)
    parts = [d(f"s{k}", "slice", made, dim=1, start=k, end=k + 4, step=1) for k in (0, 8)]
    outs = [d(f"o{k}", "neg", p) for k, p in enumerate(parts)]
    index = indexed(d.graph(*outs))
    inside = keys(index, ("made", "o0"), ("made", "o1"))
    outside = keys(index, ("o0",), ("o1",))
    assert inside[0] != inside[1] and outside[0] == outside[1]


def random_windows(seed: int) -> Graph:
    """Elementwise operators over slices, selections and reshaped parts of a few values."""
    rng = random.Random(seed)
    d = Draft()
    whole = [d.input("x", 6, 8, 12), d.input("y", 48, 12), d.input("z", 6, 96)]
    shaped = [whole[0], d("yv", "view", whole[1], shape=(6, 8, 12)),
              d("zv", "view", whole[2], shape=(6, 8, 12))]  # fmt: skip
    pool: list[Value] = [d.input("start", 6, 12)]
    for k in range(14):
        source = rng.choice(shaped)
        at = rng.randrange(8)
        if rng.random() < 0.5:
            part = d(f"p{k}", "select", source, dim=1, index=at)
        else:
            cut = d(f"c{k}", "slice", source, dim=1, start=at, end=at + 1, step=1)
            part = d(f"p{k}", "squeeze", cut, dim=(1,))
        other = rng.choice([*pool, part])
        pool.append(d(f"v{k}", rng.choice(("add", "mul", "maximum")), part, other))
        if rng.random() < 0.3:
            pool.append(d(f"e{k}", "exp", pool[-1]))
    return d.graph(*pool[1:])


@pytest.mark.parametrize("seed", range(12))
def test_groups_of_one_loose_key_have_one_price(seed: int) -> None:
    """The price that is shared is that of each group's own nest."""
    index = indexed(random_windows(seed))
    evaluator = Evaluator(index, H200, {})
    rng = random.Random(seed)
    atoms = range(len(index.atoms))
    groups = [(k,) for k in atoms]
    groups += [tuple(sorted(rng.sample(atoms, rng.randint(2, 5)))) for _ in range(60)]
    shared = 0
    for group in groups:
        stored = tuple(index.atoms[k].name for k in group)
        before = evaluator.fused
        price, nest = evaluator.price(group, stored), evaluator.nest(group, stored)
        if isinstance(nest, Unfusable):
            assert isinstance(price, Unfusable)
            continue
        shared += evaluator.fused == before + 1  # for its nest alone
        assert isinstance(price, Priced)
        assert price == evaluator.price_nest(nest)
    assert shared


def test_the_plan_of_a_loop_is_that_without_shared_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, nests = lowered(recurrence(6))
    shared = plan_graph(graph, nests, H200)
    monkeypatch.setattr(Structures, "loose", Structures.of)
    own = plan_graph(graph, nests, H200)
    assert replace(shared, memory=own.memory) == own
    assert shared.memory == own.memory


def test_a_longer_loop_prices_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices grow with the kinds of groups that a search meets, not with the steps."""
    counts: list[int] = []
    real = Evaluator.price_nest

    def counted(self: Evaluator, nest: Nest) -> Priced:
        counts[-1] += 1
        return real(self, nest)

    monkeypatch.setattr(Evaluator, "price_nest", counted)
    for steps in (24, 48):
        counts.append(0)
        plan_graph(*lowered(recurrence(steps)), H200)
    assert counts[1] < 2 * counts[0]
