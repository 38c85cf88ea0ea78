"""Copies of inputs laid out otherwise, and views of parameters."""

from __future__ import annotations

import torch

from onetrip.runtime.inputs import Remembered, restrided


def test_only_another_layout_is_copied() -> None:
    t = torch.arange(6.0).reshape(1, 2, 3)
    assert restrided(t, (99, 3, 1)) is t
    turned = restrided(t, (6, 1, 2))
    assert turned.stride() == (6, 1, 2)
    assert torch.equal(turned, t)


def test_a_view_is_remembered_until_the_memory_is_another_one() -> None:
    t = torch.arange(6.0)
    turned = Remembered((3, 2), (1, 3), 0)
    view = turned(t)
    assert view.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert turned(t) is view
    t.data = torch.zeros(6)
    assert turned(t).tolist() == [[0, 0]] * 3
