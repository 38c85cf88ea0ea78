"""Numpy meaning of the poolings and of their gradients, from windows spelled out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .schema import Attrs
from .windows import Step, adaptive_steps, attrs_of, counted, steps_of, window_steps, windowed

Reference = Callable[..., Any]


def _taps(x: Any, steps: Sequence[Step], value: float = 0) -> Any:
    """All windows, each flat."""
    found = windowed(x, {**attrs_of(steps), "value": value})
    return found.reshape(*found.shape[: found.ndim - len(steps)], -1)


def tap_place(best: Any, at: Attrs) -> Any:
    """The place of a window's tap, its first element where that is outside."""
    steps = steps_of(at)
    taps = np.unravel_index(best, tuple(s.kernel for s in steps))
    grids = np.indices(best.shape)[best.ndim - len(steps) :]
    place: Any = 0
    for s, tap, o in zip(steps, taps, grids, strict=True):
        start = o * s.size // s.count if s.adaptive else o * s.stride - s.padding
        inside = np.maximum(tap, -(start // s.dilation))
        place = place * s.size + start + inside * s.dilation
    return place


def max_pool(n: int) -> Reference:
    """The extreme of each window, and its place."""

    def pooled(x: Any, at: Attrs) -> Any:
        given = at.get("output_size")
        steps = window_steps(x.shape, at, n) if given is None else adaptive_steps(x.shape, given)
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        taps = _taps(x, steps, least)
        return taps.max(-1), tap_place(taps.argmax(-1), attrs_of(steps))

    return pooled


def max_pool_backward(n: int) -> Reference:
    """Each window's gradient goes to the element that it chose, if it holds that element."""

    def gradient(g: Any, x: Any, chosen: Any, at: Attrs) -> Any:
        out = np.zeros(x.shape).reshape(*x.shape[:-n], -1)
        flat = out.reshape(-1, out.shape[-1])
        places, parts = (a.reshape(len(flat), -1) for a in (chosen, g))
        for row, own, part in zip(flat, places, parts, strict=True):
            np.add.at(row, own, part)
        return out.reshape(x.shape)

    return gradient


def _divisor(steps: Sequence[Step], at: Attrs) -> Any:
    given = at.get("divisor_override")
    if given is not None:
        return given
    return counted({**attrs_of(steps), "padded": at.get("count_include_pad", True)})


def avg_pool(n: int) -> Reference:
    """The mean of each window."""

    def pooled(x: Any, at: Attrs) -> Any:
        steps = window_steps(x.shape, at, n)
        return _taps(x, steps).sum(-1) / _divisor(steps, at)

    return pooled


def adaptive_pool(n: int) -> Reference:
    """The mean of windows that share each dimension."""

    def pooled(x: Any, at: Attrs) -> Any:
        steps = adaptive_steps(x.shape, at["output_size"])
        return _taps(x, steps).sum(-1) / _divisor(steps, {})

    return pooled


def _laid(g: Any, shape: Sequence[int], steps: Sequence[Step], at: Attrs) -> Any:
    """The gradient of the means, each window's share added to its elements."""
    n = len(steps)
    size = int(np.prod(shape[-n:]))
    held = windowed(np.arange(size).reshape(shape[-n:]), {**attrs_of(steps), "value": -1})
    shares = (g / _divisor(steps, at)).reshape(*g.shape[:-n], -1)
    out = np.zeros((*shape[:-n], size))
    for k, row in enumerate(held.reshape(shares.shape[-1], -1)):
        out[..., row[row >= 0]] += shares[..., k : k + 1]
    return out.reshape(shape)


def avg_pool_backward(n: int) -> Reference:
    """The gradient of `avg_pool`."""
    return lambda g, x, at: _laid(g, x.shape, window_steps(x.shape, at, n), at)


def adaptive_backward(n: int) -> Reference:
    """The gradient of `adaptive_pool`."""
    return lambda g, x, at: _laid(g, x.shape, adaptive_steps(x.shape, g.shape[-n:]), {})
