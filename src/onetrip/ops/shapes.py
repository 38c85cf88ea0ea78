"""Shape arithmetic of movements: reshapes, slices, and the strides of views.

Pure functions of dims and strides; knows neither nodes nor expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NoReturn

from ..base.errors import Unsupported
from ..base.sym import Dim, add, floordiv, is_nonnegative, mod, mul, product
from ..ir.types import TensorType
from .rules import at_most, same_dim

Shape = tuple[Dim, ...]
Segment = tuple[range, range]


def infer_shape(size: Sequence[Dim], numel: Dim) -> Shape:
    """A requested shape with its -1 replaced."""
    if -1 not in [d for d in size if isinstance(d, int)]:
        return tuple(size)
    rest = product([d for d in size if not (isinstance(d, int) and d == -1)])
    return tuple(floordiv(numel, rest) if isinstance(d, int) and d == -1 else d for d in size)


def segments(before: Shape, after: Shape) -> list[Segment]:
    """The finest split of both shapes into runs of dimensions with equal products."""
    found: list[Segment] = []
    i = j = 0
    while i < len(before) or j < len(after):
        i0, j0 = i, j
        left, right = _next(before, i), _next(after, j)
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while not same_dim(left, right):
            if i < len(before) and (j >= len(after) or _smaller(left, right)):
                left = mul(left, before[i])
                i += 1
            elif j < len(after):
                right = mul(right, after[j])
                j += 1
            else:
                raise Unsupported(f"a reshape of {before} to {after} is not provably whole")
        found.append((range(i0, i), range(j0, j)))
    return found


def _smaller(left: Dim, right: Dim) -> bool:
    """Whether the left product needs one more factor to reach the right one."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return left == 1 or (right != 1 and mod(right, left) == 0)


def _next(shape: Shape, k: int) -> Dim:
    return shape[k] if k < len(shape) else 1


def flatten(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The row-major position of an index."""
    flat: Dim = 0
    for i, size in zip(index, shape, strict=True):
        flat = add(mul(flat, size), i)
    return flat


def unflatten(flat: Dim, shape: Sequence[Dim]) -> Shape:
    """The index whose row-major position is `flat`, which must lie inside the shape."""
    steps: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        steps.append(step)
        step = mul(step, size)
    index: list[Dim] = []
    outermost = True
    for size, step in zip(shape, reversed(steps), strict=True):
        part = floordiv(flat, step)
        index.append(0 if size == 1 else part if outermost else mod(part, size))
        outermost = outermost and size == 1
    return tuple(index)


def reshape_index(out: Sequence[Dim], before: Shape, after: Shape) -> Shape:
    """Where the element `out` of a reshaped tensor lies in the original."""
    if any(isinstance(d, int) and d == 0 for d in before):
        return (0,) * len(before)
    index: list[Dim] = []
    for old, new in segments(before, after):
        sizes = tuple(after[k] for k in new)
        flat = flatten(tuple(out[k] for k in new), sizes)
        index.extend(unflatten(flat, tuple(before[k] for k in old)))
    return tuple(index)


def reshape_strides(x: TensorType, after: Shape) -> Shape | None:
    """The strides of a view of x with another shape; None where no strides can do it."""
    if any(isinstance(d, int) and d == 0 for d in x.shape):
        return TensorType.dense(x.dtype, after).strides
    return _strides_after(x.shape, x.strides, after)


@lru_cache(maxsize=1024)
def _strides_after(shape: Shape, steps: Shape, after: Shape) -> Shape | None:
    """Layers of a model make the same views again and again."""
    strides: list[Dim] = []
    for old, new in segments(shape, after):
        step = _common_step([(shape[k], steps[k]) for k in old])
        if step is None:
            return None
        strides.extend(_split_stride(step, [after[k] for k in new]))
    return tuple(strides)


def _common_step(dims: Sequence[tuple[Dim, Dim]]) -> Dim | None:
    """The innermost stride of dimensions that lie behind each other, else None."""
    real = [(size, stride) for size, stride in dims if size != 1]
    if not real:
        return 1
    for (_, outer), (size, stride) in pairwise(real):
        if not same_dim(outer, mul(size, stride)):
            return None
    return real[-1][1]


def _split_stride(step: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    strides: list[Dim] = []
    for size in reversed(sizes):
        strides.append(step)
        step = mul(step, size)
    return strides[::-1]


def clamp_bound(value: Dim | None, size: Dim, default: Dim) -> Dim:
    """A slice bound as Python counts it, inside [0, size]; Unsupported if that is not provable."""
    if value is None:
        return default
    if not is_nonnegative(value):
        value = wrap(value, size)
        if at_most(value, 0):
            return 0
        return value if is_nonnegative(value) else _unknown("a slice bound", value)
    if at_most(value, size):
        return value
    if at_most(size, value) or (isinstance(value, int) and value >= 1 << 62):
        return size
    raise Unsupported(f"a slice bound {value} of a size {size} is not provably inside")


def _unknown(what: str, value: Dim) -> NoReturn:
    raise Unsupported(f"{what} {value} may be negative or not, and counts from either end")


def slice_length(start: Dim, stop: Dim, step: int) -> Dim:
    """How many elements `range(start, stop, step)` has."""
    if isinstance(start, int) and isinstance(stop, int):
        return len(range(start, stop, step))
    if not at_most(start, stop):
        raise Unsupported(f"a slice from {start} to {stop} is not provably ordered")
    return floordiv(add(add(stop, -start), step - 1), step)


def wrap(index: Dim, size: Dim) -> Dim:
    """A position counted from the end when it is negative; Unsupported if its sign is unknown."""
    if is_nonnegative(index):
        return index
    return add(index, size) if at_most(index, -1) else _unknown("a position", index)
