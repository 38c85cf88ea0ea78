"""Movements that put blocks, channels, diagonals and windows of a tensor into another order.

Each is one index map, with a guard where a place of the result has no source. Knows neither views'
consumers nor kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..base.sym import Dim, add, floordiv, mul, product
from ..ir.expr import Apply, Expr, Load, Position, cast, compare
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from . import arith as m
from .composite import Outputs, composite, tensor
from .joining import guarded
from .movement import (
    Index,
    Strided,
    diagonal_index,
    diagonal_of,
    diagonal_shape,
    load,
    row,
    shaped,
)
from .rows import default_form, sample
from .rules import Arg, check_compiled, concrete, normal_dim, promoted, summed
from .schema import Attrs, Builder, Form, Kind, Movement, Op, Sample, TypeRule
from .shapes import Shape, wrap

# ---------------------------------------------------------------- blocks and channels


def _shuffled_shape(x: TensorType, at: Attrs) -> Shape:
    r = at["upscale_factor"]
    *lead, c, h, w = x.shape
    return (*lead, floordiv(c, r * r), mul(h, r), mul(w, r))


def _shuffled(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    """y[c, h r + i, w r + j] = x[c r r + i r + j, h, w]."""
    r = at["upscale_factor"]
    *lead, c, h, w = out
    channel = add(mul(c, r * r), add(mul(h % r, r), w % r))
    return (*lead, channel, h // r, w // r)


def _unshuffled_shape(x: TensorType, at: Attrs) -> Shape:
    r = at["downscale_factor"]
    *lead, c, h, w = x.shape
    return (*lead, mul(c, r * r), floordiv(h, r), floordiv(w, r))


def _unshuffled(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    r = at["downscale_factor"]
    *lead, c, h, w = out
    return (*lead, c // (r * r), add(mul(h, r), c // r % r), add(mul(w, r), c % r))


def _mixed(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    """Channel `place * groups + group` comes from channel `place` of the group."""
    groups, c = at["groups"], out[1]
    each = floordiv(x.shape[1], groups)
    return (out[0], add(mul(c % groups, each), c // groups), *out[2:])


def _same(x: TensorType, at: Attrs) -> Shape:
    return x.shape


# ---------------------------------------------------------------- quarter turns


def _turn(x: TensorType, at: Attrs) -> tuple[int, int, int]:
    """(quarter turns, from dimension, to dimension)."""
    a, b = (normal_dim(d, x.rank) for d in at.get("dims", (0, 1)))
    return at.get("k", 1) % 4, a, b


def _turned_shape(x: TensorType, at: Attrs) -> Shape:
    turns, a, b = _turn(x, at)
    shape = list(x.shape)
    if turns % 2:
        shape[a], shape[b] = shape[b], shape[a]
    return tuple(shape)


def _turned(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    turns, a, b = _turn(x, at)
    index = list(out)
    if turns % 2:
        index[a], index[b] = index[b], index[a]
    if turns in (2, 3):
        index[a] = add(add(x.shape[a], -1), mul(index[a], -1))
    if turns in (1, 2):
        index[b] = add(add(x.shape[b], -1), mul(index[b], -1))
    return tuple(index)


# ---------------------------------------------------------------- windows along one dimension


def _window_of(x: TensorType, at: Attrs) -> tuple[int, int, int]:
    """(dimension, size, step)."""
    return normal_dim(at["dimension"], x.rank), at["size"], at["step"]


def _windows_shape(x: TensorType, at: Attrs) -> Shape:
    k, size, step = _window_of(x, at)
    extent = x.shape[k] if x.rank else 1
    count = floordiv(add(extent, -size), step) + 1
    return (*x.shape[:k], count, *x.shape[k + 1 :], size) if x.rank else (size,)


def _windows(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    if not x.rank:
        return ()
    k, _, step = _window_of(x, at)
    return (*out[:k], add(mul(out[k], step), out[-1]), *out[k + 1 : -1])


def _windows_view(x: TensorType, y: TensorType, at: Attrs) -> Strided | None:
    if not x.rank:
        return (1,), 0
    k, _, step = _window_of(x, at)
    return (*x.strides[:k], mul(x.strides[k], step), *x.strides[k + 1 :], x.strides[k]), 0


def _np_windows(x: Any, at: Attrs) -> Any:
    if not x.ndim:
        return x.reshape(1)
    k = at["dimension"] % x.ndim
    view = np.lib.stride_tricks.sliding_window_view(x, at["size"], k)
    return np.moveaxis(np.moveaxis(view, k, 0)[:: at["step"]], 0, k)


def _narrow_of(x: TensorType, at: Attrs) -> tuple[int, Dim]:
    """(dimension, start) of what is narrowed."""
    k = normal_dim(at["dim"], x.rank)
    return k, wrap(at["start"], x.shape[k])


def _narrowed_shape(x: TensorType, at: Attrs) -> Shape:
    k, _ = _narrow_of(x, at)
    return (*x.shape[:k], at["length"], *x.shape[k + 1 :])


def _narrowed(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    k, start = _narrow_of(x, at)
    return (*out[:k], add(out[k], start), *out[k + 1 :])


def _np_narrow(x: Any, at: Attrs) -> Any:
    start = at["start"] % x.shape[at["dim"]]
    return np.take(x, np.arange(start, start + at["length"]), at["dim"])


# ---------------------------------------------------------------- onto diagonals


def _on_diagonal(index: Shape, a: int, b: int, shift: int) -> Expr:
    """Whether column - row is `shift`."""
    return compare("eq", Position(add(index[b], mul(index[a], -1))), m.place(shift))


def _at_diagonal(node: Node, number: int, index: Shape, a: int, b: int, shift: int) -> Load:
    """Operand `number` along the diagonal on which an index of the whole tensor lies."""
    rest = tuple(d for k, d in enumerate(index) if k not in (a, b))
    place = add(index[a], min(shift, 0))
    length = node.values[number].type.shape[-1]
    return load(node, number, (*rest, 0 if length == 1 else place))


def _embedded_dims(x: TensorType, at: Attrs) -> tuple[int, int, int]:
    a, b = (at.get(k, d) % (x.rank + 1) for k, d in (("dim1", -2), ("dim2", -1)))
    return a, b, at.get("offset", 0)


def _embedded_shape(x: TensorType, at: Attrs) -> Shape:
    a, b, shift = _embedded_dims(x, at)
    side = add(x.shape[-1], abs(shift))
    shape: list[Dim] = list(x.shape[:-1])
    for k in sorted((a, b)):
        shape.insert(k, side)
    return tuple(shape)


def _embedded_read(out: Shape, node: Node) -> Expr:
    a, b, shift = _embedded_dims(node.values[0].type, node.attr)
    return guarded(_at_diagonal(node, 0, out, a, b, shift), _on_diagonal(out, a, b, shift))


def _diagonal_scatter_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x = operands[0]
    return (TensorType.dense(check_compiled(x.dtype), x.shape),)


def _diagonal_scatter_read(out: Shape, node: Node) -> Expr:
    a, b, *_ = diagonal_of(node.values[0].type, node.attr)
    shift = node.attr.get("offset", 0)
    guard = _on_diagonal(out, a, b, shift)
    source = guarded(_at_diagonal(node, 1, out, a, b, shift), guard)
    kept = guarded(load(node, 0, out), m.negation(guard))
    return m.select(guard, cast(source, kept.dtype), kept)


def _diagonal_backward_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    return (TensorType.dense(check_compiled(operands[0].dtype), tuple(at["input_sizes"])),)


def _diagonal_backward_read(out: Shape, node: Node) -> Expr:
    a, b = (normal_dim(node.attr[k], len(out)) for k in ("dim1", "dim2"))
    shift = node.attr["offset"]
    return guarded(_at_diagonal(node, 0, out, a, b, shift), _on_diagonal(out, a, b, shift))


def _diagonal_indices(shape: Sequence[int], at: Attrs) -> tuple[Any, ...]:
    """A numpy key of the diagonal; the rest of the dimensions come first."""
    a, b = (at.get(k, d) % len(shape) for k, d in (("dim1", 0), ("dim2", 1)))
    shift = at.get("offset", 0)
    row_, column = max(-shift, 0), max(shift, 0)
    count = max(min(shape[a] - row_, shape[b] - column), 0)
    key: list[Any] = [slice(None)] * len(shape)
    key[a], key[b] = np.arange(count) + row_, np.arange(count) + column
    return tuple(key)


def _put_on_diagonal(x: Any, source: Any, at: Attrs) -> Any:
    a, b = (at.get(k, d) % x.ndim for k, d in (("dim1", 0), ("dim2", 1)))
    out = np.array(x)
    moved = np.moveaxis(out, (a, b), (-2, -1))
    moved[_diagonal_indices(moved.shape, {**at, "dim1": -2, "dim2": -1})] = source
    return out


def _np_embed(x: Any, at: Attrs) -> Any:
    shape: Any = _embedded_shape(TensorType.dense(None, x.shape), at)  # type: ignore[arg-type]
    a, b, shift = at.get("dim1", -2), at.get("dim2", -1), at.get("offset", 0)
    return _put_on_diagonal(np.zeros(shape, x.dtype), x, {"dim1": a, "dim2": b, "offset": shift})


def _trace_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    return (TensorType.dense(summed(operands, at), ()),)


def _trace(build: Builder, node: Node) -> Outputs:
    return (build("sum", build("diagonal", tensor(node, 0))),)


# ---------------------------------------------------------------- blocks on a diagonal


def _block_sides(x: TensorType) -> tuple[Dim, Dim]:
    one: tuple[Dim, ...] = (1, 1, *x.shape)
    return one[-2], one[-1]


def _blocks_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    rows: Dim = 0
    columns: Dim = 0
    for x in operands:
        if x.dtype is not operands[0].dtype:
            raise Unsupported("blocks of several dtypes")
        h, w = _block_sides(x)
        rows, columns = add(rows, h), add(columns, w)
    return (TensorType.dense(check_compiled(operands[0].dtype), (rows, columns)),)


def _blocks_read(out: Shape, node: Node) -> Expr:
    """The sum of no two pieces: where one block's guard holds, no other's does."""
    top: Dim = 0
    left: Dim = 0
    value: Expr = m.const(0, node.output.type.dtype)
    for number, v in enumerate(node.values):
        h, w = _block_sides(v.type)
        at = tuple(add(i, mul(s, -1)) for i, s in zip(out, (top, left), strict=True))
        tests = [
            compare(op, Position(i), m.place(bound))
            for i, size in zip(at, (h, w), strict=True)
            for op, bound in (("ge", 0), ("lt", size))
        ]
        guard = tests[0]
        for test in tests[1:]:
            guard = Apply("logical_and", (guard, test), test.dtype)
        index = tuple(0 if size == 1 else i for i, size in zip(at, (h, w), strict=True))
        piece = guarded(load(node, number, index[2 - v.type.rank :]), guard)
        value = m.select(guard, piece, value)
        top, left = add(top, h), add(left, w)
    return value


def _np_blocks(*args: Any) -> Any:
    blocks = [np.atleast_2d(x) for x in args[:-1]]
    out = np.zeros([sum(b.shape[k] for b in blocks) for k in (0, 1)])
    top = left = 0
    for b in blocks:
        out[top : top + b.shape[0], left : left + b.shape[1]] = b
        top, left = top + b.shape[0], left + b.shape[1]
    return out


# ---------------------------------------------------------------- chunks side by side


def _cut(x: TensorType, at: Attrs) -> tuple[int, int, int]:
    """The dimension that is cut, elements of a chunk along it, and how many its size lacks."""
    k, count = normal_dim(at["dim"], x.rank), int(at["num_chunks"])
    size = concrete(x.shape[k], "the size that is cut into chunks")
    return k, -(-size // count), -size % count


def _flattened(x: TensorType, at: Attrs) -> Shape:
    """Leading dimensions, chunks, the elements of one."""
    k, chunk, _ = _cut(x, at)
    return (*x.shape[:k], at["num_chunks"], mul(product(list(x.shape[k + 1 :])), chunk))


def _chunks_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    shapes = [_flattened(x, at) for x in operands]
    width: Dim = 0
    for shape in shapes:
        width = add(width, shape[-1])
    dtype = check_compiled(promoted(operands))
    return (TensorType.dense(dtype, (*shapes[0][:-1], width)),)


def _chunks(build: Builder, node: Node) -> Outputs:
    """Each operand padded with zeros to a multiple of the chunks; these flattened, side by side."""
    flat: list[Value] = []
    for x in node.values:
        k, _, lacks = _cut(x.type, node.attr)
        edges = (0, 0) * (x.type.rank - 1 - k) + (0, lacks)
        grown = build("pad", x, pad=edges) if lacks else x
        flat.append(build("view", grown, size=_flattened(x.type, node.attr)))
    return (build("cat", *flat, dim=node.output.type.rank - 1),)


def _np_chunks(*given: Any) -> Any:
    *xs, at = given
    flat = []
    for x in xs:
        k, n = at["dim"] % x.ndim, at["num_chunks"]
        edges = [(0, -x.shape[j] % n if j == k else 0) for j in range(x.ndim)]
        flat.append(np.pad(x, edges).reshape(*x.shape[:k], n, -1))
    return np.concatenate(flat, -1)


# ---------------------------------------------------------------- the table


def _placed(
    name: str,
    forms: Sequence[Form],
    types: TypeRule,
    read: Callable[[Shape, Node], Expr],
    reference: Callable[..., Any],
    samples: Sequence[Sample],
) -> Op:
    return Op(
        name, Kind.MOVEMENT, tuple(forms), types, Movement(read), reference, tuple(samples)
    )  # fmt: skip


def _copied(name: str, forms: Sequence[Form], shape: Callable[[TensorType, Attrs], Shape],
            index: Index, reference: Any, samples: Sequence[Sample]) -> Op:  # fmt: skip
    """A movement of one operand that eager answers with new memory."""
    return row(name, forms, shape, index, None, reference, samples)


X = ("f32", (2, 3, 4))
DIAGONAL = ("offset", "dim1", "dim2")
WINDOW = ("dimension", "size", "step")
_DIAGONALS = (sample(("f32", (3, 4))), sample(X, offset=1, dim1=1, dim2=2),
              sample(X, offset=-1, dim1=0, dim2=-1))  # fmt: skip
_WINDOWS = (sample(X, dimension=2, size=2, step=1), sample(X, dimension=1, size=2, step=2),
            sample(("bf16", (7,)), dimension=-1, size=3, step=2))  # fmt: skip
_TURNS = (sample(X, k=1, dims=(0, 1)), sample(X, k=2, dims=(1, 2)), sample(X, k=-1, dims=(0, 2)),
          sample(X, k=4, dims=(0, 1)))  # fmt: skip
OPS: tuple[Op, ...] = (
    _copied("pixel_shuffle", default_form("pixel_shuffle", ("self",), ("upscale_factor",)),
            _shuffled_shape, _shuffled,
            lambda x, at: x.reshape(x.shape[0], -1, 2, 2, *x.shape[2:])
            .transpose(0, 1, 4, 2, 5, 3).reshape(x.shape[0], -1, x.shape[2] * 2, x.shape[3] * 2),
            (sample(("f32", (2, 8, 3, 5)), upscale_factor=2),)),
    _copied("pixel_unshuffle", default_form("pixel_unshuffle", ("self",), ("downscale_factor",)),
            _unshuffled_shape, _unshuffled,
            lambda x, at: x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2)
            .transpose(0, 1, 3, 5, 2, 4)
            .reshape(x.shape[0], -1, x.shape[2] // 2, x.shape[3] // 2),
            (sample(("f32", (2, 3, 4, 6)), downscale_factor=2),)),
    _copied("channel_shuffle", default_form("channel_shuffle", ("self",), ("groups",)), _same,
            _mixed, lambda x, at: x.reshape(x.shape[0], 2, -1, *x.shape[2:])
            .swapaxes(1, 2).reshape(x.shape),
            (sample(("f32", (2, 6, 3)), groups=2),)),
    _copied("rot90", default_form("rot90", ("self",), ("k", "dims")), _turned_shape, _turned,
            lambda x, at: np.rot90(x, at["k"], at["dims"]), _TURNS),
    row("unfold", default_form("unfold", ("self",), WINDOW), _windows_shape, _windows,
        _windows_view, _np_windows, _WINDOWS),
    _copied("unfold_copy", default_form("unfold_copy", ("self",), WINDOW), _windows_shape,
            _windows, _np_windows, _WINDOWS),
    _copied("narrow_copy", default_form("narrow_copy", ("self",), ("dim", "start", "length")),
            _narrowed_shape, _narrowed, _np_narrow,
            (sample(X, dim=1, start=1, length=2), sample(X, dim=-1, start=-2, length=2))),
    _copied("diagonal_copy", default_form("diagonal_copy", ("self",), DIAGONAL), diagonal_shape,
            diagonal_index,
            lambda x, at: np.diagonal(x, *(at.get(k, d) for k, d in zip(DIAGONAL, (0, 0, 1),
                                                                        strict=True))),
            _DIAGONALS),
    _placed("diag_embed", default_form("diag_embed", ("self",), DIAGONAL), shaped(_embedded_shape),
            _embedded_read, _np_embed,
            (sample(("f32", (2, 3))), sample(("f32", (2, 3)), offset=1, dim1=0, dim2=2),
             sample(("i64", (3,)), offset=-2))),
    _placed("diagonal_scatter", default_form("diagonal_scatter", ("self", "src"), DIAGONAL),
            _diagonal_scatter_type, _diagonal_scatter_read,
            lambda x, source, at: _put_on_diagonal(x, source, at),
            (sample(("f32", (3, 4)), ("f32", (3,))),
             sample(X, ("f32", (2, 3)), offset=1, dim1=1, dim2=2),
             sample(X, ("f32", (3, 1)), offset=-1, dim1=0, dim2=2))),
    _placed("diagonal_backward",
            default_form("diagonal_backward", ("grad_output",), ("input_sizes", *DIAGONAL)),
            _diagonal_backward_type, _diagonal_backward_read,
            lambda g, at: _put_on_diagonal(np.zeros(at["input_sizes"]), g, at),
            (sample(("f32", (2, 3)), input_sizes=(2, 3, 4), offset=1, dim1=1, dim2=2),)),
    _placed("block_diag", default_form("block_diag", ("tensors",)), _blocks_type, _blocks_read,
            _np_blocks, (sample(("f32", (2, 3)), ("f32", (1, 2)), ("f32", (3,))),
                         sample(("f32", ()), ("f32", (2, 1))))),
    composite("chunk_cat", default_form("_chunk_cat", ("tensors",), ("dim", "num_chunks")),
              _chunks_type, _chunks, _np_chunks,
              (sample(X, ("f32", (2, 5, 1)), dim=1, num_chunks=2),
               sample(("bf16", (5,)), ("bf16", (3, 2)), dim=0, num_chunks=3))),
    composite("trace", default_form("trace"), _trace_type, _trace,
              lambda x, at: np.trace(x), (sample(("f32", (3, 4))), sample(("i64", (3, 3))))),
)  # fmt: skip
