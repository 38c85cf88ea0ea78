"""Scratch memory that the programs of a device share: a call in flight holds a block of its queue.

Work on a queue is done in order, so what one program leaves in a block is dead when the next one
writes it. A forward and a backward pass, and every shape of a model, need one block together: that
of whoever needs most. A call within a call, or a second thread, gets a block of its own.

Knows neither programs nor devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class Block:
    """Memory that one call at a time writes."""

    def __init__(self, arena: Tensor) -> None:
        self.arena = arena


class Scratch:
    """The blocks of a device that wait for a call."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Block]] = {}
        self._lock = threading.Lock()

    def lease(self, queue: int, need: int, make: Callable[[int], Tensor]) -> Block:
        """A block of `need` bytes at least whose earlier work lies on the same queue.

        One that is too small makes room for a larger one.
        """
        with self._lock:
            waiting = self._waiting.get(queue)
            block = waiting.pop() if waiting else None
        if block is not None and block.arena.numel() >= need:
            return block
        del block
        return Block(make(need))

    def give(self, queue: int, block: Block) -> None:
        """Takes back the block of a call that is over."""
        with self._lock:
            self._waiting.setdefault(queue, []).append(block)

    def clear(self) -> None:
        """Frees the blocks that wait for a call."""
        with self._lock:
            self._waiting.clear()


_of_devices: WeakValueDictionary[torch.device, Scratch] = WeakValueDictionary()
_lock = threading.Lock()


def scratch_of(device: torch.device) -> Scratch:
    """What all programs of a device share, for as long as there is one of them."""
    with _lock:
        found = _of_devices.get(device)
        if found is None:
            found = _of_devices[device] = Scratch()
        return found
