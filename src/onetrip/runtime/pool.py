"""Output pages on the CPU, reused once nobody reads them.

A fresh page costs a fault and its zeroing, several times the work of a fused kernel. The pool keeps
the storages behind earlier outputs; one to which only the pool still points is handed out again.
Outputs are ordinary tensors: a storage that its owner resized, moved to shared memory or gave away
is no longer what the pool recorded, and is forgotten. This module knows no program.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from onetrip.base import knobs

from .pages import advise_huge

SMALLEST = 1 << 16
"""Bytes below which an allocator's own reuse of memory is faster than ours."""


def _allocator() -> Callable[..., torch.Tensor]:
    """(shape, strides, dtype) -> a tensor; past the dispatcher where torch has such a function."""
    found: Callable[..., torch.Tensor] | None = getattr(
        torch._C._dynamo.guards, "_empty_strided_cpu", None
    )
    if found is not None:
        return found
    return lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype)


_small = _allocator()


@dataclass(eq=False, slots=True)
class _Page:
    """A storage and what it was when the pool took it in."""

    storage: torch.UntypedStorage
    pointer: int
    nbytes: int
    cdata: int


def _page(storage: torch.UntypedStorage) -> _Page:
    return _Page(storage, storage.data_ptr(), storage.nbytes(), storage._cdata)


_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def _references(page: _Page) -> int:
    return sys.getrefcount(page.storage)


_ONLY_THE_PAGE = _references(_page(torch.UntypedStorage(0)))


def _is_free(page: _Page) -> bool:
    """Whether no tensor and no storage object outside the pool refers to the page.

    The count of tensors says nothing of a caller who holds the storage object itself, so the
    interpreter's count is read too.
    """
    if _use_count is None or _use_count(page.cdata) != 1:
        return False
    return _references(page) == _ONLY_THE_PAGE


def _is_intact(page: _Page) -> bool:
    """Whether the storage still has the memory that the pool gave it."""
    storage = page.storage
    return storage.data_ptr() == page.pointer and storage.nbytes() == page.nbytes


class OutputPool:
    """Storages by size, at most `limit` bytes of them (None: ONETRIP_POOL_BYTES).

    Any thread may allocate. After a fork the child starts with an empty pool. The bound covers
    what is free and what is in use; past it, the sizes used longest ago are forgotten first.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._pages: OrderedDict[int, list[_Page]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        _POOLS.add(self)

    @property
    def held_bytes(self) -> int:
        """Bytes of all storages that the pool remembers, in use or free."""
        return self._bytes

    def empty(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, nbytes: int
    ) -> torch.Tensor:
        """An uninitialized CPU tensor whose storage has `nbytes` bytes.

        `nbytes` must cover shape and stride from offset 0.
        """
        if nbytes < SMALLEST:
            return _small(shape, stride, dtype)
        storage = self.storage(nbytes)
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, stride)

    def storage(self, nbytes: int) -> torch.UntypedStorage:
        """A storage of `nbytes` bytes that nobody else reads or writes."""
        with self._lock:
            pages = self._pages.get(nbytes)
            if pages is not None:
                self._pages.move_to_end(nbytes)
                for page in pages:
                    if _is_free(page):
                        if _is_intact(page):
                            return page.storage
                        self._forget(page)
                        break
            return self._take_in(nbytes)

    def release(self) -> None:
        """Forget every storage; those in use live as long as their tensors."""
        with self._lock:
            self._pages.clear()
            self._bytes = 0

    def _take_in(self, nbytes: int) -> torch.UntypedStorage:
        limit = knobs.POOL_BYTES.get() if self._limit is None else self._limit
        storage = torch.UntypedStorage(nbytes)
        advise_huge(storage.data_ptr(), nbytes)
        if nbytes <= limit and _use_count is not None:
            self._make_room(limit - nbytes)
            self._pages.setdefault(nbytes, []).append(_page(storage))
            self._pages.move_to_end(nbytes)
            self._bytes += nbytes
        return storage

    def _make_room(self, target: int) -> None:
        """Forget storages until at most `target` bytes remain."""
        while self._bytes > target:
            pages = next(iter(self._pages.values()))
            self._forget(pages[0])

    def _forget(self, page: _Page) -> None:
        pages = self._pages[page.nbytes]
        pages.remove(page)
        if not pages:
            del self._pages[page.nbytes]
        self._bytes -= page.nbytes


_POOLS: weakref.WeakSet[OutputPool] = weakref.WeakSet()


def _start_empty() -> None:
    """In a forked child: another thread may have held a lock, and pages are shared on write."""
    for pool in _POOLS:
        pool._lock = threading.Lock()
        pool._pages = OrderedDict()
        pool._bytes = 0


os.register_at_fork(after_in_child=_start_empty)

outputs = OutputPool()
"""The pool of this process."""


def empty_strided(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized CPU tensor, on pages of `outputs` where it is large enough to gain."""
    return outputs.empty(shape, stride, dtype, _bytes_of(shape, stride, dtype))


def maker_of(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Callable[[], torch.Tensor]:
    """What makes tensors as `empty_strided` does, of one form."""
    nbytes = _bytes_of(shape, stride, dtype)
    if nbytes < SMALLEST:
        return partial(_small, tuple(shape), tuple(stride), dtype)
    return partial(outputs.empty, shape, stride, dtype, nbytes)


def _bytes_of(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes from the first element to the last; 0 where there is none."""
    if 0 in shape:
        return 0
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (1 + reach) * dtype.itemsize
