"""A device that records, made of the CPU: work goes onto a tape and is done again where it was.

As on a GPU, recording does nothing: what it wrote into its inputs and drew from the generator is
put back. A tape refers to memory by address alone, so it keeps nothing alive that a caller let go,
and it owns what the recorded calls allocated beside their results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from onetrip.runtime.cpu import CpuBackend
from onetrip.runtime.frame import Action, BoundLaunch, Frame

PLACING = ("set_", "resize_")
READING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class TapedGraphs:
    """`DeviceGraphs` on CPU tensors.

    Attributes:
        stream: what `queue` answers.
        outside: whether a caller records already.
        captures: how many times something was recorded, or was to be.
    """

    def __init__(self) -> None:
        self.stream = 0
        self.outside = False
        self.captures = 0
        self._tapes: dict[int, list[Callable[[], object]]] = {}

    @property
    def tape(self) -> list[Callable[[], object]] | None:
        """What this thread records onto."""
        return self._tapes.get(get_ident())

    def queue(self) -> int:
        return self.stream

    def capturing(self) -> bool:
        return self.outside or self.tape is not None

    def capture(
        self, run: Callable[[list[Any]], list[Any]], arguments: list[Any]
    ) -> tuple[Tape, list[Any]]:
        self.captures += 1
        before = [(t, _bytes(t).clone()) for t in _tensors(arguments)]
        state = torch.get_rng_state()
        tape = self._tapes[get_ident()] = []
        mode = _Taping(tape)
        try:
            with mode, torch.no_grad():
                results = run(list(arguments))
            taken = {_memory(t) for t in (*_tensors(results), *_tensors(arguments))}
            return Tape(tape, [t for t in mode.made if _memory(t) not in taken]), results
        finally:
            del self._tapes[get_ident()]
            torch.set_rng_state(state)
            for t, content in before:
                _bytes(t).copy_(content)


@dataclass
class Tape:
    """Recorded work, and the memory between its steps."""

    steps: list[Callable[[], object]]
    memory: list[Tensor]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for step in self.steps:
                step()


class _Taping(TorchDispatchMode):
    """Puts ATen calls onto a tape while they run."""

    def __init__(self, tape: list[Callable[[], object]]) -> None:
        super().__init__()
        self.tape = tape
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(tag in READING for tag in func.tags):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.made += _tensors(result)
        name = func._schema.name.partition("::")[2]
        marks = [a.alias_info for a in (*func._schema.arguments, *func._schema.returns)]
        writes = any(m is not None and m.is_write for m in marks)
        if name in PLACING or "empty" in name or (any(marks) and not writes):
            return result
        again = partial(func, *_by_address(args), **_by_address(kwargs or {}))
        self.tape.append(again if writes else partial(_refill, again, _by_address(result)))
        return result


def _refill(again: Callable[[], Any], places: Any) -> None:
    for place, value in zip(_tensors(places), _tensors(again()), strict=True):
        place.copy_(value)


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _memory(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _bytes(t: Tensor) -> Tensor:
    made = torch.empty(0, dtype=torch.uint8)
    return made.set_(t.untyped_storage(), 0, (t.untyped_storage().nbytes(),), (1,))


def _by_address(tree: Any) -> Any:
    """The same with tensors over the same addresses, which keep nothing alive."""
    return tree_map(lambda x: _alike(x) if isinstance(x, Tensor) else x, tree)


def _alike(t: Tensor) -> Tensor:
    if not t.numel():
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    memory = (ctypes.c_char * (reach * t.element_size())).from_address(t.data_ptr())
    return torch.frombuffer(memory, dtype=t.dtype, count=reach).as_strided(t.shape, t.stride())


@dataclass(frozen=True)
class TapedBackend:
    """A CPU backend whose kernels go onto the tape too."""

    inner: CpuBackend
    graphs: TapedGraphs = field(default_factory=TapedGraphs)

    device = torch.device("cpu")
    immediate = False

    def build(self, segments: Sequence[Sequence[BoundLaunch]]) -> list[Action]:
        return [self._taped(action) for action in self.inner.build(segments)]

    def _taped(self, action: Action) -> Action:
        def run(frame: Frame) -> None:
            action(frame)
            tape = self.graphs.tape
            if tape is not None:
                tape.append(partial(action, frame))

        return run

    def queue(self) -> int:
        return self.graphs.queue()

    def capturing(self) -> bool:
        return self.graphs.capturing()

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        """From the allocator: the CPU's pool of output pages refers to what it handed out."""
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)

    def maker(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> Callable[[], Tensor]:
        return partial(self.empty, shape, strides, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
