"""Flat offsets and merged axes: the form in which a nest is scheduled.

    out[p0, p1] = x[p0, p1] + b[p1]   ->   out[1024*p0 + p1] = x[1024*p0 + p1] + b[p1]
    out[p0, p1] = x[p0, p1]           ->   out[p0] = x[p0]              (p0 now covers both)

Every buffer becomes one-dimensional and dense, every index one element offset. Axes of the space
are put in the order of falling strides, so that the last one is the contiguous one, and
neighbours that are contiguous in every access become one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.affine import coefficient
from ..base.sym import Dim, Sym, Var, atoms, product, substitute
from ..ir.expr import Expr, Load, Rewriter, dims_of
from ..ir.nest import Axis, Buffer, Nest, Store
from ..ir.types import TensorType
from .fuse import rename, shared_names
from .indices import checked


def collapse(nest: Nest) -> Nest:
    """The nest with flat element offsets and as few axes as its accesses allow."""
    nest = _order_space(_linearize(nest))
    scopes = _scopes(nest)
    dims = _dims(nest)
    held = [frozenset(r.axes) for r in nest.reductions] + [frozenset(s.axes) for s in nest.stores]
    values: dict[Sym, Dim] = {}
    for scope in scopes:
        if not any(v in values for v in scope):
            values.update(_merge(scope, dims, held))
    return _renamed(nest, values)


def _linearize(nest: Nest) -> Nest:
    types = {b.name: b.type for b in nest.buffers}

    def flat(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            offset = types[e.buffer].offset(e.index)
            return checked(Load(e.buffer, (offset,), e.dtype, e.guard, e.other), e.index)
        return None

    rewrite = Rewriter(node=flat)

    def flat_store(s: Store) -> Store:
        offset = types[s.buffer].offset(tuple(map(rewrite.dim, s.index)))
        guard = None if s.guard is None else rewrite(s.guard)
        return replace(s, index=(offset,), value=rewrite(s.value), guard=guard)

    buffers = tuple(_flat_buffer(b) for b in nest.buffers)
    return Nest(nest.space, buffers, tuple(map(flat_store, nest.stores)))


def _flat_buffer(b: Buffer) -> Buffer:
    return replace(b, type=TensorType.dense(b.type.dtype, (b.type.storage_elements,)))


def _dims(nest: Nest) -> tuple[Dim, ...]:
    """Every index expression of the nest, each once."""
    found = [d for s in nest.stores for d in s.index]
    found += [d for e in nest.expressions for d in dims_of(e)]
    return tuple(dict.fromkeys(found))


def _order_space(nest: Nest) -> Nest:
    """Space axes by falling stride in the accesses that move the most bytes."""
    weights = _weights(nest)

    def stride(axis: Axis) -> int:
        total = 0
        for dim, size in weights:
            step = coefficient(dim, axis.var)
            total += size * (step if isinstance(step, int) else 1 << 20)
        return total

    return replace(nest, space=tuple(sorted(nest.space, key=stride, reverse=True)))


def _weights(nest: Nest) -> list[tuple[Dim, int]]:
    """(offset, bytes of an element) of every access; a store counts twice."""
    out = [(s.index[0], 2 * nest.buffer(s.buffer).type.dtype.itemsize) for s in nest.stores]
    return out + [(e.index[0], e.dtype.itemsize) for e in nest.loads]


def _scopes(nest: Nest) -> list[tuple[Var, ...]]:
    found = [tuple(a.var for a in nest.space), *(s.axes for s in nest.stores)]
    found += [r.axes for r in nest.reductions]
    scanned = {e.axis for e in nest.scans}
    return [s for s in dict.fromkeys(found) if len(s) > 1 and not scanned & set(s)]


def _merge(
    scope: Sequence[Var], dims: Sequence[Dim], held: Sequence[frozenset[Var]]
) -> dict[Sym, Dim]:
    """Substitution that joins neighbouring axes wherever every index allows it, and no store or
    reduction goes along one of them alone: that of a constant has no index to say so."""
    groups: list[list[Var]] = []
    for axis in scope:
        last = groups[-1][-1] if groups else axis
        together = groups and all((last in h) == (axis in h) for h in held)
        if together and _contiguous(last, axis, dims):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    values: dict[Sym, Dim] = {}
    for group in groups:
        if len(group) > 1:
            values.update(_joined(group))
    return values


def _contiguous(outer: Var, inner: Var, dims: Sequence[Dim]) -> bool:
    for d in dims:
        a, b = coefficient(d, outer), coefficient(d, inner)
        if a is None or b is None or a != b * inner.extent:
            return False
    return True


def _joined(group: Sequence[Var]) -> dict[Sym, Dim]:
    """c * (n * outer + inner) is c * whole: the inner axis becomes the whole, the others 0."""
    whole = Var(group[0].name, product([axis.extent for axis in group]))
    values: dict[Sym, Dim] = dict.fromkeys(group[:-1], 0)
    values[group[-1]] = whole
    return values


def _renamed(nest: Nest, values: dict[Sym, Dim]) -> Nest:
    """The nest after the substitution, axes named p0.. and r0.., equal inner axes alike.

    Merged axes may be equal where the single ones were not: a sum over (n, h, w) and one over
    rows of the same tensor walk it together from here on.
    """
    stores = tuple(rename(s, values) for s in nest.stores)
    space = dict.fromkeys(
        a for x in nest.space for a in atoms(substitute(x.var, values)) if isinstance(a, Var)
    )
    names = shared_names(stores, tuple(space))
    stores = tuple(rename(s, names) for s in stores)
    return Nest(tuple(Axis(Var(f"p{k}", v.extent)) for k, v in enumerate(space)),
                nest.buffers, stores)  # fmt: skip
