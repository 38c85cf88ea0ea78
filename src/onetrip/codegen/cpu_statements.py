"""Statements of a kernel read and rewritten as a whole. Must not know what for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..ir.expr import Expr, Rewriter, walk
from ..ir.kernel import Assign, Carry, Let, Loop, Scratch, Stmt, statements
from ..ir.nest import Store


def renamed(s: Stmt, new: Mapping[str, str], values: Rewriter) -> Stmt:
    """The statement with other names and rewritten values."""
    match s:
        case Loop():
            return replace(s, body=tuple(renamed(x, new, values) for x in s.body))
        case Let():
            return replace(s, name=new.get(s.name, s.name), value=values(s.value))
        case Carry():
            return replace(s, name=new.get(s.name, s.name), init=values(s.init))
        case Assign():
            names = tuple(new.get(n, n) for n in s.names)
            return replace(s, names=names, values=tuple(map(values, s.values)))
        case Scratch():
            return replace(s, name=new.get(s.name, s.name))
        case Store():
            guard = None if s.guard is None else values(s.guard)
            index = tuple(map(values.dim, s.index))
            buffer = new.get(s.buffer, s.buffer)
            return replace(s, buffer=buffer, index=index, value=values(s.value), guard=guard)


def expressions(body: Sequence[Stmt]) -> Iterator[Expr]:
    """Every expression of the statements."""
    for s in statements(tuple(body)):
        yield from walk(roots_of(s))


def roots_of(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in a statement."""
    if isinstance(s, Store):
        return s.roots
    if isinstance(s, Assign):
        return s.values
    return (s.value,) if isinstance(s, Let) else ()
