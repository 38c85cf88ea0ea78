"""Scratch memory that programs share: one block for those whose work lies on one queue."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from onetrip.base.dtype import f32
from onetrip.ir.graph import Ref, Value
from onetrip.ir.program import Alloc, Call, Free, Program
from onetrip.ir.types import TensorType
from onetrip.runtime.cache import Cache
from onetrip.runtime.cpu import CpuBackend
from onetrip.runtime.execute import Executable


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Programs of other tests lie on cycles, and share with those of one device."""
    gc.collect()


@dataclass
class Queued:
    """A backend whose work lies on queues, as a GPU's does, with its arenas on record."""

    stream: int = 0
    records: bool = False
    arenas: list[weakref.ref[Tensor]] = field(default_factory=list)
    inner: CpuBackend = field(default_factory=lambda: CpuBackend(lambda _: [], "", Cache(None)))

    device = torch.device("cpu")
    immediate = False

    def queue(self) -> int:
        return self.stream

    def capturing(self) -> bool:
        return self.records

    def arena(self, size: int) -> Tensor:
        made = torch.empty(size, dtype=torch.uint8)
        self.arenas.append(weakref.ref(made))
        return made

    def held(self) -> list[int]:
        """Bytes of the arenas that are still there."""
        gc.collect()
        return [t.numel() for t in (ref() for ref in self.arenas) if t is not None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def program(backend: Queued, size: int) -> Executable:
    """(x + x) + x through a scratch value of `size` numbers."""
    kind = TensorType.dense(f32, (size,))
    x, kept, z = (Value(name, kind) for name in ("x", "kept", "z"))
    refs = (Ref(0), Ref(1))
    steps = (
        Alloc(kept, 0), Call("aten.add.out", (x, x), (kept,), refs, (), out=True),
        Call("aten.add.Tensor", (kept, x), (z,), refs, ()), Free("kept"),
    )  # fmt: skip
    return Executable(Program((x,), steps, ("z",), arena_bytes=4 * size), backend)


def agrees(run: Executable, size: int) -> None:
    x = torch.randn(size)
    assert torch.equal(run([x])[0], x + x + x)


def test_programs_of_one_queue_share_the_block_of_the_one_that_needs_most() -> None:
    backend = Queued()
    sizes = (100, 1000, 300)
    runs = [program(backend, n) for n in sizes]
    for _ in range(3):
        for run, n in zip(runs, sizes, strict=True):
            agrees(run, n)
    assert backend.held() == [4000]
    assert len(backend.arenas) == 2, "the first block made room for the second"


def test_each_queue_has_a_block() -> None:
    backend = Queued()
    run = program(backend, 50)
    for stream in (1, 2, 1, 2):
        backend.stream = stream
        agrees(run, 50)
    assert backend.held() == [200, 200]


def test_a_call_within_a_call_has_a_block_of_its_own() -> None:
    backend = Queued()
    outer, inner = program(backend, 20), program(backend, 60)
    for _ in range(3):
        frame = outer._take()
        k = frame.tensors[1]
        torch.add(torch.ones(20), 1.0, out=k)
        agrees(inner, 60)
        assert k.tolist() == [2.0] * 20, "the inner call wrote elsewhere"
        outer._give(frame)
    assert sorted(backend.held()) in ([80, 240], [240, 240])


def test_what_a_failed_call_held_is_gone() -> None:
    backend = Queued()
    run = program(backend, 8)
    agrees(run, 8)
    with pytest.raises(RuntimeError, match="size"):
        run([torch.ones(9)])
    assert backend.held() == []
    agrees(run, 8)
    assert backend.held() == [32]


def test_memory_is_given_back_with_the_last_program_and_on_demand() -> None:
    backend = Queued()
    first, second = program(backend, 16), program(backend, 32)
    agrees(first, 16)
    agrees(second, 32)
    del second
    assert backend.held() == [128]
    first.rest()
    assert backend.held() == []
    agrees(first, 16)
    del first
    assert backend.held() == []


def test_a_recorded_call_shares_with_none() -> None:
    backend = Queued()
    run = program(backend, 16)
    agrees(run, 16)
    backend.records = True
    agrees(run, 16)
    backend.records = False
    agrees(run, 16)
    assert len(backend.arenas) == 2
    assert backend.held() == [64]
