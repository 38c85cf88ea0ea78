"""Type rules: promotion, broadcasting and shapes of reductions, as PyTorch has them.

A rule sees operands as TensorTypes or numbers and must not know values, devices or graphs. What a
rule cannot derive or onetrip does not compile raises `Unsupported`; the importer then makes the
node an extern with that text as its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..base.dtype import (
    BY_NAME,
    COMPILED,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
)  # fmt: skip
from ..base.errors import Unsupported
from ..base.float8 import LAYOUTS
from ..base.sym import Dim, Sym, add, is_nonnegative, mul
from ..ir.types import TensorType, contiguous_strides
from .schema import Attrs, TypeRule

Arg = Any
"""A TensorType or a number (bool, int, float, or a Sym: a size)."""
DTypeRule = Callable[[tuple[Arg, ...], Attrs], DType]

_INTS = (i8, i16, i32, i64)
_FLOATS = (f16, bf16, f32, f64)


def promote(a: DType, b: DType) -> DType:
    """The dtype of PyTorch's lattice that holds both; raises Unsupported outside of it."""
    if a is b:
        return a
    for d in (a, b):
        if d not in COMPILED:
            raise Unsupported(f"no kernel computes on {d.torch_name}")
    if {a, b} & LAYOUTS.keys():
        raise Unsupported(f"{a.torch_name} and {b.torch_name} have no common dtype")
    low, high = sorted((a, b), key=lambda d: d.category.value)
    if low.category is not high.category:
        return high
    if high.is_float:
        return f32 if {a, b} == {f16, bf16} else max(a, b, key=_FLOATS.index)
    if u8 in (a, b):
        other = b if a is u8 else a
        return i16 if other is i8 else other
    return max(a, b, key=_INTS.index)


def promoted(operands: Iterable[Arg], attrs: Attrs | None = None) -> DType:
    """Common dtype: dimensioned tensors outrank 0-d ones, and those outrank Python numbers.

    A lower rank counts only when its category (bool < int < float) is higher.
    """
    ranks: list[DType | None] = [None, None, None]
    for x in operands:
        rank = (0 if x.shape else 1) if isinstance(x, TensorType) else 2
        found = ranks[rank]
        own = x.dtype if isinstance(x, TensorType) else number_dtype(x)
        ranks[rank] = own if found is None else promote(found, own)
    result: DType | None = None
    for lower in reversed(ranks):
        result = _outrank(lower, result)
    if result is None:
        raise Unsupported("an operator without operands has no common dtype")
    return result


def _outrank(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    return promote(higher, lower) if lower.category.value > higher.category.value else higher


def number_dtype(x: bool | int | float | Sym) -> DType:
    """The dtype in which PyTorch wraps a Python number: bool, i64 or the default float."""
    if isinstance(x, bool):
        return bool_
    return f32 if isinstance(x, float) else i64


def promoted_float(operands: Iterable[Arg], attrs: Attrs | None = None) -> DType:
    """The common dtype; integers and bool become the default float."""
    common = promoted(operands)
    return common if common.is_float else f32


def boolean(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """bool, whatever the operands are."""
    return bool_


def first(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """The dtype of operand 0."""
    dtype: DType = operands[0].dtype
    return dtype


def asked(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """The attribute `dtype`; without it the dtype of operand 0."""
    dtype = attrs.get("dtype")
    return first(operands, attrs) if dtype is None else as_dtype(dtype)


def as_dtype(dtype: DType | str) -> DType:
    """A DType from itself or from its short name."""
    return BY_NAME[dtype] if isinstance(dtype, str) else dtype


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two sizes are provably equal."""
    return add(a, mul(b, -1)) == 0


def broadcast(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common shape, aligned at the last dimension; a size of 1 stretches.

    A symbol against a number is the number: the capture's guards hold them equal.
    """
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_stretch(column) for column in zip(*padded, strict=True))


def _stretch(column: tuple[Dim, ...]) -> Dim:
    result: Dim = 1
    for d in column:
        if d == 1 or same_dim(d, result):
            continue
        if result == 1 or (isinstance(d, int) and not isinstance(result, int)):
            result = d
        elif isinstance(result, int) == isinstance(d, int):
            raise Unsupported(f"sizes {result} and {d} are not provably equal")
    return result


def check_compiled(dtype: DType) -> DType:
    """The dtype, if generated kernels compute on it; else Unsupported."""
    if dtype not in COMPILED:
        raise Unsupported(f"no kernel computes on {dtype.torch_name}")
    return dtype


def is_dense(t: TensorType) -> bool:
    """Whether the strides are a permutation of row-major ones, without gaps or overlap."""
    numbers: list[Any] = [*t.shape, *t.strides]
    if not all(isinstance(d, int) for d in numbers):
        return t.is_contiguous
    shape, strides = numbers[: t.rank], numbers[t.rank :]
    step = 1
    for stride, size in sorted((st, sz) for st, sz in zip(strides, shape, strict=True) if sz != 1):
        if stride != step:
            return False
        step *= size
    return True


def laid_out(dtype: DType, shape: tuple[Dim, ...], operands: Iterable[Arg]) -> TensorType:
    """Output type of a pointwise operator: it keeps a dense layout that its operands share."""
    full = [t for t in operands if isinstance(t, TensorType) and t.shape == shape]
    strides = {t.strides for t in full}
    if len(strides) == 1 and is_dense(full[0]):
        return TensorType(dtype, shape, full[0].strides)
    return TensorType(dtype, shape, contiguous_strides(shape))


def pointwise(dtype: DTypeRule = promoted) -> TypeRule:
    """Broadcast shape of all operands, with the dtype of a rule."""

    def rule(operands: tuple[Arg, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        tensors = [x for x in operands if isinstance(x, TensorType)]
        for t in tensors:
            check_compiled(t.dtype)
        out = check_compiled(dtype(operands, attrs))
        return (laid_out(out, broadcast([t.shape for t in tensors]), tensors),)

    return rule


def like_first(count: int = 1, dtype: DTypeRule = first) -> TypeRule:
    """Outputs of the shape of operand 0."""

    def rule(operands: tuple[Arg, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        x = operands[0]
        return (laid_out(check_compiled(dtype(operands, attrs)), x.shape, (x,)),) * count

    return rule


def normal_dim(dim: int, rank: int) -> int:
    """A dimension number from the front; a 0-d tensor has one virtual dimension."""
    return dim % max(rank, 1)


def normal_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """Sorted dimension numbers; None and () mean all of them."""
    if rank == 0:
        return ()
    if dims is None or dims == ():
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else tuple(dims)
    return tuple(sorted(normal_dim(d, rank) for d in listed))


def reduced_shape(shape: tuple[Dim, ...], dims: Iterable[int], keepdim: bool) -> tuple[Dim, ...]:
    """The shape after the dims are folded away, or kept as 1."""
    gone = set(dims)
    if keepdim:
        return tuple(1 if i in gone else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def reduction(dtype: DTypeRule, key: str = "dim") -> TypeRule:
    """A reduction over the attribute `dim` (absent: all), `keepdim` as the attribute says."""

    def rule(operands: tuple[Arg, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        x = operands[0]
        check_compiled(x.dtype)
        dims = normal_dims(attrs.get(key), x.rank)
        shape = reduced_shape(x.shape, dims, bool(attrs.get("keepdim", False)))
        return (TensorType.dense(check_compiled(dtype(operands, attrs)), shape),)

    return rule


def summed(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """Dtype of sum and prod: as asked, else i64 for integers and bool, else the operand's."""
    if attrs.get("dtype") is not None:
        return as_dtype(attrs["dtype"])
    x = first(operands, attrs)
    return x if x.is_float else i64


def index_dtype(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """i64, the dtype of positions."""
    return i64


def asked_float(operands: tuple[Arg, ...], attrs: Attrs) -> DType:
    """As asked, else the operand's dtype, which must be a float."""
    dtype = asked(operands, attrs)
    if not dtype.is_float:
        raise Unsupported(f"a mean of {dtype.torch_name} has no float dtype")
    return dtype


def concrete(dim: Dim, what: str) -> int:
    """A dimension that must be a number here; Unsupported when it is symbolic."""
    if isinstance(dim, int):
        return dim
    raise Unsupported(f"{what} is symbolic", found=str(dim))


def at_most(a: Dim, b: Dim) -> bool:
    """Whether a <= b is provable."""
    return is_nonnegative(add(b, mul(a, -1)))
