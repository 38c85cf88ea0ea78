"""Closing one value of a group: its producers inside the group substituted into it.

    members (topological)        y = exp(x - m);  m = max(x)
    sites, consumers first       y at (i, j)  ->  m at (i,)
    resolved, producers first    y[i, j] = exp(x[i, j] - max_r x[i, r])

A site is a member at an index behind a guard. What it resolves to depends on those members alone
that it is made from, so a group that grows resolves again only what stands below its new members;
everything else is kept from one attempt to the next.
Knows nothing of iteration spaces: a closed value stands over its own axes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..base.sym import Dim, Opaque, Sym, Var, atoms
from ..ir.expr import (
    Apply,
    Expr,
    Load,
    Reduced,
    Rewriter,
    Scanned,
    both,
    substitute_axes,
    walk,
)
from ..ir.monoid import number
from ..ir.nest import Nest
from .indices import behind, checked, harmless, settled, unasked

Index = tuple[Dim, ...]
Place = tuple[str, Index, Expr | None]
Folding = Reduced | Scanned
MAX_EXPRESSIONS = 256
"""Distinct expressions of one nest; beyond it compile time grows faster than any saving."""
MAX_SITES = 2 * MAX_EXPRESSIONS
"""Sites of one value: most hold an expression of their own, and views none."""


@dataclass(frozen=True)
class Unfusable:
    """Why members cannot be one nest.

    Attributes:
        code: `iteration-space`, `guarded-reduction`, `scatter`, `size` or `held-rows`.
        detail: a sentence with the names and extents concerned.
        values: the values between which the group breaks.
        count: for `size`, how many expressions or places there are, or at least are, and the most
            that there may be; for `held-rows`, the same of the elements of a row.
    """

    code: str
    detail: str
    values: tuple[str, ...] = ()
    count: tuple[int, int] | None = None


class NoNestError(Exception):
    """Members cannot be one nest, because of `reason`."""

    def __init__(
        self, code: str, detail: str, *values: str, count: tuple[int, int] | None = None
    ) -> None:
        super().__init__(detail)
        self.reason = Unfusable(code, detail, values, count)


@dataclass(frozen=True, eq=False)
class Site:
    """A member at an index, in terms of what the group reads; `below` are the sites it uses."""

    name: str
    index: Index
    value: Expr
    below: tuple[Site, ...]


@dataclass(frozen=True)
class Closed:
    """A value over axes of its own.

    Attributes:
        places: where members and buffers are read first.
        folds: the reductions and scans in the value, operands first.
    """

    name: str
    axes: tuple[Var, ...]
    index: Index
    value: Expr
    places: Mapping[str, Index]
    folds: tuple[Folding, ...]


@dataclass(frozen=True)
class _Skeleton:
    """What a member computes at an index from what its own nest loads."""

    value: Expr
    loads: tuple[Load, ...]
    folds: bool


class Closing:
    """Closes values of one set of nests, each of one store; remembers every site it resolved."""

    def __init__(self, nests: Mapping[str, Nest]) -> None:
        self.nests = nests
        self._bits: dict[str, int] = {}
        self._reads: dict[str, tuple[str, ...]] = {}
        self._skeletons: dict[tuple[str, Index], _Skeleton] = {}
        self._sites: dict[tuple[Place, int], Site] = {}
        self._names: dict[Place, tuple[str, ...]] = {}

    def close(
        self, names: Sequence[str], members: Sequence[str], *, bounded: bool = True
    ) -> dict[str, Closed]:
        """The closed form of each of `names` in a group; members come producers first.

        Args:
            bounded: whether a group of too many places is refused.

        Raises:
            NoNestError: `size`, `guarded-reduction`, or a scan read at a shifted index.
        """
        above = self._ancestors(members)
        most = MAX_SITES if bounded else sys.maxsize
        return {name: self._close(name, above, most) for name in names}

    def _ancestors(self, members: Sequence[str]) -> dict[str, int]:
        """For each member the members that it is made from and itself, as bits."""
        above: dict[str, int] = {}
        for name in members:
            mask = 1 << self._bits.setdefault(name, len(self._bits))
            if name not in self._reads:
                loads = self.nests[name].loads
                self._reads[name] = tuple(dict.fromkeys(e.buffer for e in loads))
            for read in self._reads[name]:
                mask |= above.get(read, 0)
            above[name] = mask
        return above

    def _close(self, name: str, above: Mapping[str, int], most: int) -> Closed:
        nest = self.nests[name]
        store = nest.stores[0]
        root = self._site((name, store.index, None), above, most)
        places: dict[str, Index] = {}
        for site in _in_order(root, most):
            places.setdefault(site.name, site.index)
        folds: list[Folding] = []
        for e in walk((root.value,)):
            if isinstance(e, Load):
                places.setdefault(e.buffer, e.index)
            elif isinstance(e, Folding):
                folds.append(e)
        axes = (*(a.var for a in nest.space), *store.axes)
        return Closed(name, axes, store.index, root.value, places, tuple(folds))

    # -------------------------------------------------------------- sites

    def _site(self, wanted: Place, above: Mapping[str, int], most: int) -> Site:
        """The site at a place, after those that it uses: never a deep recursion."""
        stack, made = [wanted], 0
        while stack:
            place = stack[-1]
            if self._known(place, above) is None:
                missing, below = self._uses(place, above)
                if missing:
                    stack.extend(missing)
                    continue
                self._sites[self._key(place, above)] = self._resolve(place, below, above)
                made += 1
                if made > most:
                    raise _too_large()
            stack.pop()
        return self._sites[self._key(wanted, above)]

    def _known(self, place: Place, above: Mapping[str, int]) -> Site | None:
        return self._sites.get(self._key(place, above))

    def _key(self, place: Place, above: Mapping[str, int]) -> tuple[Place, int]:
        """A place and the members that its value, its index and its guard are made from."""
        if place not in self._names:
            self._names[place] = tuple(_read_at(place))
        mask = 0
        for name in self._names[place]:
            mask |= above.get(name, 0)
        return place, mask

    def _uses(self, place: Place, above: Mapping[str, int]) -> tuple[list[Place], dict[Load, Site]]:
        """The places that must be resolved before this one, and the sites that are, by load."""
        name, index, guard = place
        skeleton = self._skeleton(name, index)
        if guard is not None and skeleton.folds:
            raise NoNestError("guarded-reduction", "a reduction is read behind a guard", name)
        missing: dict[Place, None] = {}
        below: dict[Load, Site] = {}
        for load in skeleton.loads:
            if load.buffer not in above:
                continue
            inner = guard
            if load.guard is not None:
                held = [e for e in walk((load.guard,)) if isinstance(e, Load)]
                if any(e.buffer in above and e not in below for e in held):
                    continue  # the guard itself reads a place that is missing
                inner = both(self._rewriter(guard, below)(load.guard), guard)
            wanted = (load.buffer, load.index, inner)
            site = self._known(wanted, above)
            if site is None:
                missing[wanted] = None
            else:
                below[load] = site
        return list(missing), below

    def _skeleton(self, name: str, index: Index) -> _Skeleton:
        found = self._skeletons.get((name, index))
        if found is None:
            value = checked(_at(self.nests[name], index), index)
            below = tuple(walk((value,)))
            loads = tuple(e for e in below if isinstance(e, Load))
            found = _Skeleton(value, loads, any(isinstance(e, Folding) for e in below))
            self._skeletons[name, index] = found
        return found

    def _resolve(self, place: Place, below: Mapping[Load, Site], above: Mapping[str, int]) -> Site:
        name, index, guard = place
        value = self._skeleton(name, index).value
        if below or guard is not None:
            value = self._rewriter(guard, below)(value)
        _ = value.free  # computed here, where the operands' are known: never a deep recursion
        return Site(name, index, value, tuple(dict.fromkeys(below.values())))

    def _rewriter(self, guard: Expr | None, below: Mapping[Load, Site]) -> Rewriter:
        """Puts sites in the place of loads; behind a guard nothing is read, and nothing fails."""

        def inlined(e: Expr) -> Expr | None:
            site = below.get(e) if isinstance(e, Load) else None
            if site is None or not isinstance(e, Load) or e.guard is None:
                return None if site is None else site.value
            other = e.other or number(0, e.dtype)
            return Apply("where", (rewrite(e.guard), site.value, other), e.dtype)

        def placed(d: Dim) -> Dim:
            known = settled(d)
            return known if guard is None else behind(known, guard)

        def narrowed(e: Expr) -> Expr | None:
            return unasked(e) if guard is None else unasked(e) or harmless(e, guard)

        rewrite = Rewriter(index=placed, leaf=inlined, node=narrowed)
        return rewrite


def _at(nest: Nest, index: Index) -> Expr:
    """The value that a single-store nest computes for one element of its result."""
    store = nest.stores[0]
    if index == store.index:
        return store.value
    pairs = zip(store.index, index, strict=True)
    values: dict[Sym, Dim] = {v: d for v, d in pairs if isinstance(v, Var)}
    if any(not isinstance(values.get(e.axis, e.axis), Var) for e in nest.scans):
        raise NoNestError("iteration-space", "a scan is read at a shifted index", store.buffer)
    return substitute_axes(store.value, values)


def _read_at(place: Place) -> dict[str, None]:
    """The member at a place, and what the index and the guard load."""
    name, index, guard = place
    payloads = tuple(a.payload for d in index for a in atoms(d) if isinstance(a, Opaque))
    loads = walk((*payloads, *(() if guard is None else (guard,))))
    return {name: None, **{e.buffer: None for e in loads if isinstance(e, Load)}}


def _in_order(root: Site, most: int) -> list[Site]:
    """Every site of a value, each after those that it uses."""
    seen = {root}
    order: list[Site] = []
    stack: list[tuple[Site, bool]] = [(root, False)]
    while stack:
        site, ready = stack.pop()
        if ready:
            order.append(site)
            continue
        stack.append((site, True))
        fresh = [s for s in site.below if s not in seen]
        seen.update(fresh)
        stack.extend((s, False) for s in fresh)
        if len(seen) > most:
            raise _too_large()
    return order


def _too_large() -> NoNestError:
    detail = f"members at more than {MAX_SITES} places"
    return NoNestError("size", detail, count=(MAX_SITES + 1, MAX_SITES))
