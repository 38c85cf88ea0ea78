"""Calls that tracing must not take apart: torch registers Python decompositions over their kernels.

A decomposed resampling is a gather through index tensors, and its gradient a scatter that no kernel
can share; the call itself says which elements meet. It must not know operators or graphs of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
import torch._decomp  # registers what is laid aside here
from torch._C import DispatchKey

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_NAMES = (
    *(f"{stem}{n}d" for stem in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)
_lock = RLock()


def _overloads() -> list[Any]:
    packets = [getattr(torch.ops.aten, name) for name in _NAMES]
    return [getattr(p, overload) for p in packets for overload in ("vec", "default")]


@contextmanager
def kept_whole(inputs: Sequence[Any]) -> Iterator[None]:
    """Within, the calls are traced as they stand; not where an input has a symbolic size."""
    if any(map(_is_symbolic, inputs)):
        yield
        return
    with _lock:
        aside = [(op, {k: op.py_kernels.pop(k) for k in _KEYS if k in op.py_kernels})
                 for op in _overloads()]  # fmt: skip
        _forget(op for op, _ in aside)
        try:
            yield
        finally:
            for op, kernels in aside:
                op.py_kernels.update(kernels)
            _forget(op for op, _ in aside)


def _forget(overloads: Iterator[Any]) -> None:
    """Which kernel answers is remembered by each overload."""
    for op in overloads:
        op._dispatch_cache.clear()


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in value.shape)
    return isinstance(value, torch.SymInt)
