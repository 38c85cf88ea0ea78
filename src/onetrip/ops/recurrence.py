"""Linear recurrences: the scan of compositions of x -> a x + b.

    h_t = a_t h_(t-1) + b_t,  h_0 = b_0

The first `a` has nothing to multiply: the state before it counts as zero whatever its value is.
States are kept in operation precision; each is rounded once where it is stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..base.sym import Dim
from ..ir.expr import Expr
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .rows import sample
from .rules import Arg, check_compiled, normal_dim
from .schema import Attrs, Form, Kind, Op, Scanning


def _type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    a, b = operands
    check_compiled(b.dtype)
    if (a.dtype, a.shape) != (b.dtype, b.shape) or not b.shape:
        raise Unsupported(
            "a recurrence of unlike tensors",
            expected="factors and summands of one dtype and one shape, with a dimension",
            found=f"{a} and {b}",
            next_step="broadcast and convert them before",
        )
    return (TensorType.dense(b.dtype, b.shape),)


def _dim(node: Node) -> int:
    return normal_dim(node.attr["dim"], node.values[0].type.rank)


def _reverse(node: Node) -> bool:
    return bool(node.attr["reverse"])


def _lift(elements: tuple[Expr, ...], position: Dim, node: Node) -> tuple[Expr, ...]:
    a, b = elements
    start: Dim = node.output.type.shape[_dim(node)] - 1 if _reverse(node) else 0
    first = m.eq(m.place(position), m.place(start))
    return m.where(first, 1, a), b


def _np_affine_scan(a: Any, b: Any, at: Attrs) -> Any:
    way = slice(None, None, -1) if at["reverse"] else slice(None)
    steps, states = (np.moveaxis(x, at["dim"], 0)[way] for x in (a, np.array(b)))
    for t in range(1, len(states)):
        states[t] += steps[t] * states[t - 1]
    return np.moveaxis(states[way], 0, at["dim"])


X = ("f32", (3, 7, 2))
OPS: tuple[Op, ...] = (
    Op("affine_scan", Kind.SCAN,
       (Form("onetrip.affine_scan.default", ("a", "b"), ("dim", "reverse")),), _type,
       Scanning("affine", _dim, _lift, component=1, reverse=_reverse), _np_affine_scan,
       (sample(X, X, dim=1, reverse=False), sample(X, X, dim=1, reverse=True),
        sample(X, X, dim=-1, reverse=False),
        sample(("bf16", (9,)), ("bf16", (9,)), dim=0, reverse=True),
        sample(("f32", (3, 1)), ("f32", (3, 1)), dim=1, reverse=False))),
)  # fmt: skip
