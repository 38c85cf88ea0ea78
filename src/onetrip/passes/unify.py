"""Axes of closed values made one: of the stored values, and of the reductions inside them.

    row[i] = sum_a x[i, a];  column[j] = sum_b x[b, j]       both read x:  b -> i, j -> a

Where values have no common space that all reductions leave free, the places that they read say
which axis of one is which of the other. Any bijection of axes is right, as long as a reduction's
own axes stay apart from those on which it depends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..base.affine import coefficient
from ..base.sym import Dim, Poly, Quotient, Remainder, Sym, Var, atoms, mul, substitute
from ..ir.expr import Load, Reduced, walk
from .close import Closed, Folding

Index = tuple[Dim, ...]
Place = tuple[str, Index]
Places = list[Place]
_Tried = tuple[Place, bool, frozenset[Var]]


def unified(closed: Sequence[Closed]) -> dict[Sym, Dim] | None:
    """Every axis of the values, bound ones too, in the axes of the largest; None if two clash."""
    known = _Axes(_pointless(closed) | _divided(closed))
    first = max(closed, key=_size)
    known.open((first.index,))
    pending = [place for c in (first, *(c for c in closed if c is not first)) for place in _read(c)]
    while pending:
        pending = known.follow(pending)
        if pending:
            known.open((pending[0][1],))
    known.open([fold_axes(e) for c in closed for e in c.folds])
    values = known.settled()
    return values if all(_apart(c, values) for c in closed) else None


def fold_axes(e: Folding) -> tuple[Var, ...]:
    """The axes that a reduction or a scan runs over."""
    return e.reduction.axes if isinstance(e, Reduced) else (e.axis,)


def covers(d: Dim, extent: Dim) -> bool:
    """Whether d takes each value below extent exactly once as its axes run.

    It is a number whose digits are the axes: d = a_1 + n_1 (a_2 + n_2 (a_3 + ...)), a_k below n_k,
    in any order. That d has as many values as extent, and none above, is not enough: a % 8 has 16
    below 16, and so have a and b below 4 in 2 a + b.
    """
    axes = [a for a in dict.fromkeys(atoms(d)) if isinstance(a, Var)]
    if len(axes) < len(set(atoms(d))) or substitute(d, dict.fromkeys(axes, 0)) != 0:
        return False
    digits = {a: coefficient(d, a) for a in axes if a.extent != 1}
    step: Dim = 1
    while digits:
        next_digit = next((a for a, weight in digits.items() if weight == step), None)
        if next_digit is None:
            return False
        step = mul(step, next_digit.extent)
        del digits[next_digit]
    return step == extent


def divisor(axis: Var, dims: Sequence[Dim]) -> int | None:
    """k when some index holds `axis // k` and k divides the extent."""
    for den in (q for d in dims for q in _quotients(d, axis)):
        if isinstance(den, int) and isinstance(axis.extent, int) and axis.extent % den == 0:
            return den
    return None


def _quotients(e: Dim, axis: Var) -> list[Dim]:
    if isinstance(e, Poly):
        return [q for _, factors in e.terms for f in factors for q in _quotients(f, axis)]
    if isinstance(e, Quotient):
        return [e.den] if e.num is axis else _quotients(e.num, axis)
    return _quotients(e.num, axis) if isinstance(e, Remainder) else []


class _Axes:
    """Axes as they become known, and where buffers and members are read first."""

    def __init__(self, values: dict[Sym, Dim]) -> None:
        self.values = values
        self._places: dict[str, Index] = {}
        self._final: dict[Sym, Dim] = {}

    def open(self, indices: Iterable[Sequence[Dim]]) -> None:
        """Axes that nothing says anything about stand for themselves."""
        for a in _variables([self._now(d) for d in index] for index in indices):
            self.values.setdefault(a, a)

    def settled(self) -> dict[Sym, Dim]:
        """Every axis in those that stand for themselves."""
        return {a: self._now(d) for a, d in self.values.items()}

    def _now(self, d: Dim) -> Dim:
        """An axis is divided at most once, and its parts become others at most once."""
        if isinstance(d, int):
            return d
        known = self._final.get(d)
        if known is None:
            once = substitute(d, self.values)
            known = once if once is d else substitute(once, self.values)
            if all(self.values.get(a) is a for a in _variables(((known,),))):
                self._final[d] = known
        return known

    def follow(self, pending: Places) -> Places:
        """The places that are still open when all has been learnt from those that are known."""
        left = [(place, False, frozenset[Var]()) for place in pending]
        while True:
            count = len(left)
            left = [tried for tried in map(self._tried, left) if tried is not None]
            if len(left) == count:
                return [place for place, _, _ in left]

    def _tried(self, tried: _Tried) -> _Tried | None:
        """A place, whether it has been read before, and its axes that are not known: None where all
        are. Nothing new is learnt from it before one of them is, or it is read elsewhere."""
        (name, index), before, unknown = tried
        read = name in self._places
        if unknown and read == before and self.values.keys().isdisjoint(unknown):
            return tried
        for mine, theirs in zip(map(self._now, index), self._places.get(name, ()), strict=False):
            if not isinstance(mine, Var) or mine in self.values:
                continue
            if any(True for _ in atoms(theirs)) and covers(theirs, mine.extent):
                self.values[mine] = theirs
        place = tuple(map(self._now, index))
        unknown = frozenset(a for a in _variables((place,)) if a not in self.values)
        if unknown:
            return (name, index), read, unknown
        self._places.setdefault(name, place)
        return None


def _divided(closed: Sequence[Closed]) -> dict[Sym, Dim]:
    """Axes that are read as `axis // k`, as (axis // k, axis % k): a view joins two of another."""
    values: dict[Sym, Dim] = {}
    for c in closed:
        dims = [d for _, index in _read(c) for d in index]
        for axis in dict.fromkeys(_variables((dims,))):
            k = divisor(axis, dims)
            if k is not None:
                outer = Var(f"{axis.name}_o", axis.extent // k)
                values[axis] = outer * k + Var(f"{axis.name}_i", k)
    return values


def _pointless(closed: Sequence[Closed]) -> dict[Sym, Dim]:
    """0 for each axis of one point that a reduction runs over beside others."""
    scopes = (fold_axes(e) for c in closed for e in c.folds)
    return {a: 0 for s in scopes if any(a.extent != 1 for a in s) for a in s if a.extent == 1}


def _variables(indices: Iterable[Sequence[Dim]]) -> Iterator[Var]:
    for index in indices:
        for d in index:
            yield from (a for a in atoms(d) if isinstance(a, Var))


def _size(c: Closed) -> tuple[int, int]:
    """How many axes a value and its reductions have; of equals, the one with more of its own."""
    bound = {a for e in c.folds for a in fold_axes(e)}
    most = max((len(set(fold_axes(e)) | set(_free(e))) for e in c.folds), default=0)
    return max(most, len(c.axes)), len(c.axes) - len(bound)


def _free(e: Folding) -> tuple[Var, ...]:
    return tuple(a for a in e.free if isinstance(a, Var))


def _read(c: Closed) -> Places:
    """Where a value stands and reads, those of the most axes first."""
    loads = [e for e in walk((c.value,)) if isinstance(e, Load)]
    places = [(c.name, c.index), *c.places.items(), *((e.buffer, e.index) for e in loads)]
    return sorted(dict.fromkeys(places), key=lambda p: -len(set(_variables((p[1],)))))


def _apart(c: Closed, values: Mapping[Sym, Dim]) -> bool:
    """Whether axes that meet in a value, or below a reduction of it, became different ones."""
    scopes = [c.axes, *((*fold_axes(e), *_free(e)) for e in c.folds)]
    return all(_distinct([values[a] for a in dict.fromkeys(s)]) for s in scopes)


def _distinct(dims: Sequence[Dim]) -> bool:
    found = [set(atoms(d)) for d in dims]
    return len(set().union(*found)) == sum(map(len, found))
