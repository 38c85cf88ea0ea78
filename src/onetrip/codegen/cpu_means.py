"""Statistics of rows by two passes, of which the second corrects the mean of the first.

    m = sum(x) / n                              off by some units in the last place
    c = sum(x - m) / n                          the distances are small, and so is their error
    mean = m + c,   squares = sum((x - m)^2) - n c^2

The second pass is over a row that is in cache, and reads nothing more for `c` (Chan, Golub and
LeVeque 1983). So the mean of equal numbers is that number, as eager's running means have it; a
distance of 0 is then no unit of the number times 1 / sqrt(eps). Must not know: loops, threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..base.dtype import f32
from ..ir.expr import (
    Apply,
    Cast,
    Const,
    Expr,
    Position,
    Reduced,
    Reduction,
    Rewriter,
    compare,
    walk,
)
from ..ir.monoid import number
from ..ir.nest import Store
from .cpu_axes import iterations


@dataclass(frozen=True)
class _Passes:
    """A mean of the first pass, and what the second pass finds beside it."""

    mean: Expr
    squares: Reduced
    count: Expr
    distance: Expr

    @property
    def correction(self) -> Expr:
        """c, where numbers lie nearer to their mean than that lies to 0: elsewhere the errors of c
        are those of the mean. Also 0 where anything is not finite, which then is not less."""
        total = Reduced(Reduction("sum", self.squares.reduction.axes, (self.distance,)), 0, f32)
        c = Apply("div", (total, self.count), f32)
        far = Apply("mul", (Apply("mul", (self.mean, self.mean), f32), self.count), f32)
        return Apply("where", (compare("lt", self.squares, far), c, number(0, f32)), f32)

    def corrected(self) -> dict[Expr, Expr]:
        """What stands for the mean and for the sum of squares."""
        c = self.correction
        excess = Apply("mul", (Apply("mul", (c, c), f32), self.count), f32)
        less = Apply("sub", (self.squares, excess), f32)
        # Of rounding errors alone, a difference may come out below 0.
        squares = Apply("maximum", (less, number(0, f32)), f32)
        return {self.mean: Apply("add", (self.mean, c), f32), self.squares: squares}


def in_two_passes(stores: Sequence[Store]) -> tuple[Store, ...]:
    """The stores with their statistics computed so, those first that others are made of."""
    stores = _rewritten(stores, Rewriter(node=_two_sums))
    done: set[Reduced] = set()
    while True:
        found = _passes(e for s in stores for e in s.roots)
        passes = next((p for p in found if p.squares not in done), None)
        if passes is None:
            return tuple(stores)
        done.add(passes.squares)
        stores = _rewritten(stores, Rewriter(leaf=passes.corrected().get))


def _rewritten(stores: Sequence[Store], rewrite: Rewriter) -> tuple[Store, ...]:
    return tuple(
        replace(s, value=rewrite(s.value), guard=None if s.guard is None else rewrite(s.guard))
        for s in stores
    )


def _two_sums(e: Expr) -> Expr | None:
    """Welford statistics of single elements as two sums over a row that is in cache by then.

    (count, mean, m2) of x   =   n, sum(x) / n, sum((x - mean)^2)
    """
    if not isinstance(e, Reduced) or e.reduction.monoid != "welford":
        return None
    r = e.reduction
    one, value, zero = r.lift
    if not (isinstance(one, Const) and isinstance(zero, Const) and one.value == 1):
        return None
    points = iterations(r.axes)
    n: Expr = Cast(Position(points), value.dtype)
    if isinstance(points, int):
        n = number(points, value.dtype)
    total = Reduced(Reduction("sum", r.axes, (value,)), 0, value.dtype)
    mean = Apply("div", (total, n), value.dtype)
    off = Apply("sub", (value, mean), value.dtype)
    square = Apply("mul", (off, off), value.dtype)
    spread = Reduced(Reduction("sum", r.axes, (square,)), 0, value.dtype)
    return (n, mean, spread)[e.component]


def _passes(roots: Iterable[Expr]) -> Iterator[_Passes]:
    """Sums of squared distances from a mean over the same axes, operands before users."""
    for e in walk(tuple(roots)):
        if not isinstance(e, Reduced) or e.reduction.monoid != "sum" or e.dtype is not f32:
            continue
        distance = _squared(e.reduction.lift[0])
        if distance is None:
            continue
        value, mean = distance.args
        if not isinstance(mean, Apply) or mean.op != "div":
            continue
        total, count = mean.args
        wanted = Reduction("sum", e.reduction.axes, (value,))
        if isinstance(total, Reduced) and total.reduction is wanted and _counts(count, wanted):
            yield _Passes(mean, e, count, distance)


def _squared(e: Expr) -> Apply | None:
    """The difference of which e is the square."""
    if not isinstance(e, Apply) or e.op != "mul" or e.args[0] is not e.args[1]:
        return None
    d = e.args[0]
    return d if isinstance(d, Apply) and d.op == "sub" else None


def _counts(n: Expr, r: Reduction) -> bool:
    """Whether n is the number of a reduction's points."""
    points = iterations(r.axes)
    if isinstance(n, Const):
        return n.value == points
    return isinstance(n, Cast) and isinstance(n.arg, Position) and n.arg.value == points
