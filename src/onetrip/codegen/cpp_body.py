"""The statements of a kernel in C++: loops over lanes and threads, accumulators, folds, stores.

A loop of `16 u` lanes walks u vectors at a time, then one at a time, then the masked rest; copies
that provably never run are left out. Must not know: families of schedules, files, compilers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from ..base.sym import Dim, Sym, Var, add, atoms, is_nonnegative, mul, upper_bound
from ..ir.expr import Apply, Fold, Local
from ..ir.kernel import Assign, Carry, Kernel, Let, Loop, Mapping, Scratch, Stmt, statements
from ..ir.monoid import MONOIDS
from ..ir.nest import Access, Buffer, Store
from .cpp_index import LEAST_LANES, MOST_LANES, divides
from .cpp_ops import array_function, has_array, memory_type, value_type
from .cpp_stores import store_varies, write_store
from .cpp_turned import Turned, turned_copy, write_turned
from .cpp_values import Lanes, Place, Values
from .emit import Needs, Scopes

STACK_BYTES = 16384
"""Scratch up to this size lives on the stack."""

UNROLLED = 4
"""Vectors at a time that stay in registers; more are a loop over memory in the level-1 cache."""

LANE_FOLDS: dict[str, str] = {
    "sum": "ot::sum_lanes", "prod": "ot::prod_lanes", "max": "ot::max_lanes",
    "min": "ot::min_lanes", "any": "ot::any", "all": "ot::all",
}  # fmt: skip


@dataclass(frozen=True)
class _Tile:
    """The copy of a lane loop that is being written: vectors at a time, and their counter.

    `some` names how many of the vectors there are, where it is not all.
    """

    vectors: int
    counter: str | None
    some: str | None = None

    @property
    def count(self) -> str:
        """Text of the number of vectors."""
        return self.some or str(self.vectors)


class Body:
    """Writes the statements of one kernel."""

    def __init__(self, kernel: Kernel, sizes: dict[Sym, str], places: dict[str, Place]) -> None:
        written = [s.buffer for s in statements(kernel.body) if isinstance(s, Store)]
        self.scopes = Scopes(volatile=written)
        self.values = Values(self.scopes, sizes)
        self.values.places.update(places)
        self.shared: list[str] = []
        self._tile = _Tile(1, None)
        self._counts: dict[str, int] = {}
        self._over: dict[str, tuple[Var, ...]] = {}
        self._scratch = 0
        self._folds: dict[tuple[object, ...], list[str]] = {}

    # ---------------------------------------------------------------- the whole

    def write(self, body: Sequence[Stmt], threaded: bool) -> None:
        """The kernel's top level; with threads, what is not a parallel loop runs on one of them."""
        if not threaded:
            self._run(body)
            return
        scratch = [s for s in body if isinstance(s, Scratch)]
        for stmt in scratch:
            self._declare_scratch(stmt, shared=True)
        rest = [s for s in body if not isinstance(s, Scratch)]
        for parallel, group in groupby(rest, _is_parallel):
            members = list(group)
            if not parallel:
                with self.scopes.block("#pragma omp single\n{", "}"):
                    self._run(members)
            for loop in members if parallel else ():
                assert isinstance(loop, Loop)
                self._parallel(loop, last=loop is rest[-1])

    def _run(self, body: Sequence[Stmt]) -> None:
        """Statements in order; neighbours without loops form one group."""
        for loops, group in groupby(body, lambda s: isinstance(s, Loop | Scratch)):
            if loops:
                for stmt in group:
                    self._structure(stmt, body)
            else:
                self._leaves(list(group), body)

    def _structure(self, stmt: Stmt, body: Sequence[Stmt]) -> None:
        if isinstance(stmt, Scratch):
            self._declare_scratch(stmt, shared=False)
        elif isinstance(stmt, Loop) and stmt.tile > 1:
            self._lane_loop(stmt)
        elif isinstance(stmt, Loop) and self._is_turned(copy := turned_copy(stmt)):
            assert copy is not None
            write_turned(self.values, copy, self._end(stmt), self._end(copy.inner))
        elif isinstance(stmt, Loop):
            head = self._head(stmt.axis, self._bound(stmt.start), self._end(stmt))
            with self.scopes.block(head, "}", (stmt.axis,)):
                self._run(stmt.body)

    def _is_turned(self, copy: Turned | None) -> bool:
        """Whether a copy moves bytes alone: from memory to memory of the same elements."""
        if copy is None or self.values.lanes is not None:
            return False
        places = self.values.places
        return places[copy.store.buffer].element == places[copy.load.buffer].element

    def _parallel(self, loop: Loop, last: bool) -> None:
        nest = [loop]
        while self._nested(nest):
            inner = nest[-1].body[0]
            assert isinstance(inner, Loop)
            nest.append(inner)
        depth = f" collapse({len(nest)})" if len(nest) > 1 else ""
        wait = " nowait" if last else ""
        heads = [self._head(x.axis, self._bound(x.start), self._end(x)) for x in nest]
        pragma = f"#pragma omp for schedule(static){depth}{wait}"
        heads = [pragma, *(h.removesuffix(" {") for h in heads[:-1]), heads[-1]]
        with self.scopes.block("\n".join(heads), "}", [x.axis for x in nest]):
            self._run(nest[-1].body)

    @staticmethod
    def _nested(nest: list[Loop]) -> bool:
        body = nest[-1].body
        if len(body) != 1 or not isinstance(body[0], Loop):
            return False
        inner, bound = body[0], {x.axis for x in nest}
        free = {*atoms(inner.start), *atoms(inner.end)}
        return inner.mapping is Mapping.THREADS and not free & bound

    # ---------------------------------------------------------------- loops

    def _bound(self, d: Dim) -> str:
        return self.values.index(d)

    def _end(self, loop: Loop) -> str:
        """The stop of a loop, never beyond the axis' extent."""
        extent = loop.axis.extent
        if loop.stop is None or loop.stop == extent:
            return self._bound(extent)
        most = upper_bound(loop.stop)
        if most is not None and is_nonnegative(add(extent, mul(most, -1))):
            return self._bound(loop.stop)
        stop, limit = self._bound(loop.stop), self._bound(extent)
        needs = self.values.index_needs(loop.stop)
        return self.scopes.bind(
            ("end", loop.axis, loop.stop), needs,
            lambda n: f"const int64_t {n} = {stop} < {limit} ? {stop} : {limit};", "end",
        )  # fmt: skip

    @staticmethod
    def _head(axis: Var, start: str, end: str) -> str:
        return f"for (int64_t {axis.name} = {start}; {axis.name} < {end}; {axis.name}++) {{"

    def _lane_loop(self, loop: Loop) -> None:
        vectors = max(1, loop.tile // MOST_LANES)
        start, end = self._bound(loop.start), self._end(loop)
        axis, name = loop.axis, loop.axis.name
        length = add(loop.end, mul(loop.start, -1))
        sizes = (length,) if loop.stop is None else (length, loop.start, axis.extent)
        whole = all(divides(MOST_LANES * vectors, s) for s in sizes)
        full = whole or all(divides(MOST_LANES, s) for s in sizes)
        cursor = f"{name}_at"
        with self.scopes.block("{", "}"):
            self.scopes.line(f"int64_t {cursor} = {start};")
            if vectors > 1 and not _shorter(length, LEAST_LANES * vectors):
                self._copy(loop, cursor, end, vectors)
            if (vectors == 1 or not whole) and not _shorter(length, LEAST_LANES):
                self._few(loop, cursor, end, vectors if vectors > UNROLLED else 1)
            if not full:
                self._rest(loop, cursor, end)

    def _copy(self, loop: Loop, cursor: str, end: str, vectors: int) -> None:
        """The loop over whole vectors, `vectors` at a time."""
        name = loop.axis.name
        step = "ot::W" if vectors == 1 else f"{vectors} * ot::W"
        counter = self.scopes.fresh("u") if vectors > 1 else None
        bound = () if counter else (loop.axis,)
        head = f"for (; {cursor} + {step} <= {end}; {cursor} += {step}) {{"
        with self._lanes(loop, None, _Tile(vectors, counter)), self.scopes.block(head, "}", bound):
            if not counter:
                self.scopes.line(f"const int64_t {name} = {cursor};")
            self._run(loop.body)

    def _few(self, loop: Loop, cursor: str, end: str, vectors: int) -> None:
        """What whole tiles leave: vector by vector, or, where calls serve many, a shorter tile."""
        if vectors == 1:
            self._copy(loop, cursor, end, 1)
            return
        some, counter = self.scopes.fresh("some"), self.scopes.fresh("u")
        tile = _Tile(vectors, counter, some)
        with self._lanes(loop, None, tile), self.scopes.block(f"if ({cursor} < {end}) {{", "}"):
            self.scopes.line(f"const int {some} = ({end} - {cursor}) / ot::W;")
            self._run(loop.body)
            self.scopes.line(f"{cursor} += {some} * ot::W;")

    def _rest(self, loop: Loop, cursor: str, end: str) -> None:
        """The lanes that are left, under a mask."""
        mask = self.scopes.fresh("rest")
        with (
            self._lanes(loop, mask, _Tile(1, None)),
            self.scopes.block(f"if ({cursor} < {end}) {{", "}", (loop.axis,)),
        ):
            self.scopes.line(f"const int64_t {loop.axis.name} = {cursor};")
            self.scopes.line(f"const auto {mask} = ot::first_lanes({end} - {cursor});")
            self._run(loop.body)

    @contextmanager
    def _lanes(self, loop: Loop, mask: str | None, tile: _Tile) -> Iterator[None]:
        before = self.values.lanes, self._tile
        self.values.lanes, self._tile = Lanes(loop.axis, mask), tile
        yield
        self.values.lanes, self._tile = before

    # ---------------------------------------------------------------- leaves

    def _leaves(self, group: list[Stmt], body: Sequence[Stmt]) -> None:
        """Let, Carry, Assign and Store; those over the lanes run once for each vector of a tile."""
        for (wide, array), run in groupby(group, lambda s: (self._is_wide(s), self._is_array(s))):
            if array:
                for stmt in run:
                    assert isinstance(stmt, Let) and isinstance(stmt.value, Apply)
                    self._array_call(stmt, stmt.value)
                continue
            if self.values.lanes is None:
                for stmt in run:
                    self._outside(stmt, body)
                continue
            if not wide or self._tile.counter is None:
                for stmt in run:
                    self._leaf(stmt, body)
                continue
            members = list(run)
            for stmt in members:
                self._declare_array(stmt)
            assert self.values.lanes is not None
            axis = self.values.lanes.axis
            counter, vectors = self._tile.counter, self._tile.vectors
            head = f"for (int {counter} = 0; {counter} < {self._tile.count}; {counter}++) {{"
            unroll = f"#pragma GCC unroll {vectors}\n" if vectors <= UNROLLED else ""
            with self.scopes.block(f"{unroll}{head}", "}", (axis,)):
                base = f"{axis.name}_at + {counter} * ot::W"
                self.scopes.line(f"const int64_t {axis.name} = {base};")
                for stmt in members:
                    self._leaf(stmt, body)

    def _outside(self, stmt: Stmt, body: Sequence[Stmt]) -> None:
        """A leaf outside every lane loop; accumulators over lanes are joined vector by vector."""
        vectors = max((self._counts[n] for n in stmt.names), default=0) if isinstance(
            stmt, Assign) else 0  # fmt: skip
        if vectors == 0:
            self._leaf(stmt, body)
            return
        assert isinstance(stmt, Assign)
        axes = {v for e in stmt.values for v in e.free if isinstance(v, Var)}
        over = next(v for v in axes if v in self._over[stmt.names[0]])
        before = self._tile
        for u in range(vectors):
            self.values.lanes, self._tile = Lanes(over), _Tile(vectors, str(u))
            self._assign(stmt)
        self.values.lanes, self._tile = None, before

    def _is_array(self, stmt: Stmt) -> bool:
        """Whether one call of an array function serves all vectors of the tile."""
        value = stmt.value if isinstance(stmt, Let) else None
        if self._tile.counter is None or not isinstance(value, Apply) or not has_array(value):
            return False
        arg = value.args[0]
        return isinstance(arg, Local) and self.values.varies(arg)

    def _array_call(self, stmt: Let, value: Apply) -> None:
        (arg,) = value.args
        assert isinstance(arg, Local)
        self._declare_array(stmt)
        kind = value_type(value.dtype, False)
        count = f"{self._tile.count} * ot::W"
        call = f"{array_function(value)}(({kind}*){arg.name}, ({kind}*){stmt.name}, {count});"
        self.scopes.line(call)

    def _is_wide(self, stmt: Stmt) -> bool:
        lanes = self.values.lanes
        if lanes is None:
            return False
        if isinstance(stmt, Carry):
            return lanes.axis in stmt.over
        if isinstance(stmt, Let):
            return self.values.varies(stmt.value)
        if isinstance(stmt, Assign):
            return any(self._counts.get(n, 0) > 0 for n in stmt.names)
        assert isinstance(stmt, Store)
        return store_varies(self.values, stmt)

    def _declare_array(self, stmt: Stmt) -> None:
        """An array of vectors, one for each of the tile, declared before the loop over them."""
        if isinstance(stmt, Let | Carry):
            dtype = stmt.value.dtype if isinstance(stmt, Let) else stmt.init.dtype
            self._register(stmt.name, self._tile.vectors, changes=isinstance(stmt, Carry))
            kind = value_type(dtype, True)
            self.scopes.line(f"{kind} {stmt.name}[{self._tile.vectors}];")

    def _leaf(self, stmt: Stmt, body: Sequence[Stmt]) -> None:
        if isinstance(stmt, Let):
            self._let(stmt)
        elif isinstance(stmt, Carry):
            self._carry(stmt, body)
        elif isinstance(stmt, Assign):
            self._assign(stmt)
        elif isinstance(stmt, Store):
            write_store(self.values, stmt)

    def _register(self, name: str, vectors: int, changes: bool) -> None:
        """Says how a local is named from now on; `vectors` is 0 for a scalar."""
        self._counts[name] = vectors
        self.values.local[name] = partial(self._local_text, name)
        self.scopes.declare(name, changes)

    def _local_text(self, name: str) -> str:
        if self._counts[name] < 2:
            return name
        return f"{name}[{self._tile.counter or 0}]"

    def _let(self, stmt: Let) -> None:
        if isinstance(stmt.value, Fold):
            text, kind = self._fold(stmt.value), value_type(stmt.value.dtype, False)
            self._register(stmt.name, 0, changes=False)
            self.scopes.line(f"const {kind} {stmt.name} = {text};")
            return
        value = self.values.get(stmt.value)
        if value.wide and self._tile.counter is not None:
            self.scopes.line(f"{self._local_text(stmt.name)} = {value.text};")
            return
        self._register(stmt.name, int(value.wide), changes=False)
        kind = value_type(stmt.value.dtype, value.wide)
        self.scopes.line(f"const {kind} {stmt.name} = {value.text};")

    def _carry(self, stmt: Carry, body: Sequence[Stmt]) -> None:
        lanes = self.values.lanes
        kind = value_type(stmt.init.dtype, bool(stmt.over))
        if not stmt.over:
            text = self.values.get(stmt.init).text
            self._register(stmt.name, 0, changes=True)
            self.scopes.line(f"{kind} {stmt.name} = {text};")
        elif lanes is not None and lanes.axis in stmt.over:
            if self._tile.counter is None:
                self._register(stmt.name, 1, changes=True)
                self.scopes.line(f"{kind} {stmt.name} = {self.values.wide(stmt.init)};")
            else:
                self.scopes.line(f"{self._local_text(stmt.name)} = {self.values.wide(stmt.init)};")
        else:
            vectors = _vectors_of(stmt, body)
            self._over[stmt.name] = stmt.over
            init = self.values.wide(stmt.init)
            self._register(stmt.name, vectors, changes=True)
            many = f"[{vectors}] = {{{', '.join([init] * vectors)}}}"
            self.scopes.line(f"{kind} {stmt.name}{many if vectors > 1 else f' = {init}'};")

    def _assign(self, stmt: Assign) -> None:
        lanes = self.values.lanes
        targets = [self._local_text(n) for n in stmt.names]
        wides = [self._counts[n] > 0 for n in stmt.names]
        values = [
            self.values.wide(e) if wide else self.values.get(e).text
            for wide, e in zip(wides, stmt.values, strict=True)
        ]
        for target, wide, text, name in zip(targets, wides, values, stmt.names, strict=True):
            masked = lanes is not None and lanes.mask is not None and wide
            inner = masked and name not in self._inside_mask()
            new = f"ot::where({lanes.mask}, {text}, {target})" if inner and lanes else text
            self.scopes.line(f"{target} = {new};")
        for name in stmt.names:
            self.scopes.changed(name)

    def _inside_mask(self) -> set[str]:
        """Locals declared inside the masked block: lanes that are off are never looked at."""
        return self.scopes.declared_within(self.values.lanes.axis if self.values.lanes else None)

    # ---------------------------------------------------------------- folds over lanes

    def _fold(self, fold: Fold) -> str:
        """The folded component; all components of a state are folded once."""
        key = (fold.monoid, *fold.args)
        if key not in self._folds or not self.scopes.is_visible(self._folds[key][0]):
            self._folds[key] = self._fold_state(fold)
        return self._folds[key][fold.component]

    def _fold_state(self, fold: Fold) -> list[str]:
        names = [a.name for a in fold.args if isinstance(a, Local)]
        vectors = max(1, self._counts[names[0]])
        (axis,) = fold.axes
        before = self.values.lanes
        self.values.lanes = Lanes(axis)
        parts = [[f"{n}[{u}]" if vectors > 1 else n for n in names] for u in range(vectors)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self._combined(fold, axis, a, b) for a, b in pairs]
        self.values.lanes = before
        if fold.monoid in LANE_FOLDS:
            done = [f"{LANE_FOLDS[fold.monoid]}({parts[0][0]})"]
        else:
            return self._fold_lanes(fold, parts[0])
        name = self.scopes.fresh("fold")
        self.scopes.declare(name)
        kind = value_type(fold.dtype, False)
        self.scopes.line(f"const {kind} {name} = {done[0]};")
        return [name]

    def _fold_lanes(self, fold: Fold, parts: list[str]) -> list[str]:
        """Lane after lane, for states that have no fold of their own."""
        names = [self.scopes.fresh("fold") for _ in parts]
        for name, part, arg in zip(names, parts, fold.args, strict=True):
            self.scopes.declare(name, changes=True)
            self.scopes.line(f"{value_type(arg.dtype, False)} {name} = {part}[0];")
        lane = self.scopes.fresh("lane")
        with self.scopes.block(f"for (int {lane} = 1; {lane} < ot::W; {lane}++) {{", "}"):
            texts = [f"{part}[{lane}]" for part in parts]
            new = self._combined(fold, None, names, texts)
            for name, text in zip(names, new, strict=True):
                self.scopes.line(f"{name} = {text};")
        return names

    def _combined(self, fold: Fold, axis: Var | None, a: list[str], b: list[str]) -> list[str]:
        """The monoid's combination of two states given as texts."""
        over = () if axis is None else (axis,)

        def state(texts: list[str]) -> tuple[Local, ...]:
            made = []
            for text, arg in zip(texts, fold.args, strict=True):
                name = self.scopes.fresh("state")
                self.values.local[name] = partial(str, text)
                self.scopes.declare(name, changes=True)
                made.append(Local(name, arg.dtype, over))
            return tuple(made)

        joined = MONOIDS[fold.monoid].combine(state(a), state(b))
        return [self.values.get(e).text for e in joined]

    # ---------------------------------------------------------------- memory

    def _declare_scratch(self, stmt: Scratch, shared: bool) -> None:
        buffer, count = stmt.name, stmt.type.numel
        kind = memory_type(stmt.type.dtype)
        place = Place(buffer, _scratch_buffer(stmt), writable=True)
        self.values.places[buffer] = place
        small = isinstance(count, int) and count * stmt.type.dtype.itemsize <= STACK_BYTES
        if small and not shared:
            self.scopes.line(f"alignas(64) {kind} {buffer}[{max(1, int(str(count)))}];")
            self.scopes.declare(buffer)
            return
        text = f"ot::workspace<{kind}, {self._scratch}>({self._bound(count)})"
        self._scratch += 1
        line = f"{kind}* const {buffer} = {text};"
        if shared:
            self.shared.append(line)
        else:
            self.scopes.bind(("scratch", buffer), Needs(), lambda _: line)


def _is_parallel(stmt: Stmt) -> bool:
    return isinstance(stmt, Loop) and stmt.mapping is Mapping.THREADS


def _shorter(length: Dim, count: int) -> bool:
    """Whether a loop of this length provably never has `count` lanes."""
    most = upper_bound(length)
    return most is not None and is_nonnegative(add(count - 1, mul(most, -1)))


def _vectors_of(carry: Carry, body: Sequence[Stmt]) -> int:
    """Vectors of an accumulator over an axis that is walked further in: those of that loop."""
    tiles = [
        loop.tile // MOST_LANES
        for stmt in body
        if carry.name in _assigned(stmt)
        for loop in statements((stmt,))
        if isinstance(loop, Loop) and loop.tile > 1 and loop.axis in carry.over
    ]
    return max([1, *tiles])


def _assigned(stmt: Stmt) -> set[str]:
    return {n for s in statements((stmt,)) if isinstance(s, Assign) for n in s.names}


def _scratch_buffer(stmt: Scratch) -> Buffer:
    return Buffer(stmt.name, stmt.type, Access.UPDATE)
