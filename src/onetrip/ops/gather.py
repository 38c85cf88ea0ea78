"""Reads through an index tensor: embedding, index_select, gather, index.

The index is an expression read at run time; a kernel must check that it lies inside (the lowered
index is an `Opaque` with the extent it must stay below). Negative ones count from the end where
eager says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtype import i32, i64
from ..base.errors import Unsupported
from ..base.sym import Dim
from ..ir.expr import Expr, cast, indirect
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .movement import load
from .rows import form, sample
from .rules import broadcast, check_compiled, normal_dim
from .schema import Attrs, Kind, Movement, Op
from .shapes import Shape

Types = tuple[TensorType, ...]


def _checked(operands: tuple[Any, ...], index: TensorType) -> None:
    check_compiled(operands[0].dtype)
    if index.dtype not in (i32, i64):
        raise Unsupported(f"an index of {index.dtype.torch_name} selects by mask")


def _position(node: Node, number: int, at: Shape, size: Dim, wraps: bool) -> Dim:
    """The run-time index that operand `number` holds, below `size`."""
    value: Expr = cast(load(node, number, at), i64)
    if wraps:
        value = m.where(m.lt(value, 0), m.add(value, m.place(size)), value)
    return indirect(value, size)


def _embedding_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    weight, index = operands
    _checked(operands, index)
    return (TensorType.dense(weight.dtype, (*index.shape, weight.shape[1])),)


def _embedding_read(out: Shape, node: Node) -> Expr:
    rows = node.values[0].type.shape[0]
    index = _aligned(out[:-1], node.values[1].type.shape)
    return load(node, 0, (_position(node, 1, index, rows, False), out[-1]))


def _aligned(own: Shape, shape: Shape) -> Shape:
    """Right-aligned indices, 0 where the size is 1."""
    tail = own[len(own) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(tail, shape, strict=True))


def _index_select_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    x, index = operands
    _checked(operands, index)
    k = normal_dim(at["dim"], x.rank)
    count = index.shape[0] if index.rank else 1
    shape = (*x.shape[:k], count, *x.shape[k + 1 :]) if x.rank else ()
    return (TensorType.dense(x.dtype, shape),)


def _index_select_read(out: Shape, node: Node) -> Expr:
    x, index = (v.type for v in node.values)
    if not x.rank:
        return load(node, 0, ())
    k = normal_dim(node.attr["dim"], x.rank)
    at = (out[k],) if index.rank else ()
    position = _position(node, 1, at, x.shape[k], False)
    return load(node, 0, (*out[:k], position, *out[k + 1 :]))


def _gather_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    x, index = operands
    _checked(operands, index)
    return (TensorType.dense(x.dtype, index.shape),)


def _gather_read(out: Shape, node: Node) -> Expr:
    x = node.values[0].type
    if not x.rank:
        return load(node, 0, ())
    k = normal_dim(node.attr["dim"], x.rank)
    position = _position(node, 1, out, x.shape[k], False)
    return load(node, 0, (*out[:k], position, *out[k + 1 :]))


def _index_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    """Indices of the first dimensions, without gaps: their broadcast shape comes first."""
    x, *indices = operands
    for index in indices:
        _checked(operands, index)
    lead = broadcast([i.shape for i in indices])
    return (TensorType.dense(x.dtype, (*lead, *x.shape[len(indices) :])),)


def _index_read(out: Shape, node: Node) -> Expr:
    x, *indices = (v.type for v in node.values)
    lead = len(broadcast([i.shape for i in indices]))
    positions = tuple(
        _position(node, n + 1, _aligned(out[:lead], i.shape), x.shape[n], True)
        for n, i in enumerate(indices)
    )
    return load(node, 0, (*positions, *out[lead:]))


def _np_gather(x: Any, index: Any, at: Attrs) -> Any:
    k = at["dim"] % max(x.ndim, 1)
    grid = list(np.indices(index.shape))
    grid[k] = index
    return x[tuple(grid)]


ROWS = ("f32", (5, 3))
OPS: tuple[Op, ...] = (
    Op("embedding", Kind.GATHER,
       (form("embedding.default", ("weight", "indices"),
             ("padding_idx", "scale_grad_by_freq", "sparse")),),
       _embedding_type, Movement(_embedding_read), lambda w, i, at: w[i],
       (sample(ROWS, ("i64", (2, 4))), sample(ROWS, ("i64", ())), sample(ROWS, ("i32", (3,)))),
       onnx=("Gather",)),
    Op("index_select", Kind.GATHER,
       (form("index_select.default", ("self", "index"), ("dim",)),), _index_select_type,
       Movement(_index_select_read), lambda x, i, at: np.take(x, i, at["dim"]),
       (sample(ROWS, ("i64", (2,)), dim=1), sample(ROWS, ("i64", (4,)), dim=0))),
    Op("gather", Kind.GATHER,
       (form("gather.default", ("self", "index"), ("dim", "sparse_grad")),), _gather_type,
       Movement(_gather_read), _np_gather,
       (sample(ROWS, ("i64", (5, 2)), dim=1), sample(ROWS, ("i64", (2, 3)), dim=0)),
       onnx=("GatherElements",)),
    Op("index", Kind.GATHER, (form("index.Tensor", ("self", "indices")),
                              form("_unsafe_index.Tensor", ("self", "indices"))), _index_type,
       Movement(_index_read), lambda x, *rest: x[tuple(rest[:-1])],
       (sample(ROWS, ("i64", (2, 4))), sample(ROWS, ("i64", (2, 1)), ("i64", (3,)))),
       onnx=("GatherND",)),
)  # fmt: skip
