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
from collections import OrderedDict, deque
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


def _aliaser() -> Callable[..., torch.Tensor]:
    """(tensor, shape, strides, offset) -> another tensor over the same storage, related to it in
    no other way; past the dispatcher where torch has such a function."""
    found: Callable[..., torch.Tensor] | None = getattr(
        torch._C._dynamo.guards, "_reinterpret_tensor", None
    )
    if found is not None:
        return found
    return lambda t, shape, stride, offset: torch.empty(0, dtype=t.dtype, device=t.device).set_(
        t.untyped_storage(), t.storage_offset() + offset, shape, stride
    )


alias = _aliaser()

LOOKS = 64
"""Pages of one form that an allocation looks at, the longest in use first."""

LASTING = 128
"""Allocations for which a form that nobody asks for is kept, once new forms come in: where sizes
change from call to call, most never come back."""

Form = tuple[int, torch.dtype, bool]
"""What the tensors of a page have in common: bytes, dtype, whether made in inference mode."""


@dataclass(eq=False, slots=True)
class _Page:
    """A storage and a tensor over the whole of it, neither ever given away, and what they were when
    taken in."""

    storage: torch.UntypedStorage
    base: torch.Tensor
    pointer: int
    cdata: int
    form: Form


def _page(form: Form) -> _Page:
    nbytes, dtype, _ = form
    storage = torch.UntypedStorage(nbytes)
    empty = torch.empty(0, dtype=dtype, device="cpu")  # whatever device a context asks for
    base = empty.set_(storage, 0, (nbytes // dtype.itemsize,), (1,))
    return _Page(storage, base, storage.data_ptr(), storage._cdata, form)


_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def _references(page: _Page) -> tuple[int, int]:
    """Of tensors and storages to the memory, and of the interpreter to the storage object."""
    return _use_count(page.cdata) if _use_count else 0, sys.getrefcount(page.storage)


_ONLY_THE_POOLS = _references(_page((0, torch.uint8, False)))


def _is_free(page: _Page) -> bool:
    """Whether no tensor and no storage object outside the pool refers to the page.

    The count of tensors says nothing of a caller who holds the storage object itself, so the
    interpreter's count is read too.
    """
    return _references(page) == _ONLY_THE_POOLS


def _is_intact(page: _Page) -> bool:
    """Whether the storage still has the memory that the pool gave it."""
    storage = page.storage
    return storage.data_ptr() == page.pointer and storage.nbytes() == page.form[0]


class OutputPool:
    """Storages by form, at most `limit` bytes of them (None: ONETRIP_POOL_BYTES).

    Any thread may allocate. After a fork the child starts with an empty pool. The bound covers
    what is free and what is in use; past it, the forms used longest ago are forgotten first, as are
    those that have not been asked for during the last LASTING allocations.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._pages: OrderedDict[Form, deque[_Page]] = OrderedDict()
        self._asked: dict[Form, int] = {}
        self._count = 0
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
        return self._made(shape, stride, dtype, nbytes)

    def storage(self, nbytes: int) -> torch.UntypedStorage:
        """A storage of `nbytes` bytes that nobody else reads or writes."""
        return self._made((nbytes,), (1,), torch.uint8, nbytes).untyped_storage()

    def _made(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, nbytes: int
    ) -> torch.Tensor:
        """A tensor over a free page or a new one. A page is free until a tensor over it exists:
        that is made under the lock, so that no two threads get one page."""
        form = (nbytes, dtype, torch.is_inference_mode_enabled())
        with self._lock:
            self._count += 1
            pages = self._pages.get(form)
            if pages is not None:
                self._pages.move_to_end(form)
                self._asked[form] = self._count
                for _ in range(min(len(pages), LOOKS)):
                    page = pages[0]
                    pages.rotate(-1)
                    if _is_free(page):
                        if _is_intact(page):
                            return alias(page.base, shape, stride, 0)
                        self._forget(page)
                        break
            return alias(self._take_in(form), shape, stride, 0)

    def release(self) -> None:
        """Forget every storage; those in use live as long as their tensors."""
        with self._lock:
            self._pages.clear()
            self._asked.clear()
            self._bytes = 0

    def _take_in(self, form: Form) -> torch.Tensor:
        limit = knobs.POOL_BYTES.get() if self._limit is None else self._limit
        page, nbytes = _page(form), form[0]
        advise_huge(page.pointer, nbytes)
        if nbytes <= limit and _use_count is not None:
            self._make_room(limit - nbytes)
            self._pages.setdefault(form, deque()).append(page)
            self._pages.move_to_end(form)
            self._asked[form] = self._count
            self._bytes += nbytes
            self._forget_old()
        return page.base

    def _forget_old(self) -> None:
        """Forget the forms that nobody asked for lately."""
        while self._count - self._asked[oldest := next(iter(self._pages))] > LASTING:
            self._bytes -= oldest[0] * len(self._pages.pop(oldest))
            del self._asked[oldest]

    def _make_room(self, target: int) -> None:
        """Forget storages until at most `target` bytes remain."""
        while self._bytes > target:
            pages = next(iter(self._pages.values()))
            self._forget(pages[0])

    def _forget(self, page: _Page) -> None:
        pages = self._pages[page.form]
        pages.remove(page)
        if not pages:
            del self._pages[page.form], self._asked[page.form]
        self._bytes -= page.form[0]


_POOLS: weakref.WeakSet[OutputPool] = weakref.WeakSet()


def _start_empty() -> None:
    """In a forked child: another thread may have held a lock, and pages are shared on write."""
    for pool in _POOLS:
        pool._lock = threading.Lock()
        pool._pages = OrderedDict()
        pool._asked = {}
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
