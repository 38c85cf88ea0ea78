"""Nests to nests: pairs of reductions that one walk finds, before rows are walked.

    max f, sum exp(f - max f)       -> online_softmax(f, 1): (maximum, sum)

A mean and the squares around it stay two walks: on an H200 the second reads from the cache faster
than one walk keeps both. Knows no chip: a nest whose rows are held has no use for it, which is the
schedule's to say.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.dtype import f32
from ..ir.expr import Const, Expr, Reduced, Reduction, Rewriter
from ..ir.nest import Nest
from ..passes.one_walk import maximum_of
from .gpu_split import mapped


def in_one_walk(nest: Nest) -> Nest:
    """The nest with every such pair as one reduction."""
    known: dict[Reduction, Expr] = {}
    for total in nest.reductions:
        top = maximum_of(total)
        if top is not None:
            pair = Reduction("online_softmax", top.axes, (top.lift[0], Const(1.0, f32)))
            known[top], known[total] = Reduced(pair, 0, f32), Reduced(pair, 1, f32)
    if not known:
        return nest

    def leaf(e: Expr) -> Expr | None:
        return known.get(e.reduction) if isinstance(e, Reduced) else None

    return replace(nest, stores=tuple(mapped(s, Rewriter(leaf=leaf)) for s in nest.stores))
