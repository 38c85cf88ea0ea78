"""Reductions and scans of a nest as loops: stage after stage, inside whatever loops stand around.

    reduced along the lanes     accumulators over the lanes, folded at the end
    reduced across the lanes    accumulators of the lanes' own columns, nothing to fold
    long sums                   partial sums of a few terms, joined level by level

A reduction becomes a `Local` (or a read of working memory) which takes its place in what depends on
it. Must not know: threads, text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from ..base.sym import Dim, Sym, Var, add, ceildiv, mul
from ..ir.expr import (
    Expr,
    Fold,
    Load,
    Local,
    Reduced,
    Reduction,
    Rewriter,
    Scanned,
    children,
    substitute_axes,
    walk,
)
from ..ir.kernel import Assign, Carry, Let, Loop, Mapping, Scratch, Stmt
from ..ir.monoid import MONOIDS
from ..ir.nest import Store
from ..ir.types import TensorType
from .cpp_index import MOST_LANES, divides
from .cpu_arrays import fits, tabulated
from .cpu_axes import (
    Access,
    axes_in,
    by_stride,
    count,
    flat,
    is_heavy,
    is_special,
    iterations,
    pick_lane,
)

TERMS = 16
"""Terms that one floating-point accumulator adds up before it is joined with others, as in eager's
cascade: the error of a sum of n terms grows with the square root of this times log(n)."""

MANY = 1 << 20
"""Terms that a symbolic extent may bring."""

UNORDERED = frozenset(MONOIDS) - {"affine"}
ROUNDING = frozenset({"sum", "prod", "welford", "online_softmax", "logaddexp"})


Stage: TypeAlias = Sequence[Reduction]
"""Independent reductions over the same axes."""
Step: TypeAlias = tuple[tuple[Stmt, ...], Sequence[tuple[Expr, ...]]]
"""Statements for one element (or part), and the states it brings, one for each reduction."""
Made: TypeAlias = tuple[tuple[Stmt, ...], Sequence[tuple[Expr, ...]]]
"""Statements of a stage, and the values of its states after them."""


@dataclass(frozen=True)
class Level:
    """One loop of a reduction."""

    axis: Var
    tile: int = 1
    start: Dim = 0
    stop: Dim | None = None

    @property
    def terms(self) -> int:
        """Iterations of the loop; many where its extent is not known."""
        length = self.axis.extent if isinstance(self.axis.extent, int) else MANY
        if self.stop is not None:
            part = self.length
            length = min(length, part) if isinstance(part, int) else length
        return -(-length // self.tile)

    @property
    def length(self) -> Dim:
        """Elements from start to stop."""
        stop = self.axis.extent if self.stop is None else self.stop
        return add(stop, mul(self.start, -1))


class Stages:
    """Builds the statements of one kernel; remembers what is known already.

    Args:
        found: every access of the nest, by which axes are ordered.
    """

    def __init__(self, found: Sequence[Access]) -> None:
        self.found = found
        self._reduced: dict[Reduction, tuple[Expr, ...]] = {}
        self._other: dict[Expr, Expr] = {}
        self._count: dict[str, int] = {}

    def fresh(self, prefix: str) -> str:
        """A new name."""
        self._count[prefix] = self._count.get(prefix, -1) + 1
        return f"{prefix}{self._count[prefix]}"

    def know(self, reduction: Reduction, values: tuple[Expr, ...]) -> None:
        """Says by what the components of a reduction are replaced from now on."""
        self._reduced[reduction] = values

    def knows(self, reduction: Reduction) -> bool:
        """Whether something stands for the reduction by now."""
        return reduction in self._reduced

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What becomes known inside a loop is not known after it."""
        before = dict(self._reduced), dict(self._other)
        yield
        self._reduced, self._other = before

    def resolve(self, e: Expr) -> Expr:
        """e with everything known put in its place."""

        return Rewriter(leaf=self.known)(e)

    def known(self, e: Expr) -> Expr | None:
        """What stands for e by now, if anything."""
        if isinstance(e, Reduced) and e.reduction in self._reduced:
            return self._reduced[e.reduction][e.component]
        return self._other.get(e)

    def replace(self, old: Expr, new: Expr) -> None:
        """Says what stands for an expression from now on."""
        self._other[old] = new

    # ---------------------------------------------------------------- what can be computed here

    def ready(self, roots: Sequence[Expr], bound: frozenset[Var]) -> list[list[Reduction]]:
        """Reductions that depend on bound axes only, in stages of independent ones."""
        stages: list[list[Reduction]] = []
        for e in walk(tuple(roots)):
            if not isinstance(e, Reduced) or e.reduction in self._reduced:
                continue
            r = e.reduction
            if any(r in stage for stage in stages) or not axes_in(r.free) <= bound:
                continue
            after = _reductions(r.lift)
            last = stages[-1] if stages else None
            if last and set(last[0].axes) == set(r.axes) and not after & set(last):
                last.append(r)
            else:
                stages.append([r])
        return stages

    def scans(self, roots: Sequence[Expr], bound: frozenset[Var]) -> list[Scanned]:
        """Scans that depend on bound axes and their own only, each after those it reads."""
        return [e for e in walk(tuple(roots)) if isinstance(e, Scanned) and e not in self._other
                and axes_in(e.free) <= bound | {e.axis}]  # fmt: skip

    def compute(
        self, roots: Sequence[Expr], bound: frozenset[Var], lane: Var | None
    ) -> tuple[Stmt, ...]:
        """Everything below the roots that can be computed where the axes `bound` are bound."""
        out: list[Stmt] = []
        for scan in self.scans(roots, bound):
            out += self.compute(scan.lift, bound, lane)
            out += self._scan_to_scratch(scan, bound)
        stages = self.ready(roots, bound)
        shared = {} if lane else self._shared_values(stages, roots, bound)
        for number_, stage in enumerate(stages):
            kept = shared.get(number_, [])
            if lane is None and _unordered(stage):
                lifts = [e for r in stage for e in r.lift]
                out += tabulated(self, stage, [*lifts, *kept], bound)
                kept = [e for e in kept if self.known(e) is None]
            out += self.reduce(stage, bound, lane, kept)
        return tuple(out)

    # ---------------------------------------------------------------- one stage

    def reduce(
        self,
        stage: Stage,
        bound: frozenset[Var],
        lane: Var | None,
        kept: Sequence[Expr] = (),
        part: Level | None = None,
    ) -> tuple[Stmt, ...]:
        """Independent reductions over the same axes, in one pass.

        `kept` are values that later stages read again; `part` restricts one axis to a part.
        """
        levels = self.levels(stage, lane, part)
        across = lane is not None or levels[-1].tile == 1
        over = (lane,) if lane else (() if levels[-1].tile == 1 else (levels[-1].axis,))
        scratch: list[Stmt] = []
        with self.inside():
            body = self._step_body(stage, bound | {*stage[0].axes}, over, kept, scratch)
            make = self._across if across else self._along
            loops, values = make(stage, levels, over, body)
        for e in kept:
            self._other[e] = self._kept[e]
        done: list[Stmt] = []
        for r, row in zip(stage, values, strict=True):
            names = tuple(self.fresh("red") for _ in row)
            done += [Let(n, v) for n, v in zip(names, row, strict=True)]
            self.know(r, _locals(r, names, over if across else ()))
        return (*scratch, *loops, *done)

    def _state(self, r: Reduction) -> tuple[str, ...]:
        return tuple(self.fresh("acc") for _ in r.lift)

    def levels(self, stage: Stage, lane: Var | None, part: Level | None) -> list[Level]:
        """The loops over a stage's axes, outermost first, long ones in blocks of few terms."""
        axes = stage[0].axes
        along = None
        if lane is None and _unordered(stage):
            along = pick_lane(axes, self.found)
        ordered = [a for a in by_stride(axes, self.found) if a is not along]
        levels = [Level(a) for a in ordered]
        if along is not None:
            levels.append(Level(along, self._lanes_of(stage, along)))
        levels = [part_of(x, part) for x in levels]
        if not any(_rounds(r) for r in stage):
            return levels
        return [piece for x in levels for piece in self._blocks(x)]

    @staticmethod
    def _lanes_of(stage: Stage, along: Var) -> int:
        """Several accumulators where arithmetic is light, so that none waits for another."""
        lifts = [e for r in stage for e in r.lift]
        vectors = 1 if is_heavy(lifts) or len(lifts) > 2 else 4
        return MOST_LANES * (vectors if count(along.extent) >= MOST_LANES * vectors else 1)

    def _blocks(self, level: Level) -> list[Level]:
        """A long loop in two: blocks, and the terms of each."""
        size = TERMS * level.tile
        if level.terms <= 2 * TERMS or (level.stop is not None and not divides(size, level.length)):
            return [level]
        blocks = Var(self.fresh("b"), ceildiv(level.length, size))
        start = add(level.start, mul(blocks, size))
        inner = Level(level.axis, level.tile, start, add(start, size))
        # A symbolic count never becomes provably short: one level of blocks is enough for it.
        known = isinstance(blocks.extent, int)
        return [*(self._blocks(Level(blocks)) if known else [Level(blocks)]), inner]

    def _step_body(
        self,
        stage: Stage,
        bound: frozenset[Var],
        over: tuple[Var, ...],
        kept: Sequence[Expr],
        scratch: list[Stmt],
    ) -> Step:
        """Statements of one element, and its lifted values."""
        roots = [e for r in stage for e in r.lift]
        lane = over[0] if over else None
        first = self.compute([*roots, *kept], bound, lane) if kept or roots else ()
        out = list(first)
        self._kept: dict[Expr, Expr] = {}
        for e in kept:
            axes = tuple(sorted(axes_in(e.free) & {*stage[0].axes}, key=lambda v: v.name))
            name, buffer, place = self.fresh("kept"), self.fresh("row"), flat(axes)
            scratch.append(Scratch(buffer, TensorType.dense(e.dtype, (iterations(axes),))))
            out.append(Let(name, self.resolve(e)))
            local = Local(name, e.dtype, over)
            out.append(Store(buffer, (place,), local))
            self._other[e] = local
            self._kept[e] = Load(buffer, (place,), e.dtype)
        return tuple(out), [tuple(map(self.resolve, r.lift)) for r in stage]

    def _across(
        self, stage: Stage, levels: Sequence[Level], over: tuple[Var, ...], body: Step
    ) -> Made:
        """Accumulators that no lane of the reduction shares; partial ones between levels."""
        cut = cut_of(stage, levels)
        if cut is not None:
            partial = self._across(stage, levels[cut:], over, body)
            return self._across(stage, levels[:cut], over, partial)
        states = [self._state(r) for r in stage]
        rows = [_locals(r, names, over) for r, names in zip(stage, states, strict=True)]
        loop = nested(levels, (*body[0], *_join(stage, states, over, body[1])))
        return (*_carries(stage, states, over), loop), rows

    def _along(
        self, stage: Stage, levels: Sequence[Level], over: tuple[Var, ...], body: Step
    ) -> Made:
        """Accumulators over the lanes, folded to numbers at the end."""
        loops, rows = self._across(stage, levels, over, body)
        folds = [
            tuple(Fold(r.monoid, over, row, c, x.dtype) for c, x in enumerate(row))
            for r, row in zip(stage, rows, strict=True)
        ]
        return loops, folds

    # ---------------------------------------------------------------- values kept in a row

    def _shared_values(
        self, stages: Sequence[Sequence[Reduction]], roots: Sequence[Expr], bound: frozenset[Var]
    ) -> dict[int, list[Expr]]:
        """By stage: special functions of the row that later stages or the stores need again."""
        users = [*([e for r in stage for e in r.lift] for stage in stages), list(roots)]
        uses = [_specials(u, bound) for u in users]
        found: dict[int, list[Expr]] = {}
        for n, stage in enumerate(stages):
            later = set[Expr]().union(*uses[n + 1 :])
            taken = {e for group in found.values() for e in group}
            axes = {*stage[0].axes}
            wanted = [e for e in _outer(uses[n]) if e in later and e not in taken
                      and axes_in(e.free) - bound <= axes and fits(e, bound)]  # fmt: skip
            if wanted:
                found[n] = wanted
        return found

    # ---------------------------------------------------------------- scans

    def _scan_to_scratch(self, scan: Scanned, bound: frozenset[Var]) -> tuple[Stmt, ...]:
        """A scan over a whole row, kept in working memory."""
        buffer = self.fresh("scan")
        kind = TensorType.dense(scan.dtype, (scan.axis.extent,))
        with self.inside():
            first, step, value, back = self.scan_step(scan, bound)
        index = add(back.extent, mul(back, -1)) - 1 if scan.reverse else back
        loop = Loop(back, 1, Mapping.SERIAL, (*step, Store(buffer, (index,), value)))
        self._other[scan] = Load(buffer, (scan.axis,), scan.dtype)
        return (Scratch(buffer, kind), *first, loop)

    def scan_step(
        self, scan: Scanned, bound: frozenset[Var], lane: Var | None = None
    ) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...], Local, Var]:
        """Accumulators, the statements of one step, the scanned value, and the axis walked."""
        over = (lane,) if lane else ()
        walked = Var(f"{scan.axis.name}_back", scan.axis.extent) if scan.reverse else scan.axis
        body = self.compute(scan.lift, bound | {scan.axis}, lane)
        lift = tuple(map(self.resolve, scan.lift))
        if scan.reverse:
            mirrored: dict[Sym, Dim] = {scan.axis: add(walked.extent, mul(walked, -1)) - 1}
            lift = tuple(substitute_axes(e, mirrored) for e in lift)
        r = Reduction(scan.monoid, (walked,), lift)
        names = self._state(r)
        carries = _carries([r], [names], over)
        joined = _join([r], [names], over, [lift])
        return carries, (*body, *joined), _locals(r, names, over)[scan.component], walked


def nested(levels: Sequence[Level], body: tuple[Stmt, ...]) -> Loop:
    """Serial loops around a body."""
    for x in reversed(levels):
        body = (Loop(x.axis, x.tile, Mapping.SERIAL, body, x.start, x.stop),)
    (loop,) = body
    assert isinstance(loop, Loop)
    return loop


def part_of(level: Level, part: Level | None) -> Level:
    """The level, restricted to `part` when that is a part of its axis."""
    if part is None or part.axis is not level.axis:
        return level
    return Level(level.axis, level.tile, part.start, part.stop)


def _reductions(roots: Sequence[Expr]) -> set[Reduction]:
    return {e.reduction for e in walk(tuple(roots)) if isinstance(e, Reduced)}


def _unordered(stage: Stage) -> bool:
    return all(r.monoid in UNORDERED for r in stage)


def _rounds(r: Reduction) -> bool:
    return r.monoid in ROUNDING and any(e.dtype.is_float for e in r.lift)


def cut_of(stage: Stage, levels: Sequence[Level]) -> int | None:
    """Where accumulators are joined: the levels from here on add few terms."""
    if not any(map(_rounds, stage)):
        return None
    terms = 1
    for place in range(len(levels) - 1, -1, -1):
        terms *= levels[place].terms
        if terms > 2 * TERMS and place < len(levels) - 1:
            return place + 1
    return None


def _locals(r: Reduction, names: Sequence[str], over: tuple[Var, ...]) -> tuple[Local, ...]:
    return tuple(Local(n, e.dtype, over) for n, e in zip(names, r.lift, strict=True))


def _carries(
    stage: Stage, states: Sequence[tuple[str, ...]], over: tuple[Var, ...]
) -> tuple[Carry, ...]:
    out = []
    for r, names in zip(stage, states, strict=True):
        neutral = MONOIDS[r.monoid].identity(tuple(e.dtype for e in r.lift))
        out += [Carry(n, c, over) for n, c in zip(names, neutral, strict=True)]
    return tuple(out)


def _join(
    stage: Stage,
    states: Sequence[tuple[str, ...]],
    over: tuple[Var, ...],
    values: Sequence[tuple[Expr, ...]],
) -> tuple[Assign, ...]:
    out = []
    for r, names, lift in zip(stage, states, values, strict=True):
        new = MONOIDS[r.monoid].combine(_locals(r, names, over), lift)
        out.append(Assign(names, new))
    return tuple(out)


def _specials(roots: Sequence[Expr], bound: frozenset[Var]) -> list[Expr]:
    """Special functions of the row; the roots' own axes are walked."""
    return [e for e in _surface(roots) if is_special(e) and not axes_in(e.free) <= bound]


def _outer(special: Sequence[Expr]) -> list[Expr]:
    """Those below no other one."""
    inner = {x for e in special for x in _surface(children(e))}
    return [e for e in special if e not in inner]


def _surface(roots: Sequence[Expr]) -> list[Expr]:
    """Expressions evaluated with the roots, those inside reductions and scans left out."""
    seen: dict[Expr, None] = {}
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen[e] = None
            if not isinstance(e, Reduced | Scanned):
                stack.extend(children(e))
    return list(seen)
