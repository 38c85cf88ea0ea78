"""Writes through an index tensor, as library calls: what is written where only the index says.

Two writes may meet in one element, and then their order shows in a float sum; the library's own
order is kept. Producers and consumers fuse around the call, which may change its operand in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.sym import Dim, product
from ..ir.graph import Node
from ..ir.types import TensorType
from .composite import dense
from .opaque import library
from .rows import default_form, form, sample
from .rules import Arg
from .schema import Attrs, Form, Kind, Op, Sample


def _like_self(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x = operands[0]
    return (dense(x.dtype, x.shape),)


def _written(node: Node) -> Dim:
    """One operation for each element that is written."""
    return product(list(node.values[-1].type.shape))


_JOIN: dict[str, Any] = {
    "sum": np.add,
    "add": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "multiply": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -np.inf, "amin": np.inf}


def _along(index: Any, dim: int) -> tuple[Any, ...]:
    """A numpy key: `index` along one dimension, its own position along the others."""
    key = list(np.indices(index.shape))
    if key:
        key[dim] = index
    return tuple(key)


def _np_scatter(x: Any, index: Any, *rest: Any) -> Any:
    *source, at = rest
    out = np.array(x)
    value = source[0][tuple(map(slice, index.shape))] if source else at["value"]
    key = _along(index, at["dim"])
    if at.get("reduce") is None:
        out[key] = value
    else:
        _JOIN[at["reduce"]].at(out, key, value)
    return out


def _np_scatter_add(x: Any, index: Any, source: Any, at: Attrs) -> Any:
    return _np_scatter(x, index, source, {**at, "reduce": "sum"})


def _np_scatter_reduce(x: Any, index: Any, source: Any, at: Attrs) -> Any:
    """With `include_self` false the first write takes the place of what was there."""
    join = _JOIN[at["reduce"]]
    key = _along(index, at["dim"])
    part = source[tuple(map(slice, index.shape))]
    out, count = np.array(x, np.float64), np.ones(x.shape)
    if not at.get("include_self", True):
        out[key], count[key] = _NEUTRAL[at["reduce"]], 0
    join.at(out, key, part)
    np.add.at(count, key, 1)
    return out / np.maximum(count, 1) if at["reduce"] == "mean" else out


def _np_index_add(x: Any, index: Any, source: Any, at: Attrs) -> Any:
    out = np.array(x)
    np.add.at(np.moveaxis(out, at["dim"], 0), index, at.get("alpha", 1)
              * np.moveaxis(source, at["dim"], 0))  # fmt: skip
    return out


def _np_index_set(x: Any, index: Any, *rest: Any) -> Any:
    *source, at = rest
    out = np.array(x)
    value = np.moveaxis(source[0], at["dim"], 0) if source else at["value"]
    np.moveaxis(out, at["dim"], 0)[index] = value
    return out


def _np_index_put(x: Any, *rest: Any) -> Any:
    *given, values, at = rest
    indices = iter(given)
    key: Any = tuple(next(indices) if there else slice(None) for there in at["has_indices"])
    out = np.array(x)
    if at.get("accumulate"):
        np.add.at(out, key, values)
    else:
        out[key] = values
    return out


def _np_put(x: Any, index: Any, source: Any, at: Attrs) -> Any:
    out = np.array(x).reshape(-1)
    if at.get("accumulate"):
        np.add.at(out, index.reshape(-1), source.reshape(-1))
    else:
        out[index.reshape(-1)] = source.reshape(-1)
    return out.reshape(x.shape)


def _np_masked_scatter(x: Any, mask: Any, source: Any, at: Attrs) -> Any:
    out = np.array(x)
    wide = np.broadcast_to(mask, x.shape)
    out[wide] = source.reshape(-1)[: int(wide.sum())]
    return out


def _scatter(name: str, forms: Sequence[Form], reference: Callable[..., Any],
             samples: Sequence[Sample]) -> Op:  # fmt: skip
    return library(name, Kind.SCATTER, forms, _like_self, _written, reference, samples)


X = ("f32", (3, 4))
PLACES = ("i64", (3, 4))
PUT = ("self", "indices?", "values")
OPS: tuple[Op, ...] = (
    _scatter("scatter", (form("scatter.src", ("self", "index", "src"), ("dim",)),), _np_scatter,
             (sample(("f32", (3, 5)), ("i64", (3, 1)), ("f32", (3, 2)), dim=1),)),
    _scatter("scatter_value", (form("scatter.value", ("self", "index"), ("dim", "value")),),
             _np_scatter, (sample(X, PLACES, dim=0, value=1.5),)),
    _scatter("scatter_joined",
             (form("scatter.reduce", ("self", "index", "src"), ("dim", "reduce")),
              form("scatter.value_reduce", ("self", "index"), ("dim", "value", "reduce"))),
             _np_scatter, (sample(X, PLACES, X, dim=0, reduce="add"),)),
    _scatter("scatter_add", default_form("scatter_add", ("self", "index", "src"), ("dim",)),
             _np_scatter_add, (sample(X, PLACES, X, dim=0),)),
    _scatter("scatter_reduce",
             (form("scatter_reduce.two", ("self", "index", "src"),
                   ("dim", "reduce", "include_self")),), _np_scatter_reduce,
             tuple(sample(X, PLACES, X, dim=0, reduce=how, include_self=kept)
                   for how, kept in (("sum", True), ("amax", False), ("mean", True)))),
    _scatter("index_add", default_form("index_add", ("self", "index", "source"),
                                       ("dim", "alpha")), _np_index_add,
             (sample(X, ("i64", (5,)), ("f32", (5, 4)), dim=0, alpha=2),)),
    _scatter("index_copy", default_form("index_copy", ("self", "index", "source"), ("dim",)),
             _np_index_set, (sample(X, ("i64", (1,)), ("f32", (3, 1)), dim=1),)),
    _scatter("index_fill", (form("index_fill.int_Scalar", ("self", "index"), ("dim", "value")),),
             _np_index_set, (sample(X, ("i64", (2,)), dim=0, value=2.0),)),
    _scatter("index_put", (form("index_put.default", PUT, ("accumulate",)),
                           form("_unsafe_index_put.default", PUT, ("accumulate",))),
             _np_index_put,
             (sample(X, ("i64", (5,)), ("f32", (5, 4)), has_indices=(True,), accumulate=True),
              sample(X, ("i64", (1,)), ("f32", (3, 1)), has_indices=(False, True)))),
    _scatter("put", default_form("put", ("self", "index", "source"), ("accumulate",)), _np_put,
             (sample(X, ("i64", (5,)), ("f32", (5,)), accumulate=True),)),
    _scatter("masked_scatter", default_form("masked_scatter", ("self", "mask", "source")),
             _np_masked_scatter, (sample(X, ("bool", (3, 4)), ("f32", (12,))),)),
)  # fmt: skip
