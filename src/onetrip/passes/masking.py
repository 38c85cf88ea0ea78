"""Addends and filled places of scores as what the library's attention takes: a mask, or a flag.

    filled where not c          ->  mask c                    rows without a place: NaN, or the mean
    filled, and b added         ->  mask where(c, b, -inf)
    c = arange <= arange[:, None], computed here  ->  is_causal

In eager a row that is filled whole with -inf is NaN, and one that is filled with a large negative
number gives every key the same weight; the library gives 0, or a row of its own. What the rows need
afterwards is said here, unless the mask is known to leave a place in each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ..base.dtype import DType, bool_, f16
from ..base.sym import Dim
from ..ir.graph import Graph, Value
from ..ir.types import contiguous_strides
from .closed import Closed, number_of
from .heads import Heads
from .scores import LEAST, Term, held
from .terms import aligned, form_of, total
from .writer import Writer

SWAMPS = -1e9
"""A fill from here down leaves no weight in a row that has another place: no model has scores like
it. f16 has no such number: there half of its least one does."""
LOWEST = -1e30
"""The least finite number of a mask that is handed on: the library multiplies it by log2(e)."""
FAINT = -1e3
"""A fill above this may leave a weight."""

CHOICES = {"where": (0, 1, 2), "masked_fill": (1, 2, 0)}
"""Operators that take one of two operands: places of the condition, and of what it chooses."""


class Rows(Enum):
    """What eager makes of a row without a place."""

    NAN = "nan"
    """Where all of the row's mask is -inf."""
    MEAN = "mean"
    EITHER = "either"
    """NaN where the row's mask is -inf, the mean where it is finite; of a row that mixes both, the
    mean is over too many keys."""


@dataclass(frozen=True)
class Mask:
    """What the library is given, and what is left to do.

    Attributes:
        value: a bool or float mask that broadcasts to [batch, heads, queries, keys], or None.
        causal: whether the flag says it all.
        rows: what rows without a place become; None where there are none.
        exact: no fill and no rounding shows in finite results.
    """

    value: Value | None = None
    causal: bool = False
    rows: Rows | None = None
    exact: bool = True


class Masks:
    """Reads masks of one graph; what is computed of them is kept."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._closed = Closed(graph.producers)
        self._verdicts: dict[tuple[object, ...], str] = {}
        self._places: dict[str, np.ndarray | None] = {}
        self._sources: dict[str, str] = {}

    def combine(
        self, write: Writer, terms: Sequence[Term], heads: Heads, dtype: DType, mixed: bool
    ) -> Mask | str:
        """The mask of some terms, or why there is none.

        Args:
            dtype: of the attention; `mixed`: whether the library takes a wider mask with it.
        """
        spelled = terms
        terms = tuple(self._by_places(write, self._as_fill(t)) for t in terms)
        fills = [t for t in terms if t.fill is not None]
        addends = [t for t in terms if t.fill is None]
        if not all(t.value.type.dtype.is_float for t in addends):
            return "what is added to the scores is no float"
        if len({t.fill == -math.inf for t in fills}) > 1:
            return "scores are filled with -inf and with a finite number"
        if any(t.fill is not None and t.fill > FAINT for t in fills):
            return "scores are filled with a number that may leave a weight"
        lying = [aligned(write, t, heads) for t in (*fills, *addends)]
        if any(x is None for x in lying):
            return "a mask splits the batch in another way than the scores"
        parts = [x for x in lying if x is not None]
        keep = self._keep(write, fills, parts[: len(fills)])
        bias = total(write, addends, parts[len(fills) :])
        swamps = SWAMPS if dtype is not f16 else LEAST[f16] / 2
        exact = all(t.fill is not None and t.fill <= swamps for t in fills)
        if bias is not None:
            mask = self._of_addends(write, keep, bias, fills, dtype, mixed, exact)
        elif keep is not None:
            mask = self._of_fills(keep, fills, heads, exact)
        else:
            mask = Mask()
        numbers = mask.rows is not None and any(t.fill != -math.inf for t in fills)
        return replace(mask, exact=mask.exact and (not numbers or _is_even(spelled, terms)))

    def _as_fill(self, term: Term) -> Term:
        """An addend that is 0 in some places and swamps the others, as what it means."""
        node = self._graph.producers.get(term.value.name)
        if term.fill is not None or node is None or node.op not in CHOICES:
            return term
        condition, *sides = (node.inputs[k] for k in CHOICES[node.op])
        numbers = [number_of(self._graph, x) for x in sides]
        if 0.0 not in numbers or not isinstance(condition, Value):
            return term
        when = numbers[0] != 0.0
        low = numbers[0] if when else numbers[1]
        least = LEAST.get(term.value.type.dtype, SWAMPS)
        if low is None or low * term.factor > max(SWAMPS, least / 2):
            return term
        fill = held(low * term.factor, term.value.type.dtype)
        return replace(term, value=condition, factor=1.0, fill=fill, when=when)

    def _by_places(self, write: Writer, term: Term) -> Term:
        """An addend that is known and is 0 or -inf everywhere, as what it means."""
        if term.fill is not None or term.factor <= 0:
            return term
        name = term.value.name
        if name not in self._places:
            known = self._closed.value(term.value)
            self._places[name] = None if known is None else _zeros(known)
        places = self._places[name]
        if places is None:
            return term
        kept = write("eq", term.value, 0)
        self._closed.put(kept, places)
        self._sources[kept.name] = name
        return replace(term, value=kept, factor=1.0, fill=-math.inf, when=False)

    def _keep(self, write: Writer, fills: Sequence[Term], parts: Sequence[Value]) -> Value | None:
        """Where nothing is filled."""
        kept: Value | None = None
        for term, part in zip(fills, parts, strict=True):
            if term.when:
                part = write("logical_not", part)
            kept = part if kept is None else write("logical_and", kept, part)
        return kept

    def _of_fills(self, keep: Value, fills: Sequence[Term], heads: Heads, exact: bool) -> Mask:
        rows = Rows.NAN if fills[0].fill == -math.inf else Rows.MEAN
        verdict = self._verdict(fills, heads)
        known = {"all": Mask(exact=exact), "causal": Mask(None, True, None, exact)}
        if verdict in known:
            return known[verdict]
        return Mask(keep, False, None if verdict == "seen" else rows, exact)

    def _of_addends(
        self,
        write: Writer,
        keep: Value | None,
        bias: Value,
        fills: Sequence[Term],
        dtype: DType,
        mixed: bool,
        exact: bool,
    ) -> Mask:
        own = bias.type.dtype
        if own is not dtype and not (mixed and own.bits > dtype.bits):
            bias = write("to", bias, dtype=dtype)
            exact = exact and own.bits <= dtype.bits
        if keep is not None:
            infinite = fills[0].fill == -math.inf
            low = -math.inf if infinite else LEAST[bias.type.dtype]
            bias = write("where", keep, bias, low)
        if keep is None and self._is_finite(bias):
            return Mask(bias, False, None, exact)
        if bias.type.dtype is f16:
            return Mask(bias, False, Rows.EITHER, exact=False)
        return Mask(_within(write, bias), False, Rows.NAN, exact)

    def _is_finite(self, bias: Value) -> bool:
        known = self._closed.value(bias) if bias.name in self._graph.producers else None
        return known is not None and bool((known > SWAMPS).all())

    def _verdict(self, fills: Sequence[Term], heads: Heads) -> str:
        """`all`, `causal`, `seen` (each row has a place), or `blind`."""
        names = [self._sources.get(t.value.name, t.value.name) for t in fills]
        key = (heads, *names, *((t.when, t.frame) for t in fills))
        if key not in self._verdicts:
            self._verdicts[key] = self._judged(fills, heads)
        return self._verdicts[key]

    def _judged(self, fills: Sequence[Term], heads: Heads) -> str:
        known: np.ndarray | None = None
        for term in fills:
            value = self._closed.value(term.value)
            form = form_of(term, heads)
            if value is None or form is None:
                return "blind"
            filled, order, shape = value, *form
            own = np.reshape(filled, (1,) * (len(order) - filled.ndim) + filled.shape)
            own = own.transpose(order).reshape(shape)
            own = own != term.when
            known = own if known is None else known & own
        if known is None or known.all():
            return "all"
        queries, keys = heads.queries[0], heads.keys[0]
        square = queries == keys and known.shape[-2:] == (queries, keys)
        if square and (known == (np.tri(known.shape[-1]) > 0)).all():
            return "causal"
        return "seen" if known.any(-1).all() else "blind"


def _is_even(spelled: Sequence[Term], read: Sequence[Term]) -> bool:
    """Whether a row that is masked whole holds one number in eager.

    It does where the last thing done is to fill it, or to add one mask to scores that hold none.
    """
    fills = {t.fill for t in read if t.fill is not None}
    first = next((k for k, t in enumerate(read) if t.fill is not None), len(read))
    return len(fills) <= 1 and all(t.fill is not None for t in spelled[first + 1 :])


def _within(write: Writer, bias: Value) -> Value:
    """A mask whose finite numbers the library can scale: no score shows beside any of them, and a
    row of nothing else has equal weights, as in eager."""
    below = write("logical_and", write("lt", bias, LOWEST), write("gt", bias, -math.inf))
    return write("where", write("logical_not", below), bias, LOWEST)


def _zeros(known: np.ndarray) -> np.ndarray | None:
    """Where an array is 0, if it is -inf everywhere else."""
    zero: np.ndarray = known == 0
    return zero if bool((zero | np.isneginf(known)).all()) else None


# ------------------------------------------------------------------ what the library gets and gives


def with_rows(write: Writer, mask: Mask, keys: Dim) -> Mask:
    """The mask with contiguous rows as long as there are keys: what a GPU's fast kernels take."""
    x = mask.value
    if x is None or (x.type.strides[3] == 1 and x.type.shape[3] != 1):
        return mask
    if x.type.shape[3] == 1:
        x = write("expand", x, size=(*x.type.shape[:3], keys))
    copied = write("clone", x)
    return replace(mask, value=write.laid_out(copied, contiguous_strides(x.type.shape)))


def settle(write: Writer, o: Value, v: Value, mask: Mask) -> Value:
    """The result of the library with rows without a place as eager has them.

    Args:
        o, v: [batch, heads, queries, width] and [batch, heads, keys, width].
    """
    if mask.rows is None or mask.value is None:
        return o
    kind = mask.value.type.dtype
    if kind is bool_:
        seen = write("any", mask.value, dim=(3,), keepdim=True)
    else:
        peak = write("amax", mask.value, dim=(3,), keepdim=True)
        seen = write("gt", peak, LEAST[kind] / 2)
    other: Value | float = math.nan
    if mask.rows is not Rows.NAN:
        other = write("mean", v, dim=(2,), keepdim=True, dtype=None)
    if mask.rows is Rows.EITHER and isinstance(other, Value):
        nothing = write("sub", peak, peak, alpha=1)  # 0, or NaN of -inf and NaN
        if kind is not o.type.dtype:
            nothing = write("to", nothing, dtype=o.type.dtype)
        other = write("add", other, nothing, alpha=1)
    settled = write("where", seen, o, other)
    return write.laid_out(settled, o.type.strides)
