"""One element of an elementwise or random operator: operands to compute dtype, body, one rounding.

Knows expressions and operand types; must not know where the operands are loaded from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.dtype import DType, f64
from ..base.sym import Sym
from ..ir.expr import Const, Expr, cast
from ..ir.graph import Node, Operand, Scalar, Value
from .arith import place, to
from .rows import in_common
from .rules import number_dtype, promoted
from .schema import Elementwise


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
    return Const(value, f64 if isinstance(value, float) else number_dtype(value))


def element(body: Elementwise, node: Node, operands: Sequence[Expr], gpu: bool = False) -> Expr:
    """The value to store for one element, in the dtype of the node's output.

    Args:
        operands: for each input its loaded element in the input's own dtype; what stands at the
            place of a Scalar is not looked at.
        gpu: whether eager's GPU kernels are followed where they differ from the CPU's.
    """
    rules = arguments(node)
    out = node.outputs[0].type
    common = promoted(rules) if rules else out.dtype
    dtypes = (body.compute or in_common)(rules, out, node.attr)
    rounds = body.rounds
    if gpu and body.rounds_on_gpu is not None:
        rounds = body.rounds_on_gpu
    ready = tuple(
        _operand(x, e, dtype, common, number in rounds, gpu)
        for number, (x, e, dtype) in enumerate(zip(node.inputs, operands, dtypes, strict=True))
    )
    attrs = {**node.attr, "common": common, "gpu": gpu}
    return cast(body.body(ready, attrs), out.dtype)


def _operand(x: Operand, e: Expr, dtype: DType, common: DType, rounds: bool, gpu: bool) -> Expr:
    """An operand in its compute dtype, rounded through the common dtype where eager does that.

    Eager converts tensors with dimensions to the common dtype before it computes; a 0-d tensor of
    a GPU is one of them, on a CPU it is read like a number.
    """
    if isinstance(x, Scalar):
        e = number_expr(x.value)
    elif x.type.dtype is common:
        return to(e, dtype)
    else:
        rounds = rounds or gpu or bool(x.type.shape)
    narrows = common.compute is dtype and common is not dtype
    return to(to(e, common) if rounds and narrows else e, dtype)
