"""Regions: parts of a graph between which no group can reach, each searched on its own.

    link(p -> c)  p may be computed inside the kernel of c
    link(a - b)   a and b read a common value, no path joins them, their shapes allow one kernel
    region        a connected component of the links

Positions inside a region are local: two regions of equal structure have equal keys, and the answer
for one is that for the other. Must not know prices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.lazy import cached_property
from ..base.sym import product
from ..ir.nest import Combine, Nest
from .index import Index
from .pool import Part, Pool, bits, topological

MOST_SIBLINGS = 32
"""Readers of one value that are all paired; of more, each with the next ones in graph order."""
MOST_REACHED = 8
"""Readers of a value that is computed again beyond a library call."""

Link = Callable[[Part, Part], bool]
Bytes = Callable[[str], int]
Form = Callable[[int], Hashable]


@dataclass(frozen=True)
class Unit:
    """What is never taken apart: an atom, or atoms that the user forced together.

    Attributes:
        atoms: numbers, ascending.
        reads: base values that it reads from outside itself.
        makes: values that something outside it reads, or that the graph needs.
        numel: elements of the largest of them.
        outer: elements of the results of its reductions; 0 when it has none.
        reduced: elements that they read, where one walk can reduce rows and columns; else 0.
        alone: whether its kernel takes in nothing else.
    """

    atoms: tuple[int, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    numel: int
    outer: int
    reduced: int
    alone: bool


@dataclass(frozen=True)
class Region:
    """Units in graph order; masks are over their positions.

    Attributes:
        producers: of each unit, the units whose values it reads.
        inlinable: of each unit, the producers that may be computed inside its kernel.
        above: of each unit, the units it depends on, through whatever is outside too.
        outside: of each unit, the units whose stored values what it reads from outside the region
            is made from.
        escapes: units of which something outside the region needs a value.
        members: the regions that this one was joined of; no group reaches from one to another.
    """

    units: tuple[Unit, ...]
    producers: tuple[int, ...]
    inlinable: tuple[int, ...]
    above: tuple[int, ...]
    outside: tuple[int, ...]
    escapes: int
    members: tuple[Region, ...] = ()

    @cached_property
    def consumers(self) -> tuple[int, ...]:
        """Of each unit, the units that read its values."""
        return _transposed(self.producers)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """Of each unit, the units that read a value which it reads, or compute an atom of its."""
        shared = [(*u.reads, *map(str, u.atoms)) for u in self.units]  # no value is a number
        readers: dict[str, int] = {}
        for k, names in enumerate(shared):
            for name in names:
                readers[name] = readers.get(name, 0) | 1 << k
        found = [_any(readers[n] for n in names) & ~(1 << k) for k, names in enumerate(shared)]
        return tuple(found)

    @cached_property
    def atoms(self) -> tuple[int, ...]:
        """Every atom, ascending."""
        return tuple(sorted(k for u in self.units for k in u.atoms))

    def atoms_of(self, mask: int) -> tuple[int, ...]:
        """The atoms of some units, ascending."""
        return tuple(sorted(k for i in bits(mask) for k in self.units[i].atoms))


def _transposed(rows: Sequence[int]) -> tuple[int, ...]:
    found = [0] * len(rows)
    for k, row in enumerate(rows):
        for i in bits(row):
            found[i] |= 1 << k
    return tuple(found)


# ------------------------------------------------------------------ which parts belong together


def _itself(atom: int) -> Hashable:
    return atom


def find_regions(
    pool: Pool, link: Link, size: Bytes, *, form: Form = _itself, mixed: bool = False
) -> list[Region]:
    """The regions of the pool's generated, unpinned parts, in graph order.

    Args:
        form: of an atom by its number; equal for atoms that differ in names only.
        mixed: whether one kernel may reduce the same elements over unlike axes.
    """
    free = {p.key: p for p in pool.parts.values() if pool.is_generated(p) and not p.frozen}
    folds = _Folds(pool.index, form, mixed)
    units = {key: _unit_of(pool, p, folds) for key, p in free.items()}
    inlined = _inlined(pool, free, link)
    home = {key: key for key in free}
    for p, c in inlined:
        if _all_free(pool, free, p, c):
            _join(home, p.key, c.key)
    for a, b in _siblings(pool, free, units):
        _join(home, a.key, b.key)
    for p, c in _worth_again(pool, inlined, home, size):
        _join(home, p.key, c.key)
    members: dict[int, list[Part]] = {}
    for key in free:
        members.setdefault(_root(home, key), []).append(free[key])
    pairs = frozenset((p.key, c.key) for p, c in inlined)
    found = [_region(pool, sorted(m, key=pool.order), units, pairs) for m in members.values()]
    return sorted(found, key=lambda r: r.units[0].atoms)


def joined(pool: Pool, regions: Sequence[Region]) -> Region:
    """Several regions as one, in which no more can be computed inside each other than before.

    Args:
        pool: of the parts that were made regions of.
    """
    home = {u.atoms: pool.parts[pool.owner[u.atoms[0]]] for r in regions for u in r.units}
    units = {home[u.atoms].key: u for r in regions for u in r.units}
    pairs = frozenset(
        (home[r.units[p].atoms].key, home[u.atoms].key)
        for r in regions
        for u, inlinable in zip(r.units, r.inlinable, strict=True)
        for p in bits(inlinable)
    )
    one = _region(pool, sorted(home.values(), key=pool.order), units, pairs)
    return replace(one, members=tuple(m for r in regions for m in r.members or (r,)))


def _root(home: dict[int, int], key: int) -> int:
    while home[key] != key:
        home[key] = home[home[key]]
        key = home[key]
    return key


def _join(home: dict[int, int], a: int, b: int) -> None:
    first, second = sorted((_root(home, a), _root(home, b)))
    home[second] = first


def _inlined(pool: Pool, free: dict[int, Part], link: Link) -> list[tuple[Part, Part]]:
    return [
        (p, c) for c in free.values() for p in pool.sources_of(c) if p.key in free and link(p, c)
    ]


def _all_free(pool: Pool, free: dict[int, Part], p: Part, c: Part) -> bool:
    """Whether every atom on a path between two parts may join their group."""
    return all(pool.owner[k] in free for k in bits(pool.between((p, c))))


def _siblings(
    pool: Pool, free: dict[int, Part], units: Mapping[int, Unit]
) -> Iterable[tuple[Part, Part]]:
    """Readers of one value that no path joins and whose shapes allow one kernel."""
    for readers in pool.index.readers.values():
        keys = [k for k in dict.fromkeys(pool.owner[r] for r in readers) if k in free]
        far = len(keys) if len(keys) <= MOST_SIBLINGS else 2
        for i, a in enumerate(keys):
            for b in keys[i + 1 : i + far]:
                one, two = free[a], free[b]
                joined = (one.up | one.down) & two.mask
                if not joined and _may_be_results(units[a], units[b]):
                    yield one, two


def may_share(a: Unit, b: Unit) -> bool:
    """A necessary test: reductions of one kernel leave equally many elements, or read as many."""
    if a.alone or b.alone:
        return False
    return not a.outer or not b.outer or a.outer == b.outer or 0 < a.reduced == b.reduced


def may_store(stored: Unit, beside: Unit) -> bool:
    """A necessary test: a stored value varies over all that a reduction beside it leaves.

    Where one walk reduces over unlike axes, it varies over some of what that reduction reads.
    """
    if not beside.outer or stored.numel % beside.outer == 0:
        return True
    return beside.reduced != 0 and beside.reduced % stored.numel == 0


def _may_be_results(a: Unit, b: Unit) -> bool:
    return may_share(a, b) and may_store(a, b) and may_store(b, a)


def _worth_again(
    pool: Pool, inlined: list[tuple[Part, Part]], home: dict[int, int], size: Bytes
) -> list[tuple[Part, Part]]:
    """Producers that their readers beyond a library call might rather compute again than read."""
    region: dict[int, set[str]] = {}
    for key in home:
        region.setdefault(_root(home, key), set()).update(pool.reads(pool.parts[key]))
    found: list[tuple[Part, Part]] = []
    for p, c in inlined:
        a, b = _root(home, p.key), _root(home, c.key)
        if a == b or not _is_read_by_few(pool, p):
            continue
        stored = pool.stores(p)
        if any(n in pool.index.needed for n in stored):
            continue
        known = region[b].difference(stored)
        if _least(pool, p, known, size) < sum(map(size, stored)):
            found.append((p, c))
    return found


def _is_read_by_few(pool: Pool, part: Part) -> bool:
    readers = pool.readers_of(part, most=MOST_REACHED)
    return len(readers) <= MOST_REACHED and all(map(pool.is_generated, readers))


def _least(pool: Pool, part: Part, known: set[str], size: Bytes) -> int:
    """A lower bound of the bytes read to compute a part again, beyond those read anyway."""
    most = 0
    made: list[tuple[str, Part]] = []
    for name in pool.reads(part):
        maker = pool.index.maker.get(name)
        owner = None if maker is None else pool.parts.get(pool.owner[maker])
        if name in known:
            continue
        if owner is not None and pool.is_generated(owner) and not owner.frozen:
            made.append((name, owner))
        else:
            most = max(most, size(name))
    for name, owner in made:
        if size(name) > most:  # else it can be no more: a chain of sums is not walked to its start
            most = max(most, min(size(name), _least(pool, owner, known, size)))
    return most


# ------------------------------------------------------------------ one region


@dataclass(frozen=True)
class _Fold:
    """What an atom folds: elements left and read as of a `Unit`, and whether along a scan; `alone`
    as of a `Unit` as well."""

    outer: int
    reduced: int
    scans: bool
    alone: bool


class _Folds:
    """The folds of atoms, looked at once for each form; arguments as for `find_regions`."""

    def __init__(self, index: Index, form: Form, mixed: bool) -> None:
        self._index = index
        self._form = form
        self._mixed = mixed
        self._known: dict[Hashable, _Fold] = {}

    def __call__(self, atom: int) -> _Fold:
        form = self._form(atom)
        found = self._known.get(form)
        if found is None:
            found = self._known[form] = self._of(self._index.nests[self._index.atoms[atom].name])
        return found

    def _of(self, nest: Nest) -> _Fold:
        alone = any(s.combine is not Combine.SET for s in nest.stores)
        if not nest.reductions and not nest.scans:
            return _Fold(0, 0, False, alone)
        outer = _numel(nest.stores[0].buffer, self._index)
        reduced = _reduced(nest, self._index) if self._mixed else 0
        return _Fold(outer, reduced, bool(nest.scans), alone)


def _unit_of(pool: Pool, part: Part, folds: _Folds) -> Unit:
    """A part as a unit."""
    index = pool.index
    inside = set(part.atoms)
    makes = [
        v
        for k in part.atoms
        for v in index.atoms[k].node.outputs
        if v.name in index.needed
        or not index.readers.get(v.name)
        or not inside.issuperset(index.readers[v.name])
    ]
    inside_folds = [folds(k) for k in part.atoms]
    scans = any(f.scans for f in inside_folds)
    numel = max((_numel(v.name, index) for v in makes), default=0)
    return Unit(
        part.atoms,
        pool.reads(part),
        tuple(v.name for v in makes),
        numel,
        0 if scans else max(f.outer for f in inside_folds),
        0 if scans else max(f.reduced for f in inside_folds),
        any(f.alone for f in inside_folds),
    )


def _reduced(nest: Nest, index: Index) -> int:
    """Elements that the largest reduction of a nest of one store reads; 0 where unknown."""
    outer = _numel(nest.stores[0].buffer, index)
    inner = [product([a.extent for a in r.axes]) for r in nest.reductions]
    return outer * max((n for n in inner if isinstance(n, int)), default=0)


def _numel(name: str, index: Index) -> int:
    count = index.values[name].type.numel
    return count if isinstance(count, int) else 0


def _region(
    pool: Pool,
    parts: list[Part],
    known: Mapping[int, Unit],
    inlinable: frozenset[tuple[int, int]],
) -> Region:
    index = pool.index
    parts = _in_order(pool, parts)
    units = tuple(known[p.key] for p in parts)
    place = {k: i for i, p in enumerate(parts) for k in p.atoms}
    entries = _entries(index, place)
    above: list[int] = []
    outside: list[int] = []
    producers: list[int] = []
    for u in units:
        makers = [index.maker[n] for n in u.reads if n in index.maker]
        producers.append(_any(1 << place[m] for m in makers if m in place))
        outside.append(_any(entries.get(m, 0) for m in makers if m not in place))
        direct = producers[-1] | outside[-1]
        above.append(direct | _any(above[j] for j in bits(direct) if j < len(above)))
    inlined = tuple(
        sum(1 << j for j in bits(row) if (parts[j].key, p.key) in inlinable)
        for p, row in zip(parts, producers, strict=True)
    )
    escapes = sum(1 << i for i, u in enumerate(units) if _escapes(index, u, place))
    return Region(units, tuple(producers), inlined, tuple(above), tuple(outside), escapes)


def _in_order(pool: Pool, parts: list[Part]) -> list[Part]:
    """Parts after those that they read from: the graph's order where each is one atom."""
    if all(len(p.atoms) == 1 for p in parts):
        return parts
    keys = {p.key for p in parts}
    order = topological({p.key: keys.intersection(pool.waits_for(p)) for p in parts})
    return [pool.parts[k] for k in order]


def _escapes(index: Index, unit: Unit, place: Mapping[int, int]) -> bool:
    """Whether something outside the region needs a value of the unit."""
    readers = (index.readers.get(n, ()) for n in unit.makes)
    wanted = any(n in index.needed for n in unit.makes)
    return wanted or any(not r or any(k not in place for k in r) for r in readers)


def _entries(index: Index, place: Mapping[int, int]) -> dict[int, int]:
    """For atoms outside the region, the units from which a path outside it leads to them."""
    entries: dict[int, int] = {}
    for k in range(min(place), max(place) + 1):
        if k not in place:
            makers = [m for n in index.atoms[k].reads if (m := index.maker.get(n)) is not None]
            mask = _any(1 << place[m] if m in place else entries.get(m, 0) for m in makers)
            if mask:
                entries[k] = mask
    return entries


def _any(masks: Iterable[int]) -> int:
    total = 0
    for m in masks:
        total |= m
    return total
