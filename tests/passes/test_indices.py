"""Indices read at run time: which stay under check, which are known, which are behind a guard."""

from __future__ import annotations

import pytest

from onetrip.base.dtype import f32, i32, i64
from onetrip.base.sym import Dim, Opaque, Size, Var
from onetrip.ir.expr import (
    Apply,
    Cast,
    Expr,
    Load,
    Position,
    Rewriter,
    compare,
    dims_of,
    indirect,
    walk,
)
from onetrip.ir.monoid import number
from onetrip.passes.indices import behind, checked, harmless, opaque, settled, unasked

P, Q = Var("p", 5), Var("q", 3)
READ = indirect(Load("i", (P,), i64), 4)


def wrapped(value: Expr, size: int) -> Expr:
    """value, counted from the end where it is negative."""
    below = compare("lt", value, number(0, i64))
    longer = Apply("add", (value, number(size, i64)), i64)
    return Apply("where", (below, longer, value), i64)


def place(d: Dim) -> Expr:
    return Position(d) if not isinstance(d, int) else number(d, i64)


def test_an_index_that_an_address_holds_is_not_asked_for() -> None:
    value = Load("x", (READ, Q), f32)
    assert checked(value, (READ, Q)) is value
    assert checked(Load("x", (0, Q), f32), (P, Q)) == Load("x", (0, Q), f32)


def test_an_index_that_no_address_holds_is_asked_for_once() -> None:
    value = Load("x", (0, Q), f32)
    asking = checked(value, (READ, Q, READ))
    held = [a for e in walk((asking,)) for a in opaque(dims_of(e))]
    assert held == [READ]
    assert asking.dtype is f32
    assert checked(asking, (READ,)) is asking


@pytest.mark.parametrize(
    ("payload", "extent", "known"),
    [
        (Position(P), 5, P),
        (Position(P), 8, P),
        (Position(P), 4, None),
        (wrapped(Position(P), 5), 5, P),
        (wrapped(Position(P - 5), 5), 5, P),
        (wrapped(Position(P - 2), 5), 5, None),
        (Cast(Cast(Position(P), i32), i64), 5, P),
        (Cast(Cast(Position(P * (1 << 31)), i32), i64), 1 << 40, None),
        (Apply("mul", (Position(P), number(3, i64)), i64), 13, 3 * P),
        (Apply("sub", (number(4, i64), Position(P)), i64), 5, 4 - P),
        (Apply("sub", (number(3, i64), Position(P)), i64), 5, None),
        (number(2, i64), 3, 2),
        (number(3, i64), 3, None),
        (Load("i", (P,), i64), 5, None),
        (Apply("floordiv", (Position(P), number(2, i64)), i64), 5, None),
    ],
)
def test_places_within_their_bounds_are_known(
    payload: Expr, extent: int, known: Dim | None
) -> None:
    index = Opaque(payload, extent)
    assert settled(2 * index + Q) == 2 * (index if known is None else known) + Q


def test_symbolic_places_are_known() -> None:
    n = Size("n", 2)
    p = Var("p", n)
    assert settled(Opaque(wrapped(Position(p), 5), n)) is p
    shifted = Apply("add", (Position(p), Position(1 + n)), i64)
    assert settled(Opaque(shifted, 2 * n + 1)) == p + n + 1
    assert isinstance(settled(Opaque(shifted, 2 * n)), Opaque)


def test_what_was_asked_of_a_known_index_is_dropped() -> None:
    value = Load("x", (0, Q), f32)
    asking = checked(value, (READ, Q))
    fill = {Load("i", (P,), i64): Position(Var("r", 4))}
    rewrite = Rewriter(index=settled, leaf=lambda e: fill.get(e), node=unasked)
    assert rewrite(asking) is value
    fill = {Load("i", (P,), i64): Position(P)}
    rewrite = Rewriter(index=settled, leaf=lambda e: fill.get(e), node=unasked)
    assert rewrite(asking) is not value


def test_behind_a_guard_no_index_is_looked_at_and_nothing_is_divided_by_zero() -> None:
    guard = compare("lt", Position(P), number(3, i64))
    (shut,) = opaque((behind(READ + Q, guard),))
    load = Load("i", (P,), i64)
    assert shut == Opaque(Apply("where", (guard, load, number(0, i64)), i64), 4)
    assert behind(P + Q, guard) == P + Q
    a, b = (Load(n, (P,), i64) for n in "ab")
    division = Rewriter(node=lambda e: harmless(e, guard))(Apply("remainder", (a, b), i64))
    assert isinstance(division, Apply)
    divisor = Load("b", (P,), i64, guard, number(0, i64))
    assert division.args[1] == Apply("where", (guard, divisor, number(1, i64)), i64)
    f = Apply("remainder", (Load("x", (P,), f32), Load("y", (P,), f32)), f32)
    assert harmless(f, guard) is None
