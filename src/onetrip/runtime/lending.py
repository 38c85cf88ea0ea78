"""The memory of a recording's results: lent while somebody holds it, or copied from.

Knows neither recordings nor programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from sys import getrefcount
from typing import NamedTuple

import torch
from torch import Tensor, UntypedStorage

_use_count: Callable[[int], int] = torch._C._storage_Use_Count


_Held = tuple[UntypedStorage, int, int]
"""A storage, what identifies it, and how many of a recording's own tensors lie in it."""


def _storages(own: Sequence[Tensor]) -> list[_Held]:
    counted = Counter(t.untyped_storage()._cdata for t in own)
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in own}
    return [(storage, cdata, counted[cdata]) for cdata, storage in storages.items()]


def _references(held: Sequence[_Held]) -> list[tuple[int, int]]:
    """References to each memory beside those tensors', and to the storage object, which a caller
    may hold without any tensor."""
    return [(_use_count(c) - own, getrefcount(storage)) for storage, c, own in held]


def _alone() -> tuple[int, int]:
    own = [torch.empty(1, device="cpu")]
    (found,) = _references(_storages(own))
    return found


_ALONE = _alone()
"""What `_references` answers where nobody else holds the memory."""


class Memory:
    """The storages behind a recording's own results.

    Args:
        own: the results, no two of them one tensor.
    """

    def __init__(self, own: Sequence[Tensor]) -> None:
        self._own = own
        self._held = _storages(own)
        position = {cdata: n for n, (_, cdata, _) in enumerate(self._held)}
        self._places = [
            (position[t.untyped_storage()._cdata], form_of(t), int(t.storage_offset())) for t in own
        ]
        self._words: list[Tensor] | None = None

    @property
    def cdatas(self) -> frozenset[int]:
        """What identifies the storages while they exist."""
        return frozenset(cdata for _, cdata, _ in self._held)

    def is_free(self) -> bool:
        """Whether no tensor, no storage object and no gradient formula refers to the results."""
        return all(found == _ALONE for found in _references(self._held))

    def lend(self) -> list[Tensor]:
        """The results, as new tensors over this memory."""
        return [t.detach() for t in self._own]

    def copy(self) -> list[Tensor]:
        """The results in new memory, one copy for all; what shared memory does so again."""
        if self._words is None:
            self._words = [_words(storage) for storage, _, _ in self._held]
        fresh = [torch.empty_like(w) for w in self._words]
        for dtype in {w.dtype for w in fresh}:
            pairs = [p for p in zip(fresh, self._words, strict=True) if p[0].dtype == dtype]
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
        storages = [w.untyped_storage() for w in fresh]
        return [over(storages[n], form, start) for n, form, start in self._places]


def _words(storage: UntypedStorage) -> Tensor:
    """All bytes of a storage, in the widest words that divide it."""
    dtype = torch.int64 if storage.nbytes() % 8 == 0 else torch.uint8
    made = torch.empty(0, dtype=dtype, device=storage.device)
    return made.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


class Form(NamedTuple):
    """What a tensor is beside its memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def form_of(t: Tensor) -> Form:
    """The form of a tensor."""
    return Form(t.dtype, tuple(t.shape), tuple(t.stride()))


def over(storage: UntypedStorage, form: Form, start: int) -> Tensor:
    """A tensor over a storage, from element `start` on."""
    made = torch.empty(0, dtype=form.dtype, device=storage.device)
    return made.set_(storage, start, form.shape, form.strides)


class Lent:
    """Which storages are lent: inputs that lie in them come back to the same addresses.

    Attributes:
        version: grows with each recording that begins to lend.
    """

    def __init__(self) -> None:
        self.version = 0
        self._known: set[int] = set()

    def add(self, cdatas: Collection[int]) -> None:
        """A recording begins to lend these."""
        self._known.update(cdatas)
        self.version += 1

    def discard(self, cdatas: Collection[int]) -> None:
        """It is gone."""
        self._known.difference_update(cdatas)

    def __contains__(self, t: Tensor) -> bool:
        return t.untyped_storage()._cdata in self._known


lent = Lent()
"""Of all recordings of this process."""
