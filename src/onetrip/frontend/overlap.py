"""May a graph write the inputs of this call as it was compiled to?

A graph is compiled for inputs that lie apart and may be written. Its guards compare shapes and
strides, not addresses, so a later call may pass two views of one buffer; nor do they tell a tensor
that was made in InferenceMode, which may be written nowhere else, from another one. Whoever calls
the compiled graph asks here first, and runs the original program where the answer is no: of two
views it knows the order of writes, and for a tensor that may not be written it raises eager's
error. It must not know graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
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
    )


def _span(value: Any) -> int:
    """Bytes from the first element to the end of the last; 0 where there is none."""
    if not _addressable(value) or not value.numel():
        return 0
    reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return int((reach + 1) * value.element_size())


def _intervals(starts: Sequence[int | None], spans: Sequence[int]) -> list[Interval]:
    """First byte, one past the last byte and position of what has bytes, sorted."""
    pairs = enumerate(zip(starts, spans, strict=True))
    return sorted((start, start + span, k) for k, (start, span) in pairs if span and start)


def _meet(intervals: list[Interval]) -> bool:
    """Whether any two of sorted intervals share a byte."""
    reach = 0
    for start, end, _ in intervals:
        if start < reach:
            return True
        reach = end
    return False


def _colliding(intervals: list[Interval]) -> list[tuple[int, int]]:
    """Pairs of positions whose byte ranges meet: one sweep over sorted intervals."""
    pairs: list[tuple[int, int]] = []
    active: list[Interval] = []
    for current in intervals:
        active = [earlier for earlier in active if earlier[1] > current[0]]
        pairs.extend((earlier[2], current[2]) for earlier in active)
        active.append(current)
    return pairs


def check_overlap(inputs: Sequence[Any], written: Collection[int]) -> bool:
    """Whether an input at a position in ``written`` shares an element with another input.

    Byte ranges are compared first; where they meet, the strided test decides that AOTAutograd
    itself trusts. In doubt (interleaved strides) the answer is yes.
    """
    starts = [t.data_ptr() if _addressable(t) else None for t in inputs]
    intervals = _intervals(starts, list(map(_span, inputs)))
    return any(
        (a in written or b in written)
        and len(compute_overlapping_tensors([inputs[a], inputs[b]], symbolic=False)) > 0
        for a, b in _colliding(intervals)
    )


def check_frozen(inputs: Sequence[Any], written: Collection[int]) -> bool:
    """Whether a written input was made in InferenceMode, and the call is outside of it."""
    if torch.is_inference_mode_enabled():
        return False
    return any(inputs[k].is_inference() for k in written if isinstance(inputs[k], Tensor))


def _reader(value: Any) -> Callable[[Any], int | None]:
    """How to read what a later call's value at this position says about addresses."""
    if _addressable(value):
        return Tensor.data_ptr
    return int if isinstance(value, int) else lambda _: None


def with_overlap_check(
    compiled: Callable[..., Any], original: Callable[..., Any], written: Collection[int]
) -> Callable[..., Any]:
    """``compiled``, but ``original`` for a call whose written inputs overlap others or are frozen.

    Addresses that were found apart once need no second look: with the sizes, which are guarded or
    come as inputs of their own, they determine the ranges. Only the last set is remembered. New
    addresses, as gradients have them in each step, are compared as ranges of bytes first.
    """
    readers: list[Callable[[Any], int | None]] = []
    apart: list[int | None] = []
    spans: list[int] = []

    def call(*inputs: Any) -> Any:
        nonlocal apart, spans
        if not readers:  # what kind of value comes at each position is guarded
            readers.extend(map(_reader, inputs))
        if check_frozen(inputs, written):
            return original(*inputs)
        key = [read(value) for read, value in zip(readers, inputs, strict=True)]
        if key != apart:
            if not spans or int in readers:  # numbers among the inputs may be sizes
                spans = list(map(_span, inputs))
            if _meet(_intervals(key, spans)) and check_overlap(inputs, written):
                return original(*inputs)
            apart = key
        return compiled(*inputs)

    return call
