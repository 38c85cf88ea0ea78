"""Invariants of a Nest."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.dtype import bool_
from ..base.sym import Var, atoms
from .expr import Contract, Expr, Fold, Local, Prefix
from .faults import Fault, Invariant, duplicates
from .nest import Access, Nest
from .printer import bound_axes, inner_axes
from .verify_expr import places, ranges, typing, variables

_KERNEL_ONLY = (Local, Fold, Prefix, Contract)


def _names(n: Nest) -> Iterator[Fault]:
    yield from duplicates([(b.name, b) for b in n.buffers])
    axes = [a.var for a in n.space] + list(inner_axes(n))
    yield from duplicates([(v.name, v) for v in axes])


def _level(n: Nest) -> Iterator[Fault]:
    for e in n.expressions:
        if isinstance(e, _KERNEL_ONLY):
            yield Fault(e, "expressions of a Nest", type(e).__name__)


def _places(n: Nest) -> Iterator[Fault]:
    types = {b.name: b.type for b in n.buffers}
    for e in n.loads:
        yield from places(e, e.buffer, e.index, types)
    for s in n.stores:
        yield from places(s, s.buffer, s.index, types)


def _typing(n: Nest) -> Iterator[Fault]:
    yield from typing(n.expressions)
    for e in n.loads:
        if e.dtype is not n.buffer(e.buffer).type.dtype:
            yield Fault(e, f"the buffer's dtype {n.buffer(e.buffer).type.dtype}", str(e.dtype))
    for s in n.stores:
        dtype = n.buffer(s.buffer).type.dtype
        if s.value.dtype is not dtype:
            yield Fault(s, f"a value of the buffer's dtype {dtype}", str(s.value.dtype))
        if s.guard is not None and s.guard.dtype is not bool_:
            yield Fault(s, "a guard of dtype bool", str(s.guard.dtype))


def _access(n: Nest) -> Iterator[Fault]:
    stored = {s.buffer for s in n.stores}
    loaded = {e.buffer for e in n.loads}
    for b in n.buffers:
        if b.access is not Access.READ and b.name not in stored:
            yield Fault(b, "a store to a written buffer", "none")
        if b.access is Access.WRITE and b.name in loaded:
            yield Fault(b, "no load of a buffer that is only written", "a load")
    for s in n.stores:
        if n.buffer(s.buffer).access is Access.READ:
            yield Fault(s, "a buffer that is written or updated", f"{s.buffer} is read only")


def _bound(n: Nest) -> Iterator[Fault]:
    space = {a.var for a in n.space}
    for s in n.stores:
        used = set[Var]().union(*map(variables, s.index), *map(variables, s.roots))
        loose = used - space - set(s.axes)
        if loose:
            names = ", ".join(sorted(v.name for v in loose))
            yield Fault(_user(n, s.roots, loose) or s, "axes of the space or of the store", names)
    for e in n.expressions:
        again = space & set(bound_axes(e)) - _scan_axes(e)
        if again:
            yield Fault(e, "reduced axes outside the space", ", ".join(v.name for v in again))
    for s in n.stores:
        if space & set(s.axes):
            yield Fault(s, "axes of a store outside the space", str(s.axes))


def _scan_axes(e: Expr) -> set[Var]:
    axis = getattr(e, "axis", None)
    return {axis} if isinstance(axis, Var) else set()


def _user(n: Nest, roots: tuple[Expr, ...], loose: set[Var]) -> Expr | None:
    """The innermost expression with the loose axes, for the report."""
    return next((e for e in n.expressions if variables(e) & loose), None)


def _extents(n: Nest) -> Iterator[Fault]:
    for v in (*(a.var for a in n.space), *inner_axes(n)):
        inside = [a for a in atoms(v.extent) if isinstance(a, Var)]
        if inside or (isinstance(v.extent, int) and v.extent < 0):
            yield Fault(v, "an extent over sizes, at least 0", f"{v.name}: {v.extent}")


def _ranges(n: Nest) -> Iterator[Fault]:
    if any(a.var.extent == 0 for a in n.space):
        return  # nothing is read or written
    for e in n.loads:
        if e.guard is None:
            yield from ranges(e, e.index, n.buffer(e.buffer).type)
    for s in n.stores:
        if s.guard is None:
            yield from ranges(s, s.index, n.buffer(s.buffer).type)


NEST: tuple[Invariant[Nest], ...] = (
    Invariant("names are unique", _names),
    Invariant("a nest holds no expression of a kernel", _level),
    Invariant("accesses name declared buffers and have one index for each dimension", _places),
    Invariant("operands and results agree in dtype", _typing),
    Invariant("buffers are accessed as they are declared", _access),
    Invariant("every axis is bound once", _bound),
    Invariant("extents depend on sizes only", _extents),
    Invariant("no index certainly leaves its buffer", _ranges),
)
