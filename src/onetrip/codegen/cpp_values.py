"""Scalar expressions of a kernel as C++ statements: one value, or one value per lane.

An expression that depends on the lane axis of the loop around it becomes a vector, every other one
a scalar that stands outside that loop; a scalar used beside vectors is spread once, where it is
known. Must not know: loops, stores, threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..base.dtype import bf16, bool_, f16, i64
from ..base.errors import VerifyError
from ..base.sym import Dim, Opaque, Poly, Quotient, Remainder, Size, Sym, Var, atoms
from ..ir.expr import Apply, Cast, Const, Expr, Load, Local, Position, Rng, walk
from ..ir.nest import Buffer
from ..ops.gather import counts_from_end
from .cpp_index import Walk, dim_text, terms, walk_of
from .cpp_ops import (
    INFIX,
    Text,
    apply_text,
    can_fault,
    cast_text,
    constant,
    memory_type,
    register_type,
    value_type,
)
from .emit import Needs, NeedsOf, Scopes


@dataclass(frozen=True)
class Lanes:
    """The lane axis in force: its variable names the first lane of the current vector.

    `mask` names the lanes inside the extent, None where all are.
    """

    axis: Var
    mask: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a buffer stands: its C++ name and declaration."""

    name: str
    buffer: Buffer
    writable: bool

    @property
    def element(self) -> str:
        """The C++ type of an element, in memory."""
        return memory_type(self.buffer.type.dtype)


class Values:
    """Binds values in the scopes of one kernel.

    Attributes:
        lanes: the lane axis of the innermost lane loop, if there is one.
        local: text of a Local by name, in the present loop.
        faults: whether anything bound so far can stop the kernel.
    """

    def __init__(self, scopes: Scopes, sizes: Mapping[Sym, str]) -> None:
        self.scopes = scopes
        self.lanes: Lanes | None = None
        self.places: dict[str, Place] = {}
        self.local: dict[str, Callable[[], str]] = {}
        self.faults = False
        self._sizes = sizes
        self._needs = NeedsOf()

    # ---------------------------------------------------------------- values

    def varies(self, e: Expr) -> bool:
        """Whether e has a value of its own in each lane."""
        return self.lanes is not None and self.lanes.axis in e.free

    def get(self, e: Expr) -> Text:
        """The value of e, bound with everything it needs."""
        for x in walk((e,)):
            self._place(x)
        return self._place(e)

    def wide(self, e: Expr) -> str:
        """The value of e as a vector."""
        found = self.get(e)
        return found.text if found.wide else self._spread(e, found)

    def _spread(self, e: Expr, value: Text) -> str:
        if isinstance(e, Const):
            return f"ot::splat({value.text})"
        return self.scopes.bind(
            ("splat", e), self._needs(e), lambda n: f"const auto {n} = ot::splat({value.text});"
        )

    def _place(self, e: Expr) -> Text:
        wide = self.varies(e)
        if isinstance(e, Const):
            return Text(constant(e), False)
        if isinstance(e, Local):
            return Text(self.local[e.name](), wide)
        if isinstance(e, Cast) and isinstance(e.arg, Const) and not wide:
            return Text(cast_text(e.arg.dtype, e.dtype, Text(constant(e.arg), False)), False)
        prefix = "x" if isinstance(e, Load) else "v"
        kind = "const auto" if wide else f"const {value_type(e.dtype, False)}"
        name = self.scopes.bind(
            e, self._needs(e), lambda n: f"{kind} {n} = {self._text(e, wide)};", prefix
        )
        return Text(name, wide)

    def _text(self, e: Expr, wide: bool) -> str:
        if isinstance(e, Apply):
            return apply_text(e, self._operands(e, wide), self._fault(e))
        if isinstance(e, Cast):
            return cast_text(e.arg.dtype, e.dtype, self._place(e.arg))
        if isinstance(e, Load):
            return self._load(e, wide)
        if isinstance(e, Position):
            text = self.index_wide(e.value) if wide else self.index(e.value)
            if e.dtype is not i64:
                return f"ot::cast<{register_type(e.dtype)}>({text})"
            return text
        if isinstance(e, Rng):
            return self._random(e, wide)
        raise VerifyError(f"no C++ for {type(e).__name__} inside a value",
                          expected="Const, Load, Position, Apply, Cast, Rng or Local",
                          found=repr(e))  # fmt: skip

    def _operands(self, e: Apply, wide: bool) -> tuple[Text, ...]:
        placed = [self._place(a) for a in e.args]
        if not wide:
            return tuple(placed)
        literal = e.op in INFIX  # a plain number converts beside a vector
        return tuple(
            p if p.wide or (literal and isinstance(a, Const)) else Text(self._spread(a, p), True)
            for a, p in zip(e.args, placed, strict=True)
        )

    def _random(self, e: Rng, wide: bool) -> str:
        seed = self._place(e.seed).text
        walk = self.walk(e.offset) if wide else None
        if walk is not None and walk.stride == 1:
            run = self.scopes.bind(
                ("run", e), self._needs(e.seed),
                lambda n: f"ot::random_run<{e.rounds}> {n}((uint64_t){seed});", "run",
            )  # fmt: skip
            return f"ot::uniform({run}.at((uint64_t)({self.index(walk.base)})))"
        where = self.index_wide(e.offset) if wide else f"ot::splat({self.index(e.offset)})"
        word = f"ot::random_word<{e.rounds}>((uint64_t){seed}, ot::convert<uint64_t>({where}))"
        return f"ot::uniform({word}){'' if wide else '[0]'}"

    # ---------------------------------------------------------------- faults

    def _fault(self, e: Apply) -> str:
        return self._fault_lanes(self.varies(e)) if can_fault(e) else ""

    def _fault_lanes(self, wide: bool) -> str:
        """The fault record, told which lanes exist."""
        self.faults = True
        mask = self.lanes.mask if wide and self.lanes else None
        return f"ot::within(fault, {mask or 'true'})"

    # ---------------------------------------------------------------- indices

    def index(self, d: Dim) -> str:
        """The index as a scalar; a lane variable stands for the first lane."""
        return dim_text(d, self._atom)

    def index_needs(self, d: Dim) -> Needs:
        """What an index depends on."""
        needs = Needs(frozenset(a for a in atoms(d) if not isinstance(a, Opaque)))
        for a in atoms(d):
            if isinstance(a, Opaque):
                needs |= self._needs(a.payload)
        return needs

    def _atom(self, atom: Sym) -> str:
        if isinstance(atom, Size):
            return self._sizes[atom]
        if isinstance(atom, Opaque):
            return self._checked(atom, wide=False)
        assert isinstance(atom, Var)
        return atom.name

    def _checked(self, atom: Opaque, wide: bool) -> str:
        """An index read at run time, checked against its extent."""
        e: Expr = atom.payload
        value = self.wide(e) if wide else self.get(e).text
        if e.dtype is not i64:
            value = f"ot::cast<int64_t>({value})"
        fault = self._fault_lanes(wide)
        size = self.index(atom.extent)
        least = f"-({size})" if counts_from_end(e) else "0"
        text = f"ot::inside({value}, {least}, {size}, {fault})"
        kind = "const auto" if wide else "const int64_t"
        return self.scopes.bind(
            ("inside", atom), self._needs(e), lambda n: f"{kind} {n} = {text};", "i"
        )

    def walk(self, d: Dim) -> Walk | None:
        """How an offset moves along the lanes; None when it jumps."""
        assert self.lanes is not None
        if any(isinstance(a, Opaque) and self.varies(a.payload) for a in atoms(d)):
            return None
        return walk_of(d, self.lanes.axis)

    def index_wide(self, d: Dim) -> str:
        """The index in every lane: `ot::vec<int64_t>`."""
        walk = self.walk(d)
        if walk is not None and walk.stride == 0:
            return f"ot::splat(int64_t({self.index(walk.base)}))"
        if walk is not None and walk.stride == 1:
            return f"ot::iota<int64_t>({self.index(walk.base)})"
        return self._index_lanes(d)

    def _index_lanes(self, d: Dim) -> str:
        lane = self.lanes.axis if self.lanes else None
        steady = all(a is not lane and not (isinstance(a, Opaque) and self.varies(a.payload))
                     for a in atoms(d))  # fmt: skip
        if steady or isinstance(d, int):
            return f"ot::splat(int64_t({self.index(d)}))"
        if isinstance(d, Poly):
            products = (
                " * ".join([f"ot::splat(int64_t({c}))", *map(self._index_lanes, factors)])
                for c, factors in d.terms
            )
            return f"({' + '.join(products)})"
        if isinstance(d, Quotient | Remainder):
            name = "quotient" if isinstance(d, Quotient) else "modulo"
            return f"ot::floor_{name}({self._index_lanes(d.num)}, {self._index_lanes(d.den)})"
        if isinstance(d, Opaque):
            return self._checked(d, wide=True)
        return f"ot::iota<int64_t>({self.index(d)})"

    # ---------------------------------------------------------------- memory

    def pointer(self, buffer: str, offset: Dim) -> str:
        """`row + k`, the address of an element."""
        base, inner = self._address(buffer, offset)
        if inner == "0":
            return base
        return f"{base} - {inner[1:]}" if inner.startswith("-") else f"{base} + {inner}"

    def _address(self, buffer: str, offset: Dim) -> tuple[str, str]:
        """(row, k): the part of the offset that the innermost loop does not change is bound."""
        place = self.places[buffer]
        parts = [(self.scopes.depth(self.index_needs(t)), t) for t in terms(offset)]
        deepest = max((depth for depth, _ in parts), default=0)
        inner: Dim = 0
        outer: Dim = 0
        for depth, term in parts:
            if depth == deepest or isinstance(term, int):
                inner = inner + term
            else:
                outer = outer + term
        if outer == 0:
            return place.name, self.index(inner)
        const = "" if place.writable else "const "
        base = self.scopes.bind(
            ("row", buffer, outer), self.index_needs(outer),
            lambda n: f"{const}{place.element}* const {n} = {place.name} + {self.index(outer)};",
            f"{place.name}_",
        )  # fmt: skip
        return base, self.index(inner)

    def lane_mask(self, guard: Expr | None) -> str | None:
        """Lanes inside the extent in which `guard` holds; None for all."""
        parts = [self.lanes.mask] if self.lanes and self.lanes.mask else []
        if guard is not None:
            parts.append(self.wide(guard))
        return " & ".join(parts) or None

    def _load(self, e: Load, wide: bool) -> str:
        (offset,) = e.index
        if not wide:
            return self._load_one(e, offset)
        if e.guard is None:
            return self._load_lanes(e, offset)
        other = constant(e.other) if e.other else f"{register_type(e.dtype)}(0)"
        if not self.varies(e.guard):
            bare = self._load_lanes(replace(e, guard=None, other=None), offset)
            return f"{self.get(e.guard).text} ? {bare} : {value_type(e.dtype, True)}({other})"
        text = self._load_lanes(e, offset)
        if _is_zero(e.other):
            return text
        return f"ot::where({self.wide(e.guard)}, {text}, ot::splat({other}))"

    def _load_one(self, e: Load, offset: Dim) -> str:
        half = self.places[e.buffer].buffer.type.dtype in (bf16, f16)
        if half:
            text = f"ot::load_one({self.pointer(e.buffer, offset)})"
        else:
            base, inner = self._address(e.buffer, offset)
            text = f"{base}[{inner}]"
        if e.guard is None:
            return text
        other = constant(e.other) if e.other else f"{register_type(e.dtype)}(0)"
        return f"{self.get(e.guard).text} ? {text} : {other}"

    def _load_lanes(self, e: Load, offset: Dim) -> str:
        mask = self.lane_mask(e.guard)
        end = f", {mask})" if mask else ")"
        walk = self.walk(offset)
        if walk is None:
            base = self.pointer(e.buffer, 0)
            return f"ot::gather({base}, {self._index_lanes(offset)}{end}"
        pointer = self.pointer(e.buffer, walk.base)
        if walk.stride == 1:
            return f"ot::load({pointer}{end}"
        if walk.stride == 0:
            bare = replace(e, guard=None, other=None)
            scalar = f"ot::splat({self._load_one(bare, walk.base)})"
            if e.guard is None:
                return scalar
            stride = "0"
        else:
            stride = self.index(walk.stride)
        return f"ot::load_strided({pointer}, {stride}{end}"


def _is_zero(other: Const | None) -> bool:
    """Whether lanes that are switched off hold the wanted value already."""
    if other is None:
        return True
    return constant(other) in ("0.0f", "0.0", "false", "uint8_t(0)") or (
        not other.dtype.is_float and other.dtype is not bool_ and other.value == 0
    )
