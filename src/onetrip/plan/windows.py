"""Views as windows: which part of a value they are, apart from where it begins.

    x[:, 5]   of x[4, 9, 8]   ->  steps (i0, 0, i1), starts (0, 5, 0)
    x[:, 6]                   ->  the same steps,    starts (0, 6, 0)

Two groups that read windows of the same steps, of which the second begin by the same distance
later, ask memory for the same number of elements in the same order. Must not know which groups
there are.
"""

from __future__ import annotations

from collections.abc import Mapping
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


_Map = tuple[tuple[Dim, ...], tuple[Dim, ...]]
"""Positions in a result, and those in the operand that they are read from."""


def windows_of(index: Index) -> dict[str, Window]:
    """The views of values of which some view begins later than the value, by name."""
    maps = {name: _map(name, index) for name in index.views}
    moved = {index.base(n) for n, m in maps.items() if m is not None and any(map(_start, m[1]))}
    known: dict[str, tuple[Dim, ...]] = {}
    for name in index.views:
        if index.base(name) in moved:
            composed = _composed(name, maps, known, index)
            if composed is None:
                moved.discard(index.base(name))
            else:
                known[name] = composed
    return {
        name: Window(
            index.base(name),
            tuple(d - _start(d) for d in positions),
            tuple(map(_start, positions)),
        )
        for name, positions in known.items()
        if index.base(name) in moved
    }


def _map(name: str, index: Index) -> _Map | None:
    """The index map of one movement, if it is one."""
    (store,) = index.nests[name].stores
    return (store.index, store.value.index) if isinstance(store.value, Load) else None


def _composed(
    name: str, maps: Mapping[str, _Map | None], known: Mapping[str, tuple[Dim, ...]], index: Index
) -> tuple[Dim, ...] | None:
    """Positions in the base of a view's elements, in axes `i0, i1, ...` of the view."""
    here = maps[name]
    if here is None:
        return None
    own, read = here
    axes: dict[Sym, Dim] = {
        a: Var(f"i{k}", a.extent) for k, d in enumerate(own) for a in atoms(d) if isinstance(a, Var)
    }
    positions = tuple(substitute(d, axes) for d in read)
    (source,) = (v.name for v in index.graph.producers[name].values)
    if source not in index.views:
        return positions
    outer: dict[Sym, Dim] = {
        a: positions[k]
        for k, size in enumerate(index.values[source].type.shape)
        for a in (Var(f"i{k}", size),)
    }
    below = known.get(source)
    return None if below is None else tuple(substitute(d, outer) for d in below)


def _start(position: Dim) -> int:
    """The part of a position that does not vary."""
    return position if isinstance(position, int) else monomials(position).get((), 0)
