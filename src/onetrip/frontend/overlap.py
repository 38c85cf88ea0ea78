"""Do two inputs of a call share memory, when the graph writes one of them?

A graph is compiled for inputs that lie apart. Its guards compare shapes and strides, not
addresses, so a later call may pass two views of one buffer; whoever calls the compiled graph asks
here first, and runs the original program where the answer is yes. It must not know graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._subclasses import FakeTensor

from .fakes import plain

Interval = tuple[int, int, int]


def _addressable(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and plain(value)
        and not isinstance(value, FakeTensor)
        and value.device.type != "meta"
        and value.numel() > 0
    )


def _interval(position: int, t: Tensor) -> Interval:
    """First byte, one past the last byte, position."""
    reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    start = t.data_ptr()
    return start, start + (reach + 1) * t.element_size(), position


def _colliding(intervals: list[Interval]) -> list[tuple[int, int]]:
    """Pairs of positions whose byte ranges meet: one sweep over sorted starts."""
    pairs: list[tuple[int, int]] = []
    active: list[Interval] = []
    for current in sorted(intervals):
        active = [earlier for earlier in active if earlier[1] > current[0]]
        pairs.extend((earlier[2], current[2]) for earlier in active)
        active.append(current)
    return pairs


def check_overlap(inputs: Sequence[Any], written: Collection[int]) -> bool:
    """Whether an input at a position in ``written`` shares an element with another input.

    Byte ranges are compared first; where they meet, the strided test decides that AOTAutograd
    itself trusts. In doubt (interleaved strides) the answer is yes.
    """
    intervals = [_interval(i, t) for i, t in enumerate(inputs) if _addressable(t)]
    return any(
        (a in written or b in written)
        and len(compute_overlapping_tensors([inputs[a], inputs[b]], symbolic=False)) > 0
        for a, b in _colliding(intervals)
    )


def with_overlap_check(
    compiled: Callable[..., Any], original: Callable[..., Any], written: Collection[int]
) -> Callable[..., Any]:
    """``compiled``, but ``original`` for a call whose written inputs overlap others.

    Addresses that were found apart once need no second look: with the shapes that the guards
    fix, they determine the ranges. Only the last set is remembered.
    """
    apart: tuple[Any, ...] | None = None

    def call(*inputs: Any) -> Any:
        nonlocal apart
        key = tuple(map(_identity, inputs))
        if key != apart:
            if check_overlap(inputs, written):
                return original(*inputs)
            apart = key
        return compiled(*inputs)

    return call


def _identity(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not _addressable(value):
        return None
    return value.data_ptr(), value.shape, value.stride()
