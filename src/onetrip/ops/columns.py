"""Windows as the columns of a matrix, and back: im2col, col2im, the gradient of an unfolding.

im2col(x)[.., c k, o]     windows(x)[.., c, o, k]
col2im(y)[.., c, i]       sum over j of covering(y)[.., c, i, j]
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..base.sym import floordiv, mul, product
from ..ir.graph import Node
from ..ir.types import TensorType
from .composite import Outputs, composite, convert, dense, finish, last_dims, tensor, wide
from .rows import default_form, sample
from .rules import Arg, normal_dim
from .schema import Attrs, Builder, Op
from .windows import Step, attrs_of, covered, window_steps, windowed

Types = tuple[TensorType, ...]


def _columns_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    steps = window_steps(x.shape, at, 2)
    *lead, channels = x.shape[:-2]
    rows = mul(channels, prod(s.kernel for s in steps))
    return (dense(x.dtype, (*lead, rows, product([s.count for s in steps]))),)


def _columns(build: Builder, node: Node) -> Outputs:
    x = tensor(node, 0)
    taps = build("windows", x, **attrs_of(window_steps(x.type.shape, node.attr, 2)))
    k = taps.type.rank - 4
    turned = build("permute", taps, dims=(*range(k), k + 2, k + 3, k, k + 1))
    return (build("view", turned, size=node.output.type.shape),)


def _image_steps(at: Attrs) -> tuple[Step, ...]:
    return window_steps(tuple(at["output_size"]), at, 2)


def _image_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    x = operands[0]
    *lead, rows, _ = x.shape
    channels = floordiv(rows, prod(s.kernel for s in _image_steps(at)))
    return (dense(x.dtype, (*lead, channels, *at["output_size"])),)


def _image(build: Builder, node: Node) -> Outputs:
    x, steps = tensor(node, 0), _image_steps(node.attr)
    lead = node.output.type.shape[:-2]
    k = len(lead)
    size = (*lead, *(s.kernel for s in steps), *(s.count for s in steps))
    columns = build("view", wide(build, x), size=size)
    taps = build("permute", columns, dims=(*range(k), k + 2, k + 3, k, k + 1))
    parts = build("covering", taps, taps=True, **attrs_of(steps))
    return finish(build, node, (build("sum", parts, dim=last_dims(parts.type.rank, 2)),))


def _unfolded_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    if not at["input_sizes"]:
        raise Unsupported("windows of a tensor without dimensions")
    return (dense(operands[0].dtype, tuple(at["input_sizes"])),)


def _unfolded(build: Builder, node: Node) -> Outputs:
    """Windows along one dimension, which stand last, added up where they came from."""
    g, at = tensor(node, 0), node.attr
    sizes = tuple(at["input_sizes"])
    dim = normal_dim(at["dim"], len(sizes))
    step = Step(sizes[dim], g.type.shape[dim], at["size"], at["step"])
    order = [k for k in range(len(sizes)) if k != dim]
    turned = build("permute", wide(build, g), dims=(*order, dim, len(sizes)))
    parts = build("covering", turned, taps=True, **attrs_of((step,)))
    total = build("sum", parts, dim=last_dims(parts.type.rank, 1))
    back = tuple([*order, dim].index(k) for k in range(len(sizes)))
    return (convert(build, build("permute", total, dims=back), g.type.dtype),)


# ---------------------------------------------------------------- references


def _np_columns(x: Any, at: Attrs) -> Any:
    taps = windowed(x, attrs_of(window_steps(x.shape, at, 2)))
    turned = np.moveaxis(taps, (-2, -1), (-4, -3))
    *lead, channels = turned.shape[:-4]
    return turned.reshape(*lead, channels * prod(turned.shape[-4:-2]), -1)


def _np_image(x: Any, at: Attrs) -> Any:
    steps = _image_steps(at)
    kernel, count = [s.kernel for s in steps], [s.count for s in steps]
    taps = x.reshape(*x.shape[:-2], -1, *kernel, *count)
    taps = np.moveaxis(taps, (-4, -3), (-2, -1))
    return covered(taps, {**attrs_of(steps), "taps": True}).sum((-2, -1))


def _np_unfolded(g: Any, at: Attrs) -> Any:
    dim = at["dim"]
    out = np.moveaxis(np.zeros(at["input_sizes"]), dim, -1)
    rows = np.moveaxis(g, dim, -2)
    for o in range(rows.shape[-2]):
        start = o * at["step"]
        out[..., start : start + at["size"]] += rows[..., o, :]
    return np.moveaxis(out, -1, dim)


STEPS = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}
DENSE = {"kernel_size": (2, 3), "dilation": (1, 1), "padding": (1, 1), "stride": (2, 1)}
OPS: tuple[Op, ...] = (
    composite(
        "im2col",
        default_form("im2col", ("self",), ("kernel_size", "dilation", "padding", "stride")),
        _columns_type,
        _columns,
        _np_columns,
        (sample(("f32", (2, 3, 7, 6)), **STEPS), sample(("bf16", (2, 4, 5)), **DENSE)),
    ),
    composite(
        "col2im",
        default_form(
            "col2im", ("self",), ("output_size", "kernel_size", "dilation", "padding", "stride")
        ),
        _image_type,
        _image,
        _np_image,
        (
            sample(("f32", (2, 18, 16)), output_size=(7, 6), **STEPS),
            sample(("bf16", (12, 15)), output_size=(4, 5), **DENSE),
        ),
    ),
    composite(
        "unfold_backward",
        default_form("unfold_backward", ("grad_in",), ("input_sizes", "dim", "size", "step")),
        _unfolded_type,
        _unfolded,
        _np_unfolded,
        (
            sample(("f32", (2, 3, 4, 3)), input_sizes=(2, 7, 4), dim=1, size=3, step=2),
            sample(("bf16", (5, 2)), input_sizes=(6,), dim=0, size=2, step=1),
        ),
    ),
)
