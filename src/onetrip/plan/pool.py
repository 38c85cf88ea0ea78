"""Groups in the making, and what depends on what between them.

Every group carries the atoms that it depends on and those that depend on it, as bit sets over
atoms; both are closed under the groups formed so far, so that

    groups G may become one  <=>  (up(G) & down(G)) - G is empty

keeps the order of groups acyclic, not only each group convex. Merging groups changes the closures
of those groups only that could reach one of them and not the other.
Must not know whether a merge is wise or can be generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .index import Index


@dataclass
class Part:
    """A group in the making.

    Attributes:
        key: unique; a changed group gets a new one.
        atoms: numbers, ascending; some may be recomputed here and owned elsewhere.
        mask: the atoms that it owns, as bits.
        clones: the atoms that it recomputes, as bits.
        up, down: atoms that it depends on and that depend on it, outside it.
        frozen: pinned: it takes in nothing more.
    """

    key: int
    atoms: tuple[int, ...]
    mask: int
    up: int
    down: int
    clones: int = 0
    frozen: bool = False

    def holds(self, atom: int) -> bool:
        """Whether the group computes an atom, its own or one of others."""
        return bool((self.mask | self.clones) >> atom & 1)


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Pool:
    """The groups of a graph; at first one for each atom."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.parts: dict[int, Part] = {}
        self.owner: list[int] = list(range(len(index.atoms)))
        self.homes: list[set[int]] = [{k} for k in self.owner]
        self._next = len(index.atoms)
        self._reads: dict[int, tuple[str, ...]] = {}
        self._stores: dict[int, tuple[str, ...]] = {}
        ups, downs = index.closures
        for k in self.owner:
            self.parts[k] = Part(k, (k,), 1 << k, ups[k], downs[k])

    def order(self, part: Part) -> int:
        """Where a group stands in the graph: its first atom."""
        return part.atoms[0]

    def is_generated(self, part: Part) -> bool:
        """Whether every atom has a nest."""
        return all(self.index.atoms[k].generated for k in part.atoms)

    def is_pinned(self, atoms: Sequence[int]) -> bool:
        """Whether one of the atoms is in a group that takes in nothing more."""
        return any(self.parts[home].frozen for k in atoms for home in self.homes[k])

    def between(self, parts: Sequence[Part]) -> int:
        """Atoms on paths that leave the parts and come back; 0 when they may become one group."""
        up = down = inside = 0
        for p in parts:
            up, down, inside = up | p.up, down | p.down, inside | p.mask | p.clones
        return up & down & ~inside

    def union(self, parts: Sequence[Part]) -> tuple[int, ...]:
        """The atoms of several groups, ascending."""
        return tuple(sorted({k for p in parts for k in p.atoms}))

    def stored(self, atoms: tuple[int, ...], parts: Sequence[Part]) -> tuple[str, ...]:
        """Values that a group of these atoms, in the place of `parts`, must write to memory."""
        replaced = {p.key for p in parts}
        return tuple(
            v.name
            for k in atoms
            if self.owner[k] in replaced
            for v in self.index.atoms[k].node.outputs
            if self._escapes(k, v.name, replaced)
        )

    def stores(self, part: Part) -> tuple[str, ...]:
        """Values that a group writes to memory."""
        found = self._stores.get(part.key)
        if found is None:
            found = self._stores[part.key] = self.stored(part.atoms, (part,))
        return found

    def stays(self, name: str, parts: Sequence[Part]) -> bool:
        """Whether a value that one of the parts stores is still read when they are one group."""
        return self._escapes(self.index.maker[name], name, {p.key for p in parts})

    def _escapes(self, maker: int, name: str, replaced: set[int]) -> bool:
        readers = self.index.readers.get(name, ())
        if name in self.index.needed or not readers:
            return True
        known = self.homes[maker] | replaced
        return not all(self.homes[r] <= known for r in readers)

    def merge(self, parts: Sequence[Part]) -> Part:
        """Makes one group of several; `between(parts)` must be 0."""
        mask = _any(p.mask for p in parts)
        made = Part(
            self._take_key(),
            self.union(parts),
            mask,
            _any(p.up for p in parts) & ~mask,
            _any(p.down for p in parts) & ~mask,
            _any(p.clones for p in parts) & ~mask,
        )
        common_up, common_down = _every(p.up for p in parts), _every(p.down for p in parts)
        self._replace(parts, made)
        for p in self._owners_of(made.up & ~common_up):
            p.down = (p.down | made.mask | made.down) & ~p.mask
        for p in self._owners_of(made.down & ~common_down):
            p.up = (p.up | made.mask | made.up) & ~p.mask
        return made

    def clone(self, atoms: Sequence[int], part: Part) -> Part:
        """Recomputes atoms inside a group that reads them; they stay where they are as well."""
        clones = part.clones | _any(1 << k for k in atoms)
        inside = tuple(sorted({*part.atoms, *atoms}))
        made = Part(self._take_key(), inside, part.mask, part.up, part.down, clones)
        self._replace((part,), made)
        return made

    def dissolve(self, part: Part, readers: Sequence[Part]) -> list[Part]:
        """Recomputes a group in each of its readers instead of storing what it makes."""
        grown = [self.clone(part.atoms, reader) for reader in readers]
        self.drop(part)
        return grown

    def drop(self, part: Part) -> None:
        """Takes out a group that stores nothing: its readers compute its atoms again."""
        self._stores.clear()
        del self.parts[part.key]
        for k in part.atoms:
            self.homes[k].discard(part.key)
            if self.owner[k] == part.key:
                self.owner[k] = -1

    def _take_key(self) -> int:
        self._next += 1
        return self._next - 1

    def _replace(self, parts: Sequence[Part], made: Part) -> None:
        keys = {p.key for p in parts}
        for key in keys:
            del self.parts[key]
        self.parts[made.key] = made
        if made.clones:
            self._stores.clear()  # what is computed again needs no longer be stored elsewhere
        for k in made.atoms:
            if self.owner[k] in keys:
                self.owner[k] = made.key
            self.homes[k] = (self.homes[k] - keys) | {made.key}

    def _owners_of(self, mask: int) -> list[Part]:
        """The groups that own these atoms; a dissolved atom has none and orders nothing."""
        keys = {self.owner[k] for k in bits(mask)}
        return [self.parts[key] for key in sorted(keys) if key >= 0]

    def reads(self, part: Part) -> tuple[str, ...]:
        """Base values that a group reads from memory, in order of first use."""
        found = self._reads.get(part.key)
        if found is None:
            found = self._reads[part.key] = self._read(part)
        return found

    def _read(self, part: Part) -> tuple[str, ...]:
        inside = set(part.atoms)
        names = dict.fromkeys(
            n
            for k in part.atoms
            for n in self.index.atoms[k].reads
            if self.index.maker.get(n, -1) not in inside
        )
        return tuple(names)

    def readers_of(self, part: Part, most: int | None = None) -> tuple[Part, ...]:
        """Groups that read what this group stores, in order.

        Args:
            most: a number of groups above which it does not matter how many there are, nor which.
        """
        found: set[int] = set()
        for home in self._readers(part):
            found.add(home)
            if most is not None and len(found) > most:
                break
        return tuple(sorted((self.parts[h] for h in found), key=lambda p: (p.atoms, p.key)))

    def _readers(self, part: Part) -> Iterator[int]:
        for k in part.atoms:
            if self.owner[k] != part.key:
                continue
            for v in self.index.atoms[k].node.outputs:
                for r in self.index.readers.get(v.name, ()):
                    for home in self.homes[r]:
                        if home != part.key and not self.parts[home].holds(k):
                            yield home

    def sources_of(self, part: Part) -> tuple[Part, ...]:
        """Groups that store what this group reads, in order."""
        owners = {
            self.owner[self.index.maker[n]] for n in self.reads(part) if n in self.index.maker
        }
        return tuple(self.parts[k] for k in sorted(owners) if k >= 0)

    def waits_for(self, part: Part) -> tuple[int, ...]:
        """Keys of the groups that run before this one: those that store what it reads or repeats.

        A group that computes an atom again comes after the one that stores its value, so that
        groups in their order say who owns what.
        """
        makers = {self.index.maker[n] for n in self.reads(part) if n in self.index.maker}
        owners = {self.owner[k] for k in (*makers, *bits(part.clones))} - {part.key, -1}
        return tuple(sorted(owners))

    def circle(self) -> tuple[Part, ...]:
        """Groups that wait for each other in a circle, as few as lead back to one of them."""
        waits = {key: self.waits_for(p) for key, p in self.parts.items()}
        stuck = waits.keys() - set(topological(waits))
        came: dict[int, int] = {}
        key = min(stuck, default=-1)
        while key >= 0 and key not in came:
            came[key] = key = next(k for k in waits[key] if k in stuck)
        found = [key] if key >= 0 else []
        while found and came[found[-1]] != key:
            found.append(came[found[-1]])
        return tuple(self.parts[k] for k in found)

    def regroup(self, groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
        """Puts groups in the place of all parts that hold one of their atoms.

        Args:
            groups: atoms, ascending, and those of them whose values the group stores or uses up;
                an atom that none of them owns is computed again in each group that holds it.

        Returns: whether the groups can run one after the other; if not the pool is of no use.
        """
        self._stores.clear()
        taken = {k for atoms, _ in groups for k in atoms}
        for key in {home for k in taken for home in self.homes[k]}:
            del self.parts[key]
        for k in taken:
            self.owner[k], self.homes[k] = -1, set()
        for atoms, owned in groups:
            mask = _any(1 << k for k in owned)
            key = self._take_key()
            self.parts[key] = Part(key, atoms, mask, 0, 0, _any(1 << k for k in atoms) & ~mask)
            for k in atoms:
                self.homes[k].add(key)
            for k in owned:
                self.owner[k] = key
        return self._close()

    def _close(self) -> bool:
        """What each group depends on, anew; whether there is an order."""
        waits = {key: self.waits_for(p) for key, p in self.parts.items()}
        order = topological(waits)
        if len(order) < len(waits):
            return False
        followers: dict[int, list[int]] = {key: [] for key in waits}
        for key in order:
            part = self.parts[key]
            part.up = _any(self.parts[s].up | self.parts[s].mask for s in waits[key])
            for s in waits[key]:
                followers[s].append(key)
        for key in reversed(order):
            part = self.parts[key]
            part.down = _any(self.parts[f].down | self.parts[f].mask for f in followers[key])
        return True


def topological(waits: Mapping[int, Iterable[int]]) -> list[int]:
    """Keys after those that they wait for; fewer than there are when some wait for each other."""
    left = {key: len(set(above)) for key, above in waits.items()}
    followers: dict[int, list[int]] = {key: [] for key in waits}
    for key, above in waits.items():
        for s in set(above):
            followers[s].append(key)
    order = [key for key, count in left.items() if not count]
    for key in order:
        for follower in followers[key]:
            left[follower] -= 1
            if not left[follower]:
                order.append(follower)
    return order


def _any(masks: Iterable[int]) -> int:
    total = 0
    for m in masks:
        total |= m
    return total


def _every(masks: Iterable[int]) -> int:
    total = -1
    for m in masks:
        total &= m
    return total
