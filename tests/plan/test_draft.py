"""Drafts: every figure is that of a plan of the same groups, whatever was fused and cut before."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import onetrip
from onetrip.plan.assemble import assemble
from onetrip.plan.constraints import NO_CONSTRAINTS
from onetrip.plan.draft import ENTWINED, Draft, Pair
from onetrip.plan.legality import Legality
from onetrip.plan.pool import Pool
from onetrip.report.view import Planned


class Mixed(nn.Module):
    """Products, norms, a value with many readers, views, a long skip and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.last = nn.LayerNorm(64), nn.LayerNorm(32)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = nn.functional.gelu(self.up(x))
        y = self.norm(self.drop(h + 1))
        z = self.down(y) * x.exp() + x
        w = torch.softmax(z.view(-1, 8, 32).transpose(0, 1), -1)
        return self.last(z), w, h.sum(0)


X = torch.empty(1 << 20, 32, device="meta")
"""Large enough that no two kernels are small: those that a plan launches together count as one."""


def planned(
    model: Callable[..., object], x: Tensor, search: str = "eager", **more: object
) -> Planned:
    return onetrip.plan(model, x, search=search, target="h100", **more).planned[0]  # type: ignore[arg-type]


def started(made: Planned) -> Draft:
    draft = Draft(made.problem, made.graph)
    draft.start(draft.grouping_of(made.plan.groups))
    return draft


def pairs_of(draft: Draft) -> list[Pair]:
    index = draft.index
    return [
        (index.maker[name], atom.number)
        for atom in index.atoms
        for name in atom.reads
        if name in index.maker
    ]


def as_planned(draft: Draft) -> tuple[int, int, int, float]:
    """What the planner says of the same groups, from nothing that the draft keeps."""
    pool = Pool(draft.index)
    assert pool.regroup(draft.grouping)
    legality = Legality(pool, draft.evaluator, NO_CONSTRAINTS)
    t = assemble(pool, draft.evaluator, legality, "best", ()).totals
    return t.kernels, t.traffic_bytes, t.peak_bytes, t.estimated_us


def figures(draft: Draft) -> tuple[int, int, int, float]:
    s = draft.sums()
    return s.kernels, s.traffic_bytes, s.peak_bytes, pytest.approx(s.estimated_us)


@pytest.fixture(scope="module")
def mixed() -> Planned:
    with torch.device("meta"):
        return planned(Mixed().train(), X, training=True)


@pytest.mark.parametrize("search", ["eager", "max", "best"])
def test_a_draft_of_a_plan_has_its_groups_and_figures(search: str) -> None:
    with torch.device("meta"):
        made = planned(Mixed().eval(), X, search)
    draft = started(made)
    assert len(draft.grouping) == len(made.plan.groups)
    assert as_planned(draft) == figures(draft)
    t = made.plan.totals
    assert (t.kernels, t.traffic_bytes, t.peak_bytes, t.estimated_us) == figures(draft)


@pytest.mark.parametrize("seed", range(6))
def test_figures_after_any_fuses_and_cuts_are_those_of_a_plan(mixed: Planned, seed: int) -> None:
    chance = random.Random(seed)
    draft = started(mixed)
    pairs = pairs_of(draft)
    changed = 0
    for _ in range(30):
        pair = chance.choice(pairs)
        if draft.is_one(pair):
            changed += draft.cut((pair[0],), (pair[1],)) is None
        else:
            changed += draft.fuse(pair) is None
        assert as_planned(draft) == figures(draft)
    assert changed > 5


def test_a_fuse_is_undone_by_its_cut(mixed: Planned) -> None:
    draft = started(mixed)
    before = draft.grouping
    for pair in pairs_of(draft):
        if not draft.is_one(pair) and draft.fuse(pair) is None:
            after = draft.grouping
            assert after != before
            draft.start(before)
            assert draft.grouping == before
            draft.start(after)
            assert draft.grouping == after and draft.is_one(pair)
            draft.start(before)


def test_what_may_not_be_fused_says_why(mixed: Planned) -> None:
    draft = started(mixed)
    codes = set()
    for pair in pairs_of(draft):
        before = draft.grouping
        found = draft.fuse(pair)
        if found is not None:
            codes.add(found.code)
            assert draft.grouping == before
    assert "compute-bound-anchor" in codes


def test_a_path_between_groups_is_seen(mixed: Planned) -> None:
    """x -> exp -> (product) * and x -> ... : what lies between stays legal or is refused alike."""
    draft = started(mixed)
    pool = Pool(draft.index)
    assert pool.regroup(draft.grouping)
    for a in pool.parts.values():
        for b in pool.parts.values():
            if a.atoms < b.atoms:
                mine = [draft.pool.parts[draft.pool.owner[p.atoms[-1]]] for p in (a, b)]
                assert bool(draft.pool.between(mine)) == bool(pool.between((a, b)))


def test_a_cut_takes_all_that_depends_on_the_reader() -> None:
    with torch.device("meta"):
        made = planned(lambda x: ((x + 1).exp() * 2).tanh(), X, "max")
    draft = started(made)
    assert [len(atoms) for atoms, _ in draft.grouping] == [4]
    assert draft.cut((1,), (2,)) is None
    assert [atoms for atoms, _ in draft.grouping] == [(0, 1), (2, 3)]
    assert draft.cut((1,), (2,)) == ENTWINED


APART = (((0,), (0,)), ((1,), (1,)), ((2,), (2,)))
AGAIN = (((0,), (0,)), ((0, 2), (2,)), ((1,), (1,)))


def test_a_reason_is_that_of_what_one_kernel_would_store_now() -> None:
    """exp is read twice: one kernel with a reader stores it only where the other still reads it."""

    def twice(x: Tensor) -> tuple[Tensor, ...]:
        e = x.exp()
        return e * 2, e.tanh()

    with torch.device("meta"):
        made = planned(twice, X)
    draft = started(made)
    prices = []
    for grouping in (APART, AGAIN):
        draft.start(grouping)
        fresh = started(made)
        fresh.start(grouping)
        found, expected = (
            d.why(d.pool.parts[d.pool.owner[0]], d.pool.parts[d.pool.owner[1]])
            for d in (draft, fresh)
        )
        assert found == expected and found.if_fused is not None
        prices.append(found.if_fused.bytes)
    assert prices[0] > prices[1]
