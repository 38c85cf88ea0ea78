"""Products of a CPU in a dtype for which its library is fast, as expansions like any composite's.

    product of 16 bits   ->  to f32, product, to 16 bits

A library without instructions for 16 bits sums such products one after the other, in f32. In f32 it
has fast kernels; the products of the terms are exact there, and the result is rounded once. The
conversions are ours to fuse. Knows no chip: whether widening pays is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..base.dtype import DType, bf16, f16, f32
from ..base.sym import Dim, add, mul
from ..ir.graph import Node, Operand, Value
from ..ir.types import TensorType
from ..ops.build import Recorder

Outputs = tuple[Value | None, ...]
Form = Callable[[Recorder, Node], Outputs | None]
Pays = Callable[[Node, Dim], bool]
"""Whether a product is worth converting this many bytes for, read and written."""

NARROW: frozenset[DType] = frozenset({bf16, f16})
PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "linear", "mv", "addmv", "convolution", "convolution_backward"
)  # fmt: skip


def cpu_forms(pays: Pays) -> Mapping[str, Form]:
    """The expansions, by operator; each answers None where the call stays as it is."""
    return dict.fromkeys(PRODUCTS, lambda build, node: _widened(build, node, pays))


def _widened(build: Recorder, node: Node, pays: Pays) -> Outputs | None:
    narrow = [v for v in (*node.values, *node.outputs) if v.type.dtype in NARROW]
    if not narrow or not pays(node, _moved_bytes(narrow)):
        return None
    operands = tuple(_wide(build, x) for x in node.inputs)
    types = tuple(_wide_type(v.type) for v in node.outputs)
    made = build.again(node, operands, types, node.attr)
    return tuple(
        build("to", wide, dtype=own.type.dtype) if own.type.dtype in NARROW else wide
        for own, wide in zip(node.outputs, made, strict=True)
    )


def _moved_bytes(values: list[Value]) -> Dim:
    """Bytes of reading values in one dtype and writing them in the other."""
    total: Dim = 0
    for v in values:
        total = add(total, mul(v.type.numel, v.type.dtype.itemsize + f32.itemsize))
    return total


def _wide(build: Recorder, x: Operand) -> Operand:
    narrow = isinstance(x, Value) and x.type.dtype in NARROW
    return build("to", x, dtype=f32) if narrow else x


def _wide_type(kind: TensorType) -> TensorType:
    return replace(kind, dtype=f32) if kind.dtype in NARROW else kind
