"""Pooling without positions: the extreme of strided slices of a padded tensor, one for each tap.

    max_pool(x)[.., i, j] = max over taps (k, l) of pad(x)[.., i*s + k*d, j*s + l*d]

A call whose positions something reads, or whose windows are large, stays a library call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ..base.sym import Dim, add, mul
from ..ir.graph import Node, Value
from ..ir.monoid import lowest
from ..ir.types import TensorType
from .composite import Outputs, composite, dense, tensor
from .library_reference import pair
from .opaque import POOLED, pool_shape
from .rows import default_form, sample
from .rules import Arg
from .schema import Attrs, Builder, Op

VALUES_ONLY: Mapping[str, str] = {"max_pool2d": "max_pool2d_values"}
"""Operators by the one that computes their first output alone."""
MOST_TAPS = 25
"""Elements of the largest window that is spelled out tap by tap."""


def has_small_window(node: Node) -> bool:
    """Whether a pooling's windows are few taps, and all whole, so that they can be spelled out."""
    rows, columns = pair(node.attr["kernel_size"], 2)
    return bool(rows * columns <= MOST_TAPS) and not node.attr.get("ceil_mode")


def _steps(at: Attrs) -> tuple[tuple[Any, Any, Any, Any], ...]:
    """(kernel, stride, padding, dilation) of rows and of columns."""
    kernel = pair(at["kernel_size"], 2)
    stride = pair(at.get("stride") or kernel, 2)
    rest = pair(at.get("padding", 0), 2), pair(at.get("dilation", 1), 2)
    return tuple(zip(kernel, stride, *rest, strict=True))


def _max_pool_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x = operands[0]
    return (dense(x.dtype, pool_shape(x, at)),)


def _max_pool(build: Builder, node: Node) -> Outputs:
    x = tensor(node, 0)
    rows, columns = steps = _steps(node.attr)
    edges = (columns[2], columns[2], rows[2], rows[2])
    if any(edges):
        least = lowest(x.type.dtype).value
        x = build("pad", x, pad=edges, value=least)
    shape = pool_shape(tensor(node, 0).type, node.attr)[-2:]
    taps: list[Value] = []
    for tap in product(range(rows[0]), range(columns[0])):
        piece = x
        for dim, at, (_, stride, _, dilation), count in zip(
            (-2, -1), tap, steps, shape, strict=True
        ):
            start = at * dilation
            end: Dim = add(add(mul(add(count, -1), stride), 1), start)
            piece = build("slice", piece, dim=dim, start=start, end=end, step=stride)
        taps.append(piece)
    return (reduce(lambda a, b: build("maximum", a, b), taps),)


def _np_max_pool(x: Any, at: Attrs) -> Any:
    steps = _steps(at)
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    edges = [(0, 0)] * (x.ndim - 2) + [(p, p) for _, _, p, _ in steps]
    padded = np.pad(x, edges, constant_values=least)
    reach = tuple((k - 1) * d + 1 for k, _, _, d in steps)
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, (-2, -1))
    (_, s0, _, d0), (_, s1, _, d1) = steps
    return view[..., ::s0, ::s1, ::d0, ::d1].max((-2, -1))


OPS: tuple[Op, ...] = (
    composite(
        "max_pool2d_values",
        default_form("max_pool2d", ("self",), POOLED),
        _max_pool_type,
        _max_pool,
        _np_max_pool,
        (
            sample(
                ("f32", (2, 3, 6, 7)),
                kernel_size=(3, 2),
                stride=(2, 1),
                padding=(1, 0),
                dilation=(1, 2),
            ),
            sample(("bf16", (1, 2, 4, 4)), kernel_size=(2, 2)),
        ),
    ),
)
