"""Loops over the space of a nest: threads outside, lanes inside, the stores in the middle.

Must not know: which family a nest belongs to, text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..base.lazy import cached_property
from ..base.sym import Var, add, ceildiv, mul
from ..ir.expr import Const, Expr, Load, Local, Reduced, Rewriter, walk
from ..ir.kernel import Let, Loop, Mapping, Stmt
from ..ir.nest import Axis, Nest, Store
from .cpp_index import MOST_LANES
from .cpu_arrays import vectors_at, with_arrays
from .cpu_axes import Access, accesses, by_stride, is_heavy, pick_lane
from .cpu_stages import Level, Stages

PIECES = 64
"""Independent pieces of work wanted: a fair share for each of many threads."""
BLOCK = 8192
"""Most elements of the innermost axis that one piece takes."""

Body = Callable[[], tuple[Stmt, ...]]


@dataclass
class Space:
    """The space of one nest whose stores belong together."""

    nest: Nest
    stages: Stages
    threads: Mapping

    @cached_property
    def found(self) -> list[Access]:
        """Every access."""
        return accesses(self.nest)

    @property
    def axes(self) -> tuple[Var, ...]:
        """The axes, outermost first."""
        return tuple(a.var for a in self.nest.space)

    @property
    def bound(self) -> frozenset[Var]:
        """The axes, as a set."""
        return frozenset(self.axes)

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Every value that the stores need."""
        return self.nest.roots

    def loops(
        self, lane: Var | None, body: Body, before: Body = tuple, *, blocks: bool = True,
        vectors: int | None = None,
    ) -> tuple[Stmt, ...]:  # fmt: skip
        """The space around a body; the lane axis in blocks where the outer axes give few pieces.

        `before` stands outside the loop over the lanes, inside all others.
        """
        outer = [v for v in self.axes if v is not lane]
        with self.stages.inside():
            first = before()
            inner = body()
        if lane is not None:
            whole = not blocks or self.threads is Mapping.SERIAL
            tile = MOST_LANES * (vectors or self._vectors(lane))
            inner = self._lane_loops(lane, tile, first, inner, PIECES if whole else _pieces(outer))
        else:
            inner = (*first, *inner)
        for v in reversed(outer):
            inner = (Loop(v, 1, self.threads, inner),)
        return inner

    def _lane_loops(
        self, lane: Var, tile: int, first: tuple[Stmt, ...], body: tuple[Stmt, ...], pieces: int
    ) -> tuple[Stmt, ...]:
        if pieces >= PIECES:
            return (*first, Loop(lane, tile, Mapping.SERIAL, body))
        size = BLOCK
        if isinstance(lane.extent, int):
            wanted = -(-lane.extent * pieces // PIECES)
            size = min(BLOCK, max(-(-wanted // tile) * tile, tile))
        q = Var(self.stages.fresh("q"), ceildiv(lane.extent, size))
        start = mul(q, size)
        walk_ = Loop(lane, tile, Mapping.SERIAL, body, start, add(start, size))
        return (Loop(q, 1, self.threads, (*first, walk_)),)

    def _vectors(self, lane: Var) -> int:
        """Columns are taken several vectors at a time: wider reads of every row."""
        if not self.nest.reductions:
            return vectors_at(self.roots, lane)
        stages = self.stages.ready(self.roots, self.bound) or [list(self.nest.reductions)]
        lifts = [[e for r in stage for e in r.lift] for stage in stages]
        return 1 if any(is_heavy(x) or len(x) > 2 for x in lifts) else 4

    # ---------------------------------------------------------------- what stands inside

    def all(self, lane: Var | None) -> tuple[Stmt, ...]:
        """All stages, then all stores, at one point of the space (or one vector of points)."""
        first = self.stages.compute(self.roots, self.bound, lane)
        return (*first, *self.stores(self.nest.stores, self.bound, lane))

    def stores(
        self, stores: Sequence[Store], bound: frozenset[Var], lane: Var | None
    ) -> tuple[Stmt, ...]:
        """Stores with the same inner axes share their loops."""
        groups: dict[tuple[Var, ...], list[Store]] = {}
        for s in stores:
            groups.setdefault(s.axes, []).append(s)
        out: list[Stmt] = []
        for axes, group in groups.items():
            around = self._around(axes, tuple(e for s in group for e in s.roots))
            if around:
                out += self._inside(around, group, lane)
                continue
            along = lane
            if axes and lane is None:
                along = pick_lane(axes, self.found)
            with self.stages.inside():
                inside = bound | {*axes}
                roots = [e for s in group for e in s.roots]
                first = self.stages.compute(roots, inside, along)
                made = [self.resolved(s) for s in group]
                body = (*first, *self._values_first(with_arrays(self.stages, made, along), along))
            ordered = [v for v in by_stride(axes, self.found) if v is not along]
            levels = [Level(v) for v in ordered]
            if along is not None and along in axes:
                levels.append(Level(along, MOST_LANES * vectors_at(roots, along)))
            for x in reversed(levels):
                body = (Loop(x.axis, x.tile, Mapping.SERIAL, body),)
            out += body
        return tuple(out)

    def _around(self, axes: Sequence[Var], roots: tuple[Expr, ...]) -> tuple[Var, ...]:
        """Of the axes of some stores, those over which a reduction over others of them varies."""
        used = [e.reduction for e in walk(roots) if isinstance(e, Reduced)]
        inner = [r for r in used if not set(axes).isdisjoint(r.axes)]
        return tuple(a for a in axes if any(a in r.free for r in inner))

    def _inside(
        self, around: tuple[Var, ...], stores: Sequence[Store], lane: Var | None
    ) -> tuple[Stmt, ...]:
        """Stores in loops over some of their axes, the reductions at each point before the rest."""
        few = tuple(replace(s, axes=tuple(a for a in s.axes if a not in around)) for s in stores)
        axes = (*self.nest.space, *map(Axis, around))
        at = Space(Nest(axes, self.nest.buffers, few), self.stages, Mapping.SERIAL)
        with self.stages.inside():
            body = at.all(lane)
        for v in reversed(by_stride(around, self.found)):
            body = (Loop(v, 1, Mapping.SERIAL, body),)
        return body

    def _values_first(self, body: tuple[Stmt, ...], lane: Var | None) -> tuple[Stmt, ...]:
        """All values before any store: a store may change what a later one reads, also where a
        buffer lies in the memory of another."""
        stores = [s for s in body if isinstance(s, Store)]
        if not any(isinstance(e, Load) for s in stores[1:] for e in walk((s.value,))):
            return body
        return (*(s for s in body if not isinstance(s, Store)), *self.named(stores, lane))

    def named(self, stores: Sequence[Store], lane: Var | None) -> tuple[Stmt, ...]:
        """The values of all stores under names, then the stores; constants stand where they do."""
        lets: list[Stmt] = []
        after: list[Stmt] = []
        for s in stores:
            if isinstance(s.value, Const):
                after.append(s)
                continue
            name = self.stages.fresh("new")
            lets.append(Let(name, s.value))
            over = tuple(v for v in (lane,) if v is not None and v in s.value.free)
            after.append(replace(s, value=Local(name, s.value.dtype, over)))
        return (*lets, *after)

    def resolved(self, s: Store) -> Store:
        """The store with everything known put in its place; its axes are bound by then."""
        guard = None if s.guard is None else self.stages.resolve(s.guard)
        index = tuple(Rewriter(leaf=self.stages.known).dim(d) for d in s.index)
        return replace(s, index=index, value=self.stages.resolve(s.value), guard=guard, axes=())


def _pieces(axes: Sequence[Var]) -> int:
    """Iterations that are certain to exist."""
    total = 1
    for v in axes:
        total *= v.extent if isinstance(v.extent, int) else 1
    return total
