"""Reads the text of a Graph or a Nest back: `parse(text(x)) == x`, interned parts by identity.

    line ::= size | axis | buffer | %n = expression | store          in a nest
           | size | input | node | mutate | return                   in a graph

Index expressions are put together as they are written, without simplifying, so that even a form
that arithmetic would never make comes back as it was. The texts are those of ir/printer.py.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any, TypeVar

from ..base.dtype import BY_NAME, DType
from ..base.errors import UsageError
from ..base.host import Computed
from ..base.sym import Dim, Opaque, Poly, Quotient, Remainder, Size, Sym, Var
from .expr import Apply, Cast, Const, Expr, Load, Position, Reduced, Reduction, Rng, Scanned
from .graph import Graph, Literal, Node, Operand, Origin, Ref, Scalar, Value
from .nest import Access, Axis, AxisKind, Buffer, Combine, Nest, Store
from .types import TensorType, contiguous_strides

T = TypeVar("T")
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?|[A-Za-z_][\w.]*|//|>=|\S'
)


def parse(text: str) -> Graph | Nest:
    """The graph or nest that a text of ir/printer.py describes.

    Raises:
        UsageError: with the line that cannot be read.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0].split(maxsplit=1)[0] if lines else ""
    if first not in ("graph", "nest"):
        raise UsageError("no such level of IR", expected="`graph` or `nest`", found=repr(first))
    reader = _GraphReader() if first == "graph" else _NestReader()
    for number, line in enumerate(lines, 1):
        try:
            reader.line(Cursor(line))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UsageError(
                "this line of IR cannot be read",
                expected="a text of ir/printer.py",
                found=f"{line.strip()} ({error})",
                where=f"line {number}",
            ) from error
    return reader.finish()


class Cursor:
    """The words of one line, read from left to right."""

    def __init__(self, line: str) -> None:
        self.words: list[str] = _TOKEN.findall(line)
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        """A coming word; empty behind the last."""
        n = self.at + ahead
        return self.words[n] if n < len(self.words) else ""

    def next(self) -> str:
        """The next word, which is passed."""
        self.at += 1
        return self.words[self.at - 1]

    def accept(self, *words: str) -> bool:
        """Passes the words if they come next."""
        if self.words[self.at : self.at + len(words)] != list(words):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Passes the words; ValueError if others come."""
        if not self.accept(*words):
            raise ValueError(f"expected {' '.join(words)!r}, found {self.peek()!r}")

    def name(self) -> str:
        """A name, bare or quoted."""
        word = self.next()
        return str(json.loads(word)) if word.startswith('"') else word

    def many(self, close: str, one: Callable[[], T]) -> tuple[T, ...]:
        """What `one` reads, between commas, up to the closing word (`""`: the end), passed."""
        found: list[T] = []
        while not (self.accept(close) if close else self.at >= len(self.words)):
            found.append(one())
            self.accept(",")
        return tuple(found)

    def number(self) -> bool | int | float:
        """A number with its type and bits."""
        negative = self.accept("-")
        word = self.next()
        if word == "bits":
            self.expect("(")
            bits = int(self.next(), 16)
            self.expect(")")
            return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
        if word in ("true", "false"):
            return word == "true"
        value: int | float = int(word) if word.isdigit() else float(word)
        return -value if negative else value


class _Reader:
    """What graphs and nests share: sizes, index expressions, types."""

    def __init__(self) -> None:
        self.symbols: dict[str, Sym] = {}

    def size(self, c: Cursor) -> Size:
        name = c.name()
        c.expect(">=")
        made = Size(name, int(c.next()))
        self.symbols[name] = made
        return made

    def dtype(self, c: Cursor) -> DType:
        return BY_NAME[c.next()]

    def type(self, c: Cursor) -> TensorType:
        dtype = self.dtype(c)
        c.expect("[")
        shape = c.many("]", lambda: self.dim(c))
        strides = contiguous_strides(shape)
        if c.accept("{"):
            strides = c.many("}", lambda: self.dim(c))
        return TensorType(dtype, shape, strides)

    def dim(self, c: Cursor) -> Dim:
        terms: list[tuple[int, tuple[Sym, ...]]] = []
        sign = -1 if c.accept("-") else 1
        while True:
            coefficient, factors = self._term(c)
            terms.append((sign * coefficient, factors))
            if c.peek() not in ("+", "-"):
                break
            sign = 1 if c.next() == "+" else -1
        if len(terms) == 1:
            (coefficient, factors) = terms[0]
            if not factors:
                return coefficient
            if coefficient == 1 and len(factors) == 1:
                return factors[0]
        return Poly(tuple(terms))

    def _term(self, c: Cursor) -> tuple[int, tuple[Sym, ...]]:
        coefficient, factors = 1, []
        while True:
            one = self._primary(c)
            if isinstance(one, int):
                coefficient *= one
            else:
                factors.append(one)
            if not c.accept("*"):
                return coefficient, tuple(factors)

    def _primary(self, c: Cursor) -> Dim:
        if c.accept("("):
            made = self.dim(c)
            if c.accept("//"):
                made = Quotient(made, self._primary(c))
            elif c.accept("%"):
                made = Remainder(made, self._primary(c))
            c.expect(")")
            return made
        if c.accept("["):
            payload = self.payload(c)
            c.expect("<")
            read = Opaque(payload, self.dim(c))
            c.expect("]")
            return read
        if c.peek().isdigit():
            return int(c.next())
        return self.symbols[c.name()]

    def payload(self, c: Cursor) -> Expr:
        raise ValueError("a value read at run time stands only in a nest")


class _NestReader(_Reader):
    def __init__(self) -> None:
        super().__init__()
        self.space: tuple[Axis, ...] = ()
        self.buffers: list[Buffer] = []
        self.stores: list[Store] = []
        self.values: dict[str, Expr] = {}
        self.header: list[tuple[str, Cursor]] = []

    def finish(self) -> Nest:
        return Nest(self.space, tuple(self.buffers), tuple(self.stores))

    def line(self, c: Cursor) -> None:
        word, after = c.peek(), c.peek(1)
        if word == "%":
            self._value(c)
        elif after == "[":
            self._store(c)
        elif word != "}":
            c.next()
            _NEST_LINES[word](self, c)

    def axes(self, c: Cursor) -> None:
        self.space = c.many("", lambda: self._axis(c))

    def _axis(self, c: Cursor) -> Axis:
        var = self.axis(c)
        kinds = {k.value: k for k in AxisKind}
        return Axis(var, kinds[c.next()] if c.peek() in kinds else AxisKind.PARALLEL)

    def axis(self, c: Cursor) -> Var:
        name = c.name()
        c.expect(":")
        made = Var(name, self.dim(c))
        self.symbols[name] = made
        return made

    def buffer(self, access: Access, c: Cursor) -> None:
        name = c.name()
        c.expect(":")
        self.buffers.append(Buffer(name, self.type(c), access))

    def payload(self, c: Cursor) -> Expr:
        return self.operand(c)

    def operand(self, c: Cursor) -> Expr:
        if c.accept("%"):
            return self.values[c.next()]
        if c.accept("at", "("):
            place = self.dim(c)
            c.expect(")", ":")
            return Position(place, self.dtype(c))
        return self.constant(c)

    def constant(self, c: Cursor) -> Const:
        value = c.number()
        c.expect(":")
        return Const(value, self.dtype(c))

    def operands(self, c: Cursor) -> tuple[Expr, ...]:
        c.expect("(")
        return c.many(")", lambda: self.operand(c))

    def index(self, c: Cursor) -> tuple[Dim, ...]:
        c.expect("[")
        return c.many("]", lambda: self.dim(c))

    def variables(self, c: Cursor) -> tuple[Var, ...]:
        c.expect("(")
        return c.many(")", lambda: self.variable(c))

    def variable(self, c: Cursor) -> Var:
        found = self.symbols[c.name()]
        if not isinstance(found, Var):
            raise ValueError(f"{found} is no axis")
        return found

    def component(self, c: Cursor) -> tuple[str, int]:
        monoid = c.name()
        c.expect("[")
        component = int(c.next())
        c.expect("]")
        return monoid, component

    def _value(self, c: Cursor) -> None:
        c.expect("%")
        number = c.next()
        c.expect("=")
        word = c.next()
        make = _EXPRESSIONS.get(word)
        if make is None or c.peek() == "(":
            args = self.operands(c)
            c.expect(":")
            self.values[number] = Apply(word, args, self.dtype(c))
        else:
            self.values[number] = make(self, c)

    def _store(self, c: Cursor) -> None:
        buffer = c.name()
        index = self.index(c)
        sign = c.next()
        while not sign.endswith("="):
            sign += c.next()
        value = self.operand(c)
        axes = self.variables(c) if c.accept("over") else ()
        guard = self.operand(c) if c.accept("if") else None
        self.stores.append(Store(buffer, index, value, axes, Combine(sign), guard))


def _load(r: _NestReader, c: Cursor) -> Expr:
    buffer = c.name()
    index = r.index(c)
    guard = r.operand(c) if c.accept("if") else None
    other = r.constant(c) if c.accept("else") else None
    c.expect(":")
    return Load(buffer, index, r.dtype(c), guard, other)


def _cast(r: _NestReader, c: Cursor) -> Expr:
    arg = r.operand(c)
    c.expect(":")
    return Cast(arg, r.dtype(c))


def _rng(r: _NestReader, c: Cursor) -> Expr:
    seed = r.operand(c)
    (offset,) = r.index(c)
    c.expect("rounds")
    rounds = int(c.number())
    c.expect(":")
    return Rng(seed, offset, r.dtype(c), rounds)


def _reduce(r: _NestReader, c: Cursor) -> Expr:
    monoid, component = r.component(c)
    c.expect("over")
    axes = r.variables(c)
    c.expect("of")
    lift = r.operands(c)
    c.expect(":")
    return Reduced(Reduction(monoid, axes, lift), component, r.dtype(c))


def _scan(r: _NestReader, c: Cursor) -> Expr:
    monoid, component = r.component(c)
    c.expect("along")
    axis = r.variable(c)
    reverse = c.accept("reverse")
    c.expect("of")
    lift = r.operands(c)
    c.expect(":")
    return Scanned(monoid, axis, lift, component, r.dtype(c), reverse)


_EXPRESSIONS: dict[str, Callable[[_NestReader, Cursor], Expr]] = {
    "load": _load,
    "cast": _cast,
    "rng": _rng,
    "reduce": _reduce,
    "scan": _scan,
}
_NEST_LINES: dict[str, Callable[[_NestReader, Cursor], Any]] = {
    "nest": lambda r, c: c.expect("{"),
    "size": _NestReader.size,
    "space": _NestReader.axes,
    "axis": _NestReader.axis,
    "read": lambda r, c: r.buffer(Access.READ, c),
    "write": lambda r, c: r.buffer(Access.WRITE, c),
    "update": lambda r, c: r.buffer(Access.UPDATE, c),
}


class _GraphReader(_Reader):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Value] = {}
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: tuple[Value | Scalar | None, ...] = ()
        self.mutations: list[tuple[Value, Value]] = []
        self.sizes: list[tuple[Size, str | Computed, int]] = []

    def finish(self) -> Graph:
        return Graph(
            tuple(self.inputs),
            tuple(self.nodes),
            self.outputs,
            tuple(self.mutations),
            tuple(self.sizes),
        )

    def line(self, c: Cursor) -> None:
        word = c.peek()
        if word == "}":
            return
        if word in _GRAPH_LINES and c.peek(1) not in (":", "="):
            c.next()
            _GRAPH_LINES[word](self, c)
        else:
            self._node(c)

    def source(self, c: Cursor) -> None:
        size = self.size(c)
        if c.accept("from"):
            source = self.attr(c) if (c.peek(), c.peek(1)) == ("computed", "(") else c.name()
            c.expect("dim")
            self.sizes.append((size, source, int(c.number())))

    def value(self, c: Cursor) -> Value:
        name = c.name()
        c.expect(":")
        made = Value(name, self.type(c))
        self.values[name] = made
        return made

    def input(self, c: Cursor) -> None:
        self.inputs.append(self.value(c))

    def mutate(self, c: Cursor) -> None:
        target = self.values[c.name()]
        c.expect("=")
        self.mutations.append((target, self.values[c.name()]))

    def result(self, c: Cursor) -> None:
        self.outputs = c.many("", lambda: self.output(c))

    def output(self, c: Cursor) -> Value | Scalar | None:
        if c.accept("none"):
            return None
        if c.peek() == "scalar" and c.peek(1) == "(":
            made: Scalar = self.attr(c)
            return made
        return self.values[c.name()]

    def operand(self, c: Cursor) -> Operand:
        found = self.output(c)
        if found is None:
            raise ValueError("an operand is missing")
        return found

    def _node(self, c: Cursor) -> None:
        outputs = c.many("=", lambda: self.value(c))
        op = c.name()
        c.expect("(")
        inputs = c.many(")", lambda: self.operand(c))
        attrs = c.many("}", lambda: self._pair(c)) if c.accept("{") else ()
        c.expect("call")
        call = int(c.number())
        origin = Origin(*self.attr(c)) if c.accept("from") else Origin()
        self.nodes.append(Node(op, inputs, outputs, attrs, origin, call))

    def _pair(self, c: Cursor) -> tuple[str, Any]:
        name = c.name()
        c.expect("=")
        return name, self.attr(c)

    def attr(self, c: Cursor) -> Any:
        word = c.peek()
        if word.startswith('"'):
            return c.name()
        if c.accept("none"):
            return None
        if c.accept("("):
            return c.many(")", lambda: self.attr(c))
        if word in _ATTRS and c.peek(1) == "(":
            c.next()
            c.expect("(")
            made = _ATTRS[word](self, c)
            c.expect(")")
            return made
        return c.number()

    def literal(self, c: Cursor) -> Literal:
        kind = c.name()
        c.expect(",")
        return Literal(kind, c.name())

    def computed(self, c: Cursor) -> Computed:
        function = c.name()
        c.expect(",")
        return Computed(function, tuple(self.attr(c)))

    def complex(self, c: Cursor) -> complex:
        real = float(c.number())
        c.expect(",")
        return complex(real, float(c.number()))


_GRAPH_LINES: dict[str, Callable[[_GraphReader, Cursor], Any]] = {
    "graph": lambda r, c: c.expect("{"),
    "size": _GraphReader.source,
    "input": _GraphReader.input,
    "mutate": _GraphReader.mutate,
    "return": _GraphReader.result,
}
_ATTRS: dict[str, Callable[[_GraphReader, Cursor], Any]] = {
    "dtype": _GraphReader.dtype,
    "dim": _GraphReader.dim,
    "ref": lambda r, c: Ref(int(c.number())),
    "literal": _GraphReader.literal,
    "scalar": lambda r, c: Scalar(r.attr(c)),
    "value": lambda r, c: r.value(c),
    "complex": _GraphReader.complex,
    "computed": _GraphReader.computed,
}
