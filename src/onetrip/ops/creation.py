"""Values made from positions and numbers: full, arange, eye, triangles, and dtype conversions.

The reads use index arithmetic only; attributes give sizes and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtype import DType, f32, f64, i64
from ..base.errors import Unsupported
from ..base.sym import Dim, Sym, add
from ..ir.expr import Expr, Position, compare
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .movement import load
from .rows import (
    BOOLS,
    FLOATS,
    INTS,
    default_form,
    elementwise,
    form,
    sample,
    with_attrs,
)  # fmt: skip
from .rules import Arg, as_dtype, asked, check_compiled, laid_out, like_first, number_dtype
from .schema import Attrs, Form, Kind, Movement, Op, Sample, TypeRule
from .shapes import Shape

NEW = ("size", "dtype")


def _value(node: Node) -> Any:
    return node.attr["value"] if "value" in node.attr else node.attr["fill_value"]


def _constant(value: Any, dtype: DType) -> Expr:
    return m.place(value, dtype) if isinstance(value, Sym) else m.const(value, dtype)


def _filled(out: Shape, node: Node) -> Expr:
    return _constant(_value(node), node.output.type.dtype)


def _fill_dtype(operands: tuple[Arg, ...], at: Attrs) -> DType:
    """As asked; else the like-tensor's; else that of the number."""
    if at.get("dtype") is not None:
        return as_dtype(at["dtype"])
    if operands:
        dtype: DType = operands[0].dtype
        return dtype
    return f32 if at.get("default_float") else number_dtype(at["fill_value"])


def _full_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    dtype = check_compiled(_fill_dtype(operands, at))
    if "size" in at:
        return (TensorType.dense(dtype, tuple(at["size"])),)
    if operands:
        return (laid_out(dtype, operands[0].shape, operands),)
    return (TensorType.dense(dtype, ()),)


def _np_full(*args: Any) -> Any:
    *xs, at = args
    shape = at["size"] if "size" in at else xs[0].shape if xs else ()
    value = at["value"] if "value" in at else at["fill_value"]
    return np.full(shape, value)


def _fills() -> tuple[Form, ...]:
    zero = {"fill_value": 0}
    one = {"fill_value": 1}
    made = [form("full.default", (), ("size", "fill_value", "dtype"))]
    made += [form("full_like.default", ("self",), ("fill_value", "dtype"))]
    made += [form("new_full.default", ("self",), ("size", "fill_value", "dtype"))]
    for name, value in (("zeros", zero), ("ones", one), ("empty", zero)):
        overload = "memory_format" if name == "empty" else "default"
        made.append(form(f"{name}.{overload}", (), NEW, default_float=True, **value))
        made.append(form(f"{name}_like.default", ("self",), ("dtype",), **value))
        made.append(form(f"new_{name}.default", ("self",), NEW, **value))
    strided = ("size", "stride", "dtype")
    made.append(form("empty_strided.default", (), strided, default_float=True, **zero))
    made.append(form("new_empty_strided.default", ("self",), strided, **zero))
    made.append(form("fill.Scalar", ("self",), ("value",)))
    made.append(form("zero.default", ("self",), fill_value=0))
    return tuple(made)


def _scalar_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    dtype = f32 if at.get("dtype") is None else as_dtype(at["dtype"])
    return (TensorType.dense(check_compiled(dtype), ()),)


def _arange(at: Attrs) -> tuple[Any, Any, Any]:
    return at.get("start", 0), at["end"], at.get("step", 1)


def _arange_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    start, end, step = _arange(at)
    numbers = (start, end, step)
    default = f32 if any(isinstance(x, float) for x in numbers) else i64
    dtype = default if at.get("dtype") is None else as_dtype(at["dtype"])
    return (TensorType.dense(check_compiled(dtype), (_arange_length(start, end, step),)),)


def _arange_length(start: Any, end: Any, step: Any) -> Dim:
    if any(isinstance(x, float) for x in (start, end, step)):
        if any(isinstance(x, Sym) for x in (start, end, step)):
            raise Unsupported("a range of floats has a symbolic bound")
        return int(np.ceil((end - start) / step))
    if isinstance(step, int) and step == 1:
        return add(end, -start)
    if any(isinstance(x, Sym) for x in (start, end, step)):
        raise Unsupported("a range with a symbolic bound has a step")
    return len(range(start, end, step))


def _arange_read(out: Shape, node: Node) -> Expr:
    """start + step * index, in the wide dtype that eager accumulates in (f64 or i64)."""
    start, _, step = _arange(node.attr)
    dtype = node.output.type.dtype
    if not any(isinstance(x, float) for x in (start, step)):
        position = m.place(add(out[0] * step, start))
        return m.to(position, dtype)
    wide = m.place(out[0], f64)
    return m.to(m.add(float(start), m.mul(float(step), wide)), dtype)


def _steps_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    dtype = f32 if at.get("dtype") is None else as_dtype(at["dtype"])
    if any(isinstance(at[k], Sym) for k in ("start", "end", "steps")):
        raise Unsupported("numbers between symbolic bounds")
    return (TensorType.dense(check_compiled(dtype), (at["steps"],)),)


def _between(out: Shape, at: Attrs, compute: DType) -> Expr:
    """Number i of `steps`: from the start in the first half, from the end in the second."""
    start, end, steps = float(at["start"]), float(at["end"]), at["steps"]
    if steps == 1:
        return m.const(start, compute)
    step = (m.const(end, compute).value - m.const(start, compute).value) / (steps - 1)
    rising = m.add(start, m.mul(step, m.place(out[0], compute)))
    left = m.place(add(steps - 1, -out[0]), compute)
    first_half = compare("lt", Position(out[0]), m.place(steps // 2))
    return m.where(first_half, rising, m.sub(m.const(end, compute), m.mul(step, left)))


def _linspace_read(out: Shape, node: Node) -> Expr:
    dtype = node.output.type.dtype
    compute = dtype.compute if dtype.is_float else f64
    return m.to(_between(out, node.attr, compute), dtype)


def _np_linspace(at: Attrs) -> Any:
    found = np.linspace(at["start"], at["end"], at["steps"])
    whole = at.get("dtype") is not None and as_dtype(at["dtype"]).is_integral
    return np.trunc(found) if whole else found


def _logspace_read(out: Shape, node: Node) -> Expr:
    dtype = node.output.type.dtype
    exponent = _between(out, node.attr, f64)
    return m.to(m.power(m.const(float(node.attr.get("base", 10.0)), f64), exponent), dtype)


def _eye_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    dtype = f32 if at.get("dtype") is None else as_dtype(at["dtype"])
    return (TensorType.dense(check_compiled(dtype), (at["n"], at.get("m", at["n"]))),)


def _eye_read(out: Shape, node: Node) -> Expr:
    dtype = node.output.type.dtype
    same = compare("eq", Position(out[0]), Position(out[1]))
    return m.select(same, m.const(1, dtype), m.const(0, dtype))


def _triangle(op: str) -> Callable[[Shape, Node], Expr]:
    """Elements whose column - row is at most (le) or at least (ge) the attribute `diagonal`."""

    def read(out: Shape, node: Node) -> Expr:
        x = load(node, 0, out)
        shift = Position(add(out[-1], -out[-2]))
        kept = compare(op, shift, m.place(node.attr.get("diagonal", 0)))
        return m.select(kept, x, m.const(0, x.dtype))

    return read


def _copy_read(out: Shape, node: Node) -> Expr:
    source = node.values[1].type
    own = out[len(out) - source.rank :]
    index = tuple(0 if size == 1 else i for i, size in zip(own, source.shape, strict=True))
    return m.to(load(node, 1, index), node.output.type.dtype)


def _fill_tensor_read(out: Shape, node: Node) -> Expr:
    return m.to(load(node, 1, ()), node.output.type.dtype)


def _convert_own(operands: tuple[Arg, ...], out: TensorType, at: Attrs) -> tuple[DType, ...]:
    return tuple(x.dtype for x in operands)


BEYOND_E4M3 = 464.0
"""Above it a number is nearer to the next one that e4m3 would have than to its largest."""


def _converted(x: Expr, at: Attrs) -> Expr:
    """x; numbers that e4m3 cannot hold become what the attribute `beyond` says."""
    if "beyond" not in at:
        return x
    wide = m.to(x, f32)
    return m.where(m.gt(m.absolute(wide), BEYOND_E4M3), at["beyond"], wide)


def _np_to(x: Any, at: Attrs) -> Any:
    dtype = as_dtype(at["dtype"])
    if dtype.is_float:
        return x
    return x != 0 if dtype.torch_name == "bool" else np.trunc(x).astype(np.int64)


def _made(
    name: str,
    forms: Sequence[Form],
    types: TypeRule,
    read: Callable[[Shape, Node], Expr],
    reference: Callable[..., Any],
    samples: Sequence[Sample],
    onnx: tuple[str, ...] = (),
) -> Op:
    return Op(
        name, Kind.ELEMENTWISE, tuple(forms), types, Movement(read), reference, tuple(samples),
        onnx=onnx,
    )  # fmt: skip


SQUARE = ("f32", (2, 4, 3))
EIGHT_BITS = (("f32", "f8e4m3"), ("bf16", "f8e5m2"), ("i64", "f8e4m3"), ("f8e4m3", "f32"),
              ("f8e5m2", "bf16"), ("f8e4m3", "f8e5m2"), ("f8e5m2", "bool"))  # fmt: skip
OPS: tuple[Op, ...] = (
    _made("full", _fills(), _full_type, _filled, _np_full,
          (sample(size=(2, 3), fill_value=1.5, dtype="f32"), sample(size=(2,), fill_value=True),
           sample(SQUARE, fill_value=2), sample(SQUARE, size=(3,), fill_value=0, dtype="i64"),
           sample(size=(), fill_value=3), sample(("bf16", (3,)), value=0.3)),
          onnx=("ConstantOfShape",)),
    _made("scalar_tensor", (form("scalar_tensor.default", (), ("s", "dtype")),), _scalar_type,
          lambda out, node: _constant(node.attr["s"], node.output.type.dtype),
          lambda at: np.asarray(at["s"]), (sample(s=1.5), sample(s=3, dtype="i64"))),
    _made("arange", (form("arange.default", (), ("end", "dtype")),
                     form("arange.start", (), ("start", "end", "dtype")),
                     form("arange.start_step", (), ("start", "end", "step", "dtype"))),
          _arange_type, _arange_read, lambda at: np.arange(*_arange(at)),
          (sample(end=5), sample(start=2, end=11, step=3), sample(end=4, dtype="f32"),
           sample(start=0.5, end=2.0, step=0.25), sample(start=5, end=-4, step=-2)),
          ("Range",)),
    _made("linspace", default_form("linspace", (), ("start", "end", "steps", "dtype")),
          _steps_type, _linspace_read,
          _np_linspace,
          (sample(start=0, end=1, steps=5), sample(start=-2.5, end=7, steps=8, dtype="bf16"),
           sample(start=3, end=9, steps=1), sample(start=0, end=10, steps=4, dtype="i64"))),
    _made("logspace", default_form("logspace", (), ("start", "end", "steps", "base", "dtype")),
          _steps_type, _logspace_read,
          lambda at: np.logspace(at["start"], at["end"], at["steps"], base=at.get("base", 10.0)),
          (sample(start=0, end=2, steps=5), sample(start=-1, end=1, steps=4, base=2.0))),
    _made("eye", (form("eye.default", (), ("n", "dtype")),
                  form("eye.m", (), ("n", "m", "dtype"))), _eye_type, _eye_read,
          lambda at: np.eye(at["n"], at.get("m", at["n"])),
          (sample(n=3), sample(n=2, m=4, dtype="i64"), sample(n=3, dtype="bf16")), ("EyeLike",)),
    _made("tril", default_form("tril", ("self",), ("diagonal",)), like_first(), _triangle("le"),
          lambda x, at: np.tril(x, at.get("diagonal", 0)),
          (sample(SQUARE), sample(SQUARE, diagonal=-1), sample(("bool", (4, 4)), diagonal=1),
           sample(("bf16", (3, 5)))),
          ("Trilu",)),
    _made("triu", default_form("triu", ("self",), ("diagonal",)), like_first(), _triangle("ge"),
          lambda x, at: np.triu(x, at.get("diagonal", 0)),
          (sample(SQUARE), sample(SQUARE, diagonal=1))),
    _made("copy", (form("copy.default", ("self", "src"), ("non_blocking",)),), like_first(),
          _copy_read, lambda x, source, at: np.broadcast_to(source, x.shape),
          (sample(SQUARE, ("f32", (4, 1))), sample(SQUARE, ("i64", ())))),
    _made("fill_tensor", (form("fill.Tensor", ("self", "value")),), like_first(),
          _fill_tensor_read, lambda x, value, at: np.broadcast_to(value, x.shape),
          (sample(SQUARE, ("f32", ())),)),
    elementwise("to", (form("_to_copy.default", ("self",), ("dtype",)),
                       Form("prims.convert_element_type.default", ("a",), ("dtype",))),
                with_attrs(_converted), _np_to,
                (*(sample(*s.operands, dtype=d) for s in FLOATS[:2] + INTS[:1] + BOOLS
                   for d in ("f32", "bf16", "f16", "i64", "bool")),
                 *(sample((a, (3, 7)), dtype=b) for a, b in EIGHT_BITS)),
                types=like_first(dtype=asked), compute=_convert_own, onnx=("Cast",),
                doc="The conversion of torch's .to(dtype); attribute dtype, absent: a copy."),
)  # fmt: skip
