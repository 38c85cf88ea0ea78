"""Views as windows: which part of a value they are, apart from where it begins.

    x[:, 5]   of x[4, 9, 8]   ->  steps (i0, 0, i1), starts (0, 5, 0)
    x[:, 6]                   ->  the same steps,    starts (0, 6, 0)

Two groups that read windows of the same steps, of which the second begin by the same distance
later, ask memory for the same number of elements in the same order. Must not know which groups
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ..base.sym import Dim, Sym, Var, atoms, monomials, substitute
from ..ir.expr import Load
from .index import Index


@dataclass(frozen=True)
class Window:
    """What a view is of the value whose memory it shares.

    Attributes:
        steps: which element of the value each element is, less `starts`; axes go by position.
        starts: in elements along each dimension of the value.
    """

    base: str
    steps: tuple[Dim, ...]
    starts: tuple[int, ...]


Positions = tuple[Dim, ...]
"""Where the elements of a view are read from, in axes `i0, i1, ...` of the view."""


def windows_of(index: Index, form: Callable[[str], Hashable]) -> dict[str, Window]:
    """The views of values of which some view begins later than the value, by name.

    Args:
        form: of a node by name; equal for nodes that differ in names only, which are read once.
    """
    forms = {name: form(name) for name in index.views}
    first = {f: name for name, f in reversed(forms.items())}
    maps = {f: _map(name, index) for f, name in first.items()}
    moves = {f for f, m in maps.items() if m is not None and any(map(_start, m))}
    moved = {index.base(name) for name, f in forms.items() if f in moves}
    composed: dict[tuple[Hashable, Positions | None], Positions] = {}
    known: dict[str, Positions] = {}
    for name in index.views:
        base = index.base(name)
        if base in moved:
            source = index.graph.producers[name].values[0]
            below = known.get(source.name)
            here = None if source.name in index.views and below is None else maps[forms[name]]
            key = (forms[name], below)
            if here is not None and key not in composed:
                composed[key] = here if below is None else _through(here, below, source.type.shape)
            if here is None:
                moved.discard(base)
            else:
                known[name] = composed[key]
    parts = {p: (tuple(d - _start(d) for d in p), tuple(map(_start, p))) for p in known.values()}
    return {
        name: Window(index.base(name), *parts[positions])
        for name, positions in known.items()
        if index.base(name) in moved
    }


def _map(name: str, index: Index) -> Positions | None:
    """Where one movement reads its elements in its operand; None where it is more than that."""
    (store,) = index.nests[name].stores
    if not isinstance(store.value, Load):
        return None
    axes: dict[Sym, Dim] = {
        a: Var(f"i{k}", a.extent)
        for k, d in enumerate(store.index)
        for a in atoms(d)
        if isinstance(a, Var)
    }
    return tuple(substitute(d, axes) for d in store.value.index)


def _through(here: Positions, below: Positions, shape: tuple[Dim, ...]) -> Positions:
    """Positions in the operand of a view of which a view reads; `shape` is that of the former."""
    outer: dict[Sym, Dim] = {
        a: here[k] for k, size in enumerate(shape) for a in (Var(f"i{k}", size),)
    }
    return tuple(substitute(d, outer) for d in below)


def _start(position: Dim) -> int:
    """The part of a position that does not vary."""
    return position if isinstance(position, int) else monomials(position).get((), 0)
