"""A nest and a number of lanes for each axis to one Kernel: the loops, passes and accumulators.

Knows no chip and picks no numbers: see `gpu_tiles` for those.

An inner axis whose lanes cover its extent is *held*: the whole axis lies in registers and a
reduction over it is one Fold. Any other inner axis is *walked*: it becomes `step * lanes + lane`,
each lane keeps its own accumulator, and a Fold joins the lanes at the end; neighbours that one
thread holds (`Tiling.together`) are lanes of an axis of their own. Reductions that depend on one
another become passes; a later pass walks backwards, to meet what the cache still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..base.dtype import f8e4m3
from ..base.errors import Unsupported
from ..base.sym import Dim, Sym, Var, add, ceildiv, mul
from ..ir.expr import (
    Apply,
    Cast,
    Const,
    Expr,
    Fold,
    Local,
    Position,
    Prefix,
    Reduced,
    Reduction,
    Rewriter,
    Scanned,
    both,
    compare,
    substitute_axes,
    walk,
)  # fmt: skip
from ..ir.kernel import Assign, Carry, Facts, Kernel, Let, Loop, Mapping, Stmt
from ..ir.monoid import MONOIDS
from ..ir.nest import Access, Nest, Store
from .gpu_divide import (
    divided,
    is_division,
    narrow,
    narrowly_divided,
    rough,
    roughly,
    roughly_divided,
)
from .gpu_fold import fold, is_number, joined, softmax_near
from .gpu_ranges import range_of
from .gpu_split import guarded, inner_axes, sizes_of


@dataclass(frozen=True)
class Tiling:
    """Lanes of every axis (1: a plain loop), warps and the name of the schedule family.

    `together` are neighbours along a walked axis that one thread holds: a reduction that is dear
    to join folds them first. `stages` are tiles in flight; the rest is a kernel's.
    """

    lanes: dict[Var, int]
    warps: int
    family: str
    together: dict[Var, int] = field(default_factory=dict)
    stages: int = 1
    reload: bool = False
    resident: int = 1


@dataclass
class _Pass:
    """What is done in one walk over the inner axes."""

    axes: tuple[Var, ...]
    reductions: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


def build(nest: Nest, tiling: Tiling, name: str, facts: Facts) -> Kernel:
    """The kernel of a nest.

    Raises:
        Unsupported: a walked reduction inside another reduction, or a scan that two walks read.
    """
    body, sizes, t = _Builder(nest, tiling).body(), sizes_of(nest), tiling
    how = (t.family, t.warps, t.stages, facts)
    return Kernel(name, nest.buffers, body, sizes, *how, reload=t.reload, resident=t.resident)


class _Builder:
    def __init__(self, nest: Nest, tiling: Tiling) -> None:
        self.nest = nest
        self.tiling = tiling
        self.inner = inner_axes(nest)
        self.held = [a for a in self.inner if self._is_held(a)]
        self.walked = [a for a in self.inner if not self._is_held(a)]
        self.lane: dict[Var, Var] = {}
        self.step: dict[Var, Var] = {}
        self.near: dict[Var, Var] = {}
        for a in self.walked:
            lanes, near = tiling.lanes[a], tiling.together.get(a, 1)
            if lanes > 1:
                self.lane[a] = Var(f"{a.name}_lane", lanes // near)
                if near > 1:
                    self.near[a] = Var(f"{a.name}_near", near)
                self.step[a] = Var(f"{a.name}_block", ceildiv(a.extent, lanes))
        self.done: dict[Reduction, tuple[Local, ...]] = {}
        self.scanned: dict[Expr, Local] = {}
        self.count = 0
        self.updated = {b.name for b in nest.buffers if b.access is Access.UPDATE} | {
            s.buffer for s in nest.stores if s.buffer in {e.buffer for e in nest.loads}
        }

    def _is_held(self, axis: Var) -> bool:
        """Whether one tile covers the axis; of no points, no tile does: its walk ends at once."""
        extent, lanes = axis.extent, self.tiling.lanes[axis]
        return isinstance(extent, int) and 0 < extent <= lanes

    # The tree

    def body(self) -> tuple[Stmt, ...]:
        stmts: tuple[Stmt, ...] = tuple(self._passes())
        for axis in reversed([*self.lane.values(), *self.near.values()]):
            stmts = (Loop(axis, axis.extent, Mapping.SERIAL, stmts),)  # type: ignore[arg-type]
        for axis in reversed(self.held):
            stmts = (Loop(axis, self.tiling.lanes[axis], Mapping.SERIAL, stmts),)
        for a in reversed(self.nest.space):
            stmts = (Loop(a.var, self.tiling.lanes[a.var], Mapping.GRID, stmts),)
        return stmts

    def _passes(self) -> list[Stmt]:
        out: list[Stmt] = []
        for number_, one in enumerate(self._plan()):
            backwards = number_ % 2 == 1
            out += self._held_pass(one) if not one.axes else self._walk(one, backwards)
        return out

    def _plan(self) -> list[_Pass]:
        """Passes in order: by dependence, reductions before the stores that need them."""
        level = self._levels()
        passes: list[_Pass] = []
        for depth in range(max(level.values(), default=0) + 2):
            groups: dict[tuple[Var, ...], _Pass] = {}
            for reduction, at in level.items():
                if at == depth:
                    axes = self._own_walk(reduction)
                    groups.setdefault(axes, _Pass(axes)).reductions.append(reduction)
            passes += groups.values()
            for store in self.nest.stores:
                if self._needed(store, level) == depth:
                    self._place(store, groups, passes)
        stores = [p for p in passes if not p.axes and not p.reductions]
        return [p for p in passes if p not in stores] + stores

    def _place(
        self, store: Store, groups: dict[tuple[Var, ...], _Pass], passes: list[_Pass]
    ) -> None:
        """A store joins a walk over its axes unless later reads would see what it wrote."""
        axes = self._walked_of(store.axes)
        early = axes in groups and axes and store.buffer not in self.updated
        if early:
            groups[axes].stores.append(store)
            return
        own = next((p for p in passes if p.axes == axes and not p.reductions), None)
        if own is None:
            own = _Pass(axes)
            passes.append(own)
        own.stores.append(store)

    def _levels(self) -> dict[Reduction, int]:
        """How many walks each reduction waits for; one that a step of a walk finishes has none."""
        level: dict[Reduction, int] = {}
        for reduction in self.nest.reductions:
            if not self._is_within(reduction):
                level[reduction] = max(
                    [b + 1 for b in self._below(reduction.lift, level)], default=0
                )
        return level

    def _below(self, roots: tuple[Expr, ...], level: dict[Reduction, int]) -> list[int]:
        return [level[e.reduction] for e in walk(roots)
                if isinstance(e, Reduced) and e.reduction in level]  # fmt: skip

    def _is_within(self, reduction: Reduction) -> bool:
        """Whether a reduction over held axes has another result in each step of a walk."""
        return bool(set(self.walked) & reduction.free) and not self._walked_of(reduction.axes)

    def _needed(self, store: Store, level: dict[Reduction, int]) -> int:
        """The depth at which a store's reductions are known; stores of no axes come after."""
        inside = self._below(store.roots, level)
        last = max(level.values(), default=0)
        if not self._walked_of(store.axes):
            return last
        return min(max([d + 1 for d in inside], default=0), last + 1) if inside else 0

    def _own_walk(self, reduction: Reduction) -> tuple[Var, ...]:
        """The axes of a reduction's walk, which may stand inside no other walk.

        Raises:
            Unsupported: it would have to.
        """
        axes = self._walked_of(reduction.axes)
        if axes and set(self.walked) & reduction.free:
            raise Unsupported(
                "a long reduction inside another reduction or store",
                expected="inner reductions that fit one tile",
                found=", ".join(a.name for a in axes),
                next_step="cut the group between the two reductions",
            )
        return axes

    def _walked_of(self, axes: Iterable[Var]) -> tuple[Var, ...]:
        chosen = set(axes)
        return tuple(a for a in self.walked if a in chosen)

    # Values

    def _value(self, e: Expr) -> Expr:
        """e with reductions done so far as Locals; held ones are folded where they stand."""

        def leaf(x: Expr) -> Expr | None:
            if isinstance(x, Reduced):
                return self._component(x.reduction, x.component)
            if isinstance(x, Scanned):
                return self._scan(x)
            return self._quotient(x, value)

        value = Rewriter(leaf=leaf)
        return value(e)

    def _quotient(self, e: Expr, value: Callable[[Expr], Expr]) -> Expr | None:
        """e where it is a quotient by a value of the row; `value` rewrites shared operands once."""
        found = rough(e) or narrow(e) or (e if is_division(e) else None)
        if found is None or not self._is_of_row(found):
            return None
        a, b = found.args
        known = range_of(b)
        if isinstance(e, Cast) and e.dtype is f8e4m3:
            return Cast(narrowly_divided(value(a), value(b), known), e.dtype)
        if isinstance(e, Cast):
            # What a held row keeps of `a` for its sums is not computed again.
            a = roughly(a) if set(self.walked) & a.free else a
            return Cast(roughly_divided(value(a), value(b), known), e.dtype)
        return divided(value(a), value(b), known)

    def _is_of_row(self, quotient: Apply) -> bool:
        """Whether the divisor is a value of the row: many elements need the same reciprocal."""
        a, b = quotient.args
        return bool(set(self.inner) & (a.free - b.free))

    def _component(self, reduction: Reduction, component: int) -> Expr:
        known = self.done.get(reduction)
        if known is None:
            return self._fold_held(reduction)[component]
        return known[component]

    def _scan(self, e: Scanned) -> Expr:
        known = self.scanned.get(e)
        if known is not None:
            return known
        if e.axis not in self.held or e.reverse:
            raise Unsupported(
                "a scan that is read outside of its walk",
                expected="values along a scanned axis, from its start to its end",
                found=e.axis.name,
                next_step="cut the group after the scan",
            )
        return Prefix(e.monoid, e.axis, tuple(map(self._value, e.lift)), e.component, e.dtype)

    def _fold_held(self, reduction: Reduction) -> tuple[Expr, ...]:
        lift = tuple(map(self._value, reduction.lift))
        return fold(reduction.monoid, reduction.axes, lift)

    def _fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    # A pass in which everything is held

    def _held_pass(self, one: _Pass) -> list[Stmt]:
        out: list[Stmt] = []
        for reduction in one.reductions:
            states = self._fold_held(reduction)
            self.done[reduction] = self._known(out, reduction, states)
        return out + self._stores(one.stores, lambda e: e, None)

    def _let(self, out: list[Stmt], stem: str, value: Expr) -> Local:
        name = self._fresh(stem)
        out.append(Let(name, value))
        return Local(name, value.dtype, _over(value))

    def _stores(
        self, stores: list[Store], place: Callable[[Expr], Expr], inside: Expr | None
    ) -> list[Stmt]:
        """Every value before every store: a store may overwrite what another value reads."""
        lets: list[Stmt] = []
        writes: list[Stmt] = []
        for s in stores:
            value = place(self._value(s.value))
            if len(stores) > 1 and not isinstance(value, Const):
                value = self._let(lets, "value", value)
            guard = None if s.guard is None else place(self._value(s.guard))
            rewriter = Rewriter(leaf=lambda x: place(self._value(x)))
            index = tuple(self._index(rewriter.dim(d), place) for d in s.index)
            writes.append(Store(s.buffer, index, value, (), s.combine, both(guard, inside)))
        return lets + writes

    def _index(self, d: Dim, place: Callable[[Expr], Expr]) -> Dim:
        placed = place(Position(d))
        return placed.value if isinstance(placed, Position) else d

    # A pass that walks

    def _walk(self, one: _Pass, backwards: bool) -> list[Stmt]:
        values: dict[Sym, Dim] = {}
        inside: Expr | None = None
        scans = self._walked_scans(one)
        for a in one.axes:
            at, guard = self._position(a, backwards and not scans)
            values[a] = at
            inside = both(inside, guard)

        def place(e: Expr) -> Expr:
            varying = {*self.lane.values(), *self.near.values()}
            return guarded(substitute_axes(e, values), inside, varying)

        out: list[Stmt] = []
        body: list[Stmt] = []
        finish: list[tuple[Reduction, list[Local]]] = []
        for states in scans:
            self._scan_step(out, body, states, place)
        rows = self._rows_within(one)
        for reduction in rows:
            folded = tuple(map(place, self._fold_held(reduction)))
            self.done[reduction] = self._known(body, reduction, folded)
        kept: dict[object, list[Local]] = {}
        for reduction in one.reductions:
            same = (reduction.monoid, reduction.lift, self._over_carry(reduction))
            if same not in kept:
                kept[same] = carries = self._carries(out, reduction, inside)
                new = self._joined(reduction, carries, place, inside)
                body.append(Assign(tuple(c.name for c in carries), new))
            finish.append((reduction, kept[same]))
        body = body + self._stores(one.stores, place, inside)
        for a in reversed(one.axes):
            loop_axis = self.step.get(a, a)
            body = [Loop(loop_axis, 1, Mapping.SERIAL, tuple(body))]
        out += body
        for reduction in rows:  # another walk finds them anew
            del self.done[reduction]
        for reduction, carries in finish:
            self.done[reduction] = self._finish(out, reduction, carries)
        return out

    def _joined(
        self,
        reduction: Reduction,
        carries: list[Local],
        place: Callable[[Expr], Expr],
        inside: Expr | None,
    ) -> tuple[Expr, ...]:
        """Accumulators after one more tile; lanes beyond the end keep what they have."""
        lift = tuple(place(self._value(e)) for e in reduction.lift)
        near = self._folded_first(reduction)
        if near:
            return softmax_near(tuple(carries), lift[0], near, inside)
        new = joined(reduction.monoid, tuple(carries), lift)
        if inside is None:
            return new
        pairs = zip(new, carries, strict=True)
        return tuple(Apply("where", (inside, x, c), x.dtype) for x, c in pairs)

    def _rows_within(self, one: _Pass) -> list[Reduction]:
        """Reductions that a walk finishes in each of its steps, operands first."""
        roots = [e for r in one.reductions for e in r.lift]
        roots += [e for s in one.stores for e in s.roots]
        used = dict.fromkeys(e.reduction for e in walk(tuple(roots)) if isinstance(e, Reduced))
        return [r for r in used if self._is_within(r) and r not in self.done]

    def _walked_scans(self, one: _Pass) -> list[list[Scanned]]:
        """The scans along this walk, operands first; those that share a state stand together."""
        roots = [e for r in one.reductions for e in r.lift]
        roots += [e for s in one.stores for e in s.roots]
        groups: dict[tuple[object, ...], list[Scanned]] = {}
        for e in walk(tuple(roots)):
            if isinstance(e, Scanned) and e.axis in one.axes and e not in self.scanned:
                groups.setdefault((e.monoid, e.axis, e.lift), []).append(e)
        return list(groups.values())

    def _scan_step(
        self,
        out: list[Stmt],
        body: list[Stmt],
        scans: list[Scanned],
        place: Callable[[Expr], Expr],
    ) -> None:
        """A prefix within each tile, after the state of all tiles before it."""
        first = scans[0]
        monoid, lane = MONOIDS[first.monoid], self.lane.get(first.axis)
        over = self._over_scan(first)
        carries = []
        for neutral in monoid.identity(tuple(e.dtype for e in first.lift)):
            name = self._fresh(f"{first.monoid}_before")
            out.append(Carry(name, neutral, over))
            carries.append(Local(name, neutral.dtype, over))
        lift: tuple[Expr, ...] = tuple(
            self._let(body, "lifted", place(self._value(e))) for e in first.lift
        )
        tile = whole = lift
        if lane is not None:
            parts = list(enumerate(lift))
            tile = tuple(Prefix(first.monoid, lane, lift, n, e.dtype) for n, e in parts)
            whole = tuple(Fold(first.monoid, (lane,), lift, n, e.dtype) for n, e in parts)
        values = monoid.combine(tuple(carries), tile)
        for e in scans:
            self.scanned[e] = self._let(body, f"{e.monoid}_scan", values[e.component])
        names = tuple(c.name for c in carries)
        body.append(Assign(names, monoid.combine(tuple(carries), whole)))

    def _over_scan(self, e: Scanned) -> tuple[Var, ...]:
        """The tile axes of a scan's state: lanes it varies over, but for those of its own axis."""
        free = {a for a in e.free if isinstance(a, Var)} - {e.axis}
        axes = [a.var for a in self.nest.space if a.var in free]
        axes += [a for a in self.held if a in free]
        axes += [self.lane[a] for a in self.walked if a in free and a in self.lane]
        return tuple(a for a in axes if self.tiling.lanes.get(a, 2) > 1)

    def _position(self, a: Var, backwards: bool) -> tuple[Dim, Expr | None]:
        """Where a walked axis stands, and the guard of lanes beyond its end."""
        if a not in self.lane:
            return a, None
        step, lanes = self.step[a], self.tiling.lanes[a]
        block: Dim = add(add(step.extent, -1), mul(step, -1)) if backwards else step
        near = self.near.get(a)
        lane: Dim = self.lane[a]
        if near is not None:
            lane = add(mul(lane, self.tiling.together[a]), near)
        at = add(mul(block, lanes), lane)
        if isinstance(a.extent, int) and a.extent % lanes == 0:
            return at, None
        return at, compare("lt", Position(at), Position(a.extent))

    def _carries(self, out: list[Stmt], reduction: Reduction, inside: Expr | None) -> list[Local]:
        """Accumulators; where no lane is ever beyond the end, one count serves all of them."""
        counts = reduction.monoid == "welford" and is_number(reduction.lift[0], 1.0)
        dtypes = tuple(e.dtype for e in reduction.lift)
        whole = self._over_carry(reduction)
        carries = []
        for k, neutral in enumerate(MONOIDS[reduction.monoid].identity(dtypes)):
            name = self._fresh(f"{reduction.monoid}_acc")
            over = () if k == 0 and counts and inside is None else whole
            out.append(Carry(name, neutral, over))
            carries.append(Local(name, neutral.dtype, over))
        return carries

    def _over_carry(self, reduction: Reduction) -> tuple[Var, ...]:
        """The tile axes of an accumulator: the lanes that the lift varies over."""
        free = {a for a in reduction.free if isinstance(a, Var)}
        reduced = set(reduction.axes)
        axes = [a.var for a in self.nest.space if a.var in free]
        axes += [a for a in self.held if a in reduced or a in free]
        axes += self._walked_lanes(reduction)
        return tuple(a for a in axes if self.tiling.lanes.get(a, 2) > 1)

    def _walked_lanes(self, reduction: Reduction) -> list[Var]:
        """The axes of an accumulator that stand for walked ones."""
        walked = [a for a in self.walked if a in set(reduction.axes)]
        lanes = [self.lane[a] for a in walked if a in self.lane]
        folded = self._folded_first(reduction)
        near = [self.near[a] for a in walked if a in self.near]
        return lanes + [a for a in near if a not in folded]

    def _folded_first(self, reduction: Reduction) -> tuple[Var, ...]:
        """Neighbours that are folded before they join an accumulator."""
        if reduction.monoid != "online_softmax" or not is_number(reduction.lift[1], 1.0):
            return ()
        return tuple(self.near[a] for a in reduction.axes if a in self.near)

    def _finish(
        self, out: list[Stmt], reduction: Reduction, carries: list[Local]
    ) -> tuple[Local, ...]:
        reduced = set(reduction.axes)
        axes = tuple(a for a in self.held if a in reduced)
        axes += tuple(self._walked_lanes(reduction))
        states: tuple[Expr, ...] = tuple(carries)
        if axes:
            states = fold(reduction.monoid, axes, states)
        return self._known(out, reduction, states)

    def _known(
        self, out: list[Stmt], reduction: Reduction, states: tuple[Expr, ...]
    ) -> tuple[Local, ...]:
        """The final state under names."""
        return tuple(self._let(out, reduction.monoid, s) for s in states)


def _over(e: Expr) -> tuple[Var, ...]:
    return tuple(sorted((a for a in e.free if isinstance(a, Var)), key=lambda a: a.name))
