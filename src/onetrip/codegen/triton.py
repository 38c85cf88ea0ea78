"""Kernel to Triton text: one readable, self-contained module for each kernel.

Tile axes become positional dimensions; GRID loops become the program id; a loop whose tile covers
its extent becomes no loop at all. Imports no triton: `runtime` turns the text into a launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..base.errors import Unsupported
from ..base.sym import Dim, Size, Var, atoms, ceildiv, mul, product, render
from ..base.text import bytes_text
from ..ir.expr import Const, Expr
from ..ir.kernel import Assign, Carry, Kernel, Let, Loop, Mapping, Scratch, Stmt, statements
from ..ir.nest import Access, Combine, Store
from . import triton_ops as ops
from .prelude_triton import collect, head
from .triton_ops import strip
from .triton_random import uses_quarter
from .triton_values import Needs, Values, check_shape, count_uses

INDEX_LIMIT = (1 << 31) - (1 << 20)
"""Offsets up to here are i32; the room above is for lanes beyond the last element."""
_ATOMICS = {Combine.ADD: "add", Combine.MAX: "max", Combine.MIN: "min"}


@dataclass(frozen=True)
class TritonText:
    """A generated module and what a launch needs to know.

    Attributes:
        text: the whole module.
        name: the kernel function in it.
        arguments: (name, Triton type) of the launch arguments: buffers, then sizes. A size has
            the type `index`: i64 when one of `limits` reaches INDEX_LIMIT, else i32.
        grid: programs; may be symbolic.
        constants: compile-time arguments after the others: none, or INDEX, an index type.
        limits: what index arithmetic must be able to hold, where it depends on sizes.
        sizes: the symbols passed, in order.
        resident: programs that one multiprocessor shall hold, where the registers come near.
    """

    text: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    grid: tuple[Dim, ...]
    warps: int
    stages: int
    constants: tuple[str, ...] = ()
    limits: tuple[Dim, ...] = ()
    sizes: tuple[Size, ...] = ()
    dialect: str = "nvidia"
    resident: int = 1


@dataclass(frozen=True)
class Function:
    """A kernel's function before it stands in a module.

    Attributes:
        parameters: buffers, then sizes; `types` are their Triton types.
        body: the indented text below the head.
        made: generated functions that it calls, by name.
    """

    kernel: Kernel
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    body: str
    made: dict[str, str]
    constants: tuple[str, ...]
    limits: tuple[Dim, ...]
    programs: Dim


def emit(kernel: Kernel, dialect: str) -> TritonText:
    """The module text of a kernel.

    Args:
        kernel: verified; its grid loops enclose everything.
        dialect: `nvidia`, `amd` or `interpreter`.

    Raises:
        Unsupported: the kernel holds something that Triton cannot say here.
    """
    own = function_of(kernel)
    head_ = ", ".join([*own.parameters, *(f"{c}: tl.constexpr" for c in own.constants)])
    text = f"@triton.jit\ndef {kernel.name}({head_}):\n{own.body}\n"
    return TritonText(
        header(kernel) + module_text(own.made.values(), text, dialect),
        kernel.name,
        tuple(zip(own.parameters, own.types, strict=True)),
        (own.programs,),
        kernel.warps,
        kernel.stages,
        own.constants,
        own.limits,
        kernel.sizes,
        dialect,
        kernel.resident,
    )


def function_of(kernel: Kernel, *, called: bool = False) -> Function:
    """A kernel's function.

    Args:
        called: from within a launch, which gives it `pid`; else it asks for its own.

    Raises:
        Unsupported: the kernel holds something that Triton cannot say here.
    """
    return _Emitter(kernel, called).function()


def module_text(made: Iterable[str], text: str, dialect: str) -> str:
    """A module: imports, the prelude functions that are called, generated ones, the kernel."""
    between = "\n\n\n".join(made)
    prelude = collect(between + text, dialect)
    parts = [head(dialect).rstrip("\n"), prelude, between, text]
    return "\n\n\n".join(p for p in parts if p)


class _Emitter:
    def __init__(self, kernel: Kernel, called: bool) -> None:
        self.kernel = kernel
        self.called = called
        loops = [s for s in statements(kernel.body) if isinstance(s, Loop)]
        self.grid = list(dict.fromkeys(s for s in loops if s.mapping is Mapping.GRID))
        limits = _limits(kernel, loops)
        self.symbolic = tuple(d for d in limits if not isinstance(d, int))
        wide = any(isinstance(d, int) and d >= INDEX_LIMIT for d in limits)
        index = "tl.int64" if wide else ("INDEX" if self.symbolic else "tl.int32")
        self.values = Values(
            buffers={b.name: b for b in kernel.buffers},
            tiles={s.axis: s.tile for s in loops if s.tile > 1},
            volatile={b.name for b in kernel.buffers if b.access is not Access.READ},
            uses=count_uses(_roots(kernel)),
            index=index,
            threads=32 * kernel.warps,
            reload=kernel.reload,
        )
        self.scopes = self.values.scopes
        for b in kernel.buffers:
            self.scopes.fresh(b.name)
        for size in kernel.sizes:
            self.values.axis[size] = self.scopes.fresh(size.name)
            self.scopes.bind(size)

    # The function

    def function(self) -> Function:
        self._program_ids()
        self._block(self.kernel.body)
        v = self.values
        sizes = [v.axis[s] for s in self.kernel.sizes]
        types = [ops.POINTERS[b.type.dtype] for b in self.kernel.buffers]
        types += ["i64" if v.index == "tl.int64" else "index" for _ in sizes]
        return Function(
            self.kernel,
            (*(b.name for b in self.kernel.buffers), *sizes),
            tuple(types),
            self.scopes.text() or "    pass",
            v.functions,
            ("INDEX",) if v.index == "INDEX" else (),
            self.symbolic,
            product(tuple(ceildiv(s.end, s.tile) for s in self.grid)),
        )

    def _program_ids(self) -> None:
        """One program id for all grid loops, the last one fastest."""
        self.pid: dict[Loop, str] = {}
        if not self.grid:
            return
        pid = self.scopes.fresh("pid")
        wide = "" if self.values.index == "tl.int32" else f".to({self.values.index})"
        if not self.called or wide:
            first = "pid" if self.called else self._first()
            self.scopes.line(f"{pid} = {first}{wide}")
        inner: Dim = 1
        for loop in reversed(self.grid):
            count = ceildiv(loop.end, loop.tile)
            above = pid if inner == 1 else f"{pid} // {self._operand(inner)}"
            outermost = loop is self.grid[0]
            self.pid[loop] = above if outermost else f"{above} % {self._operand(count)}"
            inner = mul(inner, count)

    def _first(self) -> str:
        if self.kernel.backwards:
            return "(tl.num_programs(0) - 1 - tl.program_id(0))"
        return "tl.program_id(0)"

    def _operand(self, d: Dim) -> str:
        text = self.values.dim(d, 0)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    # Statements

    def _block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, Loop):
                self._loop(stmt)
            elif isinstance(stmt, Let):
                self._let(stmt)
            elif isinstance(stmt, Carry):
                self._carry(stmt)
            elif isinstance(stmt, Assign):
                self._assign(stmt)
            elif isinstance(stmt, Store):
                self._store(stmt)
            elif isinstance(stmt, Scratch):
                raise Unsupported(
                    f"tile-local buffer {stmt.name} has no spelling in Triton",
                    next_step="keep the tile in a Let or a Carry",
                )

    def _loop(self, loop: Loop) -> None:
        if loop.mapping is Mapping.GRID:
            pid = self.pid[loop]
            few = self._times(pid, loop.tile // 4)
            self._bind(loop, self._times(pid, loop.tile), few)
        elif _runs_once(loop):
            self._bind(loop, "")
        else:
            self._serial(loop)
            return
        self._block(loop.body)

    def _times(self, text: str, tile: int) -> str:
        if tile == 1:
            return text
        return f"{text} * {tile}" if text.isidentifier() else f"({text}) * {tile}"

    def _serial(self, loop: Loop) -> None:
        v = self.values
        bare = v.index == "tl.int32" and loop.tile == 1
        again = v.axis.get(loop.axis) if bare else None
        step = again or self.scopes.fresh(loop.axis.name if bare else f"{loop.axis.name}_step")
        here = self.scopes.depth
        bounds = [self._bound(d, here) for d in (loop.start, loop.end)]
        if loop.tile > 1:
            bounds.append(str(loop.tile))
        walk = f"range({', '.join(bounds)})"
        if self.kernel.stages > 1:
            walk = f"tl.range({', '.join(bounds)}, num_stages={self.kernel.stages})"
        with self.scopes.inside(f"for {step} in {walk}:"), v.walking():
            if bare:
                v.axis[loop.axis] = step
                self.scopes.bind(loop.axis)
            else:
                wide = v.index != "tl.int32"
                self._bind(loop, f"tl.full((), 0, {v.index}) + {step}" if wide else step)
            self._block(loop.body)

    def _bound(self, d: Dim, here: int) -> str:
        text = self.values.dim(d, here)
        return text if isinstance(d, int) else f"ot_bound({text})"

    def _bind(self, loop: Loop, start: str, quarter_start: str = "") -> None:
        """Gives an axis its number or its lanes, and its mask where a lane may stick out.

        `quarter_start` is a quarter of `start`: for random numbers, which come in fours.
        """
        v, axis = self.values, loop.axis
        if axis in v.axis and not start:
            return
        v._needs.clear()
        name = v.axis.setdefault(axis, "") or self.scopes.fresh(axis.name)
        v.axis[axis] = name
        self.scopes.bind(axis)
        if loop.tile == 1:
            self.scopes.line(f"{name} = {strip(start) or f'tl.full((), 0, {v.index})'}")
            return
        lanes = self._lanes(axis, loop.tile)
        self.scopes.line(f"{name} = {start} + {lanes}" if start else f"{name} = {lanes}")
        if uses_quarter(v, axis):
            quarter = self.scopes.fresh(f"{axis.name}_quarter")
            few = self._lanes(axis, loop.tile // 4)
            begin = quarter_start or (f"({start}) // 4" if start else "")
            self.scopes.line(f"{quarter} = {begin} + {few}" if begin else f"{quarter} = {few}")
            v.quarter[axis] = quarter
        if _sticks_out(loop):
            mask = self.scopes.fresh(f"{axis.name}_mask")
            self.scopes.line(f"{mask} = {name} < {v.dim(axis.extent, self.scopes.depth)}")
            v.masks[axis] = mask

    def _lanes(self, axis: Var, tile: int) -> str:
        v = self.values
        spread = ", ".join(":" if a == axis else "None" for a in v.tiles)
        text = f"tl.arange(0, {tile})" + (f"[{spread}]" if len(v.tiles) > 1 else "")
        return text if v.index == "tl.int32" else f"{text}.to({v.index})"

    def _let(self, let: Let) -> None:
        v = self.values
        needs = v.needs(let.value)
        text = v.value(let.value, self.scopes.depth, wish=let.name)
        if text in v.volatile:
            v.locals[let.name] = (text, needs)
            return
        if not text.isidentifier():
            level = v.level_of(needs)
            text = v.name(let.value, text, level, needs, let.name)
        # What it was made from may change from here on; it does not.
        self.scopes.bind(text)
        v.locals[let.name] = (text, Needs(frozenset({text}), frozenset(), needs.tiles))

    def _carry(self, carry: Carry) -> None:
        v = self.values
        tiles = frozenset(a for a in carry.over if a in v.tiles)
        name = self.scopes.fresh(carry.name)
        kind = carry.init.dtype
        if isinstance(carry.init, Const):
            shape = v.shape(tiles)
            filled = f"tl.full({shape}, {ops.literal(carry.init)}, {ops.TYPES[kind]})"
            text = f"{filled} != 0" if kind.name == "bool" else filled
            if kind.name == "bool":
                text = f"tl.full({shape}, {ops.literal(carry.init)}, tl.int32) != 0"
        else:
            text = self._spread(carry.init, tiles)
        self.scopes.line(f"{name} = {text}")
        self.scopes.bind(name)
        v.volatile.add(name)
        v.locals[carry.name] = (name, Needs(frozenset({name}), frozenset({name}), tiles))
        v._needs.clear()

    def _spread(self, e: Expr, tiles: frozenset[Var]) -> str:
        text = strip(self.values.value(e))
        own = self.values.needs(e).tiles
        check_shape(own, tiles, "the value of a carried tile")
        return text if own == tiles else f"tl.broadcast_to({text}, {self.values.shape(tiles)})"

    def _assign(self, assign: Assign) -> None:
        known = [self.values.locals[n] for n in assign.names]
        texts = [
            self._spread(e, needs.tiles) for e, (_, needs) in zip(assign.values, known, strict=True)
        ]
        names = [name for name, _ in known]
        self.scopes.line(f"{', '.join(names)} = {', '.join(texts)}")
        for name in names:
            self.scopes.changed(name)

    def _store(self, store: Store) -> None:
        v, depth = self.values, self.scopes.depth
        offset = v.buffers[store.buffer].type.offset(store.index)
        tiles = v.dim_needs(offset).tiles
        if store.guard is not None:
            tiles |= v.needs(store.guard).tiles
        check_shape(v.needs(store.value).tiles, tiles, f"the value stored to {store.buffer}")
        value = strip(v.value(store.value, depth))
        pointer = v.pointer(store.buffer, offset, tiles, depth)
        mask = v.mask(tiles, store.guard, depth)
        more = f", mask={mask}" if mask else ""
        if store.combine is Combine.SET:
            self.scopes.line(f"tl.store({pointer}, {value}{more})")
        elif store.combine in _ATOMICS:
            call = f"tl.atomic_{_ATOMICS[store.combine]}"
            self.scopes.line(f'{call}({pointer}, {value}{more}, sem="relaxed")')
        else:
            raise Unsupported(
                f"a store that combines with {store.combine.value} has no atomic in Triton",
                next_step="run the scatter as an extern",
            )
        self.scopes.changed(store.buffer)


def _roots(kernel: Kernel) -> list[Expr]:
    roots: list[Expr] = []
    for stmt in statements(kernel.body):
        if isinstance(stmt, Let):
            roots.append(stmt.value)
        elif isinstance(stmt, Carry):
            roots.append(stmt.init)
        elif isinstance(stmt, Assign):
            roots.extend(stmt.values)
        elif isinstance(stmt, Store):
            roots.extend(stmt.roots)
    return roots


def _limits(kernel: Kernel, loops: list[Loop]) -> tuple[Dim, ...]:
    """The largest numbers that index arithmetic must hold."""
    largest = [b.type.storage_elements for b in kernel.buffers]
    return tuple(dict.fromkeys([*largest, *(s.end for s in loops if _closed(s.end))]))


def _closed(d: Dim) -> bool:
    return all(isinstance(a, Size) for a in atoms(d))


def _runs_once(loop: Loop) -> bool:
    return isinstance(loop.end, int) and loop.start == 0 and 0 < loop.end <= loop.tile


def _sticks_out(loop: Loop) -> bool:
    extent = loop.axis.extent
    return not (isinstance(extent, int) and extent % loop.tile == 0)


def header(kernel: Kernel) -> str:
    """Comments: what the kernel computes, where that was written, and what it costs."""
    facts = kernel.facts
    rows = [f"{kernel.name}: {kernel.family}, {kernel.warps} warps"]
    if facts.ops:
        rows.append("computes " + ", ".join(facts.ops))
    rows += [f"from {origin}" for origin in facts.origins]
    cost = [("reads", facts.bytes_read), ("writes", facts.bytes_written)]
    known = [f"{verb} {_size(count)}" for verb, count in cost if count != 0]
    if facts.flops != 0:
        known.append(f"{render(facts.flops)} FLOPs")
    if known:
        rows.append(", ".join(known))
    return "".join(f"# {line}\n" for row in rows for line in row.splitlines())


def _size(count: Dim) -> str:
    return bytes_text(count) if isinstance(count, int) else f"{render(count)} B"
