"""Movements: output index -> input index, without arithmetic on the elements.

Where eager's result is a view, `view` gives the strides and the offset of the alias. Reads load
node operands by name; nothing here knows what is fused with what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.errors import Unsupported
from ..base.sym import Dim, add, mul, product
from ..ir.expr import Expr, Load
from ..ir.graph import Node
from ..ir.types import TensorType
from .rows import form, sample
from .rules import check_compiled, normal_dim, same_dim
from .schema import Attrs, Form, Kind, Movement, Op, Sample, TypeRule
from .shapes import (
    Shape,
    clamp_bound,
    infer_shape,
    reshape_index,
    reshape_strides,
    slice_length,
    wrap,
)  # fmt: skip

Strided = tuple[Shape, Dim]
View = Callable[[Node], Strided | None]
Index = Callable[[Shape, TensorType, TensorType, Attrs], Shape]


def load(node: Node, number: int, index: Sequence[Dim]) -> Load:
    """The element of a node's operand at an index."""
    x = node.values[number]
    return Load(x.name, tuple(index), x.type.dtype)


def moved(index: Index) -> Callable[[Shape, Node], Expr]:
    """A read from one index map of operand 0."""

    def read(out: Shape, node: Node) -> Expr:
        x = node.values[0]
        return load(node, 0, index(out, x.type, node.output.type, node.attr))

    return read


def shaped(shape: Callable[[TensorType, Attrs], Shape]) -> TypeRule:
    """The dtype of operand 0 with another shape."""

    def rule(operands: tuple[Any, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        x = operands[0]
        return (TensorType.dense(check_compiled(x.dtype), shape(x, attrs)),)

    return rule


def strided(view: Callable[[TensorType, TensorType, Attrs], Strided | None]) -> View:
    """`Movement.view` from a function of the operand type, the output type and the attributes."""
    return lambda node: view(node.values[0].type, node.output.type, node.attr)


# ---------------------------------------------------------------- reshapes


def _view_shape(x: TensorType, at: Attrs) -> Shape:
    return infer_shape(at["size"], x.numel)


def _reshaped(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    return reshape_index(out, x.shape, y.shape)


def _reshape_view(x: TensorType, y: TensorType, at: Attrs) -> Strided | None:
    strides = reshape_strides(x, y.shape)
    return None if strides is None else (strides, 0)


def _squeezed(x: TensorType, at: Attrs) -> tuple[int, ...]:
    """The dimensions that stay."""
    dims = at.get("dim")
    if dims is None:
        gone = set(range(x.rank))
    else:
        listed = (dims,) if isinstance(dims, int) else tuple(dims)
        gone = {normal_dim(d, x.rank) for d in listed}
    return tuple(k for k, size in enumerate(x.shape) if k not in gone or size != 1)


def _squeeze_shape(x: TensorType, at: Attrs) -> Shape:
    return tuple(x.shape[k] for k in _squeezed(x, at))


def _squeeze_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    return tuple(x.strides[k] for k in _squeezed(x, at)), 0


def _unsqueeze_dim(x: TensorType, at: Attrs) -> int:
    dim: int = at["dim"]
    return dim % (x.rank + 1)


def _unsqueeze_shape(x: TensorType, at: Attrs) -> Shape:
    k = _unsqueeze_dim(x, at)
    return (*x.shape[:k], 1, *x.shape[k:])


def _unsqueeze_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    k = _unsqueeze_dim(x, at)
    step = mul(x.shape[k], x.strides[k]) if k < x.rank else 1
    return (*x.strides[:k], step, *x.strides[k:]), 0


# ---------------------------------------------------------------- permutations


def _order(x: TensorType, at: Attrs) -> tuple[int, ...]:
    """Input dimension for each output dimension."""
    if "dims" in at:
        return tuple(normal_dim(d, x.rank) for d in at["dims"])
    order = list(range(x.rank))
    if x.rank > 1:
        a, b = (normal_dim(at.get(k, d), x.rank) for k, d in (("dim0", 0), ("dim1", 1)))
        order[a], order[b] = order[b], order[a]
    return tuple(order)


def _permuted_shape(x: TensorType, at: Attrs) -> Shape:
    return tuple(x.shape[k] for k in _order(x, at))


def _permuted(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    order = _order(x, at)
    return tuple(out[order.index(k)] for k in range(x.rank))


def _permute_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    return tuple(x.strides[k] for k in _order(x, at)), 0


# ---------------------------------------------------------------- expand, repeat, flip, roll


def _expand_shape(x: TensorType, at: Attrs) -> Shape:
    size = tuple(at["size"])
    lead = len(size) - x.rank
    own = (*size[:lead], *x.shape)
    pairs = zip(size, own, strict=True)
    return tuple(o if isinstance(s, int) and s == -1 else s for s, o in pairs)


def _expanded(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    own = out[len(out) - x.rank :]
    return tuple(0 if size == 1 else i for i, size in zip(own, x.shape, strict=True))


def _expand_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    lead = y.rank - x.rank
    pairs = zip(y.shape[lead:], x.shape, x.strides, strict=True)
    own = tuple(0 if size == 1 and wide != 1 else stride for wide, size, stride in pairs)
    return (0,) * lead + own, 0


def _repeat_shape(x: TensorType, at: Attrs) -> Shape:
    counts = tuple(at["repeats"])
    own = (1,) * (len(counts) - x.rank) + x.shape
    return tuple(mul(n, size) for n, size in zip(counts, own, strict=True))


def _repeated(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    own = out[len(out) - x.rank :]
    return tuple(0 if size == 1 else i % size for i, size in zip(own, x.shape, strict=True))


def _flipped(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    dims = {normal_dim(d, x.rank) for d in at["dims"]}
    pairs = enumerate(zip(out, x.shape, strict=True))
    return tuple(add(size, -1) - i if k in dims else i for k, (i, size) in pairs)


def _rolled(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    """index - shift, modulo the size; without dims the tensor is rolled flattened."""
    shifts, dims = _tuple(at["shifts"]), _tuple(at.get("dims", ()))
    if not dims:
        (shift,) = shifts
        flat = (reshape_index(out, (x.numel,), x.shape)[0] - shift) % x.numel
        return reshape_index((flat,), x.shape, (x.numel,))
    index = list(out)
    for shift, dim in zip(shifts, dims, strict=True):
        k = normal_dim(dim, x.rank)
        index[k] = (index[k] - shift) % x.shape[k] if x.shape[k] != 1 else 0
    return tuple(index)


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _same_shape(x: TensorType, at: Attrs) -> Shape:
    return x.shape


def _identity(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    return out


def _identity_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    return x.strides, 0


# ---------------------------------------------------------------- slices


def slice_of(x: TensorType, at: Attrs) -> tuple[int, Dim, int, Dim]:
    """(dimension, start, step, length) of a slice."""
    k = normal_dim(at.get("dim", 0), x.rank)
    size = x.shape[k]
    step = at.get("step", 1)
    if not isinstance(step, int):
        raise Unsupported("a slice step is symbolic")
    start = clamp_bound(at.get("start"), size, 0)
    stop = clamp_bound(at.get("end"), size, size)
    return k, start, step, slice_length(start, stop, step)


def _slice_shape(x: TensorType, at: Attrs) -> Shape:
    k, _, _, length = slice_of(x, at)
    return (*x.shape[:k], length, *x.shape[k + 1 :])


def _sliced(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    k, start, step, _ = slice_of(x, at)
    return (*out[:k], add(start, mul(out[k], step)), *out[k + 1 :])


def _slice_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    k, start, step, _ = slice_of(x, at)
    strides = list(x.strides)
    strides[k] = mul(strides[k], step)
    return tuple(strides), mul(start, x.strides[k])


def select_of(x: TensorType, at: Attrs) -> tuple[int, Dim]:
    """(dimension, position) of a selection."""
    k = normal_dim(at["dim"], x.rank)
    return k, wrap(at["index"], x.shape[k])


def _select_shape(x: TensorType, at: Attrs) -> Shape:
    k, _ = select_of(x, at)
    return (*x.shape[:k], *x.shape[k + 1 :])


def _selected(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    k, position = select_of(x, at)
    return (*out[:k], position, *out[k:])


def _select_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    k, position = select_of(x, at)
    return (*x.strides[:k], *x.strides[k + 1 :]), mul(position, x.strides[k])


def diagonal_of(x: TensorType, at: Attrs) -> tuple[int, int, Dim, Dim, Dim]:
    """(dim1, dim2, first row, first column, length)."""
    a, b = (normal_dim(at.get(k, d), x.rank) for k, d in (("dim1", 0), ("dim2", 1)))
    shift = at.get("offset", 0)
    if not isinstance(shift, int):
        raise Unsupported("the offset of a diagonal is symbolic")
    row, column = max(-shift, 0), max(shift, 0)
    rows, columns = add(x.shape[a], -row), add(x.shape[b], -column)
    if same_dim(rows, columns):
        return a, b, row, column, rows
    if not (isinstance(rows, int) and isinstance(columns, int)):
        raise Unsupported("the length of a diagonal is symbolic")
    return a, b, row, column, max(min(rows, columns), 0)


def diagonal_rest(x: TensorType, a: int, b: int) -> list[int]:
    """The dimensions that a diagonal over two of them leaves."""
    return [k for k in range(x.rank) if k not in (a, b)]


def diagonal_shape(x: TensorType, at: Attrs) -> Shape:
    """The other dimensions, then the diagonal."""
    a, b, _, _, length = diagonal_of(x, at)
    return (*(x.shape[k] for k in diagonal_rest(x, a, b)), length)


def diagonal_index(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    """Where an element of the diagonal lies."""
    a, b, row, column, _ = diagonal_of(x, at)
    index: list[Dim] = [0] * x.rank
    for k, i in zip(diagonal_rest(x, a, b), out[:-1], strict=True):
        index[k] = i
    index[a], index[b] = add(out[-1], row), add(out[-1], column)
    return tuple(index)


def _diagonal_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    a, b, row, column, _ = diagonal_of(x, at)
    rest = tuple(x.strides[k] for k in diagonal_rest(x, a, b))
    offset = add(mul(row, x.strides[a]), mul(column, x.strides[b]))
    return (*rest, add(x.strides[a], x.strides[b])), offset


def as_strided_shape(x: TensorType, at: Attrs) -> Shape:
    """The sizes; Unsupported where an element may lie outside of the operand."""
    size, stride, offset = tuple(at["size"]), tuple(at["stride"]), at.get("storage_offset") or 0
    numbers = (*size, *stride, offset, x.numel)
    if not all(isinstance(d, int) for d in numbers) or not x.is_contiguous:
        raise Unsupported("as_strided of a symbolic or strided tensor is not provably inside")
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    last = 0 if 0 in size else offset + reach
    numel = x.numel
    if not isinstance(numel, int) or last >= max(numel, 1):
        raise Unsupported("as_strided reads outside of its operand")
    return size


def _as_strided(out: Shape, x: TensorType, y: TensorType, at: Attrs) -> Shape:
    flat: Dim = at.get("storage_offset") or 0
    for i, stride in zip(out, at["stride"], strict=True):
        flat = add(flat, mul(i, stride))
    return reshape_index((flat,), x.shape, (product(list(x.shape)),))


def _as_strided_view(x: TensorType, y: TensorType, at: Attrs) -> Strided:
    return tuple(at["stride"]), at.get("storage_offset") or 0


# ---------------------------------------------------------------- the table


def row(
    name: str,
    forms: Sequence[Form],
    shape: Callable[[TensorType, Attrs], Shape],
    index: Index,
    view: Callable[[TensorType, TensorType, Attrs], Strided | None] | None,
    reference: Callable[..., Any],
    samples: Sequence[Sample],
    *,
    kind: Kind = Kind.MOVEMENT,
    onnx: tuple[str, ...] = (),
) -> Op:
    """A movement of one operand."""
    body = Movement(moved(index), None if view is None else strided(view))
    return Op(
        name, kind, tuple(forms), shaped(shape), body, reference, tuple(samples), onnx=onnx
    )  # fmt: skip


def _np_permute(x: Any, at: Attrs) -> Any:
    t = TensorType.dense(None, x.shape)  # type: ignore[arg-type]
    return np.transpose(x, _order(t, at))


def _np_squeeze(x: Any, at: Attrs) -> Any:
    t = TensorType.dense(None, x.shape)  # type: ignore[arg-type]
    return x.reshape(_squeeze_shape(t, at))


def _np_expand(x: Any, at: Attrs) -> Any:
    t = TensorType.dense(None, x.shape)  # type: ignore[arg-type]
    shape: Any = _expand_shape(t, at)
    return np.broadcast_to(x, shape)


def _np_slice(x: Any, at: Attrs) -> Any:
    key = [slice(None)] * x.ndim
    key[at.get("dim", 0)] = slice(at.get("start"), at.get("end"), at.get("step", 1))
    return x[tuple(key)]


def _np_roll(x: Any, at: Attrs) -> Any:
    return np.roll(x, at["shifts"], at.get("dims") or None)


def _np_diagonal(x: Any, at: Attrs) -> Any:
    return np.diagonal(x, at.get("offset", 0), at.get("dim1", 0), at.get("dim2", 1))


def _np_as_strided(x: Any, at: Attrs) -> Any:
    flat = np.ascontiguousarray(x).reshape(-1)[at.get("storage_offset") or 0 :]
    steps = [s * flat.itemsize for s in at["stride"]]
    return np.lib.stride_tricks.as_strided(flat, at["size"], steps)


X = ("f32", (2, 3, 4))
_SQUEEZES = tuple(
    form(f"squeeze.{k}", ("self",), a)
    for k, a in (("default", ()), ("dim", ("dim",)), ("dims", ("dim",)))
)
OPS: tuple[Op, ...] = (
    row("view", (form("view.default", ("self",), ("size",)),
                 form("_unsafe_view.default", ("self",), ("size",)),
                 form("reshape.default", ("self",), ("shape",))),
        lambda x, at: _view_shape(x, at if "size" in at else {"size": at["shape"]}),
        _reshaped, _reshape_view,
        lambda x, at: np.reshape(x, at.get("size", at.get("shape"))),
        (sample(X, size=(6, 4)), sample(X, size=(2, -1)), sample(X, size=(4, 3, 2)),
         sample(X, size=(24,)), sample(("bf16", (6, 4)), size=(2, 3, 1, 4)),
         sample(("i64", (1,)), size=())), onnx=("Reshape",)),
    row("squeeze", _SQUEEZES, _squeeze_shape, _reshaped, _squeeze_view, _np_squeeze,
        (sample(("f32", (1, 3, 1))), sample(("f32", (1, 3, 1)), dim=0),
         sample(("f32", (1, 3, 1)), dim=(0, -1)), sample(("f32", (1, 3, 1)), dim=1)),
        onnx=("Squeeze",)),
    row("unsqueeze", (form("unsqueeze.default", ("self",), ("dim",)),), _unsqueeze_shape,
        _reshaped, _unsqueeze_view, lambda x, at: np.expand_dims(x, at["dim"]),
        (sample(X, dim=0), sample(X, dim=-1), sample(X, dim=1)), onnx=("Unsqueeze",)),
    row("permute", (form("permute.default", ("self",), ("dims",)),
                    form("transpose.int", ("self",), ("dim0", "dim1")), form("t.default")),
        _permuted_shape, _permuted, _permute_view, _np_permute,
        (sample(X, dims=(2, 0, 1)), sample(X, dim0=0, dim1=-1), sample(("f32", (3, 4))),
         sample(("f32", (3,)))), onnx=("Transpose",)),
    row("expand", (form("expand.default", ("self",), ("size",)),),
        _expand_shape, _expanded, _expand_view, _np_expand,
        (sample(("f32", (3, 1)), size=(2, 3, 4)), sample(("f32", (3, 1)), size=(-1, 4)),
         sample(("f32", ()), size=(2,))), kind=Kind.BROADCAST, onnx=("Expand",)),
    row("slice", (form("slice.Tensor", ("self",), ("dim", "start", "end", "step")),),
        _slice_shape, _sliced, _slice_view, _np_slice,
        (sample(X, dim=1, start=1, end=3), sample(X, dim=-1, start=-3, end=(1 << 63) - 1, step=2),
         sample(X, dim=0, start=0, end=-1), sample(X, dim=2, start=5, end=9)), onnx=("Slice",)),
    row("select", (form("select.int", ("self",), ("dim", "index")),), _select_shape, _selected,
        _select_view, lambda x, at: np.take(x, at["index"], at["dim"]),
        (sample(X, dim=1, index=2), sample(X, dim=-1, index=-1))),
    row("diagonal", (form("diagonal.default", ("self",), ("offset", "dim1", "dim2")),),
        diagonal_shape, diagonal_index, _diagonal_view, _np_diagonal,
        (sample(("f32", (3, 4))), sample(X, offset=1, dim1=1, dim2=2),
         sample(X, offset=-1, dim1=0, dim2=-1))),
    row("flip", (form("flip.default", ("self",), ("dims",)),), _same_shape, _flipped, None,
        lambda x, at: np.flip(x, at["dims"]), (sample(X, dims=(0, -1)), sample(X, dims=(1,)))),
    row("roll", (form("roll.default", ("self",), ("shifts", "dims")),), _same_shape, _rolled,
        None, _np_roll,
        (sample(X, shifts=(1, -2), dims=(0, 2)), sample(X, shifts=(5,), dims=()),
         sample(X, shifts=(7,), dims=(1,)))),
    row("repeat", (form("repeat.default", ("self",), ("repeats",)),), _repeat_shape, _repeated,
        None, lambda x, at: np.tile(x, at["repeats"]),
        (sample(X, repeats=(1, 2, 3)), sample(("f32", (3,)), repeats=(2, 2))), onnx=("Tile",)),
    row("alias", tuple(form(f"{n}.default") for n in
                       ("alias", "detach", "lift_fresh_copy", "lift_fresh", "lift")),
        _same_shape, _identity, _identity_view, lambda x, at: x, (sample(X),)),
    row("as_strided", (form("as_strided.default", ("self",),
                            ("size", "stride", "storage_offset")),),
        as_strided_shape, _as_strided, _as_strided_view, _np_as_strided,
        (sample(("f32", (4, 6)), size=(3, 4), stride=(6, 1), storage_offset=2),
         sample(("f32", (4, 6)), size=(3, 3), stride=(2, 3)))),
)  # fmt: skip
