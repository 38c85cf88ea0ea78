"""Every fold of an index expression against brute force over all values of axes and sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onetrip.base.affine import coefficient
from onetrip.base.sym import (
    Dim,
    Opaque,
    Poly,
    Quotient,
    Remainder,
    Size,
    Sym,
    Var,
    add,
    atoms,
    ceildiv,
    evaluate,
    floordiv,
    is_nonnegative,
    lower_bound,
    mod,
    mul,
    product,
    render,
    substitute,
    upper_bound,
    within,
)  # fmt: skip

S, T = Size("s", 1), Size("t")
I, J, K, L = Var("i", 3), Var("j", 4), Var("k", S), Var("l", mul(S, 2))  # noqa: E741
SIZES = [{S: s, T: t} for s in (1, 2, 3) for t in (0, 1, 4)]

Point = dict[Sym, int]


def points(*exprs: Dim) -> Iterator[Point]:
    """Every value of the atoms of the expressions, sizes first."""
    found = dict.fromkeys(a for e in exprs for a in atoms(e))
    axes = [a for a in found if isinstance(a, Var)]
    for sizes in SIZES:
        extents = [range(evaluate(a.extent, sizes.__getitem__)) for a in axes]
        for values in itertools.product(*extents):
            yield sizes | dict(zip(axes, values, strict=True))


def at(e: Dim, point: Point) -> int:
    return int(evaluate(e, point.__getitem__))


# ------------------------------------------------------------------ generated expressions


@dataclass(frozen=True)
class Made:
    """An expression and what it must be worth at a point."""

    dim: Dim
    value: Callable[[Point], int]


def _leaf(d: Dim) -> Made:
    return Made(d, lambda p: at(d, p))


def _joined(op: str, a: Made, b: Made) -> Made:
    build = {"+": add, "-": lambda x, y: add(x, mul(y, -1)), "*": mul, "//": floordiv, "%": mod}
    count: dict[str, Callable[[int, int], int]] = {
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
        "//": lambda x, y: x // y,
        "%": lambda x, y: x % y,
    }
    return Made(build[op](a.dim, b.dim), lambda p: count[op](a.value(p), b.value(p)))


LEAVES = st.sampled_from([*map(_leaf, (I, J, K, L, S, T))]) | st.integers(-9, 9).map(_leaf)
DIVISORS = st.sampled_from([*map(_leaf, (1, 2, 3, 4, 6, 8, 12, S, mul(S, 2), add(S, 1)))])


def _grown(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
    plain = st.builds(_joined, st.sampled_from("+-*"), inner, inner)
    divided = st.builds(_joined, st.sampled_from(["//", "%"]), inner, DIVISORS)
    return plain | divided


EXPRESSIONS = st.recursive(LEAVES, _grown, max_leaves=7)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(EXPRESSIONS)
def test_every_fold_keeps_the_value(made: Made) -> None:
    for point in points(made.dim, I, J, K, L, S, T):
        assert at(made.dim, point) == made.value(point), (made.dim, point)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(EXPRESSIONS)
def test_bounds_hold(made: Made) -> None:
    low, high = lower_bound(made.dim), upper_bound(made.dim)
    assert all(isinstance(a, Size) for d in (low, high) if d is not None for a in atoms(d))
    proven = is_nonnegative(made.dim)
    for point in points(made.dim):
        value = at(made.dim, point)
        assert low is None or at(low, point) <= value
        assert high is None or value <= at(high, point)
        assert not proven or value >= 0


@settings(max_examples=300, deadline=None, derandomize=True)
@given(EXPRESSIONS, DIVISORS)
def test_within_is_true_only_where_it_holds(made: Made, limit: Made) -> None:
    if within(made.dim, limit.dim):
        assert all(0 <= at(made.dim, p) < at(limit.dim, p) for p in points(made.dim, limit.dim))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_sums_and_products_have_one_form(a: Made, b: Made, c: Made) -> None:
    x, y, z = a.dim, b.dim, c.dim
    assert add(x, y) is add(y, x) or add(x, y) == add(y, x)
    assert mul(x, y) == mul(y, x)
    if not any(isinstance(t, Remainder) for e in (x, y, z) for t in _parts(e)):
        assert add(add(x, y), z) == add(x, add(y, z))
        assert mul(x, add(y, z)) == add(mul(x, y), mul(x, z))


def _parts(e: Dim) -> Iterator[Dim]:
    yield e
    if isinstance(e, Poly):
        for _, factors in e.terms:
            yield from factors


@settings(max_examples=200, deadline=None, derandomize=True)
@given(EXPRESSIONS, st.sampled_from([I, J, K]))
def test_coefficient_is_the_slope(made: Made, var: Var) -> None:
    slope = coefficient(made.dim, var)
    if slope is None:
        return
    assert var not in atoms(slope)
    for point in points(made.dim, var):
        if (var in point) and point[var] + 1 < at(var.extent, point):
            after = point | {var: point[var] + 1}
            assert at(made.dim, after) - at(made.dim, point) == at(slope, point)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(EXPRESSIONS, st.integers(0, 2))
def test_substitution_keeps_the_value(made: Made, value: int) -> None:
    put = substitute(made.dim, {I: value})
    assert I not in atoms(put)
    for point in points(put, J, K, L, S, T):
        assert at(put, point) == made.value(point | {I: value})


# ------------------------------------------------------------------ folds that others rely on

A, B, C = Var("a", 8), Var("b", 4), Var("c", 16)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (floordiv(4 * A + B, 4), "a"),
        (mod(4 * A + B, 4), "b"),
        (floordiv(4 * A + B, 8), "(a // 2)"),
        (mod(4 * A + B, 8), "4*(a % 2) + b"),
        (floordiv(floordiv(C, 2), 3), "(c // 6)"),
        (mod(mod(C, 8), 4), "(c % 4)"),
        (floordiv(2 * C, 4), "(c // 2)"),
        (8 * floordiv(C, 8) + mod(C, 8), "c"),
        (8 * floordiv(4 * A + B, 8) + mod(4 * A + B, 8), "4*a + b"),
        (floordiv(C - 1, 4), "((c + 3) // 4) - 1"),
        (mod(C - 1, 4), "((c + 3) % 4)"),
        (floordiv(mul(T, A) + Var("x", T), T), "a"),
        (mod(mul(T, A) + Var("x", T), T), "x"),
        (floordiv(A, 8), "0"),
        (floordiv(-1, 4), "-1"),
        (floordiv(A - 8, 8), "-1"),
        (ceildiv(4 * S, 4), "s"),
        (product([A, 2, T]), "2*a*t"),
        (add(mul(S, -1), S), "0"),
    ],
    ids=str,
)
def test_fold(found: Dim, text: str) -> None:
    assert render(found) == text


def test_quotient_of_the_last_tile_is_within_the_grid() -> None:
    grid = ceildiv(T, 4)
    assert within(floordiv(Var("x", T), 4), grid)
    assert not within(floordiv(Var("x", T), 4), add(grid, -1))


def test_a_product_with_a_negative_factor_has_no_bound() -> None:
    shifted = Quotient(add(I, -3), 2)
    assert upper_bound(mul(shifted, J)) is None
    assert not within(mul(shifted, J), 100)


def test_a_slope_through_an_index_read_at_run_time_is_unknown() -> None:
    class Payload:
        free = frozenset({I})

    read = Opaque(Payload(), 10)
    assert coefficient(read + 4 * I, I) is None
    assert coefficient(read + 4 * J, J) == 4
    assert within(read, 10)


def test_sizes_have_their_least_values() -> None:
    assert is_nonnegative(S - 1)
    assert not is_nonnegative(T - 1)
    assert is_nonnegative(mul(S, T))
    assert not is_nonnegative(mul(T, -1))
    assert is_nonnegative(3 - mod(T, 4))
    assert not is_nonnegative(2 - mod(T, 4))
    assert not is_nonnegative(None)


def test_quotients_are_bounded_by_what_they_divide() -> None:
    """n - d + 1 <= d * (n // d) <= n."""
    n, least = Size("n"), Size("m", 2)
    half = floordiv(n, 2)
    assert is_nonnegative(add(n, mul(half, -1)))
    assert is_nonnegative(add(add(mul(half, 2), 1), mul(n, -1)))
    assert not is_nonnegative(add(mul(half, 2), mul(n, -1)))
    assert not is_nonnegative(add(half, mul(n, -1)))
    assert floordiv(-1, least) == -1
    assert mod(-1, least) == add(least, -1)
    assert floordiv(add(mul(least, 3), -1), least) == 2
    assert isinstance(floordiv(-1, n), Quotient)
