"""Invariants of scalar expressions, the same in a Nest and in a Kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..base.dtype import DType, bool_, f32, i64
from ..base.sym import Dim, Opaque, Size, Sym, Var, add, atoms, is_nonnegative, mul
from ..base.sym import lower_bound as lower
from ..base.sym import upper_bound as upper
from .expr import (
    Apply,
    Const,
    Contract,
    Expr,
    Fold,
    Load,
    Position,
    Prefix,
    Reduced,
    Rng,
    Scanned,
    dims_of,
    payloads,
)
from .faults import Fault
from .monoid import MONOIDS
from .types import TensorType


def typing(exprs: Sequence[Expr]) -> Iterator[Fault]:
    """Operands and results agree in dtype."""
    for e in exprs:
        rule = _TYPING.get(type(e))
        if rule is not None:
            yield from rule(e)


def _agree(e: Expr, what: str, found: DType, expected: DType) -> Iterator[Fault]:
    if found is not expected:
        yield Fault(e, f"{what} of dtype {expected}", str(found))


def _const(e: Const) -> Iterator[Fault]:
    kind = float if e.dtype.is_float else bool if e.dtype is bool_ else int
    if type(e.value) is not kind:
        yield Fault(e, f"a {kind.__name__} for {e.dtype}", repr(e.value))
    elif kind is int:
        low = -(1 << (e.dtype.bits - 1)) if e.dtype.signed else 0
        if not low <= e.value < low + (1 << e.dtype.bits):
            yield Fault(e, f"a value that {e.dtype} holds", repr(e.value))


def _load(e: Load) -> Iterator[Fault]:
    if e.guard is not None:
        yield from _agree(e, "a guard", e.guard.dtype, bool_)
    if e.other is not None:
        yield from _agree(e, "a value outside the guard", e.other.dtype, e.dtype)


def _apply(e: Apply) -> Iterator[Fault]:
    args = e.args
    if e.op == "where":
        if len(args) != 3:
            yield Fault(e, "3 operands", str(len(args)))
            return
        yield from _agree(e, "a condition", args[0].dtype, bool_)
        args = args[1:]
    elif any(a.dtype.compute is not a.dtype for a in args):
        yield Fault(e, "operands in operation precision (f32)", _dtypes(args))
    if len({a.dtype for a in args}) != 1:
        yield Fault(e, "operands of one dtype", _dtypes(args) or "none")
    elif e.dtype is not args[0].dtype and (e.dtype is not bool_ or e.op == "where"):
        yield Fault(e, f"a result of dtype {args[0].dtype} or bool", str(e.dtype))


def _dtypes(args: Sequence[Expr]) -> str:
    return ", ".join(str(a.dtype) for a in args)


def _position(e: Position) -> Iterator[Fault]:
    if not e.dtype.is_integral:
        yield Fault(e, "an integer dtype", str(e.dtype))


def _rng(e: Rng) -> Iterator[Fault]:
    yield from _agree(e, "a seed", e.seed.dtype, i64)
    yield from _agree(e, "a uniform number", e.dtype, f32)
    if e.rounds < 7:
        yield Fault(e, "7 rounds or more", str(e.rounds))


def _state(e: Expr, monoid: str, args: tuple[Expr, ...], component: int) -> Iterator[Fault]:
    if monoid not in MONOIDS:
        yield Fault(e, f"one of {', '.join(MONOIDS)}", monoid)
    elif len(args) != MONOIDS[monoid].arity:
        yield Fault(e, f"{MONOIDS[monoid].arity} components of {monoid}", str(len(args)))
    elif not 0 <= component < len(args):
        yield Fault(e, f"a component below {len(args)}", str(component))
    else:
        yield from _agree(e, "a component", e.dtype, args[component].dtype)
        if any(a.dtype.compute is not a.dtype for a in args):
            yield Fault(e, "a state in operation precision (f32)", _dtypes(args))


def _reduced(e: Reduced) -> Iterator[Fault]:
    yield from _state(e, e.reduction.monoid, e.reduction.lift, e.component)
    if len(set(e.reduction.axes)) != len(e.reduction.axes):
        yield Fault(e, "distinct axes", str(e.reduction.axes))


def _contract(e: Contract) -> Iterator[Fault]:
    for x in (e.a, e.b):
        if e.axis not in x.free:
            yield Fault(e, f"operands that vary along {e.axis}", f"{x!r} does not")
    yield from _agree(e, "a second operand", e.b.dtype, e.a.dtype)


_TYPING: dict[type[Expr], Callable[[Any], Iterator[Fault]]] = {
    Const: _const,
    Load: _load,
    Apply: _apply,
    Position: _position,
    Rng: _rng,
    Reduced: _reduced,
    Scanned: lambda e: _state(e, e.monoid, e.lift, e.component),
    Fold: lambda e: _state(e, e.monoid, e.args, e.component),
    Prefix: lambda e: _state(e, e.monoid, e.args, e.component),
    Contract: _contract,
}


def places(
    subject: object, buffer: str, index: tuple[Dim, ...], types: Mapping[str, TensorType]
) -> Iterator[Fault]:
    """The buffer is declared and has as many dimensions as the index; read indices are integers."""
    if buffer not in types:
        yield Fault(subject, f"one of the buffers {', '.join(types) or '(none)'}", buffer)
    elif len(index) != types[buffer].rank:
        yield Fault(subject, f"{types[buffer].rank} indices into {buffer}", str(len(index)))
    for read in (p for d in index for p in payloads(d)):
        if not read.dtype.is_integral:
            yield Fault(subject, "an index of an integer dtype", str(read.dtype))


def ranges(subject: object, index: tuple[Dim, ...], type: TensorType) -> Iterator[Fault]:
    """An index that certainly leaves its buffer at some point, where nothing guards it."""
    for n, (d, extent) in enumerate(zip(index, type.shape, strict=True)):
        low, high = lower(d), upper(d)
        if not _is_exact(d) or low is None or high is None:
            continue
        below = is_nonnegative(add(-1, mul(low, -1)))
        if below or is_nonnegative(add(high, mul(extent, -1))):
            yield Fault(subject, f"0 <= index {n} < {extent}", f"{d}, from {low} to {high}")


def _is_exact(d: Dim) -> bool:
    """Whether the bounds of d are reached: every axis stands in one term, and has points."""
    axes = [a for a in atoms(d) if not isinstance(a, Size)]
    points = all(
        isinstance(a, Var)
        and not isinstance(a.extent, Opaque)
        and is_nonnegative(add(a.extent, -1))
        for a in axes
    )
    affine = all(d is a or _stands_alone(d, a) for a in axes)
    return points and affine and len(set(axes)) == len(axes)


def _stands_alone(d: Dim, axis: Sym) -> bool:
    terms = getattr(d, "terms", ())
    return any(factors == (axis,) for _, factors in terms)


def varying(e: Expr | Dim, bound: Mapping[Var, int]) -> set[Var]:
    """The axes with several lanes on which a value or an index depends; also those not bound."""
    return {a for a in variables(e) if bound.get(a, 2) > 1}


def variables(e: Expr | Dim) -> set[Var]:
    """The axis variables on which a value or an index depends, read-time payloads included."""
    if isinstance(e, Expr):
        return {a for a in e.free if isinstance(a, Var)}
    found: set[Var] = set()
    for a in atoms(e):
        if isinstance(a, Opaque):
            found |= variables(a.payload)
        elif isinstance(a, Var):
            found.add(a)
    return found


def sizes(exprs: Sequence[Expr], more: Sequence[Dim]) -> set[Size]:
    """Every symbolic size in expressions and further index expressions."""
    dims = [d for e in exprs for d in dims_of(e)]
    return {a for d in (*dims, *more) for a in atoms(d) if isinstance(a, Size)}
