"""Library calls: contractions, convolutions, attention, windows. Only their cost is known.

Outputs' strides are the library's; the capture tells them. FLOPs count 2 for a multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtype import i64, u8
from ..base.sym import Dim, add, floordiv, mul, product
from ..ir.graph import Node
from ..ir.types import TensorType
from . import library_reference as reference
from .composite import ABSENT, dense
from .library_reference import pair
from .rows import default_form, form, sample
from .rules import Arg, broadcast
from .schema import Attrs, Form, Kind, Op, Opaque, Sample, TypeRule

Types = tuple[TensorType, ...]
Shape = tuple[Dim, ...]


def _shapes(node: Node) -> list[Shape]:
    return [v.type.shape for v in node.values]


def _product_shape(a: Shape, b: Shape) -> Shape:
    """Shape of a matrix product; leading dimensions are equal, vectors have no row or column."""
    if len(b) == 1:
        return a[:-1]
    return (*a[:-1], b[-1])


def _product_type(first: int) -> TypeRule:
    """a @ b for operands `first` and `first + 1`; those before are added to it."""

    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        a, b = operands[first], operands[first + 1]
        return (dense(a.dtype, _product_shape(a.shape, b.shape)),)

    return rule


def _product_flops(first: int) -> Callable[[Node], Dim]:
    """2 * rows * columns * inner, and 1 for each element that is added."""

    def flops(node: Node) -> Dim:
        out = product(list(node.outputs[0].type.shape))
        inner = _shapes(node)[first][-1]
        return add(mul(mul(out, inner), 2), out if first else 0)

    return flops


def linear_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    """x @ w.T: the leading dimensions of x, then the rows of w."""
    x, w = operands[:2]
    return (dense(x.dtype, (*x.shape[:-1], *w.shape[:-1])),)


def _np_linear(x: Any, w: Any, *rest: Any) -> Any:
    y = x @ w.T
    return y + rest[0] if len(rest) > 1 else y


def _np_addmm(c: Any, a: Any, b: Any, at: Attrs) -> Any:
    return at.get("beta", 1) * c + at.get("alpha", 1) * (a @ b)


def _window(size: Dim, kernel: Dim, stride: Dim, pad: Dim, dilation: Dim) -> Dim:
    """How many windows fit: floor((size + 2 pad - dilation (kernel - 1) - 1) / stride) + 1."""
    span = add(mul(dilation, add(kernel, -1)), 1)
    return add(floordiv(add(add(size, mul(pad, 2)), mul(span, -1)), stride), 1)


def convolution_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    """Batch, output channels, and how often the window fits into each dimension."""
    x, w = operands[:2]
    rank = x.rank - 2
    stride, pad, dilation, extra = (
        pair(at[k], rank) for k in ("stride", "padding", "dilation", "output_padding")
    )
    if at["transposed"]:
        channels = mul(w.shape[1], at["groups"])
        sizes = [
            add(add(mul(add(n, -1), s), mul(p, -2)), add(mul(d, add(k, -1)), add(e, 1)))
            for n, k, s, p, d, e in zip(
                x.shape[2:], w.shape[2:], stride, pad, dilation, extra, strict=True
            )
        ]
    else:
        channels = w.shape[0]
        rows = zip(x.shape[2:], w.shape[2:], stride, pad, dilation, strict=True)
        sizes = [_window(*row) for row in rows]
    return (dense(x.dtype, (x.shape[0], channels, *sizes)),)


def convolution_flops(node: Node) -> Dim:
    """2 * (elements of the smaller-channel side) * weight elements per channel of it."""
    x, w = _shapes(node)[:2]
    side = x if node.attr["transposed"] else node.outputs[0].type.shape
    return mul(mul(product(list(side)), product(list(w[1:]))), 2)


def _gradient_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    g, x, w = operands
    types = (dense(x.dtype, x.shape), dense(w.dtype, w.shape), dense(w.dtype, (g.shape[1],)))
    return tuple(t if asked else ABSENT for t, asked in zip(types, at["output_mask"], strict=True))


def _gradient_flops(node: Node) -> Dim:
    """One convolution for each of the two gradients that is asked for."""
    g, x, w = _shapes(node)
    side = x if node.attr["transposed"] else g
    once = mul(mul(product(list(side)), product(list(w[1:]))), 2)
    return mul(once, sum(bool(m) for m in node.attr["output_mask"][:2]))


def _attention_shapes(node: Node) -> tuple[Dim, Dim, Dim, Dim, Dim]:
    """(batch and heads, queries, keys, width, value width)."""
    q, k, v = _shapes(node)[:3]
    return product(list(q[:-2])), q[-2], k[-2], q[-1], v[-1]


def _attention_flops(node: Node) -> Dim:
    """Both products, every score counted."""
    heads, queries, keys, width, value = _attention_shapes(node)
    return mul(mul(mul(heads, mul(queries, keys)), add(width, value)), 2)


def _attention_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    q, k, v = operands[:3]
    inner = 3 if at.get("enable_gqa") else 2
    lead = broadcast([t.shape[: t.rank - inner] for t in (q, k, v)])
    heads = q.shape[-3:-2] if inner == 3 else ()
    return (dense(q.dtype, (*lead, *heads, q.shape[-2], v.shape[-1])),)


def _attention_saving_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (*_attention_type(operands, at), dense(u8, (0,)))


def _attention_gradient_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    _, *sources = operands
    count = 3 + bool(at.get("mask_gradient") and at.get("has_attn_mask"))
    return tuple(dense(t.dtype, t.shape) for t in sources[:count])


def _attention_gradient_flops(node: Node) -> Dim:
    """Five products: the scores again, and two for each side of both forward products."""
    _, q, k, v = _shapes(node)[:4]
    heads = mul(product(list(q[:-2])), mul(q[-2], k[-2]))
    return mul(heads, add(mul(q[-1], 6), mul(v[-1], 4)))


def _none(node: Node) -> Dim:
    return 0


def _seed_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (dense(i64, ()),)


def library(
    name: str,
    kind: Kind,
    forms: Sequence[Form],
    types: TypeRule,
    flops: Callable[[Node], Dim],
    numpy_reference: Callable[..., Any],
    samples: Sequence[Sample],
    onnx: tuple[str, ...] = (),
) -> Op:
    """A library call."""
    return Op(
        name, kind, tuple(forms), types, Opaque(flops), numpy_reference, tuple(samples), onnx=onnx
    )  # fmt: skip


def _contraction(name: str, operands: Sequence[str], attrs: Sequence[str], first: int,
                 fn: Any, shapes: Sequence[Shape], onnx: tuple[str, ...] = ()) -> Op:  # fmt: skip
    return library(
        name, Kind.CONTRACTION, default_form(name, operands, attrs), _product_type(first),
        _product_flops(first), fn, (sample(*(("f32", s) for s in shapes)),), onnx,
    )  # fmt: skip


OUT_VARIANTS: dict[str, str] = {
    f"aten.{name}.default": f"aten.{name}.out" for name in ("mm", "bmm", "addmm", "baddbmm")
}
"""Calls that can write into memory given to them, with the overload that does, bit for bit alike.
Only products: other `out` overloads compute elsewhere and copy."""


def out_variant(node: Node) -> str | None:
    """The overload with which a call writes its one row-major result into planned memory."""
    if len(node.outputs) != 1 or not node.output.type.is_contiguous:
        return None
    return OUT_VARIANTS.get(str(node.attr.get("target")))


IN_PLACE_VARIANTS: dict[str, str] = {
    f"aten.{name}.{overload}": f"aten.{name}_.{overload}"
    for name, overload in (
        ("index_copy", "default"), ("index_put", "default"), ("index_add", "default"),
        ("index_fill", "int_Scalar"), ("index_fill", "int_Tensor"), ("scatter", "src"),
        ("scatter", "value"), ("scatter_add", "default"), ("scatter_reduce", "two"),
        ("masked_scatter", "default"),
    )
}  # fmt: skip
"""Calls that answer with their first operand changed in places, with the overload that changes the
operand itself. Their results are no views."""


def in_place_variant(node: Node) -> str | None:
    """The overload with which a call changes its first operand instead of a copy of it."""
    return IN_PLACE_VARIANTS.get(str(node.attr.get("target")))


def may_alias(node: Node) -> bool:
    """Whether a library call may return a view of an operand."""
    return node.op == "extern" and in_place_variant(node) is None


THROUGH_INDEX = frozenset({
    "embedding_backward", "scatter", "scatter_value", "scatter_joined", "scatter_add",
    "scatter_reduce", "index_add", "index_copy", "index_fill", "index_put", "put",
    "masked_scatter",
})  # fmt: skip
"""Calls whose operands say where they write: one outside of its dimension stops them."""


def may_stop(node: Node) -> bool:
    """Whether a library call may raise because of its operands' values."""
    return node.op == "extern" or node.op in THROUGH_INDEX


CONVOLVED = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
PLAIN = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "transposed": False,
         "output_padding": (0, 0), "groups": 2}  # fmt: skip
ATTENTION = ("is_causal", "scale", "enable_gqa")
QKV = ("query", "key", "value", "attn_mask?")
HEADS = (("f32", (2, 4, 5, 8)), ("f32", (2, 2, 6, 8)), ("f32", (2, 2, 6, 3)))
FREE = {"is_causal": False, "scale": None, "enable_gqa": True, "has_attn_mask": False}
X4 = ("f32", (2, 4, 7, 8))
WEIGHT = ("f32", (6, 2, 3, 2))
OPS: tuple[Op, ...] = (
    _contraction("mm", ("self", "mat2"), (), 0, lambda a, b, at: a @ b, ((3, 4), (4, 5)),
                 ("MatMul",)),
    _contraction("bmm", ("self", "mat2"), (), 0, lambda a, b, at: a @ b, ((2, 3, 4), (2, 4, 5))),
    _contraction("mv", ("self", "vec"), (), 0, lambda a, b, at: a @ b, ((3, 4), (4,))),
    library("dot", Kind.CONTRACTION, (form("dot.default", ("self", "tensor")),
                                      form("vdot.default", ("self", "other"))),
            _product_type(0), _product_flops(0), lambda a, b, at: a @ b,
            (sample(("f32", (4,)), ("f32", (4,))),)),
    _contraction("addmm", ("self", "mat1", "mat2"), ("beta", "alpha"), 1, _np_addmm,
                 ((5,), (3, 4), (4, 5)), ("Gemm",)),
    _contraction("baddbmm", ("self", "batch1", "batch2"), ("beta", "alpha"), 1, _np_addmm,
                 ((1, 5), (2, 3, 4), (2, 4, 5))),
    _contraction("addmv", ("self", "mat", "vec"), ("beta", "alpha"), 1, _np_addmm,
                 ((3,), (3, 4), (4,))),
    library("linear", Kind.CONTRACTION, default_form("linear", ("input", "weight", "bias?")),
            linear_type, _product_flops(0), _np_linear,
            (sample(("f32", (2, 3, 4)), ("f32", (5, 4)), ("f32", (5,)), has_bias=True),)),
    library("convolution", Kind.CONTRACTION,
            default_form("convolution", ("input", "weight", "bias?"), CONVOLVED),
            convolution_type, convolution_flops, reference.convolution,
            (sample(X4, WEIGHT, ("f32", (6,)), has_bias=True, **PLAIN),), ("Conv",)),
    library("convolution_backward", Kind.CONTRACTION,
            default_form("convolution_backward", ("grad_output", "input", "weight"),
                         ("bias_sizes", *CONVOLVED, "output_mask")),
            _gradient_type, _gradient_flops, reference.convolution_backward,
            (sample(("f32", (2, 6, 4, 6)), X4, WEIGHT, bias_sizes=(6,),
                    output_mask=(True, True, True), **PLAIN),)),
    library("attention", Kind.CONTRACTION, (Form("onetrip.attention.default", QKV, ATTENTION),),
            _attention_type, _attention_flops, reference.attention,
            (sample(*HEADS, **FREE),
             sample(*HEADS, ("f32", (5, 6)), **{**FREE, "has_attn_mask": True, "scale": 0.5})),
            ("Attention",)),
    library("attention_saving", Kind.CONTRACTION,
            (Form("onetrip.attention_saving.default", QKV, (*ATTENTION, "mask_gradient")),),
            _attention_saving_type, _attention_flops, reference.attention_saving,
            (sample(*HEADS, mask_gradient=False, **FREE),)),
    library("attention_backward", Kind.CONTRACTION,
            (Form("onetrip.attention_backward.default", ("gradient", *QKV, "token?"),
                  (*ATTENTION, "mask_gradient")),),
            _attention_gradient_type, _attention_gradient_flops, reference.attention_backward,
            (sample(("f32", (2, 4, 5, 3)), *HEADS, mask_gradient=False, has_token=False,
                    **FREE),)),
    library("embedding_backward", Kind.SCATTER,
            default_form("embedding_dense_backward", ("grad_output", "indices"),
                         ("num_weights", "padding_idx", "scale_grad_by_freq")),
            lambda xs, at: (dense(xs[0].dtype, (at["num_weights"], xs[0].shape[-1])),),
            lambda node: product(list(_shapes(node)[0])), reference.embedding_backward,
            (sample(("f32", (4, 3)), ("i64", (4,)), num_weights=6, padding_idx=-1,
                    scale_grad_by_freq=False),)),
    library("seed", Kind.OPAQUE, (Form("onetrip.seed.default", (), ("device", "salt")),),
            _seed_type, _none, lambda at: np.asarray(1234), (sample(device="cpu", salt=0),)),
)  # fmt: skip
