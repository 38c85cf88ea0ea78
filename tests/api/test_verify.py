"""verify: right programs pass, and a wrong kernel is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onetrip
from onetrip.api import devices
from onetrip.api.verify import Judged, Verification
from onetrip.base.errors import UsageError
from onetrip.ir.expr import Apply, Const, Expr, apply, walk
from onetrip.runtime.accuracy import Verdict

X = torch.ones(4)


def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(nn.functional.gelu(x + y) * 2, -1), x.sum(0)


def test_a_right_program_passes() -> None:
    found = onetrip.verify(chain, (torch.randn(17, 33), torch.randn(33)))
    assert found.ok and found.drifting is None, str(found)
    assert found.groups and all(g.values for g in found.groups)


def test_every_call_judges_every_group() -> None:
    counts = {
        len(onetrip.verify(chain, (torch.ones(3, 5), torch.ones(5))).groups) for _ in range(9)
    }
    assert len(counts) == 1 and counts != {0}


def test_training_judges_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))
    found = onetrip.verify(model, torch.randn(8, 16), training=True)
    assert found.ok, str(found)
    assert {g.graph for g in found.groups} == {"forward", "backward"}
    assert all(p.grad is None for p in model.parameters())


class Placed(nn.Module):
    """Places looked up by indices that every row shares."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 6)
        self.register_buffer("places", torch.arange(8)[None])

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        places = self.places[:, :length].gather(1, self.places[:, :length].flip(1))
        return (x + self.table(places.expand(rows, length))).tanh()


def test_an_expanded_value_that_backward_keeps_stays_expanded() -> None:
    """Indices that all rows share have stride 0; a copy of them for each row is another layout."""
    found = onetrip.verify(Placed(), torch.randn(2, 5, 6), training=True)
    assert found.ok and {g.graph for g in found.groups} == {"forward", "backward"}


def test_random_programs_are_judged_on_one_stream() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.GELU()).train()
    found = onetrip.verify(model, torch.randn(64, 64))
    assert found.ok, str(found)
    assert any(g.values and g.verdict.worst_ulp > 0 for g in found.groups)


def test_arguments_and_buffers_are_left_alone() -> None:
    model = nn.BatchNorm1d(4).train().requires_grad_(False)
    x = torch.randn(8, 4)
    before = x.clone(), model.running_mean.clone()

    def fn(a: Tensor) -> Tensor:
        a.add_(1)
        return a * 2

    assert onetrip.verify(model, x).ok
    assert onetrip.verify(fn, x).ok
    assert torch.equal(x, before[0]) and torch.equal(model.running_mean, before[1])


def test_the_group_that_drifts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second kernel multiplies its result by 1.001."""
    real = devices.schedule_cpu.schedule

    def drifting(nest: Any, *args: Any, **kwargs: Any) -> Any:
        if not nest.reductions:
            return real(nest, *args, **kwargs)
        stores = tuple(replace(s, value=scaled(s.value)) for s in nest.stores)
        return real(replace(nest, stores=stores), *args, **kwargs)

    def scaled(value: Expr) -> Expr:
        return apply("mul", value, Const(1.001, value.dtype))

    monkeypatch.setattr(devices.schedule_cpu, "schedule", drifting)
    found = onetrip.verify(lambda x: (x.sum(-1), torch.tanh(x)), torch.randn(8, 40))
    assert not found.ok
    assert found.drifting is not None and "sum" in found.drifting
    assert found.drifting in str(found)


def test_what_takes_the_place_of_calls_is_judged_by_their_value() -> None:
    def spelled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * 0.3).softmax(-1) @ v

    found = onetrip.verify(spelled, tuple(torch.randn(2, 3, 16, 8) for _ in range(3)))
    assert found.ok
    assert [(g.group, g.values) for g in found.groups] == [("g0_attention", 1)]


def test_the_group_that_drifts_can_be_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is wrong where tanh and exp share it, as a fault of fusion would make it."""
    real = devices.schedule_cpu.schedule

    def drifting(nest: Any, *args: Any, **kwargs: Any) -> Any:
        values = tuple(s.value for s in nest.stores)
        applied = {e.op for e in walk(values) if isinstance(e, Apply)}
        if {"tanh", "exp"} <= applied:
            factor = (apply("mul", v, Const(1.001, v.dtype)) for v in values)
            stores = tuple(replace(s, value=v) for s, v in zip(nest.stores, factor, strict=True))
            nest = replace(nest, stores=stores)
        return real(nest, *args, **kwargs)

    def model(x: Tensor) -> Tensor:
        return torch.tanh(x).exp().t() + 1

    monkeypatch.setattr(devices.schedule_cpu, "schedule", drifting)
    x = torch.randn(8, 40)
    found, plan = onetrip.verify(model, x), onetrip.plan(model, x, target="cpu")
    assert found.drifting == plan.groups[0].name
    assert "ulp, allowed" in str(found)
    apart = found.unfused(plan)
    assert [g.ops for g in apart.groups if len(g.ops) > 1 and "tanh" in g.ops] == []
    right = onetrip.verify(model, x, plan=apart)
    assert right.ok, str(right)
    assert right.unfused(apart) is apart


def test_a_plan_of_another_model_has_no_group_to_unfuse() -> None:
    wrong = Judged("inference", "g0_tanh", 1, Verdict(False))
    with pytest.raises(UsageError, match="no group inference/g0_tanh"):
        Verification(Verdict(False), (wrong,)).unfused(onetrip.plan(lambda x: x + 1, X))
