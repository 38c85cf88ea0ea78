"""What the groups of a region move at least, before any of them is priced.

    wanted whole      a stored unit; one that a unit wanted whole reads all of
    wanted in parts   one of which such units read different parts, as large together as the whole;
                      one that a unit wanted in parts reads all of, element by element
    read              what units wanted whole read; what those wanted in parts read element by
                      element, since different parts of a result are different parts of it too

A group must read that much once, and a plan as much in all of its groups together. Two results of
which one is made from the other by a library call are never of one group: each of them takes a
launch. Must not know prices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ..base.lazy import cached_property
from ..base.sym import Dim, Var, monomials
from ..ir.expr import Load
from ..ir.nest import Nest
from .enumerate import Column
from .evaluate import Evaluator
from .pool import bits
from .regions import Region

Reads = Sequence[Sequence[tuple[str, int]]]
"""What each unit reads when it is a kernel of its own, in bytes."""


@dataclass(frozen=True)
class Slice:
    """A part of a value that a unit reads.

    Two slices of one form at different offsets are different elements, in part at least, so that
    no index of a kernel stands for both.

    Attributes:
        whole: bytes of the value.
        each: whether each element of the unit reads an element of its own.
    """

    name: str
    bytes: int
    whole: int
    form: Hashable = None
    offset: Dim = 0
    each: bool = False


def together(slices: Iterable[Slice]) -> dict[str, int]:
    """Bytes that are read at least of each value, of which these slices are read."""
    forms: dict[str, dict[Hashable, dict[Dim, int]]] = {}
    whole: dict[str, int] = {}
    for s in slices:
        whole[s.name] = s.whole
        offsets = forms.setdefault(s.name, {}).setdefault(s.form, {})
        offsets[s.offset] = max(offsets.get(s.offset, 0), s.bytes)
    return {
        name: max(min(whole[name], sum(offsets.values())) for offsets in found.values())
        for name, found in forms.items()
    }


class Least:
    """What columns of one region move at least."""

    def __init__(self, region: Region, evaluator: Evaluator, reads: Reads) -> None:
        self.region = region
        self.evaluator = evaluator
        self._slices = tuple(
            tuple(self._slice(k, name, size) for name, size in row) for k, row in enumerate(reads)
        )
        self._named = tuple({s.name: s for s in row} for row in self._slices)

    def read_bytes(self, column: Column) -> int:
        """Bytes of values from outside a column that it reads at least."""
        whole, parts = self._wanted(column)
        slices = [s for k in bits(whole) for s in self._slices[k]]
        slices += [s for k in bits(parts) for s in self._slices[k] if s.each]
        inside = {n for k in bits(column.units) for n in self.region.units[k].makes}
        return sum(size for name, size in together(slices).items() if name not in inside)

    @cached_property
    def fewest(self) -> int:
        """Groups that any plan of the region has at least."""
        most = 0
        chain: list[int] = []
        beyond: list[int] = []
        for k, entries in enumerate(self.region.outside):
            through = entries | _any(self.region.above, entries)
            beyond.append(through | _any(beyond, self.region.producers[k]))
            before = max((chain[j] for j in bits(beyond[k] & self._results)), default=0)
            chain.append(before + 1)
            most = max(most, chain[k]) if self._results >> k & 1 else most
        return max(1, most)

    @cached_property
    def _results(self) -> int:
        """Units of which something outside the region needs a value that is not empty."""
        size = self.evaluator.value_bytes
        units = ((k, self.region.units[k].makes) for k in bits(self.region.escapes))
        return sum(1 << k for k, makes in units if all(map(size, makes)))

    def _wanted(self, column: Column) -> tuple[int, int]:
        """Units that are wanted whole and those that are wanted in parts."""
        whole, parts = column.stored, 0
        for k in reversed(list(bits(column.units & ~column.stored))):
            readers = self.region.consumers[k] & column.units
            found = {self._demand(n, readers & whole, readers & parts) for n in self._makes(k)}
            if found == {"whole"}:
                whole |= 1 << k
            elif None not in found:
                parts |= 1 << k
        return whole, parts

    def _makes(self, k: int) -> tuple[str, ...]:
        return self.region.units[k].makes

    def _demand(self, name: str, whole: int, parts: int) -> str | None:
        """How a value is wanted by readers that are wanted whole and in parts."""
        by_whole = [s for k in bits(whole) if (s := self._named[k].get(name)) is not None]
        if any(s.bytes >= s.whole for s in by_whole):
            return "whole"
        by_parts = (self._named[k].get(name) for k in bits(parts))
        if any(s is not None and s.each and s.bytes >= s.whole for s in by_parts):
            return "parts"
        formed = [s for s in by_whole if s.form is not None]
        return "parts" if any(together(formed).get(s.name) == s.whole for s in formed) else None

    def _slice(self, k: int, name: str, size: int) -> Slice:
        """What a unit reads of a value; without a form unless it is one view, the whole of it."""
        index, whole = self.evaluator.index, self.evaluator.value_bytes(name)
        each = size >= whole and self._is_each(k, name)
        wires = [v for a in self.region.units[k].atoms for v in index.atoms[a].node.values]
        views = [v.name for v in wires if index.base(v.name) == name]
        if len(views) != 1 or self.evaluator.value_bytes(views[0]) != size:
            return Slice(name, size, whole, each=each)
        kind, view = index.type_of(views[0]), index.views.get(views[0])
        offset = 0 if view is None else view.offset
        return Slice(name, size, whole, (kind.shape, kind.strides), offset, each)

    def _is_each(self, k: int, name: str) -> bool:
        atoms = self.region.units[k].atoms
        index = self.evaluator.index
        return len(atoms) == 1 and _reads_each(index.nests[index.atoms[atoms[0]].name], name)


def _reads_each(nest: Nest, name: str) -> bool:
    """Whether different elements of the result are made from different elements of an operand."""
    loads = [e for e in nest.loads if e.buffer == name]
    return bool(loads) and all(_is_injective(e, nest) for e in loads)


def _is_injective(load: Load, nest: Nest) -> bool:
    """Whether every axis moves the element, each along a dimension of its own."""
    terms = [[f for f in monomials(d) if f] for d in load.index if not isinstance(d, int)]
    axes = {f[0] for found in terms for f in found if len(f) == 1 and isinstance(f[0], Var)}
    return all(len(t) == 1 and len(t[0]) == 1 for t in terms) and axes == {
        a.var for a in nest.space
    }


def _any(masks: Sequence[int], units: int) -> int:
    total = 0
    for k in bits(units):
        total |= masks[k]
    return total
