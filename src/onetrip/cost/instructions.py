"""Instructions that a nest issues: what the spelling of each operator costs on each kind of chip.

    instructions = sum over distinct expressions of price(operator) x points
    points       = product of the extents of the axes that it depends on

A special function is spelled by the project itself or by the vendor's library as a polynomial with
at most a few instructions of the special-function unit; both are counted. Must not know targets:
what an instruction takes is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..base.sym import Dim, Var
from ..ir.expr import Apply, Cast, Const, Expr, Load, Position, Rng, children
from ..ir.nest import Nest
from ..passes.narrow import merged
from .sizes import NO_HINTS, Hints, number
from .traffic import combinations, points

Computed = tuple[Expr, Dim, float]
"""An expression, the points it is computed at, and the share of them at which it is needed."""


@dataclass(frozen=True)
class Issued:
    """Of all lanes together: ordinary instructions, those of the special-function unit, and
    ordinary ones on 64-bit floats."""

    plain: float
    special: float
    double: float


# Operator: (instructions, special-function instructions) of one f32 element. Everything else is
# one instruction. Read off the machine code of sm_90, paths of rare arguments left out.
GPU: dict[str, tuple[float, float]] = {
    "div": (11, 1), "sqrt": (9, 1), "rsqrt": (4, 1), "sigmoid": (20, 2), "tanh": (19, 2),
    "exp": (8, 1), "exp2": (4, 1), "near_exp": (1, 1), "near_reciprocal": (0, 1),
    "expm1": (28, 1), "erf": (22, 1), "erfc": (46, 3),
    "erfinv": (43, 2), "lgamma": (150, 2), "log": (25, 0), "log2": (27, 0), "log10": (27, 0),
    "log1p": (27, 0), "sin": (26, 0), "cos": (26, 0), "tan": (34, 1), "asin": (20, 1),
    "acos": (22, 1), "atan": (30, 1), "sinh": (34, 2), "cosh": (20, 2), "asinh": (40, 1),
    "acosh": (45, 1), "atanh": (40, 1), "pow": (84, 2), "atan2": (40, 1), "hypot": (20, 1),
    "floor": (2, 0), "ceil": (2, 0), "trunc": (2, 0), "round": (2, 0), "floordiv": (60, 0),
    "truncdiv": (14, 1), "remainder": (55, 0), "fmod": (40, 0), "gcd": (500, 0),
    "nextafter": (6, 0), "shl": (3, 0), "shr": (3, 0), "chebyshev": (100, 0),
    "hermite_h": (120, 0), "hermite_he": (100, 0), "laguerre": (200, 10), "legendre": (200, 10),
    "zeta": (12000, 0),
}  # fmt: skip
# The same in vector multiplications of the C++ prelude; there is no special-function unit.
# Measured on one core with 512-bit vectors, chains of one and of three.
CPU: dict[str, tuple[float, float]] = {
    "div": (10, 0), "sqrt": (14, 0), "rsqrt": (28, 0), "sigmoid": (29, 0), "tanh": (23, 0),
    "exp": (18, 0), "exp2": (24, 0), "near_exp": (18, 0),
    "near_reciprocal": (10, 0), "expm1": (110, 0), "erf": (42, 0), "erfc": (40, 0),
    "erfinv": (155, 0), "lgamma": (420, 0), "log": (50, 0), "log2": (50, 0), "log10": (50, 0),
    "log1p": (70, 0), "sin": (52, 0), "cos": (68, 0), "tan": (110, 0), "asin": (68, 0),
    "acos": (68, 0), "atan": (100, 0), "sinh": (140, 0), "cosh": (120, 0), "asinh": (900, 0),
    "acosh": (700, 0), "atanh": (120, 0), "pow": (230, 0), "atan2": (120, 0), "hypot": (30, 0),
    "floordiv": (66, 0), "truncdiv": (30, 0), "remainder": (66, 0), "fmod": (60, 0),
    "gcd": (500, 0), "nextafter": (8, 0), "chebyshev": (300, 0), "hermite_h": (400, 0),
    "hermite_he": (300, 0), "laguerre": (900, 0), "legendre": (900, 0), "zeta": (12000, 0),
}  # fmt: skip
# Functions of bf16 numbers that the Triton prelude spells for their own (passes/narrow.py).
MERGED: dict[str, tuple[float, float]] = {
    "sigmoid": (5, 2), "tanh": (13, 2), "silu": (6, 2), "gelu": (13, 2), "gelu_tanh": (9, 2),
    "": (0, 0),
}  # fmt: skip
PRICES: dict[str, Mapping[str, tuple[float, float]]] = {"cuda": GPU, "cpu": CPU}
ONE = (1.0, 0.0)
NARROW = {"cuda": (3.0, 0.0), "cpu": (20.0, 0.0)}
"""A cast to an 8-bit float: an instruction and its limits on sm_89 and later, else integers."""
FOLDED = 3.0
"""A combination is done once an element, and costs twice as much again where lanes are joined."""
PHILOX = {"cuda": 2.6, "cpu": 7.5}
"""Instructions of a uniform number a round, where each counter's four words are used."""
WIDE = 2
"""Instructions of a 64-bit integer operation, in 32-bit ones."""


def issued(computed: Iterable[Computed], device: str, hints: Hints = NO_HINTS) -> Issued:
    """What is issued for expressions.

    Args:
        device: `cuda` or `cpu`.
    """
    found = [0.0, 0.0, 0.0]
    listed = tuple(computed)
    names = merged([e for e, _, _ in listed]) if device == "cuda" else {}
    for e, over, share in listed:
        plain, special = MERGED[names[e]] if e in names else _price(e, device)
        if plain:
            count = number(over, hints) * share
            found[2 if _is_double(e) else 0] += plain * count
            found[1] += special * count
    return Issued(*found)


def computed_once(expressions: Iterable[Expr], shares: Mapping[Expr, float]) -> Iterator[Computed]:
    """Expressions, each computed once for each point of the axes that it depends on."""
    return ((e, points(e.free), shares.get(e, 1.0)) for e in expressions)


def combined(nest: Nest) -> Iterator[Computed]:
    """What joins the states of reductions and scans, and what brings the lanes together."""
    return ((e, over, FOLDED) for e, over in combinations(nest))


def shares_of(nest: Nest) -> dict[Expr, float]:
    """The share of its points at which an expression is needed; those of share 1.0 are left out.

    A `where` between ranges of an axis, as joining tensors makes it, needs each side at some
    points, and a schedule computes the parts apart.
    """
    if not any(_range(e) is not None for e in nest.expressions):
        return {}
    found: dict[Expr, float] = dict.fromkeys(nest.roots, 1.0)
    for e in reversed(nest.expressions):
        own = found.get(e, 1.0)
        for child, part in zip(children(e), _parts(e), strict=True):
            found[child] = max(found.get(child, 0.0), own * part)
    return {e: share for e, share in found.items() if share < 1.0}


def _parts(e: Expr) -> tuple[float, ...]:
    """The share of e's points at which each of its operands is needed."""
    below = len(children(e))
    share = _range(e.args[0]) if isinstance(e, Apply) and e.op == "where" else None
    return (1.0,) * below if share is None else (1.0, share, 1.0 - share)


def _range(e: Expr) -> float | None:
    """The share of an axis at which a comparison of the axis with a number holds."""
    match e:
        case Apply(op="lt" | "ge" as op, args=(Position(value=Var() as axis), Const(value=bound))):
            if isinstance(axis.extent, int) and 0 < bound < axis.extent:
                below = float(bound) / axis.extent
                return below if op == "lt" else 1.0 - below
    return None


def _price(e: Expr, device: str) -> tuple[float, float]:
    if isinstance(e, Apply):
        plain, special = PRICES[device].get(e.op, ONE)
        wide = any(not a.dtype.is_float and a.dtype.bits == 64 for a in e.args)
        return (plain * WIDE, special) if wide else (plain, special)
    if isinstance(e, Rng):
        return e.rounds * PHILOX[device], 0.0
    if isinstance(e, Cast):
        return NARROW[device] if e.dtype.bits == 8 and e.dtype.is_float else ONE
    return ONE if isinstance(e, Load) else (0.0, 0.0)


def _is_double(e: Expr) -> bool:
    return e.dtype.is_float and e.dtype.bits == 64
