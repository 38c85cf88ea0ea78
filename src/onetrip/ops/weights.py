"""Operators that rescale weights by their norms: weight norm with its gradient, renorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtype import bf16
from ..base.errors import Unsupported
from ..ir.graph import Node
from ..ir.types import TensorType
from .composite import Outputs, composite, dense, finish, one_dim, tensor, wide
from .rows import default_form, sample
from .rules import Arg, check_compiled, normal_dim
from .schema import Attrs, Builder, Op

Types = tuple[TensorType, ...]


def _others(x: TensorType, at: Attrs) -> tuple[int, ...]:
    """Every dimension but the one that the attribute names."""
    kept = one_dim(x, at)
    return tuple(k for k in range(x.rank) if k != kept)


def _weight_norm_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    v, g = operands
    norms = g.dtype.compute if g.dtype is bf16 else g.dtype
    return dense(v.dtype, v.shape), dense(norms, g.shape)


def _weight_norm(build: Builder, node: Node) -> Outputs:
    """v (g / |v|) and |v|, the norms over every dimension but one."""
    source = tensor(node, 0)
    v, g = wide(build, source), wide(build, tensor(node, 1))
    dims = _others(source.type, {"dim": node.attr.get("dim", 0)})
    norms = build("sqrt", build("sum", build("mul", v, v), dim=dims, keepdim=True))
    return finish(build, node, (build("mul", v, build("div", g, norms)), norms))


def _np_norms(v: Any, axes: tuple[int, ...]) -> Any:
    return np.sqrt((v * v).sum(axes, keepdims=True))


def _axes(v: Any, at: Attrs) -> tuple[int, ...]:
    kept = normal_dim(at.get("dim", 0), v.ndim)
    return tuple(k for k in range(v.ndim) if k != kept)


def _np_weight_norm(v: Any, g: Any, at: Attrs) -> Any:
    norms = _np_norms(v, _axes(v, at))
    return v * (g / norms), norms


def _gradient_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    _, v, g, _ = operands
    return dense(v.dtype, v.shape), dense(g.dtype, g.shape)


def _weight_norm_backward(build: Builder, node: Node) -> Outputs:
    """dg = sum(dw v) / n, dv = (g / n) (dw - v sum(dw v) / n^2) with the norms n."""
    dw, v, g, norms = (wide(build, tensor(node, k)) for k in range(4))
    dims = _others(v.type, node.attr)
    along = build("sum", build("mul", dw, v), dim=dims, keepdim=True)
    inverse = build("reciprocal", norms)
    dg = build("mul", along, inverse)
    back = build("mul", v, build("mul", dg, inverse))
    dv = build("mul", build("mul", g, inverse), build("sub", dw, back))
    return finish(build, node, (dv, dg))


def _np_weight_norm_backward(dw: Any, v: Any, g: Any, norms: Any, at: Attrs) -> Any:
    along = (dw * v).sum(_axes(v, at), keepdims=True)
    return g / norms * (dw - v * along / norms**2), along / norms


def _renorm_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    if not check_compiled(x.dtype).is_float:
        raise Unsupported(f"renorm of {x.dtype.torch_name}")
    return (dense(x.dtype, x.shape),)


def _renorm(build: Builder, node: Node) -> Outputs:
    """x max / (norm + 1e-7) where a slice's norm is above max, else x."""
    x, top = tensor(node, 0), float(node.attr["maxnorm"])
    norm = build("vector_norm", wide(build, x), ord=node.attr["p"],
                 dim=_others(x.type, node.attr), keepdim=True)  # fmt: skip
    smaller = build("div", top, build("add", norm, 1e-7))
    factor = build("where", build("gt", norm, top), smaller, 1.0)
    return finish(build, node, (build("mul", wide(build, x), factor),))


def _np_renorm(x: Any, at: Attrs) -> Any:
    p, top = at["p"], at["maxnorm"]
    norm = (np.abs(x) ** p).sum(_axes(x, at), keepdims=True) ** (1 / p)
    return np.where(norm > top, x * top / (norm + 1e-7), x)


ROWS = ("f32", (4, 6))
OPS: tuple[Op, ...] = (
    composite("weight_norm", default_form("_weight_norm_interface", ("v", "g"), ("dim",)),
              _weight_norm_type, _weight_norm, _np_weight_norm,
              (sample(ROWS, ("f32", (4, 1)), dim=0), sample(ROWS, ("f32", (1, 6)), dim=1),
               sample(("bf16", (4, 3, 2)), ("bf16", (4, 1, 1)), dim=0))),
    composite("weight_norm_backward",
              default_form("_weight_norm_interface_backward",
                           ("grad_w", "saved_v", "saved_g", "saved_norms"), ("dim",)),
              _gradient_type, _weight_norm_backward, _np_weight_norm_backward,
              (sample(ROWS, ROWS, ("f32", (4, 1)), ("f32+", (4, 1)), dim=0),
               sample(ROWS, ROWS, ("f32", (1, 6)), ("f32+", (1, 6)), dim=1))),
    composite("renorm", default_form("renorm", ("self",), ("p", "dim", "maxnorm")),
              _renorm_type, _renorm, _np_renorm,
              (sample(ROWS, p=2, dim=0, maxnorm=2.0), sample(ROWS, p=1, dim=-1, maxnorm=3),
               sample(("bf16", (3, 4, 2)), p=3, dim=1, maxnorm=1.5))),
)  # fmt: skip
