"""Indices read at run time, in values that are put into each other.

    x.expand(4, n)[i]     where([i] >= 0, x[0, j], 0)       no address holds i, so the value does
    x[arange(n)]          x[p]                              nothing of it is read at run time
    pad(x[i])             x[where(inside, i, 0)]            outside, no index is looked at

A kernel checks an index where it computes it. `checked` keeps those that an address has lost,
since every element is the same; `settled` replaces those that are known to be within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..base.dtype import DType, i32, i64
from ..base.sym import (
    Dim,
    Opaque,
    Sym,
    add,
    atoms,
    is_nonnegative,
    lower_bound,
    mul,
    rebuild,
    upper_bound,
    within,
)
from ..ir.expr import Apply, Cast, Const, Expr, Load, Position, both, compare, dims_of, walk
from ..ir.monoid import number
from ..ops.scalar import SCALAR_OPS

_RING: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": add, "sub": lambda a, b: add(a, mul(b, -1)), "mul": mul,
}  # fmt: skip
_BITS: Mapping[DType, int] = {i32: 32, i64: 64}
_MOST_STEPS = 8
"""How deep the arithmetic of a place may be; what is deeper is read at run time."""


def opaque(dims: Iterable[Dim]) -> dict[Opaque, None]:
    """The indices read at run time that stand directly in index expressions."""
    return {a: None for d in dims for a in atoms(d) if isinstance(a, Opaque)}


def checked(value: Expr, index: Iterable[Dim]) -> Expr:
    """The value; of an index that it no longer reads, it asks whether it is within bounds."""
    asked = opaque(index)
    if asked:
        held = opaque(d for e in walk((value,)) for d in dims_of(e))
        for lost in (a for a in asked if a not in held):
            valid = compare("ge", Position(lost), number(0, i64))
            value = Apply("where", (valid, value, number(0, value.dtype)), value.dtype)
    return value


def settled(d: Dim) -> Dim:
    """d with every index that is a known place within its bounds in place of one read."""
    return rebuild(d, _known) if opaque((d,)) else d


def _known(atom: Sym) -> Dim | None:
    if not isinstance(atom, Opaque):
        return None
    found = _place(atom.payload, _MOST_STEPS)
    return found if found is not None and within(found, atom.extent) else None


def unasked(e: Expr) -> Expr | None:
    """What is left of a `checked` value whose index was settled."""
    if not isinstance(e, Apply) or e.op != "where" or not isinstance(e.args[2], Const):
        return None
    return e.args[1] if _answer(e.args[0], _MOST_STEPS) else None


def behind(d: Dim, guard: Expr) -> Dim:
    """d with the indices read at run time 0 where the guard is false: nothing is looked up."""

    def shut(atom: Sym) -> Dim | None:
        if not isinstance(atom, Opaque):
            return None
        e: Expr = atom.payload
        return Opaque(Apply("where", (guard, e, number(0, e.dtype)), e.dtype), atom.extent)

    return rebuild(d, shut) if opaque((d,)) else d


def harmless(e: Expr, guard: Expr) -> Expr | None:
    """A load or an integer division that happens only where the guard holds; the one element of a
    scalar is there everywhere, and once it is read it serves all."""
    if isinstance(e, Load) and e.index:
        other = e.other or number(0, e.dtype)
        return Load(e.buffer, e.index, e.dtype, both(e.guard, guard), other)
    if isinstance(e, Apply) and SCALAR_OPS[e.op].stops and e.dtype.is_integral:
        a, b = e.args
        return Apply(e.op, (a, Apply("where", (guard, b, number(1, b.dtype)), b.dtype)), e.dtype)
    return None


# ------------------------------------------------------------------ places that are known


def _place(e: Expr, steps: int) -> Dim | None:
    """An integer value as an index expression over axes and sizes; None where it is none."""
    if e.dtype not in _BITS:
        return None
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Position):
        return None if opaque((e.value,)) else _fitting(e.value, e.dtype)
    if isinstance(e, Cast) and steps:
        return _fitting(_place(e.arg, steps - 1), e.dtype)
    return _combined(e, steps - 1) if isinstance(e, Apply) and steps else None


def _combined(e: Apply, steps: int) -> Dim | None:
    if e.op == "where":
        answer = _answer(e.args[0], steps)
        return None if answer is None else _place(e.args[1 if answer else 2], steps)
    if e.op not in _RING:
        return None
    a, b = (_place(x, steps) for x in e.args)
    return None if a is None or b is None else _fitting(_RING[e.op](a, b), e.dtype)


def _fitting(d: Dim | None, dtype: DType) -> Dim | None:
    """d where it stays in the range of the dtype; sizes of tensors stay in that of 64 bits."""
    if d is None:
        return None
    half = 1 << (_BITS[dtype] - 1)
    sized = dtype is i64 and not isinstance(upper_bound(d), int | None)
    return d if sized or within(add(d, half), 2 * half) else None


def _answer(e: Expr, steps: int) -> bool | None:
    """Whether one place is below another, or not below, everywhere; None where that varies."""
    if not isinstance(e, Apply) or e.op not in ("lt", "ge") or not steps:
        return None
    a, b = (_place(x, steps - 1) for x in e.args)
    if a is None or b is None:
        return None
    if is_nonnegative(lower_bound(add(a, mul(b, -1)))):
        return e.op == "ge"
    return e.op == "lt" if is_nonnegative(lower_bound(add(add(b, mul(a, -1)), -1))) else None
