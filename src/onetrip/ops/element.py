"""One element of an elementwise or random operator: operands to compute dtype, body, one rounding.

Knows expressions and operand types; must not know where the operands are loaded from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.dtype import DType
from ..base.sym import Sym
from ..ir.expr import Const, Expr, cast
from ..ir.graph import Node, Operand, Scalar, Value
from .arith import place, to
from .rows import in_common
from .rules import number_dtype, promoted
from .schema import Elementwise, Random


def argument(operand: Operand) -> Any:
    """What type and compute rules see of an operand: its TensorType, or the number."""
    return operand.type if isinstance(operand, Value) else operand.value


def arguments(node: Node) -> tuple[Any, ...]:
    """`argument` of every operand."""
    return tuple(argument(x) for x in node.inputs)


def number_expr(value: bool | int | float | Sym) -> Expr:
    """A Python number in f64 or i64, unrounded; a size as its position."""
    if isinstance(value, Sym):
        return place(value)
    return Const(value, number_dtype(value).compute)


def element(body: Elementwise, node: Node, operands: Sequence[Expr]) -> Expr:
    """The value to store for one element, in the dtype of the node's output.

    Args:
        operands: for each input its loaded element in the input's own dtype; what stands at the
            place of a Scalar is not looked at.
    """
    rules = arguments(node)
    out = node.outputs[0].type
    dtypes = (body.compute or in_common)(rules, out, node.attr)
    ready = [
        _operand(x, e, dtype, rules, body.rounds_numbers)
        for x, e, dtype in zip(node.inputs, operands, dtypes, strict=True)
    ]
    return cast(body.body(tuple(ready), node.attr), out.dtype)


def _operand(
    x: Operand, e: Expr, dtype: DType, rules: tuple[Any, ...], rounds: bool
) -> Expr:
    """An operand in its compute dtype, rounded through the common dtype where eager does."""
    if isinstance(x, Scalar):
        e = to(number_expr(x.value), dtype) if _is_number(x) else place(x.value, dtype)
    common = promoted(rules) if rounds or _mixes_in(x, dtype) else dtype
    if common.compute is dtype and common is not dtype and e.dtype is not common:
        e = to(e, common)
    return to(e, dtype)


def _is_number(x: Scalar) -> bool:
    return not isinstance(x.value, Sym)


def _mixes_in(x: Operand, dtype: DType) -> bool:
    """Whether x is a dimensioned tensor, which eager converts to the common dtype first."""
    return isinstance(x, Value) and bool(x.type.shape) and x.type.dtype is not dtype


def random_element(body: Random, node: Node, operands: Sequence[Expr], uniform: Expr) -> Expr:
    """The value of one element of a random operator; `uniform` belongs to its linear index."""
    out = node.outputs[0].type
    ready = tuple(cast(e, out.dtype.compute) for e in operands)
    return cast(body.body(ready, uniform, node.attr), out.dtype)


