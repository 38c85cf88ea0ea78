"""CUDA graphs: how a GPU records work and does it again, with memory of its own for each.

A graph's scratch memory and results lie in a pool that no other graph allocates from: a replay
overwrites what lay there, whatever has been handed out since. Work that the recorded kernels need
beside it follows the same rule (the workspace of a product would else be shared with other streams
and be freed by others). Each replay draws random numbers anew, those of launches one by one: seeds
are counted on in the device's memory (`frontend/draws.py`), and generators count what kernels of a
library draw. Knows no programs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ..frontend.draws import Recorded, recorded_on
from .recording import Graph, Run
from .triton_build import current_stream

MODE = "thread_local"
"""What other threads do meanwhile, allocating memory too, breaks no capture."""


class CudaGraphs:
    """Recording on one GPU.

    Args:
        device: a CUDA (or HIP) device.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = device.index or 0
        self._stream: Any = None
        # Allocators go on to ask a graph whose capture broke off whether memory is for it.
        self._broken: list[torch.cuda.CUDAGraph] = []

    def queue(self) -> int:
        """The current stream's handle."""
        return current_stream(self._index)

    def capturing(self) -> bool:
        """Whether the current stream is captured."""
        return torch.cuda.is_current_stream_capturing()

    def capture(self, run: Run, arguments: list[Any]) -> tuple[Graph, list[Any]]:
        """See `DeviceGraphs`; other threads may use the device meanwhile."""
        with torch.cuda.device(self._index), _no_collection():
            if self._stream is None:
                self._stream = torch.cuda.Stream()
            with _own_workspaces(), torch.cuda.stream(self._stream), torch.no_grad():
                return self._recorded(run, arguments)

    def _recorded(self, run: Run, arguments: list[Any]) -> tuple[Graph, list[Any]]:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        seeds = recorded_on(torch.device("cuda", self._index))
        try:
            graph.capture_begin(pool=pool, capture_error_mode=MODE)
            with seeds.recording():
                results = run(arguments)
            graph.capture_end()
        except BaseException:
            self._abandon(graph, pool)
            raise
        return _Seeded(graph, seeds), results

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Ends a capture that failed.

        Where the device calls the capture invalid, `capture_end` raises before it tells the
        allocator and the random generators: the first is told here, the others by a sound capture.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            self._broken.append(graph)
            for undo in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
                with suppress(RuntimeError):
                    undo(self._index, pool)
            with suppress(RuntimeError):
                graph.reset()
            with suppress(RuntimeError):
                self._capture_soundly()

    def _capture_soundly(self) -> None:
        graph, one = torch.cuda.CUDAGraph(), torch.zeros(1, device=self._stream.device)
        graph.capture_begin(capture_error_mode=MODE)
        one.zero_()
        graph.capture_end()


class _Seeded:
    """A graph whose seeds are those of the generator at each replay."""

    def __init__(self, graph: Graph, seeds: Recorded) -> None:
        self._graph = graph
        self._seeds = seeds

    def replay(self) -> None:
        self._seeds.prepare()
        self._graph.replay()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Finalizers may free what cannot be freed while a stream is captured."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Workspaces of products are made within, in the graph's memory, and not used after it."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
