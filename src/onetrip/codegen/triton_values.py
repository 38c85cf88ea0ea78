"""Expressions as Triton text: tiles with named axes become tensors with positional dimensions.

Every value has either no tile axis (a scalar) or the full rank of the kernel, with 1 where it does
not vary, so operands broadcast without any further word. Knows nothing of statements and loops.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..base.dtype import bf16, f32, i32
from ..base.errors import Unsupported, VerifyError
from ..base.sym import (
    Dim,
    Opaque,
    Poly,
    Quotient,
    Remainder,
    Size,
    Sym,
    Var,
    add,
    atoms,
    is_nonnegative,
    lower_bound,
    mul,
    product,
)  # fmt: skip
from ..ir.expr import (
    Apply,
    Cast,
    Const,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Prefix,
    Rng,
    children,
    dims_of,
)  # fmt: skip
from ..ir.monoid import MONOIDS
from ..ir.nest import Buffer
from ..passes.narrow import narrow
from . import triton_ops as ops
from . import triton_random as random
from .triton_scopes import Scopes

LONG = 56
_FOLDS = {"sum", "prod", "any", "all", "xor_sum"}


@dataclass(frozen=True)
class Needs:
    """What a value depends on: bound symbols and names, and what may change under it."""

    symbols: frozenset[Hashable] = frozenset()
    resources: frozenset[str] = frozenset()
    tiles: frozenset[Var] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            self.symbols | other.symbols,
            self.resources | other.resources,
            self.tiles | other.tiles,
        )


@dataclass
class Values:
    """Turns expressions into text.

    Attributes:
        buffers: declarations by name.
        tiles: lanes of every tile axis, in the order of the dimensions.
        volatile: buffers that the kernel writes, and carried variables.
        uses: how many expressions and statements use one.
        index: the Triton type of index arithmetic.
        threads: of a program.
        reload: each step of a loop makes the tiles that all steps share.
    """

    buffers: dict[str, Buffer]
    tiles: dict[Var, int]
    volatile: set[str]
    uses: dict[Expr, int]
    index: str = "tl.int32"
    threads: int = 128
    reload: bool = False
    scopes: Scopes = field(default_factory=Scopes)
    axis: dict[Sym, str] = field(default_factory=dict)
    quarter: dict[Var, str] = field(default_factory=dict)
    masks: dict[Var, str] = field(default_factory=dict)
    locals: dict[str, tuple[str, Needs]] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    _needs: dict[Expr, Needs] = field(default_factory=dict)
    _walk: int = 0

    # What a value depends on

    def needs(self, e: Expr) -> Needs:
        """Dependences of an expression, of its indices and of its operands."""
        if e not in self._needs:
            if isinstance(e, Local):
                return self.locals[e.name][1]
            self._needs[e] = self._own(e)
        return self._needs[e]

    def _own(self, e: Expr) -> Needs:
        own = Needs()
        for child in children(e):
            own |= self.needs(child)
        for d in dims_of(e):
            own |= self.dim_needs(d)
        if isinstance(e, Load) and e.buffer in self.volatile:
            own |= Needs(resources=frozenset({e.buffer}))
        if isinstance(e, Fold):
            symbols = own.symbols | frozenset(e.axes)
            return Needs(symbols, own.resources, own.tiles - frozenset(e.axes))
        return own

    def dim_needs(self, d: Dim) -> Needs:
        """Dependences of an index expression."""
        own = Needs()
        for a in atoms(d):
            if isinstance(a, Opaque):
                own |= self.needs(a.payload)
            else:
                tile = frozenset({a} if isinstance(a, Var) and a in self.tiles else ())
                own |= Needs(frozenset({a}), tiles=tile)
        return own

    def level_of(self, needs: Needs) -> int:
        """The scope in which a value with these dependences is bound."""
        if needs.resources:
            return self.scopes.depth
        return max(self.scopes.level(needs.symbols), self._walk if needs.tiles else 0)

    @contextmanager
    def walking(self) -> Iterator[None]:
        """The body of a loop, which the innermost scope is."""
        before = self._walk
        if self.reload and not before:
            self._walk = self.scopes.depth
        yield
        self._walk = before

    def shape(self, tiles: Iterable[Var]) -> str:
        """The shape of a tensor that varies over these tile axes."""
        chosen = set(tiles)
        if not chosen:
            return "()"
        sizes = [str(n if a in chosen else 1) for a, n in self.tiles.items()]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def dimension(self, axis: Var) -> int:
        """The position of a tile axis."""
        return list(self.tiles).index(axis)

    # Values

    def value(self, e: Expr, at: int | None = None, literals: bool = False, wish: str = "") -> str:
        """The text of `e` as an operand of something in scope `at` (default: the innermost).

        Where it gets a name, that is near to `wish`.
        """
        if isinstance(e, Const):
            return ops.literal(e) if literals else ops.typed(e)
        if isinstance(e, Local):
            return self.locals[e.name][0]
        found = self.scopes.known(e)
        if found is not None:
            return found
        needs = self.needs(e)
        level = self.level_of(needs)
        text = self._build(e, level)
        if text.isidentifier():
            self.scopes.note(e, text, level, needs.resources)
            return text
        here = self.scopes.depth if at is None else at
        shared = self.uses.get(e, 0) > 1 or isinstance(e, Load | Rng | Fold | Prefix)
        if level < here or shared or len(text) > LONG:
            return self.name(e, text, level, needs, wish)
        return text

    def name(self, key: Hashable, text: str, level: int, needs: Needs, wish: str = "") -> str:
        """Binds a text to a new name in a scope."""
        hint = wish or (key.buffer if isinstance(key, Load) else "t")
        name = self.scopes.fresh(hint + "_v" if isinstance(key, Load) else hint)
        self.scopes.line(f"{name} = {ops.strip(text)}", level)
        self.scopes.note(key, name, level, needs.resources)
        return name

    def _build(self, e: Expr, level: int) -> str:
        if isinstance(e, Load):
            return self._load(e, level)
        if isinstance(e, Position):
            place = self.dim(e.value, level, tensor=True)
            if not self.needs(e).tiles:  # a loop's variable is no tensor where text is interpreted
                return f"tl.full((), {place}, {ops.TYPES[e.dtype]})"
            return f"{ops.atom(place)}.to({ops.TYPES[e.dtype]})"
        if isinstance(e, Apply):
            return self._apply(e, level)
        if isinstance(e, Cast):
            function = narrow(e)
            if function is not None and self.uses.get(e.arg, 0) == 1:
                name, x = function
                return f"ot_bf16(ot_narrow_{name}({ops.strip(self.value(x, level))}))"
            return ops.cast(ops.atom(self.value(e.arg, level)), e.arg.dtype, e.dtype)
        if isinstance(e, Rng):
            return f"ot_unit({random.words(self, e, level)})"
        if isinstance(e, Fold):
            return self._fold(e, level)
        if isinstance(e, Prefix):
            return self._prefix(e, level)
        raise Unsupported(
            f"{type(e).__name__} has no spelling in Triton here",
            next_step="schedule the group without it",
        )

    def _apply(self, e: Apply, level: int) -> str:
        kind = e.args[-1].dtype
        literals = ops.takes_literals(e.op, kind) and not all(isinstance(a, Const) for a in e.args)
        if e.op in COMPARISONS and all(isinstance(a, Position) for a in e.args):
            args = [self.dim(a.value, level) for a in e.args if isinstance(a, Position)]
            if not all(isinstance(a.value, int) for a in e.args if isinstance(a, Position)):
                return ops.spell(e.op, kind, args)
        below = random.below(self, e, level) if e.op in COMPARISONS else None
        if below is not None:
            return below
        inner = _beside_one(e)
        if inner is not None and self.uses.get(inner, 0) == 1:
            return f"ot_one_plus_erf({self.value(inner.args[0], level)})"
        if e.op == "where":
            condition = self.value(e.args[0], level)
            both = all(isinstance(a, Const) for a in e.args[1:])
            plain = literals and kind is not bf16 and (not both or kind in (f32, i32))
            rest = [self.value(a, level, plain) for a in e.args[1:]]
            return ops.spell(e.op, kind, [condition, *map(ops.strip, rest)])
        return ops.spell(e.op, kind, [self.value(a, level, literals) for a in e.args])

    # Memory

    def _load(self, e: Load, level: int) -> str:
        tiles = self.needs(e).tiles
        offset = self.buffers[e.buffer].type.offset(e.index)
        mask = self.mask(tiles, e.guard, level)
        more = f", mask={mask}" if mask else ""
        if e.other is not None and e.guard is not None:
            more += f", other={ops.literal(e.other)}"
        return f"tl.load({self.pointer(e.buffer, offset, tiles, level)}{more})"

    def mask(self, tiles: Iterable[Var], guard: Expr | None, level: int) -> str:
        """Which lanes are active; empty where all are."""
        chosen = set(tiles)
        parts = [self.masks[a] for a in self.tiles if a in chosen and a in self.masks]
        if guard is not None:
            parts.append(self.value(guard, level))
        return ops.strip(" & ".join(parts)) if len(parts) == 1 else " & ".join(parts)

    def pointer(self, buffer: str, offset: Dim, tiles: frozenset[Var], level: int) -> str:
        """Address of each lane; scalar terms first, so that only lanes are per-lane arithmetic."""
        lanes, scalar = self._split(offset)
        text = buffer
        if scalar != 0:
            text += f" + {ops.term(self.dim(scalar, level))}"
        if lanes != 0:
            text += f" + {ops.term(self.dim(lanes, level))}"
        own = self.dim_needs(offset).tiles
        if tiles - own:
            text = f"{text} + tl.full({self.shape(tiles)}, 0, tl.int32)"
        return text

    def _split(self, offset: Dim) -> tuple[Dim, Dim]:
        lanes: Dim = 0
        scalar: Dim = 0
        for c, factors in _terms(offset):
            part = mul(c, product(factors))
            if self.dim_needs(part).tiles:
                lanes = add(lanes, part)
            else:
                scalar = add(scalar, part)
        return lanes, scalar

    # Index arithmetic

    def dim(self, d: Dim, at: int, tensor: bool = False) -> str:
        """The text of an index expression."""
        if isinstance(d, int):
            return f"tl.full((), {d}, {self.index})" if tensor else str(d)
        if isinstance(d, Var | Size):
            return self.axis[d]
        if isinstance(d, Opaque):
            return self.value(d.payload, at)
        found = self.scopes.known(("index", d))
        if found is not None:
            return found
        needs = self.dim_needs(d)
        level = self.level_of(needs)
        text = self._arithmetic(d, level)
        if needs.tiles or level < at:
            wish = "offset" if needs.tiles else "base"
            return self.name(("index", d), text, level, needs, wish)
        return text

    def _arithmetic(self, d: Dim, level: int) -> str:
        if isinstance(d, Quotient | Remainder):
            num, den = ops.term(self.dim(d.num, level)), ops.term(self.dim(d.den, level))
            divide = isinstance(d, Quotient)
            if is_nonnegative(lower_bound(d.num)):
                return f"{num} {'//' if divide else '%'} {den}"
            return f"ot_index_{'floordiv' if divide else 'mod'}({num}, {den})"
        text = ""
        for c, factors in _terms(d):
            names = [ops.term(self.dim(f, level)) for f in factors]
            size = [str(abs(c))] if abs(c) != 1 or not names else []
            sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
            text += sign + "*".join([*size, *names])
        return text

    # Reductions of tiles

    def _fold(self, e: Fold, level: int) -> str:
        key = ("fold", e.monoid, e.axes, e.args)
        names = self.scopes.known((key, e.component))
        if names is not None:
            return names
        masks = [self.masks[a] for a in e.axes if a in self.masks]
        tiles = frozenset(e.axes).union(*(self.needs(a).tiles for a in e.args))
        identity = MONOIDS[e.monoid].identity(tuple(a.dtype for a in e.args))
        parts = []
        for arg, neutral in zip(e.args, identity, strict=True):
            parts.append(self._whole(arg, tiles, masks, neutral, level))
        needs = self.needs(e)
        dims: list[int | None] = [self.dimension(a) for a in self.tiles if a in e.axes]
        for dim in dims if needs.tiles else [None]:
            parts = self._fold_axis(e, parts, dim, level)
        for number, part in enumerate(parts):
            self.scopes.note((key, number), part, level, needs.resources)
        return parts[e.component]

    def _whole(
        self, arg: Expr, tiles: frozenset[Var], masks: list[str], neutral: Const, level: int
    ) -> str:
        """The operand of a fold, as large as the fold, neutral in inactive lanes."""
        text = ops.strip(self.value(arg, level))
        if masks:
            text = f"tl.where({' & '.join(masks)}, {text}, {ops.literal(neutral)})"
            if arg.dtype.name == "bool":
                text = f"({text} != 0)"
        own = self.needs(arg).tiles
        covered = own | ({a for a in self.masks if self.masks[a] in masks} if masks else set())
        if tiles - covered:
            return f"tl.broadcast_to({text}, {self.shape(tiles)})"
        return text

    def _fold_axis(self, e: Fold, parts: list[str], dim: int | None, level: int) -> list[str]:
        dtype = e.args[0].dtype
        if e.monoid in _FOLDS or e.monoid in ("max", "min"):
            kind = "" if e.monoid in _FOLDS else ("float_" if dtype.is_float else "int_")
            if dtype.name == "bool":
                kind, name = "", {"max": "any", "min": "all"}.get(e.monoid, e.monoid)
            else:
                name = e.monoid
            return [f"ot_fold_{kind}{name}({parts[0]}, {dim})"]
        function = self._combine(e)
        names = [self.scopes.fresh(f"{e.monoid}_{n}") for n in range(len(parts))]
        joined = ", ".join(parts)
        keep = "" if dim is None else ", keep_dims=True"
        self.scopes.line(
            f"{', '.join(names)} = tl.reduce(({joined}), {dim}, {function}{keep})", level
        )
        return names

    def _prefix(self, e: Prefix, level: int) -> str:
        key = ("prefix", e.monoid, e.axis, e.args)
        known = self.scopes.known((key, e.component))
        if known is not None:
            return known
        names = [self.scopes.fresh(f"{e.monoid}_{n}") for n in range(len(e.args))]
        tiles = frozenset({e.axis}).union(*(self.needs(a).tiles for a in e.args))
        parts = [self._whole(a, tiles, [], Const(0, a.dtype), level) for a in e.args]
        dim = self.dimension(e.axis)
        tail = "" if len(names) > 1 else ","
        self.scopes.line(
            f"{', '.join(names)}{tail} = tl.associative_scan(({', '.join(parts)},), {dim},"
            f" {self._combine(e)})",
            level,
        )
        for number, name in enumerate(names):
            self.scopes.note((key, number), name, level, self.needs(e).resources)
        return names[e.component]

    def _combine(self, e: Fold | Prefix) -> str:
        """The generated function that joins two states of a monoid."""
        name = "_".join(["combine", e.monoid, *(a.dtype.name for a in e.args)])
        if name not in self.functions:
            left = tuple(Local(f"a{n}", a.dtype) for n, a in enumerate(e.args))
            right = tuple(Local(f"b{n}", a.dtype) for n, a in enumerate(e.args))
            results = MONOIDS[e.monoid].combine(left, right)
            self.functions[name] = function_text(name, (*left, *right), results)
        return name


def _beside_one(e: Apply) -> Apply | None:
    """The erf(x) of 1 + erf(x), which has a shorter spelling than its parts."""
    match e:
        case Apply(op="add", args=(Const(value=1.0), Apply(op="erf") as inner)):
            return inner
        case Apply(op="add", args=(Apply(op="erf") as inner, Const(value=1.0))):
            return inner
    return None


COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def function_text(name: str, parameters: tuple[Local, ...], results: tuple[Expr, ...]) -> str:
    """A jitted function of scalars (or of tiles of one shape)."""
    values = Values({}, {}, set(), count_uses(results))
    for p in parameters:
        values.locals[p.name] = (p.name, Needs())
        values.scopes.fresh(p.name)
    returned = [ops.strip(values.value(r)) for r in results]
    body = values.scopes.text()
    head = f"@triton.jit\ndef {name}({', '.join(p.name for p in parameters)}):\n"
    return f"{head}{body}{chr(10) if body else ''}    return {', '.join(returned)}"


def count_uses(roots: Iterable[Expr]) -> dict[Expr, int]:
    """How often each expression stands as an operand or a root."""
    uses: dict[Expr, int] = {}
    stack = list(roots)
    while stack:
        e = stack.pop()
        uses[e] = uses.get(e, 0) + 1
        if uses[e] == 1:
            stack.extend(children(e))
    return uses


def _terms(d: Dim) -> Iterable[tuple[int, tuple[Sym, ...]]]:
    if isinstance(d, Poly):
        return d.terms
    return [(d, ())] if isinstance(d, int) else [(1, (d,))]


def check_shape(found: frozenset[Var], allowed: frozenset[Var], what: str) -> None:
    """A value may not vary over axes that its destination does not have."""
    if found - allowed:
        names = ", ".join(sorted(a.name for a in found - allowed))
        raise VerifyError(
            f"{what} varies over {names}", expected="an index that varies over them too"
        )
