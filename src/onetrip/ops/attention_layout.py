"""How the result of the library's attention lies in memory: one rule for running and planning.

A plan must not depend on which of the library's kernels is chosen, so the rule is ours: the fast
kernels', and the others' results are copied into it. Knows neither tensors nor graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any

RANK = 4


def result_order(
    strides: Sequence[Any], alike: bool, on_cpu: bool, is_at_least: Callable[[Any, Any], bool]
) -> tuple[int, ...]:
    """Axes of a result of four from outermost to innermost: the query's order.

    A CPU's is row-major where its width is another than the query's, or where the query's rows
    are scattered.

    Args:
        strides: the query's.
        alike: whether query and value are equally wide and the query's rows contiguous.
    """
    if on_cpu and not alike:
        return tuple(range(RANK))

    def compare(a: int, b: int) -> int:
        above = is_at_least(strides[a], strides[b])
        below = is_at_least(strides[b], strides[a])
        return int(below) - int(above)

    return (*sorted(range(RANK - 1), key=cmp_to_key(compare)), RANK - 1)


def dense_strides(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Strides in elements of a dense tensor stored with its axes in an order, outermost first.

    An axis of no elements counts as one of one, as torch has it.
    """
    strides: dict[int, Any] = {}
    step: Any = 1
    for axis in reversed(order):
        strides[axis] = step
        extent = shape[axis]
        step = step * (1 if isinstance(extent, int) and extent == 0 else extent)
    return tuple(strides[k] for k in range(len(shape)))
