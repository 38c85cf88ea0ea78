"""Rows of working memory that lie in the output which takes their place.

    row[r] = f(x[r]);  s += row[r];  y[r] = row[r] / s
    y[r] = f(x[r]);    s += y[r];    y[r] = y[r] / s

A core's own cache holds one long row, but not its output beside it. Must not know text, families of
schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.sym import Dim, Var, add, atoms, mul
from ..ir.expr import Expr, Load, Rewriter
from ..ir.kernel import Let, Loop, Mapping, Scratch, Stmt, statements
from ..ir.nest import Access, Buffer, Combine, Store
from .cpu_statements import expressions, renamed


@dataclass(frozen=True)
class _Place:
    """Where a row begins in an output."""

    output: str
    base: Dim

    def of(self, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Where an element of the row stands."""
        return (add(self.base, index[0]),)


def in_outputs(body: Sequence[Stmt], buffers: Sequence[Buffer]) -> tuple[Stmt, ...]:
    """The statements of a kernel with every row in an output that can hold it."""
    read = {e.buffer for e in _loads(*body)}
    stored = [s.buffer for s in statements(tuple(body)) if isinstance(s, Store)]
    free = {
        b.name: b
        for b in buffers
        if b.access is Access.WRITE and b.name not in read and stored.count(b.name) == 1
    }
    return _placed(body, free, frozenset())


def _placed(
    body: Sequence[Stmt], free: dict[str, Buffer], around: frozenset[Var]
) -> tuple[Stmt, ...]:
    """The statements inside the loops over the axes `around`."""
    out = list(body)
    for s in body:
        found = _place_of(s, out, free, around) if isinstance(s, Scratch) else None
        if isinstance(s, Scratch) and found is not None:
            del free[found.output]
            out = [_moved(x, s.name, found) for x in out if x is not s]
    return tuple(
        replace(s, body=_placed(s.body, free, around | {s.axis})) if isinstance(s, Loop) else s
        for s in out
    )


def _place_of(
    row: Scratch, body: Sequence[Stmt], free: dict[str, Buffer], around: frozenset[Var]
) -> _Place | None:
    """The output that is stored from the row, element by element, where the row is read last."""
    readers = [s for s in body if any(e.buffer == row.name for e in _loads(s))]
    last = list(statements((readers[-1],))) if readers else []
    loops = [s for s in last if isinstance(s, Loop)]
    stores = [s for s in last if isinstance(s, Store)]
    if len(stores) != 1 or not all(isinstance(s, Loop | Let | Store) for s in last):
        return None
    (store,), places = stores, _places(row.name, body)
    if len(places) != 1 or not _takes_place(store, row, free):
        return None
    ((place,),) = places
    base = add(store.index[0], mul(place, -1))
    whole = {s.axis for s in loops if s.start == 0 and s.stop is None}
    serial = all(s.mapping is Mapping.SERIAL for s in loops)
    own = _axes(place) <= whole and not _axes(base) & {s.axis for s in loops}
    return _Place(store.buffer, base) if serial and own and around <= _axes(base) else None


def _places(row: str, body: Sequence[Stmt]) -> set[tuple[Dim, ...]]:
    """The indices with which a row is read and written."""
    found = {e.index for e in _loads(*body) if e.buffer == row}
    stores = (s for s in statements(tuple(body)) if isinstance(s, Store))
    return found | {s.index for s in stores if s.buffer == row}


def _takes_place(store: Store, row: Scratch, free: dict[str, Buffer]) -> bool:
    """Whether a store writes every element of an output of the row's own type."""
    plain = store.combine is Combine.SET and store.guard is None
    return plain and store.buffer in free and free[store.buffer].type.dtype is row.type.dtype


def _moved(s: Stmt, row: str, place: _Place) -> Stmt:
    """The statement with the output in place of the row."""

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == row:
            return Load(place.output, place.of(e.index), e.dtype)
        return None

    if isinstance(s, Loop):
        return replace(s, body=tuple(_moved(x, row, place) for x in s.body))
    if isinstance(s, Store) and s.buffer == row:
        s = replace(s, buffer=place.output, index=place.of(s.index))
    return renamed(s, {}, Rewriter(node=node))


def _loads(*body: Stmt) -> list[Load]:
    return [e for e in expressions(body) if isinstance(e, Load)]


def _axes(d: Dim) -> set[Var]:
    return {a for a in atoms(d) if isinstance(a, Var)}
