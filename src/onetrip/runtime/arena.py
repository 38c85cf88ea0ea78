"""Working memory of a program: one block for each call in flight, kept for the next call.

This module knows no program; offsets come from the memory planner.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from .pages import advise_huge

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


class Block:
    """Memory that belongs to one call until the call ends.

    Attributes:
        nbytes: its size in bytes.
        pointer: its address, a multiple of ALIGNMENT.
    """

    __slots__ = ("_skip", "_storage", "nbytes", "pointer")

    def __init__(self, nbytes: int) -> None:
        self._storage = torch.UntypedStorage(nbytes + ALIGNMENT)
        start = self._storage.data_ptr()
        advise_huge(start, nbytes + ALIGNMENT)
        self._skip = -start % ALIGNMENT
        self.pointer = start + self._skip
        self.nbytes = nbytes

    def tensor(
        self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor over the block from byte `offset` on, a multiple of the element's size.

        It must not outlive the call: the next call writes the same memory.
        """
        first = (self._skip + offset) // dtype.itemsize
        return torch.empty(0, dtype=dtype).set_(self._storage, first, shape, stride)


class Arena:
    """Blocks that calls borrow: calls at once, from several threads or nested, get one each."""

    def __init__(self) -> None:
        self._idle: list[Block] = []  # append and pop are atomic
        _ARENAS.add(self)

    @contextmanager
    def lease(self, nbytes: int) -> Iterator[Block]:
        """A block of at least `nbytes` bytes, the caller's own until the context ends."""
        block = self.take(nbytes)
        try:
            yield block
        finally:
            self.give_back(block)

    def take(self, nbytes: int) -> Block:
        """As `lease`, without the context: `give_back` must follow."""
        try:
            block = self._idle.pop()
        except IndexError:
            return Block(nbytes)
        return block if block.nbytes >= nbytes else Block(nbytes)

    def give_back(self, block: Block) -> None:
        """Let the next call have the block."""
        self._idle.append(block)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the blocks that no call holds."""
        return sum(block.nbytes for block in self._idle)

    def release(self) -> None:
        """Free the blocks that no call holds."""
        self._idle.clear()


_ARENAS: weakref.WeakSet[Arena] = weakref.WeakSet()


def _free_idle() -> None:
    for arena in _ARENAS:
        arena.release()


os.register_at_fork(after_in_child=_free_idle)
