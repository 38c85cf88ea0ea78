"""How scalar operators, casts and constants are spelled in Triton: tables, by category of dtype.

Knows nothing of tiles, scopes or kernels.
"""

from __future__ import annotations

import math

from ..base.dtype import DType, bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8
from ..base.errors import Unsupported
from ..base.float8 import LAYOUTS, encode
from ..ir.expr import Const

TYPES: dict[DType, str] = {
    bool_: "tl.int1", u8: "tl.uint8", i8: "tl.int8", i16: "tl.int16", i32: "tl.int32",
    i64: "tl.int64", f16: "tl.float16", bf16: "tl.bfloat16", f32: "tl.float32", f64: "tl.float64",
    f8e4m3: "tl.uint8", f8e5m2: "tl.uint8",
}  # fmt: skip
POINTERS: dict[DType, str] = {
    bool_: "*i1", u8: "*u8", i8: "*i8", i16: "*i16", i32: "*i32", i64: "*i64",
    f16: "*fp16", bf16: "*bf16", f32: "*fp32", f64: "*fp64", f8e4m3: "*u8", f8e5m2: "*u8",
}  # fmt: skip
# An 8-bit float is a byte in memory and in registers: chips differ in which they convert.

# Operands as they are, a Python number among them allowed.
_INFIX = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}",
    "gt": "{0} > {1}", "ge": "{0} >= {1}", "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
}  # fmt: skip
_BOOL = {
    "add": "{0} | {1}", "mul": "{0} & {1}", "maximum": "{0} | {1}", "minimum": "{0} & {1}",
    "lt": "{1} & ~{0}", "le": "{1} | ~{0}", "gt": "{0} & ~{1}", "ge": "{0} | ~{1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "bitwise_and": "{0} & {1}", "abs": "{0}",
    "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "~{0}",
    "logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}",
    "logical_not": "~{0}", "sign": "{0}",
}  # fmt: skip
_NUMBER = {
    "logical_and": "({0} != 0) & ({1} != 0)", "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) ^ ({1} != 0)", "logical_not": "{0} == 0", "isnan": "{0} != {0}",
}  # fmt: skip
_FLOAT = {"neg": "{0} * -1.0"}  # Triton's own is 0 - x, which loses the sign of a zero
_INT = {"signbit": "{0} < 0", "isnan": "{0} != {0}", "isinf": "{0} != {0}"}
# Functions that have one body for floats and one for integers.
_BY_CATEGORY = frozenset(
    ("floordiv", "truncdiv", "remainder", "fmod", "maximum", "minimum", "sign", "signbit", "shl",
     "shr")
)  # fmt: skip
_LITERAL_TOO = frozenset({"maximum", "minimum"})


def takes_literals(op: str, dtype: DType) -> bool:
    """Whether an operand may be a plain Python number."""
    return op in _INFIX or op in _LITERAL_TOO or op == "where" or op in _NUMBER


def spell(op: str, dtype: DType, args: list[str]) -> str:
    """The text of a scalar operator on operands of `dtype`; infix text is in parentheses.

    Raises:
        Unsupported: the operator has no meaning on bools.
    """
    if op == "where":
        return f"tl.where({', '.join(args)})"
    template = _template(op, dtype)
    if template is not None:
        return f"({template.format(*args)})"
    return f"{_function(op, dtype)}({', '.join(args)})"


def _template(op: str, dtype: DType) -> str | None:
    if dtype is bool_:
        if op not in _BOOL:
            raise Unsupported(f"{op} on bool", next_step="cast the operand to an integer first")
        return _BOOL[op]
    if dtype.is_float and op in _FLOAT:
        return _FLOAT[op]
    if op in _INFIX:
        return _INFIX[op]
    if not dtype.is_float and op in _INT:
        return _INT[op]
    return _NUMBER.get(op)


def _function(op: str, dtype: DType) -> str:
    if op in _BY_CATEGORY or (op == "pow" and not dtype.is_float):
        return f"ot_{'float' if dtype.is_float else 'int'}_{op}"
    return f"ot_{op}"


_NEGATIVE_ZERO = {
    f32: "tl.full((), -0x80000000, tl.int32).to(tl.float32, bitcast=True)",
    f64: "tl.full((), -0x8000000000000000, tl.int64).to(tl.float64, bitcast=True)",
}
"""Every constant that equals zero is 0.0 in Triton."""


def literal(const: Const) -> str:
    """A constant as a Python number."""
    value = const.value
    if const.dtype is bool_:
        return "1" if value else "0"
    if const.dtype in LAYOUTS:
        return str(encode(float(value), const.dtype))
    if not const.dtype.is_float:
        return str(int(value))
    number = float(value)
    if number == 0 and math.copysign(1.0, number) < 0:
        return _NEGATIVE_ZERO[f64 if const.dtype is f64 else f32]
    if math.isfinite(number):
        return repr(number)
    return 'float("nan")' if math.isnan(number) else f'float("{number}")'


def typed(const: Const) -> str:
    """A constant as a value of its dtype."""
    if const.dtype is bool_:
        return f"(tl.full((), {literal(const)}, tl.int32) != 0)"
    if const.dtype is bf16:  # Triton's interpreter makes no scalar of it
        return f"ot_bf16(tl.full((), {literal(const)}, tl.float32))"
    text = literal(const)
    if text in _NEGATIVE_ZERO.values():
        return text if const.dtype in _NEGATIVE_ZERO else cast(text, f32, const.dtype)
    return f"tl.full((), {text}, {TYPES[const.dtype]})"


def cast(text: str, source: DType, target: DType) -> str:
    """PyTorch's `.to(target)`."""
    if source is target:
        return text
    if source in LAYOUTS:
        return cast(f"ot_from_{source.name}({text})", f32, target)
    if target in LAYOUTS:
        return f"ot_to_{target.name}({cast(text, source, f32)})"
    if target is bool_:
        return f"({text} != 0)"
    if source.is_float and target.is_integral:
        via = i64 if target in (u8, i64) else i32
        return _to(_to(text, via), target) if via is not target else _to(text, target)
    if target in (bf16, f16):
        single = text if source is f32 else _to(text, f32)
        return f"ot_bf16({single})" if target is bf16 else _to(single, f16)
    return _to(text, target)


def _to(text: str, target: DType) -> str:
    return f"{text}.to({TYPES[target]})"


def strip(text: str) -> str:
    """Without the parentheses that enclose all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def atom(text: str) -> str:
    """Fit to stand before a method call."""
    plain = all(c.isalnum() or c in "_." for c in text) or text.endswith(")")
    return text if plain and " " not in text.split("(")[0] else f"({text})"


def term(text: str) -> str:
    """Fit to stand as an operand of arithmetic."""
    return text if all(c.isalnum() or c == "_" for c in text) else f"({strip(text)})"
