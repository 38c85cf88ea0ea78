"""Buffer names without provenance: equal nests of different layers become one object to compare.

y = x + b   ->   a2 = a0 + a1,   names (x, b, y)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.expr import Expr, Load, Rewriter, children
from ..ir.nest import Nest, Store


def anonymize(nest: Nest) -> tuple[Nest, tuple[str, ...]]:
    """The nest with buffers named a0, a1, ... in order, and the names they had."""
    old = tuple(b.name for b in nest.buffers)
    return renamed(nest, {name: f"a{k}" for k, name in enumerate(old)}), old


def renamed(nest: Nest, new: Mapping[str, str]) -> Nest:
    """The nest with other names for its buffers; KeyError where one of them has none."""

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(new[e.buffer], e.index, e.dtype, e.guard, e.other)
        return None

    def leaf(e: Expr) -> Expr | None:
        return None if children(e) else load(e)

    rewrite = Rewriter(leaf=leaf, node=load)

    def store(s: Store) -> Store:
        return replace(
            s,
            buffer=new[s.buffer],
            index=tuple(map(rewrite.dim, s.index)),
            value=rewrite(s.value),
            guard=None if s.guard is None else rewrite(s.guard),
        )

    buffers = tuple(replace(b, name=new[b.name]) for b in nest.buffers)
    return Nest(nest.space, buffers, tuple(map(store, nest.stores)))
