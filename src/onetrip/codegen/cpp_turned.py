"""A copy that turns a rectangle around, in C++: squares of vectors transposed in registers.

    for a: for lanes b: to[a + R b] = from[C a + b]    ->    ot::transpose(to, R, from, C, A, B)

Must not know families of schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.affine import coefficient
from ..base.sym import Dim, Opaque, Sym, add, atoms, mul
from ..ir.expr import Load
from ..ir.kernel import Loop, Mapping
from ..ir.nest import Combine, Store
from .cpp_values import Values


@dataclass(frozen=True)
class Turned:
    """The loops of a turned copy, its store and load, and how far apart their rows lie."""

    outer: Loop
    inner: Loop
    store: Store
    load: Load
    rows: Dim
    columns: Dim


def turned_copy(loop: Loop) -> Turned | None:
    """The copy that a loop over a loop over lanes is, if it is one."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(inner, Loop) or inner.tile == 1 or loop.mapping is not Mapping.SERIAL:
        return None
    store = inner.body[0] if len(inner.body) == 1 else None
    if not isinstance(store, Store) or not isinstance(store.value, Load) or not _is_plain(store):
        return None
    (to,), (of,) = store.index, store.value.index
    a, b = loop.axis, inner.axis
    rows, columns = coefficient(to, b), coefficient(of, a)
    walks = coefficient(to, a) == 1 and coefficient(of, b) == 1
    if not walks or rows is None or columns is None or rows == 1 or columns == 0:
        return None
    if any(v in (a, b) for d in (rows, columns, inner.start, inner.end) for v in atoms(d)):
        return None
    return Turned(loop, inner, store, store.value, rows, columns)


def _is_plain(store: Store) -> bool:
    load = store.value
    assert isinstance(load, Load)
    indirect = any(isinstance(x, Opaque) for d in (*store.index, *load.index) for x in atoms(d))
    whole = store.guard is None and load.guard is None and store.combine is Combine.SET
    return whole and not indirect and load.buffer != store.buffer


def write_turned(v: Values, copy: Turned, end_a: str, end_b: str) -> None:
    """The statement of a turned copy that ends at the texts `end_a` and `end_b`."""
    (to,), (of,) = copy.store.index, copy.load.index
    a, b = copy.outer, copy.inner
    start_a, start_b = v.index(a.start), v.index(b.start)

    def first(d: Dim, by_a: Dim, by_b: Dim) -> Dim:
        """The offset at the first element of both loops."""
        for loop, by in ((a, by_a), (b, by_b)):
            d = add(d, mul(by, _from(loop)))
        return d

    target = v.pointer(copy.store.buffer, first(to, 1, copy.rows))
    source = v.pointer(copy.load.buffer, first(of, copy.columns, 1))
    rows, columns = v.index(copy.rows), v.index(copy.columns)
    sizes = f"{end_a} - ({start_a}), {end_b} - ({start_b})"
    v.scopes.line(f"ot::transpose({target}, {rows}, {source}, {columns}, {sizes});")
    v.scopes.changed(copy.store.buffer)


def _from(loop: Loop) -> Dim:
    """What to add to the axis to get the loop's start."""
    axis: Sym = loop.axis
    return add(loop.start, mul(axis, -1))
