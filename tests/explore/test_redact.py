"""A redacted page: no name of the user's is left in it, however it is spelled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from torch import nn

from onetrip.api.workshop import ModelWorkshop
from onetrip.explore import export
from onetrip.explore.boards import Boards
from onetrip.explore.session import Session


@torch.library.custom_op("owncorp::quietly", mutates_args=())
def quietly(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@quietly.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Odd(nn.Module):
    """Keys of modules may hold any letter but a dot."""

    def __init__(self) -> None:
        super().__init__()
        keys = ("veiled-a", "veiled b", "véiled", "9veiled", "veiled:c", "veiled[d]", 'veiled"e')
        self.hollow = nn.ModuleDict({k: nn.LayerNorm(16) for k in keys})
        self.steps = nn.ModuleDict({f"veiled step-{k}": nn.Linear(16, 16) for k in range(2)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.hollow.values():
            x = layer(x).tanh()
        for layer in self.steps.values():
            x = quietly(layer(x)).cumsum(0)
        return x


def odd() -> Any:
    return Odd(), (torch.randn(4, 16),)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(Boards(ModelWorkshop("odd", {"as given": odd})), "cpu:2")


def test_no_name_of_the_users_is_left(session: Session) -> None:
    given, hidden = json.dumps(export._data(session, False)), export.page(session, redact=True)
    secret = re.compile(r"veiled|u00e9iled|owncorp|quietly|hollow|test_redact", re.IGNORECASE)
    assert len(set(secret.findall(given))) >= 5
    assert not secret.findall(hidden)


def test_layers_are_counted_as_before(session: Session) -> None:
    nodes = export._data(session, True)["states"]["eager"]["graph"]["nodes"]
    copies = [n for n in nodes if n["op"] == "linear" or n["op"] in ("addmm", "mm")]
    assert len(copies) == 2 and len({n["module"] for n in copies}) == 2
    assert len({n["form"].partition(":")[0] for n in copies}) == 1
    assert all(n["key"].startswith(f"{n['module']}:") for n in copies)


def test_a_sentence_names_an_operator_of_the_library_whole(session: Session) -> None:
    told = export._data(session, False)["states"]["best"]["why"].values()
    assert any("owncorp.quietly.default" in w.get("reason", "") for w in told)
