"""Scalar expressions on numpy arrays: one dimension for each axis variable.

A value that does not vary along an axis has length 1 there, so numpy's broadcasting is the
broadcasting of named axes. Every distinct expression is evaluated once.
Must not know: what the axes are for (points of a Nest, lanes of a Kernel), statements, stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ..base.dtype import DType, i64
from ..base.sym import Dim, Opaque, Size, Sym, Var
from ..base.sym import evaluate as evaluate_dim
from ..ir.expr import (
    Apply,
    Cast,
    Const,
    Contract,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Prefix,
    Reduced,
    Rng,
    Scanned,
    walk,
)  # fmt: skip
from ..ir.monoid import MONOIDS
from ..ops.scalar import SCALAR_OPS
from .arrays import Array, InterpreterError, Memory, carrier, constant, convert, poison, uniform

State = tuple[Array, ...]


@dataclass
class Frame:
    """Where expressions are evaluated.

    Attributes:
        dims: the dimension number of every axis variable.
        lanes: the values of each bound variable, shaped along its dimension.
        active: which lanes of a variable count; absent: all of them.
        memory: buffers by name.
        locals: values of names, with one dimension for each axis as well.
    """

    dims: Mapping[Var, int]
    memory: dict[str, Memory]
    sizes: Mapping[Sym, int]
    lanes: dict[Var, Array] = field(default_factory=dict)
    active: dict[Var, Array] = field(default_factory=dict)
    locals: dict[str, Array] = field(default_factory=dict)

    def bind(self, var: Var, values: Array, limit: int | None = None) -> None:
        """Gives a variable its lanes; those at or beyond `limit` are inactive."""
        shape = [1] * len(self.dims)
        shape[self.dims[var]] = len(values)
        self.lanes[var] = values.reshape(shape)
        self.active.pop(var, None)
        if limit is not None and len(values) and values[-1] >= limit:
            self.active[var] = self.lanes[var] < limit

    def mask(self, axes: Iterable[Sym]) -> Array | None:
        """The lanes that are active along all the axes; None when every one is."""
        masks = [self.active[a] for a in axes if isinstance(a, Var) and a in self.active]
        return np.logical_and.reduce(np.broadcast_arrays(*masks)) if masks else None

    def shape(self, axes: Iterable[Var]) -> tuple[int, ...]:
        """The full shape over some axes, 1 along those that are not bound and all others."""
        shape = [1] * len(self.dims)
        for a in axes:
            shape[self.dims[a]] = self.lanes[a].size if a in self.lanes else 1
        return tuple(shape)


class Evaluation:
    """The values of expressions in one state of a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._values: dict[Expr, Array] = {}
        self._states: dict[Any, State] = {}

    def __call__(self, root: Expr) -> Array:
        """The value of an expression, in the carrier of its dtype."""
        with np.errstate(all="ignore"):
            for e in walk((root,)):
                if e not in self._values:
                    self._values[e] = _RULES[type(e)](self, e)
        return self._values[root]

    def index(self, d: Dim) -> Array:
        """The value of an index expression, int64."""
        found = np.asarray(evaluate_dim(d, self._atom), np.int64)
        return found if found.ndim else found.reshape((1,) * len(self.frame.dims))

    def _atom(self, atom: Sym) -> Any:
        if isinstance(atom, Opaque):
            return self(atom.payload).astype(np.int64)
        known: Mapping[Any, Any] = self.frame.sizes if isinstance(atom, Size) else self.frame.lanes
        if atom not in known:
            raise InterpreterError(
                f"{atom} has no value here",
                expected="a given size, or an axis that is bound",
                found=f"bound: {', '.join(map(str, self.frame.lanes)) or 'nothing'}",
            )
        return known[atom]

    def state(self, key: Any, make: Callable[[], State]) -> State:
        """The components of a fold, computed once for all of them."""
        if key not in self._states:
            self._states[key] = make()
        return self._states[key]

    def over(self, args: tuple[Expr, ...], axes: tuple[Var, ...], monoid: str) -> State:
        """The operands of a fold along `axes`: whole along them, neutral in inactive lanes."""
        frame = self.frame
        values = tuple(self(a) for a in args)
        shape = np.broadcast_shapes(frame.shape(axes), *(v.shape for v in values))
        mask = frame.mask(axes)
        dtypes = tuple(a.dtype for a in args)
        neutral = MONOIDS[monoid].identity(dtypes)
        return tuple(
            np.broadcast_to(v if mask is None else np.where(mask, v, self(n)), shape)
            for v, n in zip(values, neutral, strict=True)
        )


# ------------------------------------------------------------------ monoids


@cache
def _combination(monoid: str, dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    """combine(a, b) over the locals a0, a1, ... and b0, b1, ..."""
    earlier = tuple(Local(f"a{n}", d) for n, d in enumerate(dtypes))
    later = tuple(Local(f"b{n}", d) for n, d in enumerate(dtypes))
    return MONOIDS[monoid].combine(earlier, later)


def combine(monoid: str, dtypes: tuple[DType, ...], a: State, b: State) -> State:
    """The joined state of an earlier and a later part, elementwise."""
    names = {f"a{n}": x for n, x in enumerate(a)} | {f"b{n}": x for n, x in enumerate(b)}
    evaluation = Evaluation(Frame({}, {}, {}, locals=names))
    joined = (evaluation(e) for e in _combination(monoid, dtypes))
    return tuple(np.broadcast_to(j, x.shape) for j, x in zip(joined, a, strict=True))


def fold(monoid: str, dtypes: tuple[DType, ...], args: State, dims: tuple[int, ...]) -> State:
    """Balanced fold along dimensions, in their row-major order; they keep length 1."""
    kept = [n for n in range(args[0].ndim) if n not in dims]
    shape = tuple(args[0].shape[n] for n in kept)
    result = tuple(1 if n in dims else extent for n, extent in enumerate(args[0].shape))
    count = int(np.prod([args[0].shape[n] for n in dims], dtype=np.int64))
    state = tuple(a.transpose(*kept, *dims).reshape(*shape, count) for a in args)
    if count == 0:
        neutral = (constant(c.value, c.dtype) for c in MONOIDS[monoid].identity(dtypes))
        return tuple(np.broadcast_to(n, result) for n in neutral)
    while state[0].shape[-1] > 1:
        even = state[0].shape[-1] // 2 * 2
        left = tuple(s[..., 0:even:2] for s in state)
        right = tuple(s[..., 1:even:2] for s in state)
        joined = combine(monoid, dtypes, left, right)
        state = tuple(
            np.concatenate([j, s[..., even:]], -1) for j, s in zip(joined, state, strict=True)
        )
    return tuple(s.reshape(result) for s in state)


def prefix(monoid: str, dtypes: tuple[DType, ...], args: State, dim: int, back: bool) -> State:
    """Inclusive fold of everything up to each place; `back`: from the end, which comes first."""
    turned = tuple(np.moveaxis(a, dim, -1) for a in args)
    state = tuple(t[..., ::-1] if back else t for t in turned)
    step = 1
    while step < state[0].shape[-1]:
        left = tuple(s[..., :-step] for s in state)
        right = tuple(s[..., step:] for s in state)
        joined = combine(monoid, dtypes, left, right)
        state = tuple(
            np.concatenate([s[..., :step], j], -1) for j, s in zip(joined, state, strict=True)
        )
        step *= 2
    return tuple(np.moveaxis(s[..., ::-1] if back else s, -1, dim) for s in state)


# ------------------------------------------------------------------ one rule for each expression


def _const(_: Evaluation, e: Const) -> Array:
    return constant(e.value, e.dtype)


def _load(evaluation: Evaluation, e: Load) -> Array:
    frame = evaluation.frame
    if e.buffer not in frame.memory:
        raise InterpreterError(
            f"{e.buffer} is not a buffer here", expected=", ".join(sorted(frame.memory))
        )
    index = tuple(evaluation.index(d) for d in e.index)
    active, other = frame.mask(e.free), poison(e.dtype)
    if e.guard is not None:
        guard = evaluation(e.guard)
        outside = constant(0, e.dtype) if e.other is None else constant(e.other.value, e.dtype)
        other = np.where(guard, other, outside)
        active = guard if active is None else guard & active
    if active is not None:
        index = tuple(np.broadcast_to(i, np.broadcast_shapes(i.shape, active.shape)) for i in index)
    return frame.memory[e.buffer].read(index, active, other)


def _position(evaluation: Evaluation, e: Position) -> Array:
    return convert(evaluation.index(e.value), i64, e.dtype)


def _apply(evaluation: Evaluation, e: Apply) -> Array:
    args = [evaluation(a) for a in e.args]
    return np.asarray(SCALAR_OPS[e.op].reference(*args)).astype(carrier(e.dtype))


def _cast(evaluation: Evaluation, e: Cast) -> Array:
    return convert(evaluation(e.arg), e.arg.dtype, e.dtype)


def _rng(evaluation: Evaluation, e: Rng) -> Array:
    return uniform(evaluation(e.seed), evaluation.index(e.offset), e.rounds)


def _reduced(evaluation: Evaluation, e: Reduced) -> Array:
    r = e.reduction
    return _folded(evaluation, r, r.monoid, r.axes, r.lift)[e.component]


def _fold(evaluation: Evaluation, e: Fold) -> Array:
    key = (e.monoid, e.axes, e.args)
    return _folded(evaluation, key, e.monoid, e.axes, e.args)[e.component]


def _folded(
    evaluation: Evaluation, key: Any, monoid: str, axes: tuple[Var, ...], args: tuple[Expr, ...]
) -> State:
    dims = tuple(evaluation.frame.dims[a] for a in axes)
    dtypes = tuple(a.dtype for a in args)
    return evaluation.state(
        key, lambda: fold(monoid, dtypes, evaluation.over(args, axes, monoid), dims)
    )


def _scanned(evaluation: Evaluation, e: Scanned | Prefix) -> Array:
    args, back = (e.lift, e.reverse) if isinstance(e, Scanned) else (e.args, False)
    dim = evaluation.frame.dims[e.axis]
    dtypes = tuple(a.dtype for a in args)

    def make() -> State:
        return prefix(e.monoid, dtypes, evaluation.over(args, (e.axis,), e.monoid), dim, back)

    return evaluation.state((e.monoid, e.axis, args, back), make)[e.component]


def _local(evaluation: Evaluation, e: Local) -> Array:
    if e.name not in evaluation.frame.locals:
        raise InterpreterError(f"the local {e.name} has no value here")
    return evaluation.frame.locals[e.name]


def _contract(evaluation: Evaluation, e: Contract) -> Array:
    a, b = (convert(evaluation(x), x.dtype, e.dtype) for x in (e.a, e.b))
    frame = evaluation.frame
    mask = frame.mask((e.axis,))
    product = a * b if mask is None else np.where(mask, a * b, constant(0, e.dtype))
    shape = np.broadcast_shapes(frame.shape((e.axis,)), product.shape)
    whole = np.broadcast_to(product, shape)
    return fold("sum", (e.dtype,), (whole,), (frame.dims[e.axis],))[0]


_RULES: dict[type[Expr], Callable[[Evaluation, Any], Array]] = {
    Const: _const, Load: _load, Position: _position, Apply: _apply, Cast: _cast, Rng: _rng,
    Reduced: _reduced, Scanned: _scanned,
    Local: _local, Fold: _fold, Prefix: _scanned, Contract: _contract,
}  # fmt: skip
