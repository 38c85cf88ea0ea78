"""Movements that choose between operands by position: cat, stack, pad, scatters into slices.

Each piece is a load that is guarded by the range of positions it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ..base.dtype import bool_
from ..base.errors import Unsupported
from ..base.sym import Dim, add, is_nonnegative, mul
from ..ir.expr import Apply, Expr, Load, Position, both, cast, compare
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .movement import as_strided_shape, load, select_of, slice_of
from .rows import form, sample
from .rules import check_compiled, normal_dim, promoted, same_dim
from .schema import Attrs, Kind, Movement, Op
from .shapes import Shape, reshape_index

Rows = tuple[TensorType, ...]


def inside(index: Dim, start: Dim, stop: Dim, size: Dim) -> Expr | None:
    """start <= index < stop as a condition; None when it holds for every index below size."""
    low = None if start == 0 else compare("ge", Position(index), m.place(start))
    high = None if same_dim(stop, size) else compare("lt", Position(index), m.place(stop))
    return both(low, high)


def guarded(x: Load, guard: Expr | None, other: float = 0) -> Expr:
    """The load where the guard holds, else a constant."""
    if guard is None:
        return x
    return Load(x.buffer, x.index, x.dtype, guard, m.const(other, x.dtype))


def _cat_parts(operands: Sequence[Any], dim: int) -> tuple[list[int], int]:
    """Operands that count (empty 1-d ones do not), and the dimension."""
    real = [k for k, t in enumerate(operands) if not (t.rank == 1 and t.shape[0] == 0)]
    return real, normal_dim(dim, operands[real[0]].rank if real else 1)


def _cat_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    dtype = check_compiled(promoted(operands))
    parts, k = _cat_parts(operands, at.get("dim", 0))
    if not parts:
        return (TensorType.dense(dtype, (0,)),)
    total: Dim = 0
    for n in parts:
        total = add(total, operands[n].shape[k])
    shape = operands[parts[0]].shape
    return (TensorType.dense(dtype, (*shape[:k], total, *shape[k + 1 :])),)


def _cat_read(out: Shape, node: Node) -> Expr:
    types = [v.type for v in node.values]
    dtype = node.output.type.dtype
    parts, k = _cat_parts(types, node.attr.get("dim", 0))
    start: Dim = 0
    pieces: list[tuple[Expr, Expr | None]] = []
    for n in parts:
        stop = add(start, types[n].shape[k])
        index = (*out[:k], _piece(out[k], start, types[n].shape[k]), *out[k + 1 :])
        guard = inside(out[k], start, stop, node.output.type.shape[k])
        pieces.append((cast(guarded(load(node, n, index), guard), dtype), guard))
        start = stop
    if not pieces:
        raise Unsupported("a concatenation of empty tensors has no element to read")
    return _chain(pieces)


def _piece(index: Dim, start: Dim, size: Dim) -> Dim:
    return 0 if size == 1 else add(index, mul(start, -1))


def _chain(pieces: Sequence[tuple[Expr, Expr | None]]) -> Expr:
    value = pieces[-1][0]
    for piece, guard in reversed(pieces[:-1]):
        value = piece if guard is None else m.select(guard, piece, value)
    return value


def _stack_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    x = operands[0]
    k = at.get("dim", 0) % (x.rank + 1)
    shape = (*x.shape[:k], len(operands), *x.shape[k:])
    return (TensorType.dense(check_compiled(promoted(operands)), shape),)


def _stack_read(out: Shape, node: Node) -> Expr:
    count = len(node.values)
    k = node.attr.get("dim", 0) % len(out)
    dtype = node.output.type.dtype
    index = (*out[:k], *out[k + 1 :])
    pieces: list[tuple[Expr, Expr | None]] = []
    for n in range(count):
        guard = inside(out[k], n, n + 1, count)
        pieces.append((cast(guarded(load(node, n, index), guard), dtype), guard))
    return _chain(pieces)


def _pads(x: TensorType, at: Attrs) -> list[tuple[Dim, Dim]]:
    """(before, after) of each dimension; the attribute lists pairs from the last dimension."""
    pad = tuple(at["pad"])
    pairs: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
    for n in range(len(pad) // 2):
        pairs[x.rank - 1 - n] = (pad[2 * n], pad[2 * n + 1])
    return pairs


def _cuts(pad: Dim) -> tuple[Dim, ...]:
    """What may come to a size by a pad of unknown sign, at the least."""
    return (0,) if is_nonnegative(pad) else (0, pad)


def _pad_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    x = operands[0]
    for size, (low, high) in zip(x.shape, _pads(x, at), strict=True):
        # One after the other cuts off, where it is negative: no more than there is.
        left = [add(add(size, a), b) for a, b in product(_cuts(low), _cuts(high))]
        if not all(map(is_nonnegative, left)):
            raise Unsupported(f"a pad of {low} and {high} may cut more than {size} elements")
    sizes = zip(x.shape, _pads(x, at), strict=True)
    shape = tuple(add(add(size, low), high) for size, (low, high) in sizes)
    return (TensorType.dense(check_compiled(x.dtype), shape),)


def _pad_read(out: Shape, node: Node) -> Expr:
    x, y = node.values[0].type, node.output.type
    guard: Expr | None = None
    index: list[Dim] = []
    for i, size, wide, (low, high) in zip(out, x.shape, y.shape, _pads(x, node.attr), strict=True):
        index.append(add(i, mul(low, -1)))
        start = low if not isinstance(low, int) or low > 0 else 0
        stop = wide if isinstance(high, int) and high <= 0 else add(low, size)
        guard = both(guard, inside(i, start, stop, wide))
    return guarded(load(node, 0, index), guard, node.attr.get("value", 0))


def _slice_scatter_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    slice_of(operands[0], at)
    return _scatter_type(operands, at)


def _slice_scatter_read(out: Shape, node: Node) -> Expr:
    x, at = node.values[0].type, node.attr
    k, start, step, length = slice_of(x, at)
    shifted = add(out[k], mul(start, -1))
    guard = inside(out[k], start, add(start, mul(length, step)), x.shape[k])
    if step != 1:
        hit = compare("eq", Position(shifted % step), m.place(0))
        guard = both(guard, hit)
    at_source = 0 if length == 1 else shifted // step
    return _put(node, out, guard, (*out[:k], at_source, *out[k + 1 :]))


def _select_scatter_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    select_of(operands[0], at)
    return _scatter_type(operands, at)


def _select_scatter_read(out: Shape, node: Node) -> Expr:
    x = node.values[0].type
    k, position = select_of(x, node.attr)
    guard = inside(out[k], position, add(position, 1), x.shape[k])
    return _put(node, out, guard, (*out[:k], *out[k + 1 :]))


def _digits(at: Attrs) -> list[tuple[int, int, int]]:
    """(stride, size, dimension) of a strided view from the widest stride to the least, where no two
    of its elements share a place: each stride is beyond what the narrower ones reach."""
    numbers = (*at["size"], *at["stride"], at.get("storage_offset") or 0)
    if not all(isinstance(n, int) for n in numbers):
        raise Unsupported("a scatter by strides that are symbolic")
    pairs = enumerate(zip(at["stride"], at["size"], strict=True))
    found = sorted(((s, n, k) for k, (s, n) in pairs if n != 1), reverse=True)
    reach = 0
    for stride, size, _ in reversed(found):
        if stride <= reach:
            raise Unsupported("a scatter by strides whose elements overlap")
        reach += (size - 1) * stride
    return found


def _strided_scatter_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    x = operands[0]
    as_strided_shape(x, at)
    _digits(at)
    return _scatter_type(operands, at)


def _strided_scatter_read(out: Shape, node: Node) -> Expr:
    """The place of an element, less the offset, in digits of the strides; nothing may be left."""
    x, at = node.values[0].type, node.attr
    if 0 in at["size"]:
        return load(node, 0, out)
    offset: int = at.get("storage_offset") or 0
    rest = add(reshape_index(out, (x.numel,), x.shape)[0], -offset)
    guard = compare("ge", Position(rest), m.place(0)) if offset else None
    index: list[Dim] = [0] * len(at["size"])
    for stride, size, k in _digits(at):
        index[k], rest = rest // stride, rest % stride
        guard = both(guard, compare("lt", Position(index[k]), m.place(size)))
    if rest != 0:
        guard = both(guard, compare("eq", Position(rest), m.place(0)))
    return _put(node, out, guard, index)


def _put(node: Node, out: Shape, guard: Expr | None, index: Sequence[Dim]) -> Expr:
    """Operand 1 where the guard holds, else operand 0."""
    source = cast(guarded(load(node, 1, index), guard), node.output.type.dtype)
    if guard is None:
        return source
    negated = Apply("logical_not", (guard,), bool_)
    return m.select(guard, source, guarded(load(node, 0, out), negated))


def _scatter_type(operands: tuple[Any, ...], at: Attrs) -> Rows:
    x = operands[0]
    return (TensorType.dense(check_compiled(x.dtype), x.shape),)


def _np_pad(x: Any, at: Attrs) -> Any:
    pads = [(int(a), int(b)) for a, b in _pads(TensorType(None, x.shape, ()), at)]  # type: ignore[arg-type]
    wide = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pads],
                  constant_values=at.get("value", 0))  # fmt: skip
    sizes = zip(pads, wide.shape, strict=True)
    return wide[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in sizes)]


def _np_slice_scatter(x: Any, source: Any, at: Attrs) -> Any:
    out = np.array(x)
    key = [slice(None)] * x.ndim
    key[at.get("dim", 0)] = slice(at.get("start"), at.get("end"), at.get("step", 1))
    out[tuple(key)] = source
    return out


def _np_select_scatter(x: Any, source: Any, at: Attrs) -> Any:
    out = np.array(x)
    key: list[Any] = [slice(None)] * x.ndim
    key[at["dim"]] = at["index"]
    out[tuple(key)] = source
    return out


def _np_strided_scatter(x: Any, source: Any, at: Attrs) -> Any:
    out = np.array(x).reshape(-1)
    steps = [s * out.itemsize for s in at["stride"]]
    start = at.get("storage_offset") or 0
    np.lib.stride_tricks.as_strided(out[start:], at["size"], steps)[...] = source
    return out.reshape(x.shape)


X = ("f32", (2, 3, 4))
OPS: tuple[Op, ...] = (
    Op("cat", Kind.MOVEMENT, (form("cat.default", ("tensors",), ("dim",)),), _cat_type,
       Movement(_cat_read), lambda *a: np.concatenate(
           [x for x in a[:-1] if x.shape != (0,)], a[-1].get("dim", 0)),
       (sample(X, ("f32", (2, 1, 4)), X, dim=1), sample(("bf16", (3,)), ("f32", (2,))),
        sample(("bf16", (3,)), ("bf16", (2,))),
        sample(("f32", (0,)), X, X, dim=-1)), onnx=("Concat",)),
    Op("stack", Kind.MOVEMENT, (form("stack.default", ("tensors",), ("dim",)),), _stack_type,
       Movement(_stack_read), lambda *a: np.stack(a[:-1], a[-1].get("dim", 0)),
       (sample(X, X), sample(X, X, X, dim=-1), sample(("f16", (2,)), ("f16", (2,))),
        sample(("i64", ()), ("i64", ())))),
    Op("pad", Kind.MOVEMENT, (form("constant_pad_nd.default", ("self",), ("pad", "value")),),
       _pad_type, Movement(_pad_read), _np_pad,
       (sample(X, pad=(1, 2)), sample(X, pad=(0, 1, 2, 0), value=1.5),
        sample(X, pad=(-1, 1, 0, -1))), onnx=("Pad",)),
    Op("slice_scatter", Kind.MOVEMENT,
       (form("slice_scatter.default", ("self", "src"), ("dim", "start", "end", "step")),),
       _slice_scatter_type, Movement(_slice_scatter_read), _np_slice_scatter,
       (sample(X, ("f32", (2, 2, 4)), dim=1, start=1, end=3),
        sample(X, ("f32", (2, 3, 2)), dim=2, start=0, end=4, step=2),
        sample(X, X, dim=0))),
    Op("select_scatter", Kind.MOVEMENT,
       (form("select_scatter.default", ("self", "src"), ("dim", "index")),),
       _select_scatter_type, Movement(_select_scatter_read), _np_select_scatter,
       (sample(X, ("f32", (2, 4)), dim=1, index=1), sample(X, ("f32", (2, 3)), dim=2, index=-1))),
    Op("as_strided_scatter", Kind.MOVEMENT,
       (form("as_strided_scatter.default", ("self", "src"),
             ("size", "stride", "storage_offset")),),
       _strided_scatter_type, Movement(_strided_scatter_read), _np_strided_scatter,
       (sample(("f32", (24,)), ("f32", (2, 3)), size=(2, 3), stride=(1, 4), storage_offset=5),
        sample(X, ("f32", (3, 2)), size=(3, 2), stride=(7, 2), storage_offset=0),
        sample(X, ("f32", (1, 2)), size=(1, 2), stride=(1, 3), storage_offset=20),
        sample(X, X, size=(2, 3, 4), stride=(12, 4, 1)))),
)  # fmt: skip
