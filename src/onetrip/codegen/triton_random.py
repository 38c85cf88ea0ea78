"""Random words as Triton text: four from each counter of Philox.

    near     a thread holds whole counters: each lane computes its own, and the compiler finds that
             four neighbours compute the same; nothing moves between threads
    joined   counters lie in a tile of a quarter of the lanes, whose four words are joined
    single   a counter for each lane, of which one word is kept

The words are those of the offsets in every spelling. Must not know statements and loops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..base.affine import coefficient
from ..base.sym import Dim, Var, add, floordiv, mod, mul
from ..ir.expr import Apply, Const, Load, Rng
from .triton_ops import strip, term

if TYPE_CHECKING:
    from .triton_values import Values

WORDS = 4
"""Of a counter."""


def below(v: Values, e: Apply, level: int) -> str | None:
    """A uniform number beside a constant: its word beside another, no conversion for each.

    u = (word >> 8) * 2**-24, so u >= c exactly where word >= ceil(c * 2**24) * 2**8.
    """
    u, c = e.args
    if not isinstance(u, Rng) or not isinstance(c, Const) or v.uses.get(u, 0) > 1:
        return None
    scaled = float(c.value) * 2.0**24
    whole = math.ceil(scaled) if e.op in ("ge", "lt") else math.floor(scaled) + 1
    if e.op not in ("ge", "lt", "gt", "le") or not 0 < whole < 1 << 24:
        return None
    sign = ">=" if e.op in ("ge", "gt") else "<"
    return f"({words(v, u, level)} {sign} {whole << 8})"


def words(v: Values, e: Rng, level: int) -> str:
    """The words of an expression's offsets."""
    seed = strip(v.value(e.seed, level))
    axis = _near(v, e)
    if axis is not None:
        block, lane = f"(({v.axis[axis]} | 3) >> 2)", v.axis[axis]
        return f"ot_near_word({seed}, {_begin(v, e, axis, level)}{block}, {lane} & 3, {e.rounds})"
    axis = next(reversed(v.tiles), None)
    if axis is not None and axis in v.quarter and _in_fours(e.offset, axis):
        block = v.quarter[axis]
        block, shape = f"{_begin(v, e, axis, level)}{block}", v.shape(v.needs(e).tiles)
        return f"ot_words({seed}, {block}, {shape}, {e.rounds})"
    return f"ot_word({seed}, {strip(v.dim(e.offset, level, tensor=True))}, {e.rounds})"


def _begin(v: Values, e: Rng, axis: Var, level: int) -> str:
    """The counter of the axis' first lane, as something to be added to."""
    rest = floordiv(add(e.offset, mul(axis, -1)), WORDS)
    return f"{term(v.dim(rest, level))} + " if rest != 0 else ""


def uses_quarter(v: Values, axis: Var) -> bool:
    """Whether words of this axis are joined from a tile of a quarter of its lanes."""
    if axis is not next(reversed(v.tiles), None) or v.tiles[axis] % WORDS:
        return False
    drawn = [e for e in v.uses if isinstance(e, Rng) and _in_fours(e.offset, axis)]
    return any(_near(v, e) is None for e in drawn)


def _near(v: Values, e: Rng) -> Var | None:
    """The axis along which threads hold whole counters of an expression, if there is one."""
    found = (a for a, n in v.tiles.items() if n % WORDS == 0 and _in_fours(e.offset, a))
    return next((a for a in found if _are_near(v, a)), None)


def _are_near(v: Values, axis: Var) -> bool:
    """Whether neighbours along an axis are one thread's, as wide accesses of memory make them."""
    if math.prod(v.tiles.values()) < WORDS * v.threads:
        return False
    loads = [e for e in v.uses if isinstance(e, Load) and v.needs(e).tiles == frozenset(v.tiles)]
    return bool(loads) and all(
        e.dtype.itemsize <= 4
        and coefficient(e.index[0], axis) == 1
        and mod(add(e.index[0], mul(axis, -1)), WORDS) == 0
        for e in loads
    )


def _in_fours(offset: Dim, axis: Var) -> bool:
    """Whether the lanes of a tile axis read whole counters, one after the other."""
    return coefficient(offset, axis) == 1 and mod(add(offset, mul(axis, -1)), WORDS) == 0
