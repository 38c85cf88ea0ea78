"""What a call does to its inputs: copies of those laid out otherwise, writes back to changed ones.

Knows nothing of programs and kernels: it is given tensors by slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Slots(Protocol):
    """Tensors by slot."""

    @property
    def tensors(self) -> list[Any]:
        """None where nothing lies."""
        ...


def restrided(t: Tensor, strides: Sequence[Any]) -> Tensor:
    """`t` itself where the strides differ only in dimensions of size 1, else a copy laid out so."""
    if all(n <= 1 or a == b for n, a, b in zip(t.shape, t.stride(), strides, strict=False)):
        return t
    return torch.empty_strided(t.shape, tuple(strides), dtype=t.dtype, device=t.device).copy_(t)


class Writes:
    """Consecutive writes to inputs: those between the same dtypes become one call."""

    def __init__(self) -> None:
        self._pairs: dict[Any, list[tuple[int, int]]] = {}

    def add(self, kinds: Any, target: int, value: int) -> None:
        """One more; no write's value lies in another's target."""
        self._pairs.setdefault(kinds, []).append((target, value))

    def __call__(self, slots: Slots) -> None:
        """Writes all of them."""
        tensors = slots.tensors
        for pairs in self._pairs.values():
            targets = [tensors[target] for target, _ in pairs]
            torch._foreach_copy_(targets, [tensors[value] for _, value in pairs])
