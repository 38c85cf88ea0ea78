"""Paddings that repeat elements of the tensor: mirrored at the edge, or the edge itself.

    reflection    y[i] = x[r], r = |i - low|, then min(r, 2 (n - 1) - r)
    replication   y[i] = x[min(max(i - low, 0), n - 1)]

The gradient folds what was repeated back onto its source, one dimension after the other. Constant
and circular paddings are made of `pad`, slices and concatenations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..base.sym import Dim, add
from ..ir.expr import Expr, Position, indirect
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from . import arith as m
from .composite import Outputs, composite, dense, finish, tensor, wide
from .movement import load
from .rows import default_form, sample
from .rules import Arg
from .schema import Attrs, Builder, Kind, Movement, Op, TypeRule
from .shapes import Shape

Source = Callable[[Expr, Expr], Expr]
Folded = Callable[[Builder, Value, int, int, int], list[Value]]


def _edges(at: Attrs, rank: int, crops: bool = False) -> list[tuple[int, int]]:
    """(before, after) of each dimension; the attribute lists pairs from the last dimension.

    Negative ones, which leave elements out, where it `crops`.
    """
    pad = tuple(at["padding"])
    if not all(isinstance(p, int) and (crops or p >= 0) for p in pad):
        raise Unsupported(f"a padding of {pad} with repeated elements")
    pairs = [(0, 0)] * rank
    for n in range(len(pad) // 2):
        pairs[rank - 1 - n] = (pad[2 * n], pad[2 * n + 1])
    return pairs


def _padded_type(crops: bool) -> TypeRule:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
        x = operands[0]
        edges = _edges(at, x.rank, crops)
        return (dense(x.dtype, [add(n, a + b) for n, (a, b) in zip(x.shape, edges, strict=True)]),)

    return rule


def _gradient_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    g, x = operands
    _edges(at, x.rank)
    return (dense(g.dtype, x.shape),)


def _reflected(place: Expr, last: Expr) -> Expr:
    near = m.absolute(place)
    return m.minimum(near, m.sub(m.mul(last, 2), near))


def _replicated(place: Expr, last: Expr) -> Expr:
    return m.clamp(place, 0, last)


def _read(source: Source) -> Callable[[Shape, Node], Expr]:
    def read(out: Shape, node: Node) -> Expr:
        x = node.values[0].type
        index: list[Dim] = []
        for i, n, edge in zip(out, x.shape, _edges(node.attr, x.rank, True), strict=True):
            if n == 1:
                index.append(0)
            elif edge == (0, 0):
                index.append(i)
            else:
                place = Position(add(i, -edge[0]))
                index.append(indirect(source(place, m.place(add(n, -1))), n))
        return load(node, 0, index)

    return read


# ---------------------------------------------------------------- gradients


def _spread(build: Builder, v: Value, dim: int, before: Dim, after: Dim) -> Value:
    """v between zeros along one dimension."""
    return build("pad", v, pad=(0, 0) * (v.type.rank - 1 - dim) + (before, after))


def _part(build: Builder, v: Value, dim: int, start: Dim, end: Dim) -> Value:
    return build("slice", v, dim=dim, start=start, end=end, step=1)


def _unreflected(build: Builder, g: Value, dim: int, low: int, high: int) -> list[Value]:
    """The mirrored edges, each turned around and laid on the elements that it repeats."""
    size = add(g.type.shape[dim], -(low + high))
    parts: list[Value] = []
    if low:
        turned = build("flip", _part(build, g, dim, 0, low), dims=(dim,))
        parts.append(_spread(build, turned, dim, 1, add(size, -(low + 1))))
    if high:
        end = _part(build, g, dim, add(size, low), add(size, low + high))
        turned = build("flip", end, dims=(dim,))
        parts.append(_spread(build, turned, dim, add(size, -(high + 1)), 1))
    return parts


def _unreplicated(build: Builder, g: Value, dim: int, low: int, high: int) -> list[Value]:
    """The sums of the repeated edges, on the first and the last element."""
    size = add(g.type.shape[dim], -(low + high))
    parts: list[Value] = []
    if low:
        total = build("sum", _part(build, g, dim, 0, low), dim=(dim,), keepdim=True)
        parts.append(_spread(build, total, dim, 0, add(size, -1)))
    if high:
        end = _part(build, g, dim, add(size, low), add(size, low + high))
        total = build("sum", end, dim=(dim,), keepdim=True)
        parts.append(_spread(build, total, dim, add(size, -1), 0))
    return parts


def _backward(folded: Folded) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        g = wide(build, tensor(node, 0))
        for dim, (low, high) in enumerate(_edges(node.attr, g.type.rank)):
            inner = add(g.type.shape[dim], -high)
            middle = _part(build, g, dim, low, inner)
            for part in folded(build, g, dim, low, high):
                middle = build("add", middle, part)
            g = middle
        return finish(build, node, (g,))

    return expand


# ---------------------------------------------------------------- the table


def _np_pad(mode: str) -> Callable[..., Any]:
    def reference(x: Any, at: Attrs) -> Any:
        edges = _edges(at, x.ndim, True)
        width = [(max(a, 0), max(b, 0)) for a, b in edges]
        grown = np.pad(x, width, mode=mode)  # type: ignore[call-overload]
        pairs = zip(grown.shape, edges, strict=True)
        return grown[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in pairs)]

    return reference


def _np_backward(mode: str) -> Callable[..., Any]:
    """The gradient by the positions that the padding reads."""

    def reference(g: Any, x: Any, at: Attrs) -> Any:
        places = _np_pad(mode)(np.arange(x.size).reshape(x.shape), at)
        out = np.zeros(x.size)
        np.add.at(out, places.reshape(-1), g.reshape(-1))
        return out.reshape(x.shape)

    return reference


SHAPES = (
    ("f32", (2, 3, 5), (2, 1)),
    ("f32", (1, 2, 3, 4), (1, 2, 2, 0)),
    ("bf16", (2, 2, 2, 3, 4), (1, 0, 0, 2, 1, 1)),
)
"""A sample for each number of padded dimensions."""


def _pair(name: str, rank: int, mode: str, source: Source, folded: Folded) -> tuple[Op, Op]:
    """A padding of `rank` dimensions, and its gradient."""
    dtype, shape, padding = SHAPES[rank - 1]
    crops = mode == "edge"
    cropped = tuple(-1 if n == 0 else p for n, p in enumerate(padding))
    padded = tuple(
        n + a + b for n, (a, b) in zip(shape, _edges({"padding": padding}, len(shape)), strict=True)
    )
    called = f"{name}_pad{rank}d"
    forward = Op(
        called,
        Kind.MOVEMENT,
        default_form(called, ("self",), ("padding",)),
        _padded_type(crops),
        Movement(_read(source)),
        _np_pad(mode),
        tuple(sample((dtype, shape), padding=p) for p in (padding, cropped)[: 1 + crops]),
    )
    backward = composite(
        f"{called}_backward",
        default_form(f"{called}_backward", ("grad_output", "self"), ("padding",)),
        _gradient_type,
        _backward(folded),
        _np_backward(mode),
        (sample((dtype, padded), (dtype, shape), padding=padding),),
    )
    return forward, backward


OPS: tuple[Op, ...] = tuple(
    op
    for rank in (1, 2, 3)
    for op in (
        *_pair("reflection", rank, "reflect", _reflected, _unreflected),
        *_pair("replication", rank, "edge", _replicated, _unreplicated),
    )
)
