"""Invariants of a Kernel, checked along its statements with what each of them can see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.dtype import DType, bool_
from ..base.sym import Dim, Size, Var, atoms
from .expr import Expr, Load, Local, Reduced, Scanned, children, dims_of, walk
from .faults import Fault, Invariant, duplicates
from .kernel import Assign, Carry, Kernel, Let, Loop, Scratch, Stmt, statements
from .kernel import Mapping as Who
from .nest import Access, Store
from .printer import bound_axes
from .types import TensorType
from .verify_expr import places, ranges, sizes, typing, variables, varying


@dataclass(frozen=True)
class Scope:
    """What a statement can see.

    Attributes:
        axes: every axis of the kernel's loops.
        bound: the lanes of the axes that the enclosing loops bind.
        locals: dtype and tile axes of each Let and Carry; `carries` names the latter.
        types: the buffers and scratch buffers.
    """

    axes: frozenset[Var]
    locals: Mapping[str, tuple[DType, frozenset[Var]]]
    types: Mapping[str, TensorType]
    bound: Mapping[Var, int] = field(default_factory=dict)
    carries: frozenset[str] = frozenset()
    inside_serial: bool = False


Seen = tuple[tuple[Stmt, Scope], ...]


def _scopes(k: Kernel) -> Seen:
    """Every statement with its scope, in order."""
    axes = frozenset(s.axis for s in statements(k.body) if isinstance(s, Loop))
    scope = Scope(axes, {}, {b.name: b.type for b in k.buffers})
    return tuple(_walk(k.body, scope))


def _walk(body: tuple[Stmt, ...], scope: Scope) -> Iterator[tuple[Stmt, Scope]]:
    for s in body:
        yield s, scope
        if isinstance(s, Loop):
            serial = scope.inside_serial or s.mapping is not Who.GRID
            inner = replace(scope, bound={**scope.bound, s.axis: s.tile}, inside_serial=serial)
            yield from _walk(s.body, inner)
        elif isinstance(s, Scratch):
            scope = replace(scope, types={**scope.types, s.name: s.type})
        elif isinstance(s, Let | Carry):
            scope = _declared(s, scope)


def _declared(s: Let | Carry, scope: Scope) -> Scope:
    if isinstance(s, Let):
        known = (s.value.dtype, frozenset(varying(s.value, scope.bound)))
        return replace(scope, locals={**scope.locals, s.name: known})
    known = (s.init.dtype, frozenset(s.over))
    carries = scope.carries | {s.name}
    return replace(scope, locals={**scope.locals, s.name: known}, carries=carries)


def roots(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in a statement."""
    if isinstance(s, Store):
        return s.roots
    if isinstance(s, Assign):
        return s.values
    if isinstance(s, Let):
        return (s.value,)
    return (s.init,) if isinstance(s, Carry) else ()


def dims(s: Stmt) -> tuple[Dim, ...]:
    """The index expressions that stand directly in a statement."""
    if isinstance(s, Loop):
        return (s.axis.extent, s.start, s.end)
    return s.index if isinstance(s, Store) else ()


def _expressions(k: Kernel) -> Iterator[tuple[Stmt, Scope, tuple[Expr, ...]]]:
    for s, scope in _scopes(k):
        yield s, scope, tuple(walk(roots(s)))


# ------------------------------------------------------------------ the invariants


def _names(k: Kernel) -> Iterator[Fault]:
    named: list[tuple[str, Any]] = [(b.name, b) for b in k.buffers]
    named += [(s.name, s) for s in statements(k.body) if isinstance(s, Let | Carry | Scratch)]
    yield from duplicates(named)
    axes = {s.axis: s for s in statements(k.body) if isinstance(s, Loop)}
    yield from duplicates([(v.name, s) for v, s in axes.items()])


def _level(k: Kernel) -> Iterator[Fault]:
    for _, _, exprs in _expressions(k):
        for e in exprs:
            if isinstance(e, Reduced | Scanned):
                yield Fault(e, "a Fold or a Prefix of tiles", type(e).__name__)


def _loops(k: Kernel) -> Iterator[Fault]:
    for s, scope in _scopes(k):
        if not isinstance(s, Loop):
            continue
        if s.tile < 1:
            yield Fault(s, "at least 1 lane", str(s.tile))
        if s.axis in scope.bound:
            yield Fault(s, f"{s.axis} not bound outside", "an enclosing loop binds it")
        many = {v for d in dims(s) for v in varying(d, scope.bound)}
        if many:
            yield Fault(s, "bounds that are the same in all lanes", f"they vary {_names_of(many)}")
        if s.mapping is Who.GRID and scope.inside_serial:
            yield Fault(s, "grid loops only inside grid loops", "an enclosing loop is not one")


def _bound(k: Kernel) -> Iterator[Fault]:
    for s, scope, exprs in _expressions(k):
        carried = {v for name in scope.carries for v in scope.locals[name][1]}
        used_at: list[tuple[object, set[Var]]] = [(s, variables(d)) for d in dims(s)]
        used_at += [(e, variables(d)) for e in exprs for d in dims_of(e)]
        if isinstance(s, Store):
            used_at.append((s, {a for a in s.free if isinstance(a, Var)} | set(s.axes)))
        used_at += [(e, set(bound_axes(e)) - carried) for e in exprs]
        later = set(s.over) - scope.axes if isinstance(s, Carry) else set[Var]()
        for subject, used in (*used_at, (s, later)):
            loose = used - set(scope.bound)
            if loose:
                yield Fault(subject, "axes bound by an enclosing loop", _names_of(loose))


def _locals(k: Kernel) -> Iterator[Fault]:
    for _, scope, exprs in _expressions(k):
        for e in exprs:
            if isinstance(e, Local):
                yield from _local(e, scope)


def _local(e: Local, scope: Scope) -> Iterator[Fault]:
    if e.name not in scope.locals:
        yield Fault(e, f"a Let or Carry named {e.name} before this", "none in scope")
        return
    dtype, over = scope.locals[e.name]
    if e.dtype is not dtype:
        yield Fault(e, f"{e.name} of dtype {dtype}", str(e.dtype))
    if not over <= set(e.over):
        yield Fault(e, f"{e.name} over {_names_of(over)}", _names_of(e.over))


def _names_of(axes: Any) -> str:
    return f"({', '.join(sorted(v.name for v in axes))})"


Lanes = dict[tuple[str, Var], set[int]]


def _held(body: tuple[Stmt, ...]) -> Lanes:
    """The lanes of each name over an axis: tiles of the loops that set it, and what it collects."""
    found: Lanes = {}
    reads: list[tuple[str, Expr]] = []
    for s in statements(body):
        if isinstance(s, Loop):
            inside = (x for x in statements(s.body) if isinstance(x, Assign))
            for name in (name for x in inside for name in x.names):
                found.setdefault((name, s.axis), set()).add(s.tile)
        elif isinstance(s, Assign):
            reads += zip(s.names, s.values, strict=False)
        elif isinstance(s, Let):
            reads.append((s.name, s.value))
    while any(_collect(name, value, found) for name, value in reads):
        pass
    return found


def _collect(name: str, value: Expr, found: Lanes) -> bool:
    """Gives a name the lanes that its value holds; whether that was news."""
    news = False
    for (other, axis), tiles in list(found.items()):
        if axis in value.free and other in locals_along(value, axis):
            mine = found.setdefault((name, axis), set())
            news = news or not tiles <= mine
            mine |= tiles
    return news


def locals_along(value: Expr, axis: Var) -> set[str]:
    """The locals over the axis below a value, except where the axis is folded."""
    stack, names, seen = [value], set(), set()
    while stack:
        e = stack.pop()
        if e in seen:  # expressions share what they have in common
            continue
        seen.add(e)
        if isinstance(e, Local) and axis in e.over:
            names.add(e.name)
        if axis not in bound_axes(e):
            stack.extend(children(e))
    return names


def _carries(k: Kernel) -> Iterator[Fault]:
    held = _held(k.body)
    for s, scope in _scopes(k):
        if isinstance(s, Carry):
            for axis in set(s.over) - set(scope.bound):
                tiles = held.get((s.name, axis), set())
                if len(tiles) != 1:
                    yield Fault(
                        s, f"one tile of {axis} where {s.name} is set", str(tiles or "none")
                    )
            yield from _fits(s, s.name, s.init, (s.init.dtype, frozenset(s.over)), scope)
        elif isinstance(s, Assign):
            if len(s.names) != len(s.values) or len(set(s.names)) != len(s.names):
                yield Fault(s, "one value for each name", f"{s.names}, {len(s.values)} values")
            for name, value in zip(s.names, s.values, strict=False):
                if name not in scope.carries:
                    yield Fault(s, f"a Carry named {name} before this", "none in scope")
                else:
                    yield from _fits(s, name, value, scope.locals[name], scope)


def _fits(
    s: Stmt, name: str, value: Expr, known: tuple[DType, frozenset[Var]], scope: Scope
) -> Iterator[Fault]:
    dtype, over = known
    if value.dtype is not dtype:
        yield Fault(s, f"{name} of dtype {dtype}", str(value.dtype))
    more = varying(value, scope.bound) - over
    if more:
        yield Fault(
            s, f"{name} over {_names_of(over)}", f"a value that varies over {_names_of(more)}"
        )


def _places(k: Kernel) -> Iterator[Fault]:
    for s, scope, exprs in _expressions(k):
        for e in exprs:
            if isinstance(e, Load):
                yield from places(e, e.buffer, e.index, scope.types)
        if isinstance(s, Store):
            yield from places(s, s.buffer, s.index, scope.types)


def _typing(k: Kernel) -> Iterator[Fault]:
    for s, scope, exprs in _expressions(k):
        yield from typing(exprs)
        for e in exprs:
            if isinstance(e, Load) and e.dtype is not scope.types[e.buffer].dtype:
                yield Fault(e, f"the buffer's dtype {scope.types[e.buffer].dtype}", str(e.dtype))
        if isinstance(s, Store):
            dtype = scope.types[s.buffer].dtype
            if s.value.dtype is not dtype:
                yield Fault(s, f"a value of the buffer's dtype {dtype}", str(s.value.dtype))
            if s.guard is not None and s.guard.dtype is not bool_:
                yield Fault(s, "a guard of dtype bool", str(s.guard.dtype))


def _access(k: Kernel) -> Iterator[Fault]:
    access = {b.name: b.access for b in k.buffers}
    stored = set()
    for s in statements(k.body):
        if isinstance(s, Store):
            stored.add(s.buffer)
            if access.get(s.buffer) is Access.READ:
                yield Fault(s, "a buffer that is written or updated", f"{s.buffer} is read only")
    for b in k.buffers:
        if b.access is not Access.READ and b.name not in stored:
            yield Fault(b, "a store to a written buffer", "none")


def _ranges(k: Kernel) -> Iterator[Fault]:
    if any(isinstance(s, Loop) and s.axis.extent == 0 for s in statements(k.body)):
        return  # nothing is read or written there
    for s, scope, exprs in _expressions(k):
        for e in exprs:
            if isinstance(e, Load) and e.guard is None and _whole(k, variables(e)):
                yield from ranges(e, e.index, scope.types[e.buffer])
        if isinstance(s, Store) and s.guard is None:
            used = set[Var]().union(*map(variables, s.index))
            if _whole(k, used):
                yield from ranges(s, s.index, scope.types[s.buffer])


def _whole(k: Kernel, axes: set[Var]) -> bool:
    """Whether every loop over these axes runs from 0 to the extent."""
    loops = (s for s in statements(k.body) if isinstance(s, Loop) and s.axis in axes)
    return all(s.start == 0 and s.stop is None for s in loops)


def _sizes(k: Kernel) -> Iterator[Fault]:
    passed = set(k.sizes)
    for b in k.buffers:
        yield from _unpassed(b, {a for d in b.type.shape for a in atoms(d)}, passed)
    for s, _, exprs in _expressions(k):
        yield from _unpassed(s, set(sizes(exprs, dims(s))), passed)


def _unpassed(subject: object, used: set[Any], passed: set[Size]) -> Iterator[Fault]:
    missing = sorted(a.name for a in used if isinstance(a, Size) and a not in passed)
    if missing:
        yield Fault(subject, "sizes that the kernel is given", ", ".join(missing))


KERNEL: tuple[Invariant[Kernel], ...] = (
    Invariant("names are unique", _names),
    Invariant("a kernel holds no expression of a nest", _level),
    Invariant("every axis is bound by an enclosing loop", _bound),
    Invariant("loops have lanes, bounds that are the same in all, and one axis each", _loops),
    Invariant("locals are defined before they are used, with dtype and axes", _locals),
    Invariant("a Carry keeps its dtype and axes", _carries),
    Invariant("accesses name buffers in scope and have one index for each dimension", _places),
    Invariant("operands and results agree in dtype", _typing),
    Invariant("buffers are accessed as they are declared", _access),
    Invariant("no index certainly leaves its buffer", _ranges),
    Invariant("sizes are passed", _sizes),
)
