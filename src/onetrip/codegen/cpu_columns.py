"""Columns reduced row by row: accumulators of all columns in memory, each row walked once.

    for r: for c: a[c] += x[r, c]                   instead of      for c: for r: a += x[r, c]

A row is read in one go, as memory gives it out fastest, and what is stored for each of its elements
is stored on the way. The order of summation is the same. Must not know: parts, text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from ..base.sym import Dim, Var, add, ceildiv, mul
from ..ir.expr import Expr, Load, Reduced, Scanned, walk
from ..ir.kernel import Loop, Mapping, Scratch, Stmt
from ..ir.monoid import MONOIDS
from ..ir.nest import Store
from ..ir.types import TensorType
from .cpp_index import MOST_LANES
from .cpu_axes import array_calls, count
from .cpu_space import Space
from .cpu_stages import Level, Stage, cut_of, nested

LEAST_COLUMNS = 4 * MOST_LANES
"""Columns from which a row is worth walking: registers hold the accumulators of fewer."""

MOST_COLUMNS = 2048
"""Columns walked at a time: their accumulators fit the level-1 cache beside a row."""

MOST_STATES = 4
"""Accumulators of a column, each of which a row loads and stores again."""

MOST_BYTES = 4
"""Bytes of an accumulator: one of 8 takes two registers, and moves more than its terms do."""


@dataclass(frozen=True)
class _Rows:
    """Accumulators in memory: their names, by reduction, and where a lane's stand."""

    names: tuple[tuple[str, ...], ...]
    place: Dim


def suits(space: Space, stage: Stage, lane: Var) -> bool:
    """Whether the columns are many, and a row's values known without loops of their own."""
    lifts = [e for r in stage for e in r.lift]
    bound = space.bound | {*stage[0].axes}
    with space.stages.inside():
        simple = not space.stages.compute(lifts, bound, lane)
    light = len(lifts) <= MOST_STATES and all(e.dtype.itemsize <= MOST_BYTES for e in lifts)
    return simple and light and count(lane.extent) >= LEAST_COLUMNS


def stored_with(space: Space, stage: Stage, lane: Var) -> list[Store]:
    """The stores for each element of the rows that need nothing of this stage or later ones."""

    def known(e: Expr) -> bool:
        return not isinstance(e, Reduced | Scanned) or space.stages.known(e) is not None

    return [
        s
        for s in space.nest.stores
        if {*s.axes} == {*stage[0].axes}
        and not array_calls(s.roots, lane)
        and all(map(known, walk(s.roots)))
    ]


@dataclass
class Columns:
    """The loops that fill `names`, at `place`, with the reductions of a stage.

    Args:
        before: values that are known for each lane, read where they are needed.
        stores: made for each element of the rows.
    """

    space: Space
    stage: Stage
    lane: Var
    before: Callable[[], tuple[Stmt, ...]]
    stores: Sequence[Store]

    def loops(
        self, levels: Sequence[Level], names: Sequence[tuple[str, ...]], place: Dim
    ) -> tuple[Stmt, ...]:
        """All columns, a block of them at a time where they are many."""
        whole = isinstance(self.lane.extent, int) and self.lane.extent <= MOST_COLUMNS
        block = Var(self.space.stages.fresh("q"), ceildiv(self.lane.extent, MOST_COLUMNS))
        self._start: Dim = 0 if whole else mul(block, MOST_COLUMNS)
        self._scratch: list[Scratch] = []
        with self.space.stages.inside():
            made = self._accumulated(levels, _Rows(tuple(names), place), self._element)
        body = (*self._scratch, *made)
        return body if whole else (Loop(block, 1, self.space.threads, body),)

    def _accumulated(
        self, levels: Sequence[Level], rows: _Rows, step: Callable[[_Rows], tuple[Stmt, ...]]
    ) -> tuple[Stmt, ...]:
        """`rows` from their neutral values on; sums of a few terms joined level by level."""
        cut = cut_of(self.stage, levels)
        if cut is None:
            return (self._neutral(rows), nested(levels, step(rows)))
        inner = self._rows()

        def joined(outer: _Rows) -> tuple[Stmt, ...]:
            return (*self._accumulated(levels[cut:], inner, step), self._joined(outer, inner))

        return self._accumulated(levels[:cut], rows, joined)

    def _rows(self) -> _Rows:
        """Accumulators of a block of columns."""
        names = []
        size = self.lane.extent if self._start == 0 else MOST_COLUMNS
        for r in self.stage:
            names.append(tuple(self.space.stages.fresh("sums") for _ in r.lift))
            self._scratch += [Scratch(n, TensorType.dense(e.dtype, (size,)))
                              for n, e in zip(names[-1], r.lift, strict=True)]  # fmt: skip
        return _Rows(tuple(names), add(self.lane, mul(self._start, -1)))

    def _over(self, *body: Stmt) -> Loop:
        stop = None if self._start == 0 else add(self._start, MOST_COLUMNS)
        return Loop(self.lane, MOST_LANES, Mapping.SERIAL, body, self._start, stop)

    def _neutral(self, rows: _Rows) -> Loop:
        values = [MONOIDS[r.monoid].identity(tuple(e.dtype for e in r.lift)) for r in self.stage]
        return self._over(*self._kept(rows, values))

    def _joined(self, rows: _Rows, inner: _Rows) -> Loop:
        return self._over(*self.space.named(self._combined(rows, self._loads(inner)), self.lane))

    def _element(self, rows: _Rows) -> tuple[Stmt, ...]:
        """What one row brings to every column, and what is stored for its elements."""
        with self.space.stages.inside():
            first = self.before()
            lifts = [tuple(map(self.space.stages.resolve, r.lift)) for r in self.stage]
            stores = [self.space.resolved(s) for s in self.stores]
        body = self.space.named([*self._combined(rows, lifts), *stores], self.lane)
        return (self._over(*first, *body),)

    def _combined(self, rows: _Rows, values: Sequence[tuple[Expr, ...]]) -> list[Store]:
        old = self._loads(rows)
        new = [MONOIDS[r.monoid].combine(a, b)
               for r, a, b in zip(self.stage, old, values, strict=True)]  # fmt: skip
        return self._kept(rows, new)

    def _loads(self, rows: _Rows) -> list[tuple[Expr, ...]]:
        return [
            tuple(Load(n, (rows.place,), e.dtype) for n, e in zip(names, r.lift, strict=True))
            for names, r in zip(rows.names, self.stage, strict=True)
        ]

    @staticmethod
    def _kept(rows: _Rows, values: Sequence[tuple[Expr, ...]]) -> list[Store]:
        pairs = zip(chain(*rows.names), chain(*values), strict=True)
        return [Store(name, (rows.place,), value) for name, value in pairs]
