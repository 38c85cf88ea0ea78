"""Order along a dimension: sorting, the largest, and what stands at a place of the sorted row.

Library calls: only their cost is known. Which of equal elements a position names is the library's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.dtype import i64
from ..base.sym import Dim, product
from ..ir.graph import Node
from ..ir.types import TensorType
from .composite import dense
from .opaque import library
from .rows import default_form, form, sample
from .rules import Arg, normal_dim
from .schema import Attrs, Kind, Op

Types = tuple[TensorType, ...]
Pair = tuple[Any, Any]


def _sorted_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    shape = list(x.shape)
    if "k" in at and shape:
        shape[normal_dim(at.get("dim", -1), x.rank)] = at["k"]
    return dense(x.dtype, shape), dense(i64, shape)


def _placed_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    """One element of each row, and its position."""
    x = operands[0]
    shape = list(x.shape)
    if shape:
        k = normal_dim(at.get("dim", -1), x.rank)
        shape[k : k + 1] = [1] if at.get("keepdim", False) else []
    return dense(x.dtype, shape), dense(i64, shape)


def _single_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (dense(operands[0].dtype, ()),)


def _comparisons(node: Node) -> Dim:
    """One comparison for each element: a lower bound, sorting is bound by memory."""
    return product(list(node.values[0].type.shape))


# ---------------------------------------------------------------- references


def _np_sort(x: Any, at: Attrs) -> Pair:
    """Sorted values and their positions, stable."""
    dim = at.get("dim", -1)
    places = np.argsort(-x if at.get("descending") else x, dim, kind="stable")
    return np.take_along_axis(x, places, dim), places


def _np_topk(x: Any, at: Attrs) -> Pair:
    """The k first of the sorted values, and their positions."""
    dim = at.get("dim", -1)
    values, places = _np_sort(x, {"dim": dim, "descending": at.get("largest", True)})
    first = np.arange(at["k"])
    return np.take(values, first, dim), np.take(places, first, dim)


def _at(rank: Callable[[Any, int, Attrs], Any]) -> Callable[[Any, Attrs], Pair]:
    """The element of each row at a place of the sorted row: rank(x, dim, attrs), kept dims."""

    def reference(x: Any, at: Attrs) -> Pair:
        dim = at.get("dim", -1)
        values, places = _np_sort(x, {"dim": dim})
        index = rank(x, dim, at)
        found = (np.take_along_axis(a, index, dim) for a in (values, places))
        kept = bool(at.get("keepdim", False))
        value, place = (a if kept else np.squeeze(a, dim) for a in found)
        return value, place

    return reference


def _rows(x: Any, dim: int) -> Any:
    """How many elements each row has, with a dimension of one."""
    return np.full_like(x.take([0], dim), x.shape[dim], dtype=np.int64)


def _middle(x: Any, dim: int, at: Attrs) -> Any:
    """The lower of two; NaN, which is sorted last, where there is any."""
    last = _rows(x, dim) - 1
    return np.where(np.isnan(x).any(dim, keepdims=True), last, last // 2)


def _middle_number(x: Any, dim: int, at: Attrs) -> Any:
    """The lower of two, NaN left out; 0 where nothing else is."""
    return np.maximum((~np.isnan(x)).sum(dim, keepdims=True) - 1, 0) // 2


def _kth(x: Any, dim: int, at: Attrs) -> Any:
    return _rows(x, dim) * 0 + (at["k"] - 1)


def _most_frequent(x: Any, at: Attrs) -> Pair:
    """The smallest of those that are most frequent, and its last position."""
    dim = at.get("dim", -1)
    rows = np.moveaxis(x, dim, -1)
    counts = (rows[..., :, None] == rows[..., None, :]).sum(-1)
    often = np.where(counts == counts.max(-1, keepdims=True), rows, np.inf)
    value = often.min(-1, keepdims=True)
    place = rows.shape[-1] - 1 - np.argmax((rows == value)[..., ::-1], -1)[..., None]
    kept = bool(at.get("keepdim", False))
    value, place = (np.moveaxis(a, -1, dim) if kept else a[..., 0] for a in (value, place))
    return value, place


def _whole(rank: Callable[[Any, int, Attrs], Any]) -> Callable[[Any, Attrs], Any]:
    return lambda x, at: _at(rank)(x.reshape(-1), {})[0]


# ---------------------------------------------------------------- rows


X = ("f32", (3, 7))
ROWS = (sample(X, dim=1), sample(X, dim=0, keepdim=True), sample(("f32", (2, 5, 6)), dim=-1))


def _middles(name: str, rank: Callable[[Any, int, Attrs], Any]) -> tuple[Op, Op]:
    """Of all elements, and of each row."""
    every = library(name, Kind.OPAQUE, default_form(name), _single_type, _comparisons,
                    _whole(rank), (sample(X), sample(("f32", (6,)))))  # fmt: skip
    forms = (form(f"{name}.dim", ("self",), ("dim", "keepdim")),)
    rows = library(f"{name}_dim", Kind.OPAQUE, forms, _placed_type, _comparisons, _at(rank), ROWS)
    return every, rows


OPS: tuple[Op, ...] = (
    library("sort", Kind.OPAQUE, (form("sort.default", ("self",), ("dim", "descending")),
                                  form("sort.stable", ("self",), ("stable", "dim",
                                                                  "descending"))),
            _sorted_type, _comparisons, _np_sort,
            (sample(X, dim=1, descending=True), sample(X, dim=0))),
    library("topk", Kind.OPAQUE, default_form("topk", ("self",), ("k", "dim", "largest",
                                                                  "sorted")),
            _sorted_type, _comparisons, _np_topk, (sample(X, k=2, dim=1),),
            ("TopK",)),
    library("kthvalue", Kind.OPAQUE, default_form("kthvalue", ("self",), ("k", "dim", "keepdim")),
            _placed_type, _comparisons, _at(_kth),
            (sample(X, k=2), sample(X, k=3, dim=0, keepdim=True))),
    library("mode", Kind.OPAQUE, default_form("mode", ("self",), ("dim", "keepdim")),
            _placed_type, _comparisons, _most_frequent, ROWS),
    *_middles("median", _middle),
    *_middles("nanmedian", _middle_number),
)  # fmt: skip
