"""Nests to nests: pairs of reductions that one walk finds, before rows are walked.

    max f, sum exp(f - max f)       -> online_softmax(f, 1): (maximum, sum)
    sum x, sum (x - sum x / n)^2    -> welford(1, x, 0): (count, mean, squares)

    welford(1, x, 0)                -> welford(1, x - k, 0), its mean + k        (`shifted`)

The sum stays, for a mean near zero. Squares are counted from the first element k of each walk: a
running mean far from zero would be rounded to its own size at every step, and the squares with it
(Chan, Golub and LeVeque, 1983).
Knows no chip: a nest whose rows are held has no use for it, which is the schedule's to say.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..base.dtype import f32
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
    walk,
)  # fmt: skip
from ..ir.monoid import number
from ..ir.nest import Nest
from ..passes.one_walk import maximum_of, sum_of
from .gpu_split import mapped


def in_one_walk(nest: Nest, *, squares: bool) -> Nest:
    """The nest with every such pair as one reduction.

    Args:
        squares: those of a mean and the squares around it as well.
    """
    known: dict[Reduction, Expr] = {}
    for second in nest.reductions:
        top, around = maximum_of(second), sum_of(second) if squares else None
        if top is not None:
            pair = Reduction("online_softmax", top.axes, (top.lift[0], Const(1.0, f32)))
            known[top], known[second] = Reduced(pair, 0, f32), Reduced(pair, 1, f32)
        if around is not None:
            lift = (Const(1.0, f32), around.lift[0], Const(0.0, f32))
            known[second] = Reduced(Reduction("welford", around.axes, lift), 2, f32)
    if not known:
        return nest

    def leaf(e: Expr) -> Expr | None:
        return known.get(e.reduction) if isinstance(e, Reduced) else None

    rewrite = Rewriter(leaf=leaf)
    return replace(nest, stores=tuple(mapped(s, rewrite) for s in nest.stores))


def shifted(nest: Nest) -> Nest:
    """The nest with every mean and its squares counted from the first element of their walk."""
    known: dict[Expr, Expr] = {}
    for old in nest.reductions:
        if old.monoid != "welford" or any(isinstance(e, Reduced) for e in walk(old.lift)):
            continue
        count, x, squares = old.lift
        if not isinstance(_inside(squares), Const):  # states of parts, not elements
            continue
        start = _first(_inside(x), old)
        new = Reduction("welford", old.axes, (count, _from(x, start), squares))
        for k, e in enumerate(old.lift):
            known[Reduced(old, k, e.dtype)] = Reduced(new, k, e.dtype)
        mean = Apply("add", (Reduced(new, 1, x.dtype), start), x.dtype)
        known[Reduced(old, 1, x.dtype)] = mean
    if not known:
        return nest
    rewrite = Rewriter(leaf=known.get)
    return replace(nest, stores=tuple(mapped(s, rewrite) for s in nest.stores))


def _inside(x: Expr) -> Expr:
    """What is reduced, of `where(inside, x, 0)` as well."""
    match x:
        case Apply(op="where", args=(_, inner, Const(value=0.0))):
            return inner
    return x


def _from(x: Expr, start: Expr) -> Expr:
    match x:
        case Apply(op="where", args=(inside, inner, Const(value=0.0) as zero)):
            return Apply("where", (inside, Apply("sub", (inner, start), x.dtype), zero), x.dtype)
    return Apply("sub", (x, start), x.dtype)


def _first(x: Expr, reduction: Reduction) -> Expr:
    """x at the first point of a walk, where that is a number to count from; else 0."""
    first = substitute_axes(x, dict.fromkeys(reduction.axes, 0))
    finite = compare("lt", apply("abs", first), number(math.inf, x.dtype))
    return Apply("where", (finite, first, number(0, x.dtype)), x.dtype)
