"""Nests to nests: pairs of reductions that one walk finds, before rows are walked.

    max f, sum exp(f - max f)       -> online_softmax(f, 1): (maximum, sum)
    sum x, sum (x - sum x / n)^2    -> welford(1, x - k, 0): (count, mean - k, squares)

A running mean far from zero would be rounded to its own size at every step, and the squares with
it: numbers are counted from the first one, k (Chan, Golub and LeVeque, 1983). Knows no chip: a nest
whose rows are held has no use for it, which is the schedule's to say.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..base.dtype import f32
from ..base.sym import product
from ..ir.expr import (
    Apply,
    Const,
    Expr,
    Reduced,
    Reduction,
    Rewriter,
    apply,
    compare,
    substitute_axes,
)  # fmt: skip
from ..ir.monoid import number
from ..ir.nest import Nest
from ..passes.one_walk import maximum_of, sum_of
from .gpu_split import mapped


def in_one_walk(nest: Nest) -> Nest:
    """The nest with every such pair as one reduction."""
    known: dict[Expr, Expr] = {}
    for second in nest.reductions:
        top, total = maximum_of(second), sum_of(second)
        if top is not None:
            pair = Reduction("online_softmax", top.axes, (top.lift[0], Const(1.0, f32)))
            known[Reduced(top, 0, f32)] = Reduced(pair, 0, f32)
            known[Reduced(second, 0, f32)] = Reduced(pair, 1, f32)
        if total is not None:
            known |= _moments(total, second)
    if not known:
        return nest
    rewrite = Rewriter(leaf=known.get)
    return replace(nest, stores=tuple(mapped(s, rewrite) for s in nest.stores))


def _moments(total: Reduction, squares: Reduction) -> dict[Expr, Expr]:
    """The mean, the sum and the squares around the mean out of one walk."""
    (x,) = total.lift
    start = _first(x, total)
    away = Apply("sub", (x, start), f32)
    pair = Reduction("welford", total.axes, (number(1, f32), away, number(0, f32)))
    n = product([a.extent for a in total.axes])
    assert isinstance(n, int)
    mean = Apply("add", (Reduced(pair, 1, f32), start), f32)
    sum_ = Reduced(total, 0, f32)
    return {
        apply("div", sum_, number(n, f32)): mean,
        sum_: Apply("mul", (mean, number(n, f32)), f32),
        Reduced(squares, 0, f32): Reduced(pair, 2, f32),
    }


def _first(x: Expr, reduction: Reduction) -> Expr:
    """x at the first point of a walk, where that is a number to count from; else 0."""
    first = substitute_axes(x, dict.fromkeys(reduction.axes, 0))
    finite = compare("lt", apply("abs", first), number(math.inf, x.dtype))
    return Apply("where", (finite, first, number(0, x.dtype)), x.dtype)
