"""Positions of values among sorted boundaries, and membership in a few values.

A position is found by halving: every step reads one boundary at an index known at run time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtype import DType, bool_, i32, i64
from ..base.errors import Unsupported
from ..base.sym import Dim
from ..ir.expr import Expr, cast, indirect
from ..ir.graph import Node, Scalar
from ..ir.types import TensorType
from . import arith as m
from .composite import Outputs, composite, dense, tensor
from .movement import load
from .rows import form, sample
from .rules import Arg, check_compiled, concrete, promoted
from .schema import Attrs, Builder, Kind, Movement, Op
from .shapes import Shape

Types = tuple[TensorType, ...]


def _place_dtype(at: Attrs) -> DType:
    return i32 if at.get("out_int32") else i64


def _from_right(at: Attrs) -> bool:
    """Whether equal boundaries lie before the position."""
    return bool(at.get("right")) or at.get("side") == "right"


def _checked(values: TensorType, boundaries: TensorType, at: Attrs) -> Types:
    check_compiled(values.dtype)
    if values.dtype is not boundaries.dtype:
        raise Unsupported(f"{values.dtype.torch_name} among {boundaries.dtype.torch_name}")
    concrete(boundaries.shape[-1], "the number of boundaries")
    return (dense(_place_dtype(at), values.shape),)


def _position(node: Node, out: Shape, values: int, row: Shape) -> Expr:
    """How many boundaries lie before the value; NaN lies behind all of them."""
    boundaries = 1 - values
    count = concrete(node.values[boundaries].type.shape[-1], "the number of boundaries")
    x = load(node, values, out)
    x_wide = m.to(x, x.dtype.compute)
    found: Expr = m.const(0, i64)
    step = 1 << count.bit_length()
    while step := step >> 1:
        reached = m.add(found, step)
        inside = m.le(reached, count)
        at: Dim = indirect(m.sub(m.where(inside, reached, 1), 1), count)
        bound = load(node, boundaries, (*row, at))
        wide = m.to(bound, x.dtype.compute)
        behind = (m.gt if _from_right(node.attr) else m.ge)(wide, x_wide)
        found = m.where(m.both(inside, m.negation(behind)), reached, found)
    return cast(found, node.output.type.dtype)


def _bucket_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return _checked(operands[0], operands[1], at)


def _sorted_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    rows, values = operands
    if rows.rank > 1 and rows.shape[:-1] != values.shape[:-1]:
        raise Unsupported("rows of boundaries and of values are not the same")
    return _checked(values, rows, at)


def _sorted_read(out: Shape, node: Node) -> Expr:
    row = out[:-1] if node.values[0].type.rank > 1 else ()
    return _position(node, out, 1, row)


def _np_bucketize(x: Any, boundaries: Any, at: Attrs) -> Any:
    return np.searchsorted(boundaries, x, "right" if _from_right(at) else "left")


def _np_searchsorted(rows: Any, x: Any, at: Attrs) -> Any:
    ahead = np.less_equal if _from_right(at) else np.less
    return ahead(rows[..., None, :], x[..., None]).sum(-1)


# ---------------------------------------------------------------- membership

FEW = 10 * 1e3**0.145
"""Values up to which each element is compared with each of them; more are sorted by the library."""


def _isin_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    if isinstance(operands[1], TensorType):
        count = concrete(operands[1].numel, "the number of values")
        if count > FEW:
            raise Unsupported(f"membership in {count} values is a sorted search")
    check_compiled(promoted(operands))
    return (dense(bool_, x.shape),)


def _isin(build: Builder, node: Node) -> Outputs:
    """Whether an element equals any of the values."""
    x, values = tensor(node, 0), node.inputs[1]
    invert = bool(node.attr.get("invert", False))
    if isinstance(values, Scalar):
        return (build("ne" if invert else "eq", x, values.value),)
    flat = build("view", tensor(node, 1), size=(tensor(node, 1).type.numel,))
    found = build("any", build("eq", build("unsqueeze", x, dim=-1), flat), dim=-1)
    return (build("logical_not", found) if invert else found,)


BOUNDS = ("f32", (5,))
OPS: tuple[Op, ...] = (
    Op("bucketize", Kind.GATHER,
       (form("bucketize.Tensor", ("self", "boundaries"), ("out_int32", "right")),), _bucket_type,
       Movement(lambda out, node: _position(node, out, 0, ())), _np_bucketize,
       (sample(("f32", (3, 4)), BOUNDS), sample(("i64", (9,)), ("i64", (4,)), right=True),
        sample(("bf16", (3,)), ("bf16", (7,)), out_int32=True))),
    Op("searchsorted", Kind.GATHER,
       (form("searchsorted.Tensor", ("sorted_sequence", "self"), ("out_int32", "right", "side")),),
       _sorted_type, Movement(_sorted_read), _np_searchsorted,
       (sample(BOUNDS, ("f32", (3, 4))), sample(("f32", (3, 5)), ("f32", (3, 2)), side="right"))),
    composite("isin", (form("isin.Tensor_Tensor", ("elements", "test_elements"),
                            ("assume_unique", "invert")),
                       form("isin.Tensor_Scalar", ("elements", "test_element"),
                            ("assume_unique", "invert"))),
              _isin_type, _isin,
              lambda x, values, at: np.isin(x, values, invert=at.get("invert", False)),
              (sample(("i64", (3, 4)), ("i64", (5,))), sample(("i64", (9,)), 3, invert=True),
               sample(("f32", (3,)), ("f32", (2, 2)), invert=True))),
)  # fmt: skip
