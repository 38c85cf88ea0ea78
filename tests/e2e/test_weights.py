"""Weights that change between calls: loaded, replaced, moved to another dtype, tied, adapted."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from checks import compiled, wide
from torch import Tensor, nn

from onetrip.api.backend import builds
from onetrip.runtime.accuracy import judge

TOKENS = torch.tensor([[1, 5, 2, 7, 10], [3, 3, 0, 9, 4]])


class Net(nn.Module):
    """Tied embedding, a norm, a bias, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(8))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.gelu(self.inner(self.embedding(tokens)))
        made: Tensor = self.out(self.norm(hidden) * self.scale)
        return made


class Adapted(nn.Module):
    """A layer with a product of two thin matrices added."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = (nn.Parameter(torch.randn(s)) for s in ((2, 8), (8, 2)))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.base(x) + x @ self.down.t() @ self.up.t()
        return made


def agree(ours: Any, model: nn.Module) -> Tensor:
    with torch.no_grad():
        found, eager = ours(TOKENS), model(TOKENS)
        verdict = judge((found,), (eager,), (wide(model)(TOKENS),))
    assert verdict.ok, verdict
    assert found.dtype == eager.dtype
    return found


def replaced(**new: Callable[[], Any]) -> Callable[[Net], None]:
    def change(model: Net) -> None:
        for name, make in new.items():
            owner, _, leaf = name.rpartition("__")
            setattr(getattr(model, owner) if owner else model, leaf, make())

    return change


def filled(model: Net) -> None:
    with torch.no_grad():
        model.embedding.weight.mul_(3)


def data(make: Callable[[], Tensor]) -> Callable[[Net], None]:
    return lambda model: setattr(model.inner.weight, "data", make())


def loaded(assign: bool) -> Callable[[Net], None]:
    def change(model: Net) -> None:
        file = io.BytesIO()
        torch.save(Net().state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file), assign=assign)

    return change


CHANGES: dict[str, Callable[[Net], Any]] = {
    "loaded": loaded(assign=False),
    "loaded by assignment": loaded(assign=True),
    "written in place": filled,
    "another parameter": replaced(inner__weight=lambda: nn.Parameter(torch.randn(8, 8))),
    "other strides": replaced(inner__weight=lambda: nn.Parameter(torch.randn(8, 8).t())),
    "gaps in memory": replaced(inner__weight=lambda: nn.Parameter(torch.randn(16, 16)[::2, ::2])),
    "other data": data(lambda: torch.randn(8, 8)),
    "other data, other strides": data(lambda: torch.randn(8, 8).t()),
    "untied": replaced(embedding__weight=lambda: nn.Parameter(torch.randn(11, 8))),
    "another buffer": replaced(scale=lambda: torch.randn(8)),
    "a broadcast buffer": replaced(scale=lambda: torch.randn(1)),
    "no bias": replaced(inner=lambda: nn.Linear(8, 8, bias=False)),
    "adapted": lambda model: setattr(model, "inner", Adapted(model.inner)),
    "another forward": lambda model: setattr(model.inner, "forward", lambda x: x * 2),
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "float64": lambda model: model.double(),
}


def test_every_change_of_weights_is_seen() -> None:
    model, previous = Net(), torch.zeros(())
    ours = compiled(model, strict=False)
    for name, change in CHANGES.items():
        change(model)
        found = agree(ours, model)
        assert not torch.equal(found, previous), name
        previous = found
        if name == "another forward":
            del model.inner.forward
    assert builds["eager"] == 0


def test_values_alone_build_nothing_again() -> None:
    model = Net()
    ours = compiled(model)
    for name in ("loaded", "written in place", "loaded"):
        CHANGES[name](model)
        agree(ours, model)
    assert builds == {"compiled": 1}


def test_tied_weights_train_as_one() -> None:
    mine = Net()
    theirs = copy.deepcopy(mine)
    exact = copy.deepcopy(mine).double()
    ours = compiled(mine)
    for model, call in ((mine, ours), (theirs, theirs), (exact, exact)):
        call(TOKENS).square().sum().backward()
        assert model.out.weight is model.embedding.weight
    gradients = [tuple(p.grad for p in m.parameters()) for m in (mine, theirs, exact)]
    assert judge(*gradients).ok


def test_a_parameter_that_needs_no_gradient_gets_none() -> None:
    model = Net()
    ours = compiled(model)
    for needed in (True, False, True):
        model.inner.weight.requires_grad_(needed)
        model.zero_grad()
        ours(TOKENS).sum().backward()
        assert (model.inner.weight.grad is not None) == needed
        assert model.inner.bias.grad is not None
    model.requires_grad_(False)
    assert not ours(TOKENS).requires_grad


def test_running_statistics_are_written_and_read() -> None:
    mine = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())
    theirs, ours = copy.deepcopy(mine), compiled(mine)
    x = torch.randn(6, 4)

    def step() -> None:
        torch.testing.assert_close(ours(x), theirs(x))
        for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b)

    for _ in range(3):
        step()
    for model in (mine, theirs):
        model.eval()
        model[0].running_mean.fill_(3)
    step()
    for model in (mine, theirs):
        model.train()
        model[0].reset_running_stats()
    step()


@pytest.mark.parametrize("offset", [0, 1])
def test_parameters_that_share_memory(offset: int) -> None:
    flat = torch.randn(73)
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(flat[offset : offset + 64].view(8, 8))
    model.bias = nn.Parameter(flat[:8])
    ours, x = compiled(model), torch.randn(3, 8)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x))
        flat.mul_(2)
