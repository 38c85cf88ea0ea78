"""One call of a program, recorded by the device and done again on other arguments.

    load     arguments that are copied go to where the recording reads them: one call a dtype
    replay   the device does what it did, at the same addresses
    store    those of them that the program writes are copied back
    answer   results as tensors of their own

A recording that lends answers with tensors over its own memory, and is free again when nobody holds
any of them. One that does not answers with copies and is always free. Knows no device:
`DeviceGraphs` says what it needs of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .answer import Answer
from .lending import Memory, lent

Run = Callable[[list[Any]], list[Any]]


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Issues it on the current queue."""
        ...


class DeviceGraphs(Protocol):
    """How a device records work instead of doing it."""

    def queue(self) -> int:
        """The queue that work is issued on now: replays on one are done in order."""
        ...

    def capturing(self) -> bool:
        """Whether work issued now is recorded already, by whoever calls."""
        ...

    def capture(self, run: Run, arguments: list[Any]) -> tuple[Graph, list[Any]]:
        """Records `run(arguments)`: nothing is done, and random generators stay where they are.

        Memory that `run` allocates belongs to the graph for as long as that lives.

        Returns:
            What replays it, and the results: tensors that are filled by each replay.

        Raises:
            Exception: what `run` raises, or the device where something cannot be recorded. The
                device works on as before.
        """
        ...


class Fixed:
    """The arguments of a recording: some as they were given, some as copies that stay.

    Args:
        arguments: of the call that is recorded.
        copied: positions of tensors that later calls bring from elsewhere.
        written: positions of tensors that the program writes.

    Attributes:
        tensors: what the recording reads, until `forget`.
    """

    def __init__(
        self, arguments: Sequence[Any], copied: Collection[int], written: Collection[int]
    ) -> None:
        self.tensors = list(arguments)
        self._once = {k: _whole if _overlaps(arguments[k]) else _elements for k in copied}
        groups: dict[torch.dtype, list[int]] = {}
        for k in sorted(copied):
            self.tensors[k] = _room_for(arguments[k])
            groups.setdefault(arguments[k].dtype, []).append(k)
        self._loads = [(group, self._places(group)) for group in groups.values()]
        back = [[k for k in group if k in written] for group in groups.values()]
        self._stores = [(group, self._places(group)) for group in back if group]

    def _places(self, positions: Sequence[int]) -> list[Tensor]:
        return [self._once[k](self.tensors[k]) for k in positions]

    def load(self, arguments: Sequence[Any]) -> None:
        """Copies what a call gives."""
        for positions, places in self._loads:
            torch._foreach_copy_(places, [self._once[k](arguments[k]) for k in positions])

    def store(self, arguments: Sequence[Any]) -> None:
        """Copies what was written to where the call has it."""
        for positions, places in self._stores:
            torch._foreach_copy_([arguments[k] for k in positions], places)

    def forget(self) -> None:
        """Lets go of what was given: only copies are the recording's to keep."""
        self.tensors.clear()


def _elements(t: Tensor) -> Tensor:
    """Each element in memory once: without the repetition of dimensions of stride 0."""
    if 0 not in t.stride():
        return t
    return t[tuple(slice(0, 1) if step == 0 else slice(None) for step in t.stride())]


def _overlaps(t: Tensor) -> bool:
    """Whether elements may share places otherwise than by strides of 0, as those of windows do."""
    reach = 0
    for step, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if s):
        if size > 1 and step <= reach:
            return t.numel() > 0
        reach += (size - 1) * step
    return False


def _whole(t: Tensor) -> Tensor:
    """All that lies between the first element and the last."""
    reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((reach + 1,), (1,))


def _room_for(t: Tensor) -> Tensor:
    """Memory for a tensor, laid out as `t` is but for gaps."""
    if _overlaps(t):
        return torch.empty_like(_whole(t)).as_strided(t.shape, t.stride())
    return torch.empty_like(_elements(t)).expand(t.shape)


class Recording:
    """Recorded work with its memory.

    Args:
        graph: what replays it.
        fixed: the arguments it was recorded on.
        results: what recording it answered.
        lends: whether its results are lent or copied.
    """

    def __init__(self, graph: Graph, fixed: Fixed, results: Sequence[Any], lends: bool) -> None:
        self._graph = graph
        self._fixed = fixed
        self._answer = Answer(results, fixed.tensors)
        self._memory = Memory(self._answer.own)
        self._lends = lends
        if lends:
            lent.add(self._memory.cdatas)
            weakref.finalize(self, lent.discard, self._memory.cdatas)
        fixed.forget()

    def is_free(self) -> bool:
        """Whether a replay overwrites nothing that somebody holds."""
        return not self._lends or self._memory.is_free()

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Does the call on these arguments, on the current queue; empties the list."""
        self._fixed.load(arguments)
        self._graph.replay()
        self._fixed.store(arguments)
        own = self._memory.lend() if self._lends else self._memory.copy()
        results = self._answer(own, arguments)
        arguments.clear()
        return results
