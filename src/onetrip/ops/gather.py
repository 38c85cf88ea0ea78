"""Reads through an index tensor: embedding, index_select, gather, index, take.

The index is an expression read at run time; a kernel must check that it lies inside (the lowered
index is an `Opaque` with the extent it must stay below). Negative ones count from the end where
eager says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtype import i32, i64
from ..base.errors import Unsupported
from ..base.sym import Dim, add, is_nonnegative
from ..ir.expr import Apply, Const, Expr, both, cast, indirect, payloads
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .joining import guarded
from .movement import load
from .rows import default_form, form, sample
from .rules import broadcast, check_compiled, normal_dim
from .schema import Attrs, Kind, Movement, Op
from .shapes import Shape, reshape_index

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


def counts_from_end(value: Expr) -> bool:
    """Whether a run-time index is what `_position` makes of one that may count from the end."""
    while isinstance(value, Apply) and value.op == "where" and isinstance(value.args[2], Const):
        value = value.args[1]  # behind a guard
    if not isinstance(value, Apply) or value.op != "where":
        return False
    test, index = value.args[0], value.args[2]
    return isinstance(test, Apply) and test.op == "lt" and test.args[0] is index


def _element(node: Node, at: Shape) -> Expr:
    """Operand 0 at an index; where a dimension that is indexed has no elements, none is read."""
    guard: Expr | None = None
    for place, size in zip(at, node.values[0].type.shape, strict=True):
        if payloads(place) and not is_nonnegative(add(size, -1)):
            guard = both(guard, m.gt(m.place(size), 0))
    return guarded(load(node, 0, at), guard)


def _embedding_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    weight, index = operands
    _checked(operands, index)
    return (TensorType.dense(weight.dtype, (*index.shape, weight.shape[1])),)


def _embedding_read(out: Shape, node: Node) -> Expr:
    rows = node.values[0].type.shape[0]
    index = _aligned(out[:-1], node.values[1].type.shape)
    return _element(node, (_position(node, 1, index, rows, False), out[-1]))


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
    return _element(node, (*out[:k], position, *out[k + 1 :]))


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
    return _element(node, (*out[:k], position, *out[k + 1 :]))


def _indexed(operands: tuple[Any, ...], at: Attrs) -> tuple[tuple[int, ...], int, Shape]:
    """(dimensions that indices replace, where their common shape stands, that shape).

    It stands in their place if they are neighbours, else first.
    """
    given = at.get("has_indices", (True,) * (len(operands) - 1))
    dims = tuple(k for k, present in enumerate(given) if present)
    together = dims[-1] - dims[0] == len(dims) - 1
    return dims, dims[0] if together else 0, broadcast([i.shape for i in operands[1:]])


def _index_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    x, *indices = operands
    for index in indices:
        _checked(operands, index)
    dims, first, common = _indexed(operands, at)
    rest = [size for k, size in enumerate(x.shape) if k not in dims]
    return (TensorType.dense(x.dtype, (*rest[:first], *common, *rest[first:])),)


def _index_read(out: Shape, node: Node) -> Expr:
    types = tuple(v.type for v in node.values)
    x = types[0]
    dims, first, common = _indexed(types, node.attr)
    own = out[first : first + len(common)]
    rest = iter((*out[:first], *out[first + len(common) :]))
    number = {k: n + 1 for n, k in enumerate(dims)}
    index = tuple(
        _position(node, number[k], _aligned(own, types[number[k]].shape), size, True)
        if k in number
        else next(rest)
        for k, size in enumerate(x.shape)
    )
    return _element(node, index)


def _np_index(x: Any, *rest: Any) -> Any:
    *indices, at = rest
    given = iter(indices)
    return x[tuple(next(given) if present else slice(None) for present in at["has_indices"])]


def _take_type(operands: tuple[Any, ...], at: Attrs) -> Types:
    x, index = operands
    _checked(operands, index)
    return (TensorType.dense(x.dtype, index.shape),)


def _take_read(out: Shape, node: Node) -> Expr:
    """The element at a row-major position, which counts from the end where it is negative."""
    x = node.values[0].type
    place = _position(node, 1, out, x.numel, True)
    return _element(node, reshape_index((place,), x.shape, (x.numel,)))


def _np_gather(x: Any, index: Any, at: Attrs) -> Any:
    k = at["dim"] % max(x.ndim, 1)
    grid = list(np.indices(index.shape))
    grid[k] = index
    return x[tuple(grid)]


ROWS = ("f32", (5, 3))
BLOCK = ("f32", (3, 4, 5))
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
    Op("index", Kind.GATHER, (form("index.Tensor", ("self", "indices?")),
                              form("_unsafe_index.Tensor", ("self", "indices?"))), _index_type,
       Movement(_index_read), _np_index,
       (sample(ROWS, ("i64", (2, 4)), has_indices=(True,)),
        sample(ROWS, ("i64", (2, 1)), ("i64", (3,)), has_indices=(True, True)),
        sample(BLOCK, ("i64", (2, 1)), ("i32", (5,)), has_indices=(False, True, True)),
        sample(BLOCK, ("i64", (2,)), ("i64", (2,)), has_indices=(True, False, True)),
        sample(BLOCK, ("i64", ()), has_indices=(False, True))),
       onnx=("GatherND",)),
    Op("take", Kind.GATHER, default_form("take", ("self", "index")), _take_type,
       Movement(_take_read), lambda x, i, at: np.take(x, i),
       (sample(ROWS, ("i64", (2, 4))), sample(("bf16", (3, 2, 4)), ("i64", (5,))))),
)  # fmt: skip
