"""The order in which a GPU is told to record, and what it is told where that fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from onetrip.frontend.draws import Recorded
from onetrip.runtime import cuda_graphs
from onetrip.runtime.cuda_graphs import CudaGraphs

Told = list[str]


class Generator:
    """One that counts."""

    offset = 0

    def initial_seed(self) -> int:
        return 7

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


def seeds(device: torch.device) -> Recorded:
    return Recorded(Generator(), torch.zeros((), dtype=torch.int64))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the device is told: a runtime that only writes down, and refuses an invalid capture."""
    said: Told = []

    class Graph:
        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            assert capture_error_mode == "thread_local"
            said.append(f"begin in {pool}")

        def capture_end(self) -> None:
            if "invalid" in said and "end in pool" not in said:
                raise RuntimeError("operation failed due to a previous error during capture")
            said.append("end")

        def reset(self) -> None:
            said.append("reset")

        def replay(self) -> None:
            said.append("replay")

    class Stream:
        device = "cpu"

    @contextmanager
    def entered(what: Any) -> Iterator[None]:
        said.append("stream" if isinstance(what, Stream) else f"device {what}")
        yield
        said.append("left")

    monkeypatch.setattr(cuda_graphs, "recorded_on", seeds)

    def notes(text: str) -> Callable[..., None]:
        return lambda *_: said.append(text)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    for name, text in (("clearCublasWorkspaces", "clear"), ("endAllocateToPool", "end in pool"),
                       ("releasePool", "release")):  # fmt: skip
        monkeypatch.setattr(torch._C, f"_cuda_{name}", notes(text), raising=False)
    return said


def capture(told: Told, run: Callable[[list[Any]], list[Any]]) -> Any:
    def noted(arguments: list[Any]) -> list[Any]:
        told.append("run")
        assert not gc.isenabled(), "finalizers may free what cannot be freed now"
        assert not torch.is_grad_enabled()
        return run(arguments)

    return CudaGraphs(torch.device("cuda", 1)).capture(noted, [torch.ones(2)])


BEFORE = ["device 1", "clear", "stream", "begin in pool", "run"]
AFTER = ["left", "clear", "left"]


def test_a_graph_has_memory_and_workspaces_of_its_own(told: Told) -> None:
    graph, results = capture(told, lambda a: [a[0] * 2])
    assert [r.tolist() for r in results] == [[2.0, 2.0]]
    assert told == [*BEFORE, "end", *AFTER]
    graph.replay()
    assert told[-1] == "replay"
    assert gc.isenabled()


def test_a_program_that_raises_ends_the_capture(told: Told) -> None:
    def raises(_: list[Tensor]) -> list[Any]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(told, raises)
    assert told[:6] == [*BEFORE, "end"]
    assert gc.isenabled()


def test_an_invalid_capture_is_undone_in_every_place(told: Told) -> None:
    def waits(_: list[Tensor]) -> list[Any]:
        told.append("invalid")
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        capture(told, waits)
    undone = ["end in pool", "release", "reset", "begin in None", "end"]
    assert told[:11] == [*BEFORE, "invalid", *undone]
    assert gc.isenabled()


def test_an_error_that_shows_at_the_end_is_undone_too(told: Told) -> None:
    def waits(arguments: list[Tensor]) -> list[Any]:
        told.append("invalid")
        return arguments

    with pytest.raises(RuntimeError, match="previous error"):
        capture(told, waits)
    assert "release" in told
    assert told.count("begin in None") == 1
