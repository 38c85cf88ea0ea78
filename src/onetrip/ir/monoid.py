"""Monoids of reductions and scans: identity and combination, in scalar expressions.

A monoid's state is a tuple of components. `combine(a, b)` must be associative; where it is not
commutative (argmax, first wins) `a` is the earlier part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..base.dtype import DType, bool_
from .expr import Apply, Const, Expr, apply, compare

State = tuple[Expr, ...]


@dataclass(frozen=True)
class Monoid:
    """A reduction's algebra.

    Attributes:
        name: used in `Reduction.monoid`.
        arity: number of components of the state.
        identity: constants of the neutral state, from the components' dtypes.
        combine: (earlier, later) -> state.
    """

    name: str
    arity: int
    identity: Callable[[tuple[DType, ...]], tuple[Const, ...]]
    combine: Callable[[State, State], State]


def lowest(dtype: DType) -> Const:
    """The least value of a dtype: -inf for floats, False for bool."""
    if dtype.is_float:
        return Const(-math.inf, dtype)
    if dtype is bool_:
        return Const(False, dtype)
    return Const(-(1 << (dtype.bits - 1)) if dtype.signed else 0, dtype)


def highest(dtype: DType) -> Const:
    """The greatest value of a dtype: inf for floats, True for bool."""
    if dtype.is_float:
        return Const(math.inf, dtype)
    if dtype is bool_:
        return Const(True, dtype)
    return Const((1 << (dtype.bits - dtype.signed)) - 1, dtype)


def number(value: float, dtype: DType) -> Const:
    """`value` as a constant of the dtype's own Python type."""
    if dtype is bool_:
        return Const(bool(value), dtype)
    return Const(float(value) if dtype.is_float else int(value), dtype)


def _plain(name: str, op: str, identity: Callable[[DType], Const]) -> Monoid:
    return Monoid(
        name,
        1,
        lambda dtypes: (identity(dtypes[0]),),
        lambda a, b: (Apply(op, (a[0], b[0]), a[0].dtype),),
    )


def _arg(name: str, better: str, identity: Callable[[DType], Const], last: bool = False) -> Monoid:
    """(value, index): the first NaN wins, else the first extreme, as in PyTorch's reductions.

    `last`: the last one wins, as in its scans; then the neutral index is the smallest.

    One part is taken when its value is better, or equal and at a smaller index; NaN is better
    than every number and equal to NaN. Both cases exclude each other, and the order is total, so
    combination is associative and commutative. The neutral index is the largest one: every real
    element is taken instead, also one that equals the neutral value.
    """

    def combine(a: State, b: State) -> State:
        wins, ties = compare(better, b[0], a[0]), compare("eq", b[0], a[0])
        if a[0].dtype.is_float:
            a_nan, b_nan = compare("ne", a[0], a[0]), compare("ne", b[0], b[0])
            wins = _either(wins, _and(b_nan, apply("logical_not", a_nan)))
            ties = _either(ties, _and(a_nan, b_nan))
        take = _either(wins, _and(ties, compare("ge" if last else "lt", b[1], a[1])))
        return tuple(Apply("where", (take, y, x), x.dtype) for x, y in zip(a, b, strict=True))

    place = lowest if last else highest
    return Monoid(name, 2, lambda d: (identity(d[0]), place(d[1])), combine)


def _and(a: Expr, b: Expr) -> Expr:
    return apply("logical_and", a, b)


def _either(a: Expr, b: Expr) -> Expr:
    return apply("logical_or", a, b)


def _welford(a: State, b: State) -> State:
    """Chan et al. 1979: (count, mean, sum of squared distances) of two parts joined."""
    (na, ma, sa), (nb, mb, sb) = a, b
    n = apply("add", na, nb)
    zero = number(0, n.dtype)
    share = Apply("where", (compare("eq", n, zero), zero, apply("div", nb, n)), n.dtype)
    delta = apply("sub", mb, ma)
    mean = apply("add", ma, apply("mul", delta, share))
    # Multiplied from the right: the square alone may overflow where the share of a part is 0.
    between = apply("mul", delta, apply("mul", delta, apply("mul", na, share)))
    return n, mean, apply("add", apply("add", sa, sb), between)


def _logaddexp(a: State, b: State) -> State:
    """log(exp(a) + exp(b)): the larger plus log1p(exp(-distance)); equal infinities stay."""
    (x,), (y,) = a, b
    top, low = apply("maximum", x, y), apply("minimum", x, y)
    more = apply("add", top, apply("log1p", apply("exp", apply("sub", low, top))))
    stays = _and(compare("eq", x, y), apply("isinf", x, dtype=bool_))
    return (Apply("where", (stays, x, more), x.dtype),)


def _online_softmax(a: State, b: State) -> State:
    """(maximum, sum of exp(x - maximum)) of two parts joined (Milakov and Gimelshein, 2018).

    Where both maxima are -inf the sum is 0: softmax and logsumexp of it are NaN and -inf all the
    same.
    """
    (ma, sa), (mb, sb) = a, b
    m = apply("maximum", ma, mb)
    nothing = compare("eq", m, lowest(m.dtype))
    safe = Apply("where", (nothing, number(0, m.dtype), m), m.dtype)
    left = apply("mul", sa, apply("exp", apply("sub", ma, safe)))
    right = apply("mul", sb, apply("exp", apply("sub", mb, safe)))
    return m, apply("add", left, right)


def _affine(a: State, b: State) -> State:
    """Composition of x -> decay * x + shift: the state of a linear recurrence.

    Its neutral shift is -0.0, after which also a first shift of -0.0 stays.
    """
    (da, sa), (db, sb) = a, b
    return apply("mul", da, db), apply("add", apply("mul", db, sa), sb)


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        _plain("sum", "add", lambda d: number(0, d)),
        _plain("prod", "mul", lambda d: number(1, d)),
        _plain("max", "maximum", lowest),
        _plain("min", "minimum", highest),
        _plain("any", "logical_or", lambda d: Const(False, bool_)),
        _plain("all", "logical_and", lambda d: Const(True, bool_)),
        _plain("xor_sum", "bitwise_xor", lambda d: number(0, d)),
        _arg("argmax", "gt", lowest),
        _arg("argmin", "lt", highest),
        _arg("last_argmax", "gt", lowest, last=True),
        _arg("last_argmin", "lt", highest, last=True),
        Monoid("logaddexp", 1, lambda d: (lowest(d[0]),), _logaddexp),
        Monoid("welford", 3, lambda d: tuple(number(0, x) for x in d), _welford),
        Monoid("online_softmax", 2, lambda d: (lowest(d[0]), number(0, d[1])), _online_softmax),
        Monoid("affine", 2, lambda d: (number(1, d[0]), number(-0.0, d[1])), _affine),
    )
}
