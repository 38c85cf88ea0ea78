"""How each scalar operator, constant, type and cast is spelled in C++.

Operands are texts of one kind: plain scalars, or vectors `ot::vec<T>` (`wide`); the prelude gives
both the same bits. Must not know: loops, buffers, where a statement stands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ..base.dtype import (
    DType,
    bf16,
    bool_,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from ..base.errors import Unsupported
from ..base.float8 import LAYOUTS, encode
from ..ir.expr import Apply, Const
from ..ops.scalar import SCALAR_OPS

MEMORY: dict[DType, str] = {
    bool_: "bool", u8: "uint8_t", u16: "uint16_t", u32: "uint32_t", u64: "uint64_t",
    i8: "int8_t", i16: "int16_t", i32: "int32_t", i64: "int64_t",
    f16: "ot::f16", bf16: "ot::bf16", f32: "float", f64: "double",
    f8e4m3: "uint8_t", f8e5m2: "uint8_t",
}  # fmt: skip
"""The type of an element in memory; an 8-bit float is a byte there and in registers."""

INFIX: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "logical_and": "&", "logical_or": "|", "logical_xor": "^",
}  # fmt: skip
PREFIX: dict[str, str] = {"neg": "-", "bitwise_not": "~", "logical_not": "!"}
TRUTH = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})
"""Operators on truth values: other operands are compared with zero first."""

FUNCTIONS: dict[str, str] = {
    "floordiv": "floor_div", "truncdiv": "trunc_div", "remainder": "floor_mod", "shl": "shift_left",
    "shr": "shift_right",
}  # fmt: skip
IN_LINE: dict[tuple[str, DType], str] = {("tanh", f32): "tanh_short"}
"""Functions that the prelude computes faster in line than by a call."""
INTEGER_FUNCTIONS: dict[str, str] = {"fmod": "trunc_mod", "pow": "int_pow"}
ARRAY_FUNCTIONS = {"tanh": (f64,), "erf": (f32, f64), "erfc": (f32, f64)}
"""Functions that the prelude's `vml` computes faster for a whole array, with eager's own bits."""


@dataclass(frozen=True)
class Text:
    """A value's text, and whether it is one value per lane."""

    text: str
    wide: bool


def memory_type(dtype: DType) -> str:
    """The C++ type of an element in memory; raises Unsupported for types that are not compiled."""
    if dtype not in MEMORY:
        raise Unsupported(f"the C++ backend computes on no {dtype.name}",
                          expected=", ".join(d.name for d in MEMORY), found=dtype.name,
                          next_step="the operator runs as a library call")  # fmt: skip
    return MEMORY[dtype]


def register_type(dtype: DType) -> str:
    """The C++ type in which a scalar of this dtype is held: bf16 and f16 are held as float."""
    return "float" if dtype in (bf16, f16) else memory_type(dtype)


def value_type(dtype: DType, wide: bool) -> str:
    """`float`, or `ot::vec<float>`."""
    return f"ot::vec<{register_type(dtype)}>" if wide else register_type(dtype)


def constant(c: Const) -> str:
    """A literal of the register type, with the constant's exact bits."""
    if c.dtype is bool_:
        return "true" if c.value else "false"
    if c.dtype in LAYOUTS:
        return _integer(encode(float(c.value), c.dtype), u8)
    if c.dtype.is_float:
        return _float(float(c.value), c.dtype)
    return _integer(int(c.value), c.dtype)


def _float(value: float, dtype: DType) -> str:
    single = dtype is not f64
    suffix = "f" if single else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if single:
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    text = format(value, ".9g") if single else repr(value)
    if "." not in text and "e" not in text:
        text += ".0"
    return text + suffix


def _integer(value: int, dtype: DType) -> str:
    bits = dtype.bits
    wrapped = value & ((1 << bits) - 1)
    if dtype.signed and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    if wrapped == -(1 << 63):
        return "INT64_MIN"
    suffix = "ull" if wrapped >> 63 else ""
    return f"{memory_type(dtype)}({wrapped}{suffix})"


def cast_text(source: DType, target: DType, arg: Text) -> str:
    """`.to(target)` of a value of dtype `source`."""
    if source in LAYOUTS and source is not target:
        decoded = Text(f"ot::from_{source.name}({arg.text})", arg.wide)
        return cast_text(f32, target, decoded)
    if target in LAYOUTS and source is not target:
        return f"ot::to_{target.name}({cast_text(source, f32, arg)})"
    narrow = {bf16: "ot::round_bf16", f16: "ot::round_f16"}
    if target in narrow:
        inner = arg.text
        if source not in (bf16, f16, f32):
            inner = f"ot::cast<float>({inner})"
        return f"{narrow[target]}({inner})"
    if register_type(source) == register_type(target):
        return arg.text
    return f"ot::cast<{register_type(target)}>({arg.text})"


def has_array(e: Apply) -> bool:
    """Whether the operator is computed by an array function."""
    return e.dtype in ARRAY_FUNCTIONS.get(e.op, ())


def array_function(e: Apply) -> str:
    """The function over (operands, results, count) of an operator that `has_array`."""
    return f"ot::vml::{e.op}_n"


def can_fault(e: Apply) -> bool:
    """Whether the operator stops the kernel on some operands: integer division by zero."""
    return SCALAR_OPS[e.op].stops and not e.args[0].dtype.is_float


def apply_text(e: Apply, args: Sequence[Text], fault: str) -> str:
    """The text of an operator; `fault` is the extra argument of one that `can_fault`."""
    texts = [a.text for a in args]
    if e.op in TRUTH:
        texts = [t if x.dtype is bool_ else f"ot::cast<bool>({t})"
                 for t, x in zip(texts, e.args, strict=True)]  # fmt: skip
    if e.op in INFIX:
        return f"{texts[0]} {INFIX[e.op]} {texts[1]}"
    if e.op in PREFIX:
        truth = e.op == "bitwise_not" and e.dtype is bool_
        operand = f"({texts[0]})" if texts[0].startswith("-") else texts[0]
        return f"{'!' if truth else PREFIX[e.op]}{operand}"
    if e.op == "where" and not args[0].wide:
        return f"{texts[0]} ? {texts[1]} : {texts[2]}"
    if has_array(e):
        one = f"ot::vml::{e.op}(ot::splat({texts[0]}))[0]"
        return f"ot::vml::{e.op}({texts[0]})" if args[0].wide else one
    if can_fault(e):
        texts.append(fault)
    return f"ot::{_function(e)}({', '.join(texts)})"


def _function(e: Apply) -> str:
    if not e.args[0].dtype.is_float and e.op in INTEGER_FUNCTIONS:
        return INTEGER_FUNCTIONS[e.op]
    return IN_LINE.get((e.op, e.dtype)) or FUNCTIONS.get(e.op, e.op)
