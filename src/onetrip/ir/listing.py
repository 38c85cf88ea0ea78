"""Lines of IR text, the objects they stand for, and the text of what stands in a line.

Every text can be read back by ir/parser.py, so different objects have different texts: shapes and
strides, numbers with their type, and all 64 bits of a float are kept.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..base.dtype import DType
from ..base.host import Computed
from ..base.sym import Dim, Opaque, Size, Sym, Var, render
from .expr import (
    Apply,
    Cast,
    Const,
    Contract,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Prefix,
    Reduced,
    Rng,
    Scanned,
    walk,
)
from .graph import Literal, Ref, Scalar, Value
from .types import TensorType, contiguous_strides

INDENT = "  "
_BARE = re.compile(r"[A-Za-z_][\w.]*\Z")
_NAN = struct.pack("<d", math.nan)


@dataclass
class Listing:
    """Numbered lines of text; `where` tells the line of an object, by identity."""

    lines: list[str] = field(default_factory=list)
    where: dict[int, int] = field(default_factory=dict)
    depth: int = 0

    def add(self, text: str, *subjects: object) -> None:
        """One more line, which stands for the given objects."""
        for s in subjects:
            self.where.setdefault(id(s), len(self.lines))
        self.lines.append(INDENT * self.depth + text)

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines) + "\n"

    def around(self, subject: object, reach: int = 3) -> str:
        """The lines around an object's own, which is marked; the first lines if it has none."""
        at = self.where.get(id(subject))
        first = max(0, (at or 0) - reach)
        shown = enumerate(self.lines[first : (at or 0) + reach + 1], first)
        return "\n".join(f"{'-->' if n == at else '   '} {n + 1:4} | {line}" for n, line in shown)


# ------------------------------------------------------------------ names, numbers, types


def name_text(name: str) -> str:
    """A name as it is, or quoted when it is no identifier."""
    return name if _BARE.match(name) and name != "none" else json.dumps(name)


def number_text(value: bool | int | float) -> str:
    """A number that reads back as the same type and bits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value) and struct.pack("<d", value) != _NAN:
        return f"bits({struct.unpack('<Q', struct.pack('<d', value))[0]:#x})"
    return repr(value)


def plain_dim(d: Dim) -> str:
    """An expression over sizes."""
    return render(d, lambda atom: name_text(getattr(atom, "name", repr(atom))))


def type_text(t: TensorType) -> str:
    """`f32[4,8]`, with `{1,4}` after it where the strides are not the row-major ones."""
    shape = ",".join(map(plain_dim, t.shape))
    if t.strides == contiguous_strides(t.shape):
        return f"{t.dtype.name}[{shape}]"
    return f"{t.dtype.name}[{shape}]{{{','.join(map(plain_dim, t.strides))}}}"


def value_text(v: Value) -> str:
    """`name: type`."""
    return f"{name_text(v.name)}: {type_text(v.type)}"


def attr_text(value: Any) -> str:
    """An attribute or a template of an extern's argument."""
    for kinds, write in _ATTRS:
        if isinstance(value, kinds):
            return write(value)
    return f"object({json.dumps(repr(value))})"


def _tuple_text(value: tuple[Any, ...]) -> str:
    inside = ", ".join(map(attr_text, value))
    return f"({inside},)" if len(value) == 1 else f"({inside})"


_ATTRS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (type(None), lambda _: "none"),
    ((bool, int, float), number_text),
    (complex, lambda c: f"complex({number_text(c.real)}, {number_text(c.imag)})"),
    (str, json.dumps),
    (DType, lambda d: f"dtype({d.name})"),
    (Sym, lambda d: f"dim({plain_dim(d)})"),
    (tuple, _tuple_text),
    (Ref, lambda r: f"ref({r.index})"),
    (Literal, lambda x: f"literal({json.dumps(x.kind)}, {json.dumps(x.text)})"),
    (Computed, lambda c: f"computed({json.dumps(c.function)}, {attr_text(c.arguments)})"),
    (Scalar, lambda s: f"scalar({attr_text(s.value)})"),
    (Value, lambda v: f"value({value_text(v)})"),
)


# ------------------------------------------------------------------ expressions


class Writer:
    """Writes expressions as numbered lines, operands first; small ones stand inside a line."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self._numbers: dict[Expr, int] = {}
        self._count = 0
        self._axes: dict[Var, str] = {}

    def axis(self, var: Var) -> str:
        """The name of an axis; another axis of the same name gets a mark."""
        if var not in self._axes:
            taken = sum(v.name == var.name for v in self._axes)
            self._axes[var] = name_text(var.name if not taken else f"{var.name}~{taken}")
        return self._axes[var]

    def forget(self) -> None:
        """From here on no earlier line's value may be used: locals and buffers have changed."""
        self._numbers.clear()

    def dim(self, d: Dim) -> str:
        """An index expression; values read at run time are `[%3 < extent]`."""
        return render(d, self._atom)

    def dims(self, dims: Iterable[Dim]) -> str:
        """Index expressions between commas."""
        return ", ".join(map(self.dim, dims))

    def axes(self, axes: Iterable[Var]) -> str:
        """Axes between brackets."""
        return f"({', '.join(map(self.axis, axes))})"

    def _atom(self, atom: Sym) -> str:
        if isinstance(atom, Opaque):
            return f"[{self.operand(atom.payload)} < {self.dim(atom.extent)}]"
        if isinstance(atom, Var):
            return self.axis(atom)
        return name_text(atom.name) if isinstance(atom, Size) else repr(atom)

    def lines(self, *roots: Expr) -> None:
        """The lines of all expressions below the roots that have none yet."""
        for e in walk(roots):
            if e not in self._numbers and not isinstance(e, _INLINE):
                text = _TEXTS[type(e)](self, e)
                self._numbers[e] = self._count
                self.listing.add(f"%{self._count} = {text}: {e.dtype.name}", e)
                self._count += 1

    def operand(self, e: Expr) -> str:
        """An expression as it stands in the line of its user."""
        if not isinstance(e, _INLINE):
            return f"%{self._numbers[e]}"
        return f"{_TEXTS[type(e)](self, e)}:{e.dtype.name}"

    def operands(self, exprs: Iterable[Expr]) -> str:
        """Expressions between brackets."""
        return f"({', '.join(map(self.operand, exprs))})"

    def condition(self, guard: Expr | None) -> str:
        """` if %3`, or nothing."""
        return "" if guard is None else f" if {self.operand(guard)}"


def _load(w: Writer, e: Load) -> str:
    other = "" if e.other is None else f" else {w.operand(e.other)}"
    return f"load {name_text(e.buffer)}[{w.dims(e.index)}]{w.condition(e.guard)}{other}"


def _reduced(w: Writer, e: Reduced) -> str:
    r = e.reduction
    return f"reduce {r.monoid}[{e.component}] over {w.axes(r.axes)} of {w.operands(r.lift)}"


def _scanned(w: Writer, e: Scanned) -> str:
    way = " reverse" if e.reverse else ""
    head = f"scan {e.monoid}[{e.component}] along {w.axis(e.axis)}{way}"
    return f"{head} of {w.operands(e.lift)}"


_INLINE = (Const, Position, Local)
_TEXTS: dict[type[Expr], Callable[[Writer, Any], str]] = {
    Const: lambda w, e: number_text(e.value),
    Position: lambda w, e: f"at({w.dim(e.value)})",
    Local: lambda w, e: f"${name_text(e.name)}{w.axes(e.over)}",
    Load: _load,
    Apply: lambda w, e: f"{e.op}{w.operands(e.args)}",
    Cast: lambda w, e: f"cast {w.operand(e.arg)}",
    Rng: lambda w, e: f"rng {w.operand(e.seed)}[{w.dim(e.offset)}] rounds {e.rounds}",
    Reduced: _reduced,
    Scanned: _scanned,
    Fold: lambda w, e: (
        f"fold {e.monoid}[{e.component}] over {w.axes(e.axes)} of {w.operands(e.args)}"
    ),
    Prefix: lambda w, e: (
        f"prefix {e.monoid}[{e.component}] along {w.axis(e.axis)} of {w.operands(e.args)}"
    ),
    Contract: lambda w, e: (
        f"contract over {w.axis(e.axis)} of ({w.operand(e.a)}, {w.operand(e.b)})"
    ),
}
