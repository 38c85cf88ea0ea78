"""Nests to nests: pairs of reductions that one walk finds, before rows are walked.

    max f, sum exp(f - max f)       -> online_softmax(f, 1): (maximum, sum)
    sum x, sum (x - sum x / n)^2    -> welford(1, x, 0): (count, mean, squares)

Knows no chip: a nest whose rows are held has no use for it, which is the schedule's to say.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.dtype import f32
from ..base.sym import product
from ..ir.expr import Apply, Const, Expr, Reduced, Reduction, Rewriter, apply
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
    pair = Reduction("welford", total.axes, (number(1, f32), *total.lift, number(0, f32)))
    n = product([a.extent for a in total.axes])
    assert isinstance(n, int)
    mean, sum_ = Reduced(pair, 1, f32), Reduced(total, 0, f32)
    return {
        apply("div", sum_, number(n, f32)): mean,
        sum_: Apply("mul", (mean, number(n, f32)), f32),
        Reduced(squares, 0, f32): Reduced(pair, 2, f32),
    }
