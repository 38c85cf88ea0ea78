"""Triton's interpreter with reductions and scans of whole blocks.

By itself it combines element by element in Python, milliseconds each. Here a reduction combines
neighbours until one element is left, and a scan combines each element with the one 1, 2, 4, ...
before it: as many calls as the block's length has binary digits, in a tree as on a chip. Operands
keep their order, so a combine function has to be associative, as Triton asks, and no more.

Must not know: what is combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime import interpreter

Blocks = list[Any]
"""Arrays of one shape: the components of what is combined."""


@contextmanager
def whole_blocks() -> Iterator[None]:
    """Reductions and scans in whole blocks while a kernel is interpreted, in one thread at a time:
    Triton's interpreter itself patches its language for so long."""
    slow = interpreter.ReduceOps.generic_reduce, interpreter.ScanOps.generic_scan
    interpreter.ReduceOps.generic_reduce = _reduce(slow[0])
    interpreter.ScanOps.generic_scan = _scan
    try:
        yield
    finally:
        interpreter.ReduceOps.generic_reduce, interpreter.ScanOps.generic_scan = slow


def _combined(ops: Any, left: Blocks, right: Blocks, like: Sequence[Any]) -> Blocks:
    """The combine function of all elements at once, in the dtypes of `like`."""
    given = [
        ops.to_tensor(x, t.dtype) for side in (left, right) for x, t in zip(side, like, strict=True)
    ]
    made = ops.combine_fn.fn(*given)
    made = made if isinstance(made, tuple) else (made,)
    return [
        np.broadcast_to(m.handle.data, x.shape).astype(x.dtype)
        for m, x in zip(made, left, strict=True)
    ]


def _reduce(of_all_axes: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def reduce(ops: Any, given: Sequence[Any]) -> Any:
        axis = ops.axis
        if axis is None:
            return of_all_axes(ops, given)
        held = [x.handle.data for x in given]
        while held[0].shape[axis] > 1:
            first, second = (
                [np.take(x, range(k, x.shape[axis], 2), axis) for x in held] for k in (0, 1)
            )
            held = _combined(ops, first, second, given)
        if not ops.keep_dims:
            held = [np.squeeze(x, axis) for x in held]
        return [ops.to_tensor(x, t.dtype) for x, t in zip(held, given, strict=True)]

    return reduce


def _scan(ops: Any, given: Sequence[Any]) -> Any:
    axis = ops.axis
    held = [x.handle.data for x in given]
    length = held[0].shape[axis]
    index = np.arange(length).reshape([-1 if k == axis else 1 for k in range(held[0].ndim)])
    step = 1
    while step < length:
        before = [np.roll(x, step, axis) for x in held]  # the first ones wrap, and are not taken
        made = _combined(ops, before, held, given)
        held = [np.where(index < step, x, m) for x, m in zip(held, made, strict=True)]
        step *= 2
    return [ops.to_tensor(x, t.dtype) for x, t in zip(held, given, strict=True)]
