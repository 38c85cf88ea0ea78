"""Library calls of a GPU in the form in which they are fast, as expansions like any composite's.

    convolution with a bias      ->  convolution, add: the library adds it by a kernel of its own
    gradients of a convolution   ->  without the bias's, and a sum: the same, a reduction
    product with odd extents     ->  pad, product, slice: the library's fast kernels take rows
                                     whose bytes are a multiple of 16

The additions, sums, pads and slices are ours to fuse. Rounding points stay: the library rounds the
convolution before it adds the bias, and a padded product sums the same terms.
Knows no chip: whether padding pays is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..base.sym import Dim
from ..ir.graph import Node, Ref, Value
from ..ir.types import TensorType
from ..ops.build import Recorder

Outputs = tuple[Value | None, ...]
Form = Callable[[Recorder, Node], Outputs | None]
Pays = Callable[[Node, int], bool]
"""Whether a product of odd extents is worth moving this many more bytes for."""

ROW_BYTES = 16
PADDED_BYTES = 2
"""Bytes of an element of the dtypes whose products have kernels for aligned rows alone."""


def gpu_forms(pays: Pays) -> Mapping[str, Form]:
    """The expansions, by operator; each answers None where the call stays as it is."""
    return {
        "convolution": _bias_apart,
        "convolution_backward": _bias_gradient_apart,
        "mm": lambda build, node: _aligned_product(build, node, pays),
        "addmm": lambda build, node: _aligned_product(build, node, pays),
    }


# ------------------------------------------------------------------ convolution


def _bias_apart(build: Recorder, node: Node) -> Outputs | None:
    if len(node.values) != 3:
        return None
    x, weight, bias = node.values
    attrs = {**node.attr, "has_bias": False}
    if "args" in attrs:
        attrs["args"] = tuple(None if a == Ref(2) else a for a in attrs["args"])
    y = build.again(node, (x, weight), (node.output.type,), attrs)[0]
    shape = (bias.type.shape[0], *(1,) * (x.type.rank - 2))
    return (build("add", y, build("view", bias, size=shape), alpha=1),)


def _bias_gradient_apart(build: Recorder, node: Node) -> Outputs | None:
    mask = tuple(node.attr["output_mask"])
    if not mask[2]:
        return None
    gradient = node.values[0]
    kept = (*mask[:2], False)
    attrs = {**node.attr, "output_mask": kept}
    if "args" in attrs:
        attrs["args"] = (*attrs["args"][:-1], kept)
    rank = gradient.type.rank
    total = build("sum", gradient, dim=(0, *range(2, rank)), keepdim=False)
    if not any(kept):
        return (None, None, total)
    types = tuple(v.type for v in node.outputs)
    first, second, _ = build.again(node, node.inputs, types, attrs)
    return (first if mask[0] else None, second if mask[1] else None, total)


# ------------------------------------------------------------------ products


def _aligned_product(build: Recorder, node: Node, pays: Pays) -> Outputs | None:
    *added, a, b = node.values
    dtype = node.output.type.dtype
    if dtype.itemsize != PADDED_BYTES or not all(_is_static(v.type) for v in node.values):
        return None
    (rows, inner), columns = a.type.shape, b.type.shape[1]
    more_rows = _missing(rows) if _runs_along(a, 0) else 0
    more_inner = _missing(inner) if _runs_along(a, 1) or _runs_along(b, 0) else 0
    more_columns = _missing(columns)
    if not (more_rows or more_inner or more_columns):
        return None
    moved = [a] * bool(more_rows or more_inner) + [b] * bool(more_inner or more_columns)
    moved += [node.output] * bool(more_rows or more_columns)
    if not pays(node, _moved_bytes(moved)):
        return None
    wide = TensorType.dense(dtype, (rows + more_rows, columns + more_columns))
    terms = [_padded_term(build, c, more_rows, more_columns) for c in added]
    left = _padded(build, a, more_rows, more_inner)
    right = _padded(build, b, more_inner, more_columns)
    y = build.again(node, (*terms, left, right), (wide,), node.attr)[0]
    for dim, extent in ((0, rows), (1, columns)):
        if extent != y.type.shape[dim]:
            y = build("slice", y, dim=dim, start=0, end=extent, step=1)
    return (build("clone", y),)


def _moved_bytes(values: list[Value]) -> int:
    """Bytes of reading and writing values of static shape."""
    return sum(
        2 * math.prod(n for n in v.type.shape if isinstance(n, int)) * PADDED_BYTES for v in values
    )


def _is_static(kind: TensorType) -> bool:
    return all(isinstance(n, int) for n in (*kind.shape, *kind.strides))


def _runs_along(v: Value, dim: int) -> bool:
    return bool(v.type.strides[dim] == 1 and v.type.shape[dim] != 1)


def _missing(extent: Any) -> int:
    """Elements that a row lacks."""
    return int(-extent % (ROW_BYTES // PADDED_BYTES))


def _padded(build: Recorder, v: Value, rows: int, columns: int) -> Value:
    """A matrix with zeros after its rows and columns, stored along the same dimension."""
    if not (rows or columns):
        return v
    if _runs_along(v, 1) or not _runs_along(v, 0):
        return build("pad", v, pad=(0, columns, 0, rows), value=0)
    turned = build("permute", v, dims=(1, 0))
    return build("permute", build("pad", turned, pad=(0, rows, 0, columns), value=0), dims=(1, 0))


def _padded_term(build: Recorder, c: Value, rows: int, columns: int) -> Value:
    """An added operand for a larger product; what it repeats along, it goes on repeating along."""
    more: tuple[int, ...] = (rows, columns)[2 - c.type.rank :]
    grown: list[Dim] = [0 if n == 1 else by for n, by in zip(c.type.shape, more, strict=True)]
    if not any(grown):
        return c
    pad = tuple(n for by in reversed(grown) for n in (0, by))
    return build("pad", c, pad=pad, value=0)
