"""Random moves on drafts: each is made whole or not at all, and leaves what a fresh draft has."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onetrip
from onetrip.api.workshop import ModelWorkshop
from onetrip.base.errors import UsageError
from onetrip.explore import shown
from onetrip.explore.board import Board
from onetrip.explore.boards import Boards
from onetrip.explore.session import Session
from onetrip.ir.graph import Value
from onetrip.plan.decision import Decision
from onetrip.plan.draft import Draft
from onetrip.report.view import Planned

F = nn.functional


def residuals(x: Tensor, r: Tensor) -> Tensor:
    """One value that is read all along, and computed again where that is cheap."""
    for _ in range(3):
        x = F.layer_norm(F.gelu(x + r.exp()) + r, (256,))
    return torch.cumsum(x, 0).tanh()


def siblings(x: Tensor, r: Tensor) -> tuple[Tensor, ...]:
    """Sums over rows and columns of values that several of them read."""
    y = (x * 2 + r).sigmoid()
    return y.sum(0), y.sum(1), (y - y.mean(1, keepdim=True)).exp(), (x * 2).sum()


def products(x: Tensor, r: Tensor) -> Tensor:
    """Calls of the library between masked softmaxes."""
    scores = (x @ r.transpose(0, 1)).masked_fill(x[:, :1] > 0, -1e9)
    return torch.softmax(scores, -1) @ (r + 1) + torch.where(r > 0, x, r.neg())


def stack(x: Tensor, r: Tensor) -> Tensor:
    """Layers behind each other, each of which reads the same value."""
    for _ in range(2):
        x = F.layer_norm(F.gelu(x @ r[:256] + r[0]) + r, (256,))
    for _ in range(3):
        x = F.layer_norm(x, (256,)) + r
    return torch.cumsum(x, 0).tanh()


GRAPHS: dict[str, Callable[..., object]] = {
    f.__name__: f for f in (residuals, siblings, products, stack)
}


@pytest.fixture(scope="module", params=[(g, t) for g in GRAPHS for t in ("cpu", "h100")])
def plans(request: pytest.FixtureRequest) -> dict[str, Planned]:
    name, target = request.param
    x = torch.empty(512, 256, device="meta")
    return {
        search: onetrip.plan(GRAPHS[name], (x, x), target=target, search=search).planned[0]
        for search in ("eager", "max", "best")
    }


def started(planned: Planned) -> Board:
    board = Board(planned)
    board.start(planned.plan)
    return board


def assert_whole(draft: Draft) -> None:
    """Every value that a group reads is stored by an earlier one, and so is what is asked for."""
    index, pool = draft.index, draft.pool
    stored = {v.name for v in index.graph.inputs}
    for part in draft.order():
        assert {index.base(n) for n in pool.reads(part) if n in index.maker} <= stored
        made = pool.stores(part)
        assert made or not pool.is_generated(part)
        assert not stored & set(made)
        stored.update(made)
    wanted = (v.name for v in index.graph.outputs if isinstance(v, Value))
    assert {index.base(n) for n in wanted if index.base(n) in index.maker} <= stored


def told(board: Board) -> tuple[object, ...]:
    """All that a page asks of a board."""
    s = board.draft.sums()
    reasons = [why and (why.code, why.sentence) for why in map(board.why, board.edges)]
    order = [p.atoms for p in board.draft.order()]
    return s._replace(estimated_us=pytest.approx(s.estimated_us)), order, reasons


@pytest.mark.parametrize("search", ["eager", "max", "best"])
@pytest.mark.parametrize("seed", range(3))
def test_after_any_moves_a_draft_is_as_one_just_made(
    plans: dict[str, Planned], search: str, seed: int
) -> None:
    chance = random.Random(seed)
    base = started(plans[search])
    board = base.twin()
    seen = [board.grouping]
    for _ in range(10):
        before, answer = board.grouping, None
        move = chance.choice(("edge", "edge", "edge", "pair", "back"))
        if move == "back":
            board.draft.start(chance.choice(seen))
        elif move == "edge":
            edge = chance.choice(board.edges)
            answer = board.cut(edge) if board.is_fused(edge) else board.fuse(edge)
        else:
            a, b = chance.choice(chance.choice(board.edges).pairs)
            one = board.draft.is_one((a, b))
            answer = board.draft.cut((a,), (b,)) if one else board.draft.fuse((a, b))
        if answer is not None:
            assert board.grouping == before
            assert answer.sentence if isinstance(answer, Decision) else answer
        assert_whole(board.draft)
        fresh = Board(plans[search])
        fresh.draft.start(board.grouping)
        assert told(board) == told(fresh)
        seen.append(board.grouping)
    assert base.grouping == seen[0]


@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize("name", ["residuals", "stack"])
def test_after_any_moves_a_page_was_told_what_one_just_opened_is_told(
    name: str, target: str
) -> None:
    def program() -> tuple[Any, ...]:
        x = torch.empty(512, 256, device="meta")
        return GRAPHS[name], (x, x)

    boards = Boards(ModelWorkshop(name, {"1x": program}))
    for seed in range(6):
        chance, session, known = random.Random(seed), Session(boards, target), shown.Told()
        session.preset("best")
        groups: dict[str, Any] = {}
        edges: dict[str, Any] = {}
        for _ in range(10):
            with suppress(UsageError):
                if chance.random() < 0.8:
                    edge = chance.randrange(len(session.board.edges))
                    session.toggle(edge, chance.random() < 0.4)
                else:
                    session.undo()
            state, whole = shown.state(session, known), shown.state(session, shown.Told())
            groups = {k: g for k, g in groups.items() if k not in state["gone"]}
            groups |= {g["name"]: g for g in state["groups"]}
            edges |= state["edges"]
            assert groups == {g["name"]: g for g in whole["groups"]}
            assert edges == whole["edges"]


def test_a_change_that_fails_midway_leaves_all_as_it_was(plans: dict[str, Planned]) -> None:
    board = started(plans["best"])
    before, groups = told(board), dict(board.draft.pool.parts)

    def attempt() -> None:
        assert any(board.cut(e) is None for e in board.edges if board.is_fused(e))
        board.draft.sums()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        board.draft.change(attempt)
    assert board.draft.pool.parts == groups
    assert told(board) == before
