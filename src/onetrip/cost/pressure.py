"""Values that live together in a nest: what its registers must hold.

    moved        words of an element that one pass loads and stores
    kept         words of an element that a later pass needs of an earlier one
    state        words of an element that accumulators of walked reductions hold
    temporaries  words that live together while one element is computed

A compiler computes element after element, so temporaries count once, not once an element; loads
go ahead of the arithmetic and stores come after it, so what moves counts for every element.
Must not know targets: words are the same everywhere, registers are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..base.dtype import DType
from ..base.sym import Var
from ..ir.expr import Apply, Cast, Const, Expr, Load, Position, Reduction, children
from ..ir.nest import Nest
from .traffic import Stage, within_stage

BRANCHING = frozenset(
    {"lgamma", "pow", "floordiv", "remainder", "fmod", "nextafter", "sin", "cos", "tan", "acosh",
     "asinh", "atan2", "sinh", "tanh", "log1p", "atanh", "erfinv", "gcd", "chebyshev", "hermite_h",
     "hermite_he", "laguerre", "legendre", "zeta"}
)  # fmt: skip
"""Operators whose code on a GPU branches, as the assembly of each alone shows."""
LEAST_BITS = 8


@dataclass(frozen=True)
class Pressure:
    """32-bit words, see the head of this file; `packed` counts narrow values as they lie in memory.

    Attributes:
        branches: whether an operator of `BRANCHING` is computed.
    """

    moved: int
    packed: float
    kept: float
    state: int
    temporaries: int
    branches: bool


def pressure(
    nest: Nest, passes: Sequence[Stage], held: bool, columns: Sequence[Reduction] = ()
) -> Pressure:
    """The pressure of a nest.

    Args:
        passes: `stages(nest)`.
        held: whether whole rows stay in registers; else walked reductions need accumulators.
        columns: the reductions over rows that need accumulators though each row is held.
    """
    inner = frozenset(a for p in passes for a in p.axes) if passes else None
    roots = [p.roots for p in passes] or [nest.roots]
    orders = [tuple(within_stage(r)) for r in roots]
    moved = [
        [e.dtype for e in order if isinstance(e, Load) and _varies(e, inner)]
        + [s.value.dtype for s in nest.stores if s.value in own and (s.axes or inner is None)]
        for order, own in zip(orders, roots, strict=True)
    ]
    walked = columns if held else nest.reductions
    return Pressure(
        max(sum(map(words, kinds)) for kinds in moved),
        max(sum(map(packed, kinds)) for kinds in moved),
        max(_kept(orders[:k], orders[k:], inner) for k in range(len(orders))),
        sum(words(e.dtype) for r in walked for e in r.lift),
        max(live_words(order, own) for order, own in zip(orders, roots, strict=True)),
        any(isinstance(e, Apply) and e.op in BRANCHING for e in nest.expressions),
    )


def _kept(
    before: Sequence[Sequence[Expr]], after: Sequence[Sequence[Expr]], inner: frozenset[Var] | None
) -> float:
    """Words of an element that the passes before leave to those after; a widened value is kept
    narrow."""
    later = {e for order in after for e in order}
    shared = {e for order in before for e in order if e in later and _varies(e, inner)}
    below = {c for e in shared for c in children(e)}
    return sum(packed(_narrow(e).dtype) for e in shared - below)


def _narrow(e: Expr) -> Expr:
    while isinstance(e, Cast) and e.arg.dtype.bits <= e.dtype.bits:
        e = e.arg
    return e


def words(dtype: DType) -> int:
    """Registers of one value."""
    return max(1, dtype.bits // 32)


def packed(dtype: DType) -> float:
    """Registers of one value that shares them with its neighbours."""
    return max(LEAST_BITS, dtype.bits) / 32


def live_words(
    order: Sequence[Expr], roots: Iterable[Expr], inner: frozenset[Var] | None = None
) -> int:
    """Most 32-bit words of tile values alive at once when `order` is computed in sequence.

    Values are tiles when they vary over `inner` (None: over any axis); others count nothing.
    """
    last: dict[int, int] = {}
    for place, e in enumerate(order):
        for c in children(e):
            last[id(c)] = place
    end = len(order)
    last.update((id(r), end) for r in roots)
    dying: dict[int, int] = {}
    live = peak = 0
    for place, e in enumerate(order):
        live -= dying.pop(place, 0)
        if id(e) in last and not isinstance(e, Const | Position) and _varies(e, inner):
            live += words(e.dtype)
            peak = max(peak, live)
            dying[last[id(e)]] = dying.get(last[id(e)], 0) + words(e.dtype)
    return peak


def _varies(e: Expr, inner: frozenset[Var] | None) -> bool:
    return any(isinstance(a, Var) for a in e.free) if inner is None else bool(e.free & inner)
