"""Copies of inputs laid out otherwise, and writes back to changed ones."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from onetrip.runtime.inputs import Writes, restrided


def test_only_another_layout_is_copied() -> None:
    t = torch.arange(6.0).reshape(1, 2, 3)
    assert restrided(t, (99, 3, 1)) is t
    turned = restrided(t, (6, 1, 2))
    assert turned.stride() == (6, 1, 2)
    assert torch.equal(turned, t)


def test_writes_of_one_pair_of_dtypes_are_one_call() -> None:
    tensors = [torch.zeros(2), torch.ones(2), torch.zeros(3), torch.full((3,), 2.0),
               torch.zeros(2, dtype=torch.int32), torch.full((2,), 7.0)]  # fmt: skip
    writes = Writes()
    writes.add("f32", 0, 1)
    writes.add("i32 from f32", 4, 5)
    writes.add("f32", 2, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        writes(SimpleNamespace(tensors=tensors))
    calls = [e for e in profile.events() if e.name == "aten::_foreach_copy_"]
    assert len(calls) == 2
    assert [t.tolist() for t in tensors[::2]] == [[1.0, 1.0], [2.0, 2.0, 2.0], [7, 7]]
