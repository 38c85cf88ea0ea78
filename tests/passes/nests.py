"""Small nests by hand, as lowering would make them."""

from __future__ import annotations

from onetrip.base.dtype import f32
from onetrip.base.sym import Dim, Var
from onetrip.ir.expr import Apply, Expr, Load, Reduced, Reduction
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType

Shape = tuple[int, ...]


def tensor(shape: Shape) -> TensorType:
    return TensorType.dense(f32, shape)


def axes_of(name: str, shape: Shape) -> tuple[Dim, ...]:
    return tuple(0 if s == 1 else Var(f"{name}_{k}", s) for k, s in enumerate(shape))


def nest(name: str, shape: Shape, value: Expr, index: tuple[Dim, ...], **reads: Shape) -> Nest:
    buffers = [Buffer(n, tensor(s), Access.READ) for n, s in reads.items()]
    space = tuple(Axis(v) for v in index if isinstance(v, Var))
    out = Buffer(name, tensor(shape), Access.WRITE)
    return Nest(space, (*buffers, out), (Store(name, index, value),))


def pointwise(name: str, op: str, shape: Shape, **reads: Shape) -> Nest:
    """name = op(reads...), operands broadcast from the right."""
    index = axes_of(name, shape)
    loads = []
    for n, s in reads.items():
        own = index[len(index) - len(s) :]
        loads.append(Load(n, tuple(0 if d == 1 else a for d, a in zip(s, own, strict=False)), f32))
    return nest(name, shape, Apply(op, tuple(loads), f32), index, **reads)


def moved(name: str, shape: Shape, source: str, source_shape: Shape, *order: int) -> Nest:
    """name[..] = source permuted by `order`."""
    index = axes_of(name, shape)
    at: list[Dim] = [0] * len(order)
    for k, dim in enumerate(order):
        at[dim] = index[k]
    value = Load(source, tuple(at), f32)
    return nest(name, shape, value, index, **{source: source_shape})


def reshaped(name: str, shape: Shape, source: str, source_shape: Shape) -> Nest:
    """name = source viewed with another shape."""
    index = axes_of(name, shape)
    flat = tensor(shape).offset(index)
    at: list[Dim] = []
    for stride, extent in zip(tensor(source_shape).strides, source_shape, strict=False):
        at.append(flat // stride % extent)
    return nest(name, shape, Load(source, tuple(at), f32), index, **{source: source_shape})


def reduced(name: str, monoid: str, source: str, shape: Shape, *dims: int) -> Nest:
    """name = fold of source over `dims`, kept with extent 1."""
    kept = tuple(1 if k in dims else s for k, s in enumerate(shape))
    index = axes_of(name, kept)
    inner = tuple(Var(f"{name}_r{k}", shape[k]) for k in dims)
    at = list(index)
    for axis, k in zip(inner, dims, strict=False):
        at[k] = axis
    value = Reduced(Reduction(monoid, inner, (Load(source, tuple(at), f32),)), 0, f32)
    return nest(name, kept, value, index, **{source: shape})
