"""Between which numbers a value lies, where it is not NaN: what a division can leave out.

    |x| in [0, inf];  the largest |x| of a row too;  where(m < c, c, m) in [c, inf];  those / 448 in
    [c / 448, 3.4e38 / 448] or infinite

Bounds are of f32 values, outward by more than their rounding. Knows no schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..ir.expr import Apply, Cast, Const, Expr, Reduced, walk

LARGEST = 3.4028234663852886e38
SMALLEST = 2.0**-126
"""Of the normal numbers; results below it may be anything down to 0."""
_OUT = 2.0**-7
"""More than rounding to bf16, to either side."""


class Range(NamedTuple):
    """Finite values lie in [low, high]; infinite: whether the value may be infinite as well."""

    low: float
    high: float
    infinite: bool

    @property
    def is_positive(self) -> bool:
        """Whether no value has a minus sign, that of zero included."""
        return self.low >= 0.0


ANY = Range(-LARGEST, LARGEST, True)


Known = dict[Expr, Range]
"""The ranges of operands: shared ones are looked at once, however deep they lie."""


def range_of(e: Expr) -> Range:
    """The range of a value; ANY where nothing is known.

    Args:
        e: of a nest. Reductions have a point at least, as those of rows in a tile have.
    """
    known: Known = {}
    for x in walk((e,)):
        known[x] = _range(x, known)
    return known[e]


def _range(e: Expr, known: Known) -> Range:
    if isinstance(e, Const):
        return _of_number(e)
    if isinstance(e, Cast):
        return _rounded(known[e.arg]) if e.dtype.is_float else ANY
    if isinstance(e, Reduced):
        return known[e.reduction.lift[0]] if e.reduction.monoid in ("max", "min") else ANY
    if isinstance(e, Apply) and e.dtype.is_float:
        rule = _RULES.get(e.op)
        return rule(e, known) if rule is not None else ANY
    return ANY


def _of_number(e: Const) -> Range:
    if not e.dtype.is_float:
        return ANY
    value = float(e.value)
    if not abs(value) <= LARGEST or math.copysign(1.0, value) < 0:
        return ANY
    return Range(value, value, False)


def _rounded(r: Range) -> Range:
    """Outward to what a rounding may make of it."""
    low = r.low * (1 - math.copysign(_OUT, r.low))
    high = r.high * (1 + math.copysign(_OUT, r.high))
    low = 0.0 if 0.0 <= low < SMALLEST else low
    beyond = low < -LARGEST or high > LARGEST
    return Range(max(low, -LARGEST), min(high, LARGEST), r.infinite or beyond)


def _abs(e: Apply, known: Known) -> Range:
    r = known[e.args[0]]
    return r if r.is_positive else Range(0.0, max(-r.low, r.high), r.infinite)


def _mul(e: Apply, known: Known) -> Range:
    a, b = (known[x] for x in e.args)
    if not (a.is_positive and b.is_positive):
        return ANY
    return _rounded(Range(a.low * b.low, a.high * b.high, a.infinite or b.infinite))


def _div(e: Apply, known: Known) -> Range:
    a, b = (known[x] for x in e.args)
    if not (a.is_positive and b.low >= SMALLEST) or b.infinite:
        return ANY
    return _rounded(Range(a.low / b.high, a.high / b.low, a.infinite))


def _where(e: Apply, known: Known) -> Range:
    test, yes, no = e.args
    a, b = known[yes], known[no]
    low, high = min(a.low, b.low), max(a.high, b.high)
    if isinstance(test, Apply) and test.op == "lt" and test.args == (no, yes):  # the larger one
        low = max(a.low, b.low)
    return Range(low, high, a.infinite or b.infinite)


_RULES: dict[str, Callable[[Apply, Known], Range]] = {
    "abs": _abs, "mul": _mul, "div": _div, "where": _where,
}  # fmt: skip
