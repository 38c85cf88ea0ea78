"""Row makers: what most operators of a family share, said once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..base.dtype import DType, f64
from ..ir.expr import Expr
from ..ir.types import TensorType
from .arith import to
from .rules import pointwise, promoted, promoted_float
from .schema import BOUNDED, Attrs, Elementwise, Form, Kind, Op, Sample, TypeRule

Body = Callable[..., Expr]
"""Operands, then `attrs` when the maker is told so -> Expr."""


def form(
    target: str, operands: Sequence[str] = ("self",), attrs: Sequence[str] = (), **more: Any
) -> Form:
    """A Form of an ATen overload; `more` are fixed attributes."""
    return Form(f"aten.{target}", tuple(operands), tuple(attrs), tuple(more.items()))


def default_form(
    name: str, operands: Sequence[str] = ("self",), attrs: Sequence[str] = (), **more: Any
) -> tuple[Form, ...]:
    """The only overload of an ATen operator."""
    return (form(f"{name}.default", operands, attrs, **more),)


def sample(*operands: Any, **attrs: Any) -> Sample:
    """`sample(("f32", (3, 4)), 2.5, alpha=2)`."""
    return Sample(operands, tuple(sorted(attrs.items())))


def in_output(operands: tuple[Any, ...], out: TensorType, attrs: Attrs) -> tuple[DType, ...]:
    """Every operand in the operation precision of the output."""
    return (out.dtype.compute,) * len(operands)


def in_common(operands: tuple[Any, ...], out: TensorType, attrs: Attrs) -> tuple[DType, ...]:
    """Every operand in the operation precision of the common dtype."""
    return (promoted(operands).compute,) * len(operands)


def in_common_float(operands: tuple[Any, ...], out: TensorType, attrs: Attrs) -> tuple[DType, ...]:
    """Every operand in the operation precision of the common dtype, made a float."""
    return (promoted_float(operands).compute,) * len(operands)


def selecting(operands: tuple[Any, ...], out: TensorType, attrs: Attrs) -> tuple[DType, ...]:
    """A condition in its own dtype, then operands in the output's operation precision."""
    return (operands[0].dtype, *(out.dtype.compute,) * (len(operands) - 1))


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A reference from a numpy function that knows no attributes."""
    return lambda *args: fn(*args[:-1])


def without_attrs(body: Body) -> Callable[[tuple[Expr, ...], Attrs], Expr]:
    """A body from a function of the operands alone."""
    return lambda xs, attrs: body(*xs)


def with_attrs(body: Body) -> Callable[[tuple[Expr, ...], Attrs], Expr]:
    """A body from a function of the operands and the attributes."""
    return lambda xs, attrs: body(*xs, attrs)


def in_double(body: Callable[[tuple[Expr, ...], Attrs], Expr]) -> Callable[..., Expr]:
    """A body in f64, for functions that lose digits on the way, of operands `in_common_float`.

    An integer is rounded to f32 before, as eager's.
    """
    return lambda xs, attrs: body(tuple(to(x, f64) for x in xs), attrs)


FLOATS = (
    sample(("f32", (3, 4))),
    sample(("bf16", (2, 5))),
    sample(("f16", (7,))),
    sample(("f64", ())),
)
INTS = (sample(("i64", (5,))), sample(("i32", (2, 3))), sample(("u8", (4,))))
BOOLS = (sample(("bool", (5,))),)
PAIRS = (
    sample(("f32", (3, 4)), ("f32", (3, 4))),
    sample(("bf16", (2, 3)), ("bf16", (1, 3))),
    sample(("f32", (2, 1, 3)), ("f32", (4, 1))),
    sample(("f32", (3,)), ("bf16", (3,))),
    sample(("bf16", (5,)), ("f32", ())),
    sample(("f32", (2, 3)), 0.3),
    sample(("bf16", (2, 3)), 0.3),
)
INT_PAIRS = (
    sample(("i64", (5,)), ("i64", (5,))),
    sample(("i32", (2, 3)), ("i64", (3,))),
    sample(("i64", (4,)), 3),
    sample(("u8", (4,)), ("i8", (4,))),
)
MIXED_PAIRS = (
    sample(("i64", (4,)), ("f32", (4,))),
    sample(("i64", (4,)), 0.5),
    sample(("bool", (4,)), ("f32", (4,))),
    sample(("bf16", (4,)), ("i64", (4,))),
)


def elementwise(
    name: str,
    forms: Sequence[Form],
    body: Callable[[tuple[Expr, ...], Attrs], Expr],
    reference: Callable[..., Any],
    samples: Sequence[Sample],
    *,
    types: TypeRule | None = None,
    compute: Any = None,
    rounds: tuple[int, ...] = (),
    rounds_on_gpu: tuple[int, ...] | None = None,
    doc: str = "",
    onnx: tuple[str, ...] = (),
) -> Op:
    """An elementwise operator; the default rule promotes and broadcasts."""
    rule = types or pointwise(promoted)
    meaning = Elementwise(body, compute, rounds, rounds_on_gpu)
    return Op(
        name, Kind.ELEMENTWISE, tuple(forms), rule, meaning, reference, tuple(samples),
        onnx=onnx, doc=doc,
    )  # fmt: skip


def bounded(op: Op) -> Op:
    """The operator by other steps than eager's, so that only the distance from the truth counts."""
    return replace(op, exactness=dict.fromkeys(("cpp", "triton"), BOUNDED))


def unary(
    name: str,
    body: Body,
    reference: Callable[..., Any],
    *,
    samples: Sequence[Sample] = FLOATS + INTS[:1],
    types: TypeRule | None = None,
    target: str = "",
    also: Sequence[str] = (),
    **more: Any,
) -> Op:
    """A float function of one operand; integers and bool become f32. ATen may call it `also` so."""
    forms = [f for t in (target or name, *also) for f in default_form(t)]
    return elementwise(
        name, forms, without_attrs(body), plain(reference), samples,
        types=types or pointwise(promoted_float), compute=in_output, **more,
    )  # fmt: skip


def binary_forms(name: str, attrs: Sequence[str] = (), other: str = "other") -> tuple[Form, ...]:
    """The overloads `.Tensor` and `.Scalar` of a binary operator."""
    return tuple(form(f"{name}.{kind}", ("self", other), attrs) for kind in ("Tensor", "Scalar"))


def binary(
    name: str,
    body: Body,
    reference: Callable[..., Any],
    *,
    forms: Sequence[Form] | None = None,
    samples: Sequence[Sample] = PAIRS + INT_PAIRS + MIXED_PAIRS,
    **more: Any,
) -> Op:
    """An operator of two operands in their common dtype."""
    return elementwise(
        name, forms or binary_forms(name), without_attrs(body), plain(reference), samples, **more
    )
