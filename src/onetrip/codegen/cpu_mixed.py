"""Reductions over unlike axes in one walk: rows in parts, then what joins the columns of the parts.

    for each part k, each of its rows i:       row[i] = sum_j x[i, j]
                                               part[k, j] += x[i, j];  y[i, j] = x[i, j] / row[i]
    for each j:                                column[j] = sum over k of part[k, j]

A row is in cache when its elements are read again. What a column reduces over elements of a row is
reduced within the row first. The parts are those that the price was made of (cost/mixed.py) and
depend on the extents alone. Must not know: text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..base.sym import Dim, Var, add, ceildiv, mul
from ..cost.mixed import Tiled, longest
from ..ir.expr import Expr, Load, Reduced, Reduction, Rewriter
from ..ir.kernel import Loop, Mapping, Scratch, Stmt
from ..ir.monoid import MONOIDS
from ..ir.nest import Access, Axis, Buffer, Nest, Store
from ..ir.types import TensorType
from ..passes.mixed import Walk
from .cpu_axes import flat, iterations, pick_lane
from .cpu_space import Space
from .cpu_stages import Level, cut_of, nested


@dataclass(frozen=True)
class _Column:
    """A reduction that is finished after the walk.

    Attributes:
        whole: as the nest has it; rows: the same over the walked axes, of what each row brings.
        own: the held axes over which it stands.
    """

    whole: Reduction
    rows: Reduction
    own: tuple[Var, ...]


@dataclass(frozen=True)
class _States:
    """Accumulators of a column in memory: a buffer for each component, and the point meant."""

    column: _Column
    buffers: tuple[Buffer, ...]
    point: Dim

    @property
    def place(self) -> Dim:
        """Where the accumulator of an element stands."""
        return add(mul(self.point, iterations(self.column.own)), flat(self.column.own))

    @property
    def loads(self) -> tuple[Expr, ...]:
        """What the accumulators of an element hold."""
        return tuple(Load(b.name, (self.place,), b.type.dtype) for b in self.buffers)

    def stores(self, values: Sequence[Expr]) -> list[Store]:
        """Stores of an element's accumulators."""
        own = self.column.own
        return [Store(b.name, (self.place,), v, own)
                for b, v in zip(self.buffers, values, strict=True)]  # fmt: skip

    def plus(self, values: Sequence[Expr]) -> list[Store]:
        """Stores of an element's accumulators and what is to be joined to them."""
        combine = MONOIDS[self.column.rows.monoid].combine
        return self.stores(combine(self.loads, tuple(values)))

    def neutral(self) -> list[Store]:
        """Stores of what changes nothing that is joined to it."""
        identity = MONOIDS[self.column.rows.monoid].identity
        return self.stores(identity(tuple(e.dtype for e in self.column.rows.lift)))


Step = Callable[[Sequence[_States]], tuple[Stmt, ...]]
"""What is done for each row, whose columns are joined to some accumulators."""


@dataclass
class OneWalk:
    """The statements of a nest that is walked as `tiled` says."""

    space: Space
    tiled: Tiled

    def statements(self) -> tuple[Stmt, ...]:
        """All rows in their parts, then the stores of finished columns."""
        walk, axes = self.tiled.walk, self.space.axes
        self._columns = [_column(r, walk) for r in walk.columns]
        self._sums: list[Scratch] = []
        axis = longest(walk.walked)
        length = 1 if axis.extent == 0 else ceildiv(axis.extent, self.tiled.parts)
        part = Var(self.space.stages.fresh("k"), ceildiv(axis.extent, length))
        start = mul(part, length)
        over = Level(axis, 1, start, add(start, length))
        points = iterations(axes)
        parts = self._states("part", mul(part.extent, points), add(mul(part, points), flat(axes)))
        rows = [c.rows for c in self._columns]
        levels = self.space.stages.levels(rows, walk.walked[0], over)
        walked = self._walked(levels, parts, self._row)
        body: tuple[Stmt, ...] = (*self._sums, *walked)
        for v in reversed((part, *axes)):
            body = (Loop(v, 1, self.space.threads, body),)
        joins = [x for late in _by_axes(walk.late) for x in self._joins(late, part, parts)]
        return (*_scratch(parts), *body, *joins)

    def _states(self, kind: str, points: Dim, point: Dim) -> list[_States]:
        """Accumulators of all columns for so many points."""
        out = []
        for c in self._columns:
            size = mul(points, iterations(c.own))
            buffers = (Buffer(self.space.stages.fresh(kind), TensorType.dense(e.dtype, (size,)),
                              Access.UPDATE) for e in c.rows.lift)  # fmt: skip
            out.append(_States(c, tuple(buffers), point))
        return out

    # ---------------------------------------------------------------- the walk

    def _walked(
        self, levels: Sequence[Level], states: Sequence[_States], step: Step
    ) -> tuple[Stmt, ...]:
        """`states` from their neutral values on; sums of a few terms joined level by level."""
        cut = cut_of([c.rows for c in self._columns], levels)
        if cut is None:
            first = self._at((), [x for s in states for x in s.neutral()], states)
            return (*first, nested(levels, step(states)))
        inner = self._states("sums", 1, 0)
        self._sums += _scratch(inner)

        def joined(outer: Sequence[_States]) -> tuple[Stmt, ...]:
            pairs = zip(outer, inner, strict=True)
            terms = [x for s, few in pairs for x in s.plus(few.loads)]
            few_rows = self._walked(levels[cut:], inner, step)
            return (*few_rows, *self._at((), terms, [*outer, *inner]))

        return self._walked(levels[:cut], states, joined)

    def _row(self, states: Sequence[_States]) -> tuple[Stmt, ...]:
        """What a row brings to each column, and what is stored for it and for its elements.

        The columns come first: a store may lie where they read.
        """
        walk = self.tiled.walk
        terms = [x for s in states for x in s.plus(s.column.rows.lift)]
        early = [s for s in self.space.nest.stores if s not in walk.late]
        rows = [replace(s, axes=tuple(a for a in walk.held if a in s.axes)) for s in early]
        return self._at(walk.walked, [*terms, *rows], states)

    def _at(
        self, rows: Sequence[Var], stores: Sequence[Store], states: Sequence[_States]
    ) -> tuple[Stmt, ...]:
        """Stores at one point of the space, and of `rows` where these are given."""
        nest = self.space.nest
        axes = (*nest.space, *map(Axis, rows))
        buffers = (*nest.buffers, *(b for s in states for b in s.buffers))
        with self.space.stages.inside():
            at = Space(Nest(axes, buffers, tuple(stores)), self.space.stages, Mapping.SERIAL)
            return at.all(None)

    # ---------------------------------------------------------------- the joins

    def _joins(
        self, late: Sequence[Store], part: Var, parts: Sequence[_States]
    ) -> tuple[Stmt, ...]:
        """The parts of each element joined, and the stores that are made of that."""
        rows = {s.column.whole: Reduction(s.column.whole.monoid, (part,), s.loads) for s in parts}

        def whole(e: Expr) -> Expr | None:
            if isinstance(e, Reduced) and e.reduction in rows:
                return Reduced(rows[e.reduction], e.component, e.dtype)
            return None

        swap = Rewriter(leaf=whole)
        stores = tuple(_rewritten(s, swap) for s in late)
        nest = self.space.nest
        axes = (*nest.space, *map(Axis, late[0].axes))
        buffers = (*nest.buffers, *(b for s in parts for b in s.buffers))
        joined = Space(Nest(axes, buffers, stores), self.space.stages, self.space.threads)
        lane = pick_lane(joined.axes, joined.found) if joined.axes else None
        return joined.loops(lane, lambda: joined.all(lane))


def _column(r: Reduction, walk: Walk) -> _Column:
    """A reduction in two: within the rows, where it is over elements of them, and over the rows."""
    inner = tuple(a for a in r.axes if a not in walk.walked)
    lift = r.lift
    if inner:
        within = Reduction(r.monoid, inner, r.lift)
        lift = tuple(Reduced(within, c, e.dtype) for c, e in enumerate(r.lift))
    own = tuple(a for a in walk.held if a in r.free)
    return _Column(r, Reduction(r.monoid, walk.walked, lift), own)


def _scratch(states: Sequence[_States]) -> list[Scratch]:
    return [Scratch(b.name, b.type) for s in states for b in s.buffers]


def _by_axes(stores: Sequence[Store]) -> list[list[Store]]:
    groups: dict[frozenset[Var], list[Store]] = {}
    for s in stores:
        groups.setdefault(frozenset(s.axes), []).append(s)
    return list(groups.values())


def _rewritten(s: Store, swap: Rewriter) -> Store:
    guard = None if s.guard is None else swap(s.guard)
    index = tuple(map(swap.dim, s.index))
    return replace(s, index=index, value=swap(s.value), guard=guard, axes=())
