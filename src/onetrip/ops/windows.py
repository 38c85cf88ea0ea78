"""Windows over the last dimensions of a tensor, and the windows that cover each element.

    windows      x[.., i] -> w[.., o, k] = x[.., o s - p + k d], the filling where that is outside
    adaptive     x[.., i] -> w[.., o, k] = x[.., floor(o I / O) + k], below ceil((o + 1) I / O)
    covering     y[.., o] -> c[.., i, j] = y[.., o_j(i)], the filling where there is no such window

All are index maps with guards: reduced over the last dimensions they are poolings, their gradients,
im2col and col2im, and nothing of the widened tensor is ever stored. I and O are the numbers of
elements and windows, s stride, p padding, d dilation; attributes hold a number for each dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as every
from typing import Any

import numpy as np

from ..base.dtype import f32, i64
from ..base.errors import Unsupported
from ..base.sym import Dim, add, ceildiv, floordiv, is_nonnegative, lower_bound, mul, upper_bound
from ..ir.expr import Expr, Position, both, compare
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .joining import guarded
from .library_reference import pair
from .movement import load
from .rows import sample
from .rules import Arg, check_compiled
from .schema import Attrs, Kind, Movement, Op
from .shapes import Shape

Types = tuple[TensorType, ...]
UNCOVERED = 0
"""What `covering` fills with unless it is told otherwise."""


@dataclass(frozen=True)
class Step:
    """How windows move along one dimension.

    Attributes:
        size: elements of the dimension.
        count: windows.
        kernel: elements of the longest window.
        stride, padding, dilation: of plain windows.
        adaptive: whether the windows share the dimension evenly instead.
    """

    size: Dim
    count: Dim
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    adaptive: bool = False

    def start(self, o: Dim) -> Dim:
        """The place of a window's first element, which may be before the tensor."""
        if self.adaptive:
            return floordiv(mul(o, self.size), self.count)
        return add(mul(o, self.stride), -self.padding)

    def stop(self, o: Dim) -> Dim:
        """The place after a window's last element, which may be beyond the tensor."""
        if self.adaptive:
            return ceildiv(mul(add(o, 1), self.size), self.count)
        return add(self.start(o), (self.kernel - 1) * self.dilation + 1)

    @property
    def covers(self) -> int:
        """How many windows at most hold one element; with a dilation one for each tap is tried."""
        return self.kernel if self.dilation > 1 else -(-self.kernel // self.stride)


def shared_kernel(size: Dim, count: Dim) -> int:
    """Elements of the longest of `count` windows that share a dimension; raises Unsupported."""
    if not (isinstance(size, int) and isinstance(count, int)):
        raise Unsupported(f"{count} windows share a dimension of {size}")
    if size % count == 0:
        return size // count
    return max(-(-(o + 1) * size // count) - o * size // count for o in range(count))


def attrs_of(steps: Sequence[Step]) -> dict[str, Any]:
    """Attributes that say the windows' steps."""
    names = ("size", "count", "kernel", "stride", "padding", "dilation", "adaptive")
    return {name: tuple(getattr(s, name) for s in steps) for name in names}


def steps_of(at: Attrs) -> tuple[Step, ...]:
    """The steps that attributes say."""
    names = ("size", "count", "kernel", "stride", "padding", "dilation", "adaptive")
    return tuple(Step(*row) for row in zip(*(at[n] for n in names), strict=True))


def _count(size: Dim, kernel: int, stride: int, pad: int, dilation: int, cut: bool) -> Dim:
    """How many windows there are; `cut`: a last one may reach over the padded end."""
    reach = add(add(size, 2 * pad), -((kernel - 1) * dilation + 1))
    if not cut:
        return add(floordiv(reach, stride), 1)
    if not (isinstance(reach, int) and isinstance(size, int)):
        raise Unsupported(f"windows that are cut off at the end of a dimension of {size}")
    count = (reach + stride - 1) // stride + 1
    return count - 1 if (count - 1) * stride >= size + pad else count


def window_steps(shape: Sequence[Dim], at: Attrs, n: int) -> tuple[Step, ...]:
    """The steps of a pooling over the last n dimensions of a shape."""
    kernel = pair(at["kernel_size"], n)
    stride = pair(at.get("stride") or kernel, n)
    pad, dilation = pair(at.get("padding", 0), n), pair(at.get("dilation", 1), n)
    cut = bool(at.get("ceil_mode"))
    rows = zip(shape[-n:], kernel, stride, pad, dilation, strict=True)
    return tuple(Step(i, _count(i, k, s, p, d, cut), k, s, p, d) for i, k, s, p, d in rows)


def adaptive_steps(shape: Sequence[Dim], counts: Sequence[Dim]) -> tuple[Step, ...]:
    """The steps of windows that share the last dimensions evenly; plain ones where they can be."""
    steps: list[Step] = []
    for size, count in zip(shape[-len(counts) :], counts, strict=True):
        kernel = shared_kernel(size, count)
        even = isinstance(size, int) and isinstance(count, int) and size % count == 0
        steps.append(Step(size, count, kernel, *((kernel,) if even else (1, 0, 1, True))))
    return tuple(steps)


def _at_least(d: Dim, low: int) -> Expr | None:
    if is_nonnegative(lower_bound(add(d, -low))):
        return None
    return compare("ge", Position(d), m.place(low))


def _below(d: Dim, limit: Dim) -> Expr | None:
    high = upper_bound(d)
    if high is not None and is_nonnegative(add(add(limit, -1), mul(high, -1))):
        return None
    return compare("lt", Position(d), m.place(limit))


# ---------------------------------------------------------------- reading


def _windows_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x, steps = operands[0], steps_of(at)
    lead = x.shape[: x.rank - len(steps)]
    shape = (*lead, *(s.count for s in steps), *(s.kernel for s in steps))
    return (TensorType.dense(check_compiled(x.dtype), shape),)


def _windows_read(out: Shape, node: Node) -> Expr:
    steps = steps_of(node.attr)
    n = len(steps)
    lead, windows, taps = out[: len(out) - 2 * n], out[-2 * n : -n], out[-n:]
    index: list[Dim] = []
    guard: Expr | None = None
    for s, o, k in zip(steps, windows, taps, strict=True):
        place = add(s.start(o), mul(k, s.dilation))
        guard = both(both(guard, _at_least(place, 0)), _below(place, s.size))
        if s.adaptive:
            guard = both(guard, _short_window(s, o, place))
        index.append(0 if s.size == 1 else place)
    return guarded(load(node, 0, (*lead, *index)), guard, node.attr.get("value", 0))


def _short_window(s: Step, o: Dim, place: Dim) -> Expr | None:
    """Whether a place lies before the end of a window that may be shorter than others."""
    if isinstance(s.size, int) and isinstance(s.count, int) and s.size % s.count == 0:
        return None
    return compare("lt", Position(place), Position(s.stop(o)))


def _covering_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    y, steps = operands[0], steps_of(at)
    held = len(steps) * (2 if at["taps"] else 1)
    shape = (*y.shape[: y.rank - held], *(s.size for s in steps), *(s.covers for s in steps))
    return (TensorType.dense(check_compiled(y.dtype), shape),)


def _covering_read(out: Shape, node: Node) -> Expr:
    """The j-th window from the right that holds element i, and the tap at which it does."""
    steps = steps_of(node.attr)
    n = len(steps)
    lead, places, numbers = out[: len(out) - 2 * n], out[-2 * n : -n], out[-n:]
    windows: list[Dim] = []
    taps: list[Dim] = []
    guard: Expr | None = None
    for s, i, j in zip(steps, places, numbers, strict=True):
        o, tap, fits = _cover(s, i, j)
        guard = both(both(both(guard, fits), _at_least(o, 0)), _below(o, s.count))
        windows.append(0 if s.count == 1 else o)
        taps.append(0 if s.kernel == 1 else tap)
    index = (*lead, *windows, *(taps if node.attr["taps"] else ()))
    return guarded(load(node, 0, index), guard, node.attr.get("value", UNCOVERED))


def _cover(s: Step, i: Dim, j: Dim) -> tuple[Dim, Dim, Expr | None]:
    """(window, tap, whether it holds element i)."""
    place = add(i, s.padding)
    if s.dilation > 1:
        start = add(place, mul(j, -s.dilation))
        whole = None if s.stride == 1 else compare("eq", Position(start % s.stride), m.place(0))
        return floordiv(start, s.stride), j, whole
    tap = add(place % s.stride, mul(j, s.stride))
    return add(floordiv(place, s.stride), mul(j, -1)), tap, _below(tap, s.kernel)


# ---------------------------------------------------------------- numbers of elements


def _counts_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (TensorType.dense(f32, tuple(s.count for s in steps_of(at))),)


def _counts_read(out: Shape, node: Node) -> Expr:
    """Elements of each window: `padded` ones count as far as the padding reaches."""
    total: Expr | None = None
    for s, o in zip(steps_of(node.attr), out, strict=True):
        reach = s.padding if node.attr["padded"] else 0
        stop = m.minimum(m.place(s.stop(o)), m.place(add(s.size, reach)))
        start = m.maximum(m.place(s.start(o)), m.const(-reach, i64))
        length = m.sub(stop, start)
        total = length if total is None else m.mul(total, length)
    assert total is not None
    return m.to(total, f32)


# ---------------------------------------------------------------- references


def _np_places(s: Step) -> Iterator[tuple[int, int, int]]:
    """(window, tap, element) of every pair that lies inside."""
    for o, k in every(range(s.count), range(s.kernel)):  # type: ignore[arg-type]
        place: Any = s.start(o) + k * s.dilation
        stop: Any = s.stop(o)
        if 0 <= place < min(stop, s.size):
            yield o, k, place


def windowed(x: Any, at: Attrs) -> Any:
    """Reference of `windows`."""
    steps = steps_of(at)
    lead = x.shape[: x.ndim - len(steps)]
    shape: Any = (*lead, *(s.count for s in steps), *(s.kernel for s in steps))
    out = np.full(shape, at.get("value", 0), x.dtype)
    for places in every(*map(_np_places, steps)):
        o, k, i = zip(*places, strict=True)
        out[(..., *o, *k)] = x[(..., *i)]
    return out


def covered(y: Any, at: Attrs) -> Any:
    """Reference of `covering`."""
    steps, n = steps_of(at), len(at["size"])
    lead = y.shape[: y.ndim - n * (2 if at["taps"] else 1)]
    shape: Any = (*lead, *(s.size for s in steps), *(s.covers for s in steps))
    out = np.full(shape, at.get("value", UNCOVERED), y.dtype)
    for places in every(*map(_np_places, steps)):
        o, k, i = zip(*places, strict=True)
        j = tuple(b if s.dilation > 1 else b // s.stride for s, b in zip(steps, k, strict=True))
        out[(..., *i, *j)] = y[(..., *o, *(k if at["taps"] else ()))]
    return out


def counted(at: Attrs) -> Any:
    """Reference of `window_sizes`."""
    total: Any = np.ones(())
    for s in steps_of(at):
        reach: Any = s.padding if at["padded"] else 0
        windows: Any = range(s.count)  # type: ignore[arg-type]
        spans: Any = [(s.start(o), s.stop(o)) for o in windows]
        rows = [min(stop, s.size + reach) - max(start, -reach) for start, stop in spans]
        total = total[..., None] * np.asarray(rows)
    return total


PLAIN = attrs_of((Step(6, 3, 3, 2, 1), Step(5, 4, 2)))
WIDE = attrs_of((Step(7, 4, 2, 1, 0, 3),))
SHARED = attrs_of((Step(7, 3, shared_kernel(7, 3), adaptive=True),))
OPS: tuple[Op, ...] = (
    Op("windows", Kind.MOVEMENT, (), _windows_type, Movement(_windows_read), windowed,
       (sample(("f32", (2, 6, 5)), **PLAIN), sample(("bf16", (7,)), value=-2.5, **WIDE),
        sample(("i64", (2, 7)), **SHARED))),
    Op("covering", Kind.MOVEMENT, (), _covering_type, Movement(_covering_read), covered,
       (sample(("f32", (2, 3, 4)), taps=False, **PLAIN),
        sample(("f32", (2, 3, 4, 3, 2)), taps=True, **PLAIN),
        sample(("i64", (4, 2)), taps=True, value=-1, **WIDE))),
    Op("window_sizes", Kind.MOVEMENT, (), _counts_type, Movement(_counts_read), counted,
       (sample(padded=True, **PLAIN), sample(padded=False, **PLAIN),
        sample(padded=False, **SHARED))),
)  # fmt: skip
