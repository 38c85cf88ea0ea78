"""Tensors as a program wants them: copies of those laid out otherwise, views that are remembered.

Knows nothing of programs and kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def restrided(t: Tensor, strides: Sequence[Any]) -> Tensor:
    """`t` itself where the strides differ only in dimensions of size 1, else a copy laid out so."""
    if all(n <= 1 or a == b for n, a, b in zip(t.shape, t.stride(), strides, strict=False)):
        return t
    return torch.empty_strided(t.shape, tuple(strides), dtype=t.dtype, device=t.device).copy_(t)


def laid_out(result: Any, strides: Sequence[int]) -> Any:
    """A call's result with the strides that its readers expect; what is no tensor as it is."""
    return restrided(result, strides) if isinstance(result, Tensor) else result


class Remembered:
    """A view of a parameter, which is the same tensor at each call, and so may its views be."""

    def __init__(self, shape: Sequence[Any], strides: Sequence[Any], offset: int) -> None:
        self._form = (tuple(shape), tuple(strides))
        self._offset = offset
        self._known: tuple[Tensor, int, Tensor] | None = None

    def __call__(self, t: Tensor) -> Tensor:
        """The view of `t`; made anew where its memory is another one."""
        known = self._known
        if known is not None and known[0] is t and known[1] == t.data_ptr():
            return known[2]
        made = t.as_strided(*self._form, t.storage_offset() + self._offset)
        self._known = (t, t.data_ptr(), made)
        return made
