"""Operators that one call computes for many elements: their operands and results in tiles.

    stores                  tile0 = x * a;  tile1 = erf_n(tile0);  out = f(tile1)
    reductions of a row     row = erf_n(x * a) in a loop of its own, read by the passes after it

A call serves as many vectors as pay for it. Must not know text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.sym import Var
from ..ir.expr import Apply, Expr, Load, Local, Reduction, Rewriter
from ..ir.kernel import Let, Loop, Mapping, Scratch, Stmt
from ..ir.nest import Store
from ..ir.types import TensorType
from .cpp_index import MOST_LANES
from .cpp_ops import has_array
from .cpu_axes import array_calls, axes_in, by_stride, flat, iterations, pick_lane

if TYPE_CHECKING:
    from .cpu_stages import Stages

ARRAY_VECTORS = 32
"""Vectors that one call of an array function serves: it costs as much as computing about four."""

ROW_BYTES = 1 << 20
"""Most bytes of a row of values that is kept: about a core's own cache."""


def vectors_at(roots: Sequence[Expr], lane: Var) -> int:
    """Vectors at a time: many where array functions are called."""
    return ARRAY_VECTORS if array_calls(roots, lane) else 1


def with_arrays(stages: Stages, stores: Sequence[Store], lane: Var | None) -> tuple[Stmt, ...]:
    """Operands of array functions, their calls, and the stores that use the results."""
    if lane is None or not array_calls([s.value for s in stores], lane):
        return tuple(stores)
    lets: list[Stmt] = []

    def let(e: Expr) -> Expr:
        name = stages.fresh("tile")
        lets.append(Let(name, e))
        return Local(name, e.dtype, tuple(v for v in (lane,) if v in e.free))

    def node(e: Expr) -> Expr | None:
        if not isinstance(e, Apply) or not has_array(e) or lane not in e.free:
            return None
        return let(Apply(e.op, (let(e.args[0]),), e.dtype))

    rewrite = Rewriter(node=node)
    after = [replace(s, value=rewrite(s.value)) for s in stores]
    return (*lets, *after)


def tabulated(
    stages: Stages, stage: Sequence[Reduction], roots: Sequence[Expr], bound: frozenset[Var]
) -> tuple[Stmt, ...]:
    """Array functions of a row below `roots`, in rows of working memory from now on."""
    axes = stage[0].axes
    lane = pick_lane(axes, stages.found)
    if lane is None:
        return ()
    out: list[Stmt] = []
    for e in array_calls(roots, lane):
        own = [v for v in axes if v in e.free]
        if stages.known(e) is None and axes_in(e.free) <= bound | {*own} and fits(e, bound):
            out += _row(stages, e, own, lane)
    return tuple(out)


def fits(e: Expr, bound: frozenset[Var]) -> bool:
    """Whether the values of e over its own axes are few enough to be kept."""
    size = iterations(axes_in(e.free) - bound)
    return isinstance(size, int) and size * e.dtype.itemsize <= ROW_BYTES


def _row(stages: Stages, e: Apply, axes: Sequence[Var], lane: Var) -> tuple[Stmt, ...]:
    buffer = stages.fresh("row")
    place = flat(axes)
    store = Store(buffer, (place,), stages.resolve(e))
    body = with_arrays(stages, [store], lane)
    for v in (lane, *reversed([v for v in by_stride(axes, stages.found) if v is not lane])):
        tile = MOST_LANES * ARRAY_VECTORS if v is lane else 1
        body = (Loop(v, tile, Mapping.SERIAL, body),)
    stages.replace(e, Load(buffer, (place,), e.dtype))
    return (Scratch(buffer, TensorType.dense(e.dtype, (iterations(axes),))), *body)
