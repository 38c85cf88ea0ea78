"""Which index expressions can stand for an axis: those that take each of its values once."""

from __future__ import annotations

import itertools

import pytest

from onetrip.base.sym import Dim, Var, add, atoms, evaluate, floordiv, mod, mul
from onetrip.passes.unify import covers

A, B, C, ONE = Var("a", 4), Var("b", 4), Var("c", 16), Var("one", 1)
DIMS: tuple[Dim, ...] = (
    C, mod(C, 8), floordiv(C, 2), add(mul(A, 4), B), add(A, mul(B, 4)), add(mul(A, 2), B),
    add(A, B), add(mul(C, 2), 1), add(C, 1), add(add(mul(A, 4), B), ONE),
    add(mul(A, 8), mod(C, 8)), mul(A, 4), 0,
)  # fmt: skip


@pytest.mark.parametrize("d", DIMS, ids=str)
@pytest.mark.parametrize("extent", [4, 8, 16])
def test_what_covers_an_extent_takes_each_value_below_it_once(d: Dim, extent: int) -> None:
    axes = (A, B, C, ONE)
    read = [a for a in axes if a in set(atoms(d))]
    points = itertools.product(*(range(a.extent) for a in read))
    values = sorted(evaluate(d, dict(zip(read, p, strict=True)).__getitem__) for p in points)
    assert covers(d, extent) == (values == list(range(extent)))
