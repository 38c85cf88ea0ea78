"""Scalar expressions: what is computed for one element of an iteration space.

    Expr ::= Const | Load | Position | Apply | Cast | Rng      in a Nest and a Kernel
           | Reduced | Scanned                                 in a Nest only
           | Local | Fold | Prefix | Contract                  in a Kernel only

Interned: equal expressions are one object, so common subexpressions are found by identity. Types
are explicit: `Apply` computes in the dtype of its operands, and every rounding is a `Cast`.
Axes are `sym.Var`s; the same expression means one element in a Nest and a tile of elements in a
Kernel, one for each lane of the tile axes on which it depends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import TypeVar

from ..base.dtype import DType, bool_, f32, i64
from ..base.intern import Interned
from ..base.lazy import cached_property
from ..base.sym import Dim, Opaque, Sym, Var, atoms, rebuild, render

T = TypeVar("T")


class Expr(metaclass=Interned):
    """Base of all scalar expressions; every one has a `dtype`."""

    dtype: DType

    @cached_property
    def free(self) -> frozenset[Sym]:
        """The axis variables and sizes on which the value depends (bound ones excluded)."""
        return _settled(self, "free", _free)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the content: the same in every run, told apart in practice."""
        return _settled(self, "digest", _digest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}#{self.digest}"


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A number; keyed by type and bit pattern, so 0.0 is not -0.0."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Load(Expr):
    """One element of a buffer, by logical index (one Dim for each dimension of the buffer).

    Where `guard` is false nothing is read and the value is `other` (a Const of the same dtype;
    absent: zero).
    """

    buffer: str
    index: tuple[Dim, ...]
    dtype: DType
    guard: Expr | None = None
    other: Const | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Position(Expr):
    """An index expression as a number."""

    value: Dim
    dtype: DType = i64


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Expr):
    """A scalar operator (ops/scalar.py) on operands; `dtype` is the result's."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expr):
    """Conversion with the rounding, truncation and wrap-around of PyTorch's `.to(dtype)`."""

    arg: Expr
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Rng(Expr):
    """A uniform number in [0, 1): word `offset % 4` of Philox4x32 block `offset // 4`.

    `seed` is an i64 expression (the 64-bit key, low word first); the counter is the block's low
    and high word and two zeros; value = (word >> 8) * 2**-24, f32. Of the generator's rounds, 7 are
    the fewest that pass every test of its authors, and 10 what they advise.
    """

    seed: Expr
    offset: Dim
    dtype: DType = f32
    rounds: int = 10


@dataclass(frozen=True, eq=False)
class Reduction(metaclass=Interned):
    """Fold of `lift` over all points of `axes` with a monoid (ir/monoid.py); state is a tuple."""

    monoid: str
    axes: tuple[Var, ...]
    lift: tuple[Expr, ...]

    @cached_property
    def free(self) -> frozenset[Sym]:
        """What the result depends on: everything free in `lift` but the reduced axes."""
        bound: frozenset[Sym] = frozenset(self.axes)
        inside = frozenset[Sym]().union(*(e.free for e in self.lift))
        extents = (a for axis in self.axes for a in atoms(axis.extent))
        return (inside - bound) | frozenset(extents)


@dataclass(frozen=True, eq=False, repr=False)
class Reduced(Expr):
    """One component of a reduction's final state."""

    reduction: Reduction
    component: int
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Scanned(Expr):
    """Inclusive prefix fold of `lift` along `axis`, at the current value of `axis`.

    `reverse` goes from the axis' end to its start; what it meets first is the earlier part.
    """

    monoid: str
    axis: Var
    lift: tuple[Expr, ...]
    component: int
    dtype: DType
    reverse: bool = False


@dataclass(frozen=True, eq=False)
class Local(Expr):
    """The value of a Kernel's `Let` or `Carry`; varies over the axes `over`."""

    name: str
    dtype: DType
    over: tuple[Var, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Fold(Expr):
    """Monoid fold of a tile over its tile axes `axes` (lanes outside the axis' extent left out)."""

    monoid: str
    axes: tuple[Var, ...]
    args: tuple[Expr, ...]
    component: int
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Expr):
    """Inclusive prefix fold of a tile along its tile axis `axis`."""

    monoid: str
    axis: Var
    args: tuple[Expr, ...]
    component: int
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Contract(Expr):
    """sum over tile axis `axis` of a * b, accumulated in `dtype`: a matrix unit's tile product."""

    axis: Var
    a: Expr
    b: Expr
    dtype: DType


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct operands, lifts of a reduction and payloads of indirect indices included."""
    found: tuple[Expr, ...] | None = e.__dict__.get("_children")
    if found is None:
        found = e.__dict__["_children"] = _children(e)
    return found


def _children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Load):
        indirect = tuple(p for d in e.index for p in payloads(d))
        return (*indirect, *((e.guard,) if e.guard is not None else ()))
    if isinstance(e, Position):
        return payloads(e.value)
    if isinstance(e, Apply | Fold | Prefix):
        return e.args
    if isinstance(e, Cast):
        return (e.arg,)
    if isinstance(e, Rng):
        return (e.seed, *payloads(e.offset))
    if isinstance(e, Reduced):
        return e.reduction.lift
    if isinstance(e, Scanned):
        return e.lift
    if isinstance(e, Contract):
        return (e.a, e.b)
    return ()


def payloads(index: Dim) -> tuple[Expr, ...]:
    """The scalar expressions inside an index that are read at run time."""
    return tuple(a.payload for a in atoms(index) if isinstance(a, Opaque))


def indirect(value: Expr, extent: Dim) -> Dim:
    """An index read at run time; the caller promises 0 <= value < extent."""
    return Opaque(value, extent)


def dims_of(e: Expr) -> tuple[Dim, ...]:
    """The index expressions that stand directly in e."""
    if isinstance(e, Load):
        return e.index
    if isinstance(e, Position):
        return (e.value,)
    if isinstance(e, Rng):
        return (e.offset,)
    return ()


def _settled(root: Expr, name: str, make: Callable[[Expr], T]) -> T:
    """A cached property, computed for operands first, so that no depth exhausts the stack."""
    stack = [root]
    while stack:
        e = stack[-1]
        pending = [c for c in children(e) if name not in c.__dict__]
        if not pending:
            e.__dict__[name] = make(e)
            stack.pop()
        stack.extend(pending)
    found: T = root.__dict__[name]
    return found


def _free(e: Expr) -> frozenset[Sym]:
    if isinstance(e, Reduced):
        return e.reduction.free
    if isinstance(e, Local):
        return frozenset(e.over)
    own = frozenset(a for d in dims_of(e) for a in atoms(d) if not isinstance(a, Opaque))
    inside = own.union(*(c.free for c in children(e)))
    if isinstance(e, Fold):
        return inside - frozenset(e.axes)
    if isinstance(e, Contract):
        return inside - {e.axis}
    if isinstance(e, Scanned | Prefix):
        return inside | {e.axis}
    return inside


def _digest(e: Expr) -> str:
    parts = [type(e).__name__, *(_content(getattr(e, f.name)) for f in fields(e))]  # type: ignore[arg-type]
    return blake2b("|".join(parts).encode(), digest_size=8).hexdigest()


def _content(value: object) -> str:
    if isinstance(value, Expr):
        return value.digest
    if isinstance(value, Reduction):
        return f"{value.monoid}{_content(value.axes)}{_content(value.lift)}"
    if isinstance(value, Sym):
        return render(value, _atom_content)
    if isinstance(value, tuple):
        return f"({','.join(map(_content, value))})"
    return value.hex() if isinstance(value, float) else repr(value)


def _atom_content(atom: Sym) -> str:
    if isinstance(atom, Opaque):
        return f"[{atom.payload.digest}<{_content(atom.extent)}]"
    return f"{atom.name}<{_content(atom.extent)}" if isinstance(atom, Var) else repr(atom)


def walk(
    roots: tuple[Expr, ...], below: Callable[[Expr], tuple[Expr, ...]] = children
) -> Iterator[Expr]:
    """Every distinct expression of the roots and `below` them, operands before users."""
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        e, ready = stack.pop()
        if ready:
            yield e
        elif id(e) not in seen:
            seen.add(id(e))
            stack.append((e, True))
            stack.extend((c, False) for c in reversed(below(e)))


class Rewriter:
    """Rebuilds expressions bottom-up, each shared one once.

    Args:
        index: new index expression for an old one.
        leaf: replacement for an expression (asked before its operands), or None to go on.
        node: replacement for a rebuilt expression, or None to keep it.
    """

    def __init__(
        self,
        index: Callable[[Dim], Dim] | None = None,
        leaf: Callable[[Expr], Expr | None] | None = None,
        node: Callable[[Expr], Expr | None] | None = None,
    ) -> None:
        self._index = index
        self._leaf = leaf
        self._node = node
        self._memo: dict[Expr, Expr] = {}
        self._dims: dict[Dim, Dim] = {}
        self._reductions: dict[Reduction, Reduction] = {}

    def __call__(self, root: Expr) -> Expr:
        """The rewritten expression."""
        found = self._memo.get(root)
        if found is not None:
            return found
        asked: set[Expr] = set()
        stack = [root]
        while stack:
            e = stack.pop()
            if e in self._memo:
                continue
            if e not in asked:
                asked.add(e)
                known = self._leaf(e) if self._leaf else None
                if known is not None:
                    self._memo[e] = known
                else:
                    stack.append(e)
                    stack.extend(reversed(children(e)))
            else:
                made = self._rebuild(e)
                new = self._node(made) if self._node else None
                self._memo[e] = made if new is None else new
        return self._memo[root]

    def dim(self, d: Dim) -> Dim:
        """The rewritten index expression, payloads of indirect indices included."""
        if isinstance(d, int):
            return d
        found = self._dims.get(d)
        if found is None:
            whole = rebuild(d, self._payload) if payloads(d) else d
            found = self._dims[d] = self._index(whole) if self._index else whole
        return found

    def _payload(self, atom: Sym) -> Dim | None:
        if isinstance(atom, Opaque):
            return Opaque(self(atom.payload), atom.extent)
        return None

    def reduction(self, r: Reduction) -> Reduction:
        """The rewritten reduction; reduced axes are renamed with the other axes."""
        if r not in self._reductions:
            axes = tuple(v for a in r.axes for v in self._axis(a))
            self._reductions[r] = Reduction(r.monoid, axes, tuple(map(self, r.lift)))
        return self._reductions[r]

    def _axis(self, axis: Var) -> tuple[Var, ...]:
        new = self._index(axis) if self._index else axis
        return tuple(dict.fromkeys(a for a in atoms(new) if isinstance(a, Var)))

    def _rebuild(self, e: Expr) -> Expr:
        v = self.__call__
        if isinstance(e, Load):
            guard = None if e.guard is None else v(e.guard)
            return Load(e.buffer, tuple(map(self.dim, e.index)), e.dtype, guard, e.other)
        if isinstance(e, Position):
            return Position(self.dim(e.value), e.dtype)
        if isinstance(e, Apply):
            return Apply(e.op, tuple(map(v, e.args)), e.dtype)
        if isinstance(e, Cast):
            return Cast(v(e.arg), e.dtype)
        if isinstance(e, Rng):
            return Rng(v(e.seed), self.dim(e.offset), e.dtype, e.rounds)
        if isinstance(e, Reduced):
            return Reduced(self.reduction(e.reduction), e.component, e.dtype)
        if isinstance(e, Scanned):
            (axis,) = self._axis(e.axis)
            lift = tuple(map(v, e.lift))
            return Scanned(e.monoid, axis, lift, e.component, e.dtype, e.reverse)
        return self._rebuild_kernel(e)

    def _rebuild_kernel(self, e: Expr) -> Expr:
        v = self.__call__
        if isinstance(e, Fold):
            axes = tuple(x for a in e.axes for x in self._axis(a))
            return Fold(e.monoid, axes, tuple(map(v, e.args)), e.component, e.dtype)
        if isinstance(e, Prefix):
            (axis,) = self._axis(e.axis)
            return Prefix(e.monoid, axis, tuple(map(v, e.args)), e.component, e.dtype)
        if isinstance(e, Contract):
            (axis,) = self._axis(e.axis)
            return Contract(axis, v(e.a), v(e.b), e.dtype)
        return e


def substitute_axes(e: Expr, values: Mapping[Sym, Dim]) -> Expr:
    """e with axis variables replaced; an axis of a reduction may become a sum of new axes."""
    return Rewriter(index=lambda d: rebuild(d, lambda atom: values.get(atom)))(e)


def apply(op: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """Apply with the dtype of the first operand unless one is given."""
    return Apply(op, args, dtype or args[0].dtype)


def cast(e: Expr, dtype: DType) -> Expr:
    """Cast, left out when e has the dtype already; a cast of a constant stays a Cast."""
    return e if e.dtype is dtype else Cast(e, dtype)


def compare(op: str, a: Expr, b: Expr) -> Expr:
    """A comparison (eq ne lt le gt ge): bool."""
    return Apply(op, (a, b), bool_)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Conjunction of two guards, either of which may be absent."""
    if a is None or b is None or a is b:
        return a if b is None else b
    return Apply("logical_and", (a, b), bool_)
