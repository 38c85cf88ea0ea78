"""What groups that differ in names only have in common: their structure.

    structure ::= operators, attributes, types, which operand is which, what is stored
    loose     ::= the same, where a view of a value in memory counts by its form and by how much
                  later it starts than the other views of that value

Identical layers differ in names only, so what is found out about one is known of all. The steps of
a loop that a model unrolls differ in where they read their inputs as well: their nests are their
own, but all that follows from distances between elements is known of all of them. Must not know
prices, targets or which groups are being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any, Generic, TypeVar

from ..base.intern import key_of
from ..ir.graph import Scalar, Value
from .index import Index
from .windows import Window, windows_of

Names = tuple[str, ...]
_Row = tuple[int, tuple[tuple[str, int], ...]]
_AtomRow = tuple[int, Names, str, Names]
Found = TypeVar("Found")


class Structures:
    """The structures of groups of one graph."""

    def __init__(self, index: Index) -> None:
        self._nodes = {n.name: n for n in index.graph.nodes}
        self._rows: dict[str, _Row] = {}
        self._kinds: dict[Hashable, int] = {}
        self._types: dict[str, int] = {}
        self._atoms: dict[int, _AtomRow] = {}
        self._groups: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
        self.index = index
        self._windows = windows_of(index, self._form)

    def _form(self, name: str) -> Hashable:
        """Equal for nodes that differ in names only."""
        kind, reads = self._rows.get(name) or self._row(name)
        return kind, tuple(type_kind for _, type_kind in reads)

    def exact(self, atoms: Sequence[int], stored: frozenset[str]) -> tuple[tuple[int, ...], Names]:
        """As `of` for the group of some atoms: a number for what each is, numbers for its operands.

        Returns: the key; and names in its order, a view once for each atom that reads through it.
        """
        number: dict[str, int] = {}
        key: list[int] = []
        views: list[str] = []
        for k in atoms:
            kind, chain, name, reads = self._atoms.get(k) or self._atom(k)
            key.append(kind)
            for value in reads:
                key.append(number.setdefault(value, len(number)))
            number.setdefault(name, len(number))
            key.append(name in stored)
            views += chain
        return tuple(key), (*views, *number)

    def group(self, atoms: Sequence[int], stored: frozenset[str]) -> tuple[int, Names]:
        """As `loose` for the group of some atoms; what is exactly known is not looked at again."""
        exact, names = self.exact(atoms, stored)
        found = self._groups.get(exact)
        if found is None:
            key, kept = self.loose(self.index.members(atoms), stored)
            place = {name: k for k, name in enumerate(names)}
            found = (self._kind(("group", key)), tuple(place[name] for name in kept))
            self._groups[exact] = found
        return found[0], tuple(names[k] for k in found[1])

    def atom(self, number: int) -> int:
        """Equal for atoms that differ in names only, with the views that they read through."""
        return (self._atoms.get(number) or self._atom(number))[0]

    def _atom(self, number: int) -> _AtomRow:
        """What an atom is with the views that it reads through, these, its name, what it reads."""
        atom = self.index.atoms[number]
        members = (*atom.chain, atom.name)
        key, names = self.of(members, frozenset())
        row = (self._kind(("atom", key)), atom.chain, atom.name, names[len(members) :])
        self._atoms[number] = row
        return row

    def of(self, members: Names, stored: frozenset[str]) -> tuple[tuple[Any, ...], Names]:
        """A key equal for groups that differ in names only, and the names in its order."""
        local = {name: k for k, name in enumerate(members)}
        external: dict[str, int] = {}
        rows: list[Hashable] = []
        for name in members:
            kind, reads = self._rows.get(name) or self._row(name)
            wires: list[Hashable] = []
            for value, type_kind in reads:
                place = local.get(value)
                if place is None:
                    wires.append((external.setdefault(value, len(external)), type_kind))
                else:
                    wires.append(place)
            rows.append((kind, tuple(wires), name in stored))
        return tuple(rows), (*members, *external)

    def loose(self, members: Names, stored: frozenset[str]) -> tuple[tuple[Any, ...], Names]:
        """As `of`, and equal too for groups that read parts of values farther on.

        Returns: the key; and names in its order, without the views of what lies in memory.
        """
        inside = set(members)
        views = {
            name: w
            for name in members
            if (w := self._windows.get(name)) is not None and w.base not in inside
        }
        if not views:
            return self.of(members, stored)
        kept = tuple(name for name in members if name not in views)
        least = self._least(kept, views)
        local = {name: k for k, name in enumerate(kept)}
        external: dict[str, int] = {}
        rows: list[Hashable] = []
        for name in kept:
            kind, reads = self._rows.get(name) or self._row(name)
            wires: list[Hashable] = []
            for value, type_kind in reads:
                w = views.get(value)
                if w is not None:
                    begun = tuple(map(sub, w.starts, least[w.base]))
                    known = external.setdefault(w.base, len(external))
                    type_kind = self._type(self.index.values[w.base])
                    wires.append((known, type_kind, self._kind(w.steps), begun))
                elif value in local:
                    wires.append(local[value])
                else:
                    wires.append((external.setdefault(value, len(external)), type_kind))
            rows.append((kind, tuple(wires), name in stored))
        return tuple(rows), (*kept, *external)

    def _least(self, kept: Names, views: Mapping[str, Window]) -> dict[str, tuple[int, ...]]:
        """Where the first read part of each value begins; a value that is read as it lies counts
        from its own beginning."""
        least: dict[str, tuple[int, ...]] = {}
        for name in kept:
            for value, _ in (self._rows.get(name) or self._row(name))[1]:
                w = views.get(value)
                if w is not None:
                    least[w.base] = tuple(map(min, least.get(w.base, w.starts), w.starts))
        for name in kept:
            for value, _ in self._rows[name][1]:
                if value in least:
                    least[value] = (0,) * len(least[value])
        return least

    def _row(self, name: str) -> _Row:
        """The kind of a node, and the values that it reads with the kinds of their types."""
        node = self._nodes[name]
        numbers = tuple(key_of(x.value) for x in node.inputs if isinstance(x, Scalar))
        places = tuple(isinstance(x, Scalar) for x in node.inputs)
        types = tuple(self._type(v) for v in node.outputs)
        attrs = tuple((name, key_of(value)) for name, value in node.attrs)
        kind = self._kind((node.op, attrs, numbers, places, types))
        found = self._rows[name] = (kind, tuple((v.name, self._type(v)) for v in node.values))
        return found

    def _type(self, value: Value) -> int:
        found = self._types.get(value.name)
        if found is None:
            found = self._types[value.name] = self._kind(value.type)
        return found

    def _kind(self, form: Hashable) -> int:
        return self._kinds.setdefault(form, len(self._kinds))


@dataclass
class Once(Generic[Found]):
    """What was found for each structure, under the names of the group that was asked for first.

    Attributes:
        renamed: what was found with other names in the place of those.
    """

    renamed: Callable[[Found, Mapping[str, str]], Found]
    _known: dict[Hashable, tuple[Names, Found]] = field(default_factory=dict)

    def known(self, key: Hashable, names: Names, find: Callable[[], Found]) -> tuple[Names, Found]:
        """What is known of a structure, or what is found now, and the names that are in it."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (names, find())
        return known

    def get(self, key: Hashable, names: Names, find: Callable[[], Found]) -> Found:
        """The same under these names."""
        first, found = self.known(key, names, find)
        if first == names:
            return found
        return self.renamed(found, dict(zip(first, names, strict=True)))
