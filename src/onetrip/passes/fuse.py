"""Fusion of the nests of one group into one nest: substitution of producers into consumers.

    members (topological)        y = exp(x - m);  m = max(x);  stored: y
    demands, consumers first     y at (i, j)  ->  m at (i,)
    resolved, producers first    store y[i, j] = exp(x[i, j] - max_r x[i, r])

The axes that all reductions of the group leave free become its space; the other axes of a store are
its own. A group that has no such space cannot be one nest, and the answer says why.
Knows nothing of costs: it says what a group computes, or that it cannot be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.sym import (
    Dim,
    Poly,
    Quotient,
    Remainder,
    Sym,
    Var,
    atoms,
    product,
    substitute,
    within,
)
from ..ir.expr import (
    Apply,
    Expr,
    Load,
    Reduced,
    Rewriter,
    Scanned,
    both,
    dims_of,
    substitute_axes,
    walk,
)
from ..ir.monoid import number
from ..ir.nest import Access, Axis, Buffer, Combine, Nest, Store

Index = tuple[Dim, ...]
Place = tuple[str, Index]
MAX_EXPRESSIONS = 4000
"""Distinct expressions of one nest; beyond it compile time grows faster than any saving."""


@dataclass(frozen=True)
class Unfusable:
    """Why members cannot be one nest.

    Attributes:
        code: `iteration-space`, `guarded-reduction`, `scatter` or `size`.
        detail: a sentence with the names and extents concerned.
        values: the values between which the group breaks.
    """

    code: str
    detail: str
    values: tuple[str, ...] = ()


class _NoNestError(Exception):
    def __init__(self, code: str, detail: str, *values: str) -> None:
        super().__init__(detail)
        self.reason = Unfusable(code, detail, values)


def fuse(
    members: Sequence[str], nests: Mapping[str, Nest], stored: frozenset[str]
) -> Nest | Unfusable:
    """One nest that computes the stored values of a group.

    Args:
        members: names of the values that the group computes, producers first.
        nests: the nest of each value, with one store each (passes/lower.py).
        stored: the members that must exist in memory afterwards.
    """
    try:
        return _fuse(members, nests, stored)
    except _NoNestError as failure:
        return failure.reason


def _fuse(members: Sequence[str], nests: Mapping[str, Nest], stored: frozenset[str]) -> Nest:
    scattered = [m for m in members if nests[m].stores[0].combine is not Combine.SET]
    if scattered and len(members) > 1:
        raise _NoNestError(
            "scatter", "an accumulating store shares its kernel with none", *scattered
        )
    closed = {name: _close(name, members, nests) for name in members if name in stored}
    space, placed = _align(_anchor(closed), closed)
    stores = tuple(_store(p, space, nests) for p in placed)
    _check_reductions(space, stores)  # before equal names hide an axis of another reduction
    names = shared_names(stores, space)
    stores = tuple(rename(s, names) for s in stores)
    axes = tuple(Axis(Var(f"p{k}", v.extent)) for k, v in enumerate(space))
    nest = Nest(axes, _buffers(stores, [nests[m] for m in members]), stores)
    if len(nest.expressions) > MAX_EXPRESSIONS:
        raise _NoNestError(
            "size", f"{len(nest.expressions)} expressions, at most {MAX_EXPRESSIONS}"
        )
    return nest


# ------------------------------------------------------------------ closing one stored value


@dataclass(frozen=True)
class _Closed:
    """A stored value over its own axes, with the places at which members and buffers are read."""

    name: str
    axes: tuple[Var, ...]
    index: Index
    value: Expr
    places: Mapping[str, Index]

    def moved(self, values: Mapping[Sym, Dim]) -> _Closed:
        """The same value over other axes."""
        axes = tuple(a for v in self.axes for a in atoms(substitute(v, values)))
        return _Closed(
            self.name,
            tuple(a for a in dict.fromkeys(axes) if isinstance(a, Var)),
            tuple(substitute(d, values) for d in self.index),
            substitute_axes(self.value, values),
            {k: tuple(substitute(d, values) for d in i) for k, i in self.places.items()},
        )


def _close(root: str, members: Sequence[str], nests: Mapping[str, Nest]) -> _Closed:
    store = nests[root].stores[0]
    inside = frozenset(members)
    skeletons: dict[Place, Expr] = {(root, store.index): store.value}
    order: list[Place] = []
    stack: list[tuple[Place, bool]] = [((root, store.index), False)]
    while stack:
        place, ready = stack.pop()
        if ready:
            order.append(place)
            continue
        stack.append((place, True))
        for load in _internal_loads(skeletons[place], inside):
            wanted = (load.buffer, load.index)
            if wanted not in skeletons:
                skeletons[wanted] = _at(nests[load.buffer], load.index)
                stack.append((wanted, False))
    resolved: dict[Place, Expr] = {}
    for place in _topological(order, skeletons, inside):
        resolved[place] = _resolve(skeletons[place], inside, resolved)
    value = resolved[root, store.index]
    places: dict[str, Index] = {}
    for name, index in order:
        places.setdefault(name, index)
    for e in walk((value,)):
        if isinstance(e, Load):
            places.setdefault(e.buffer, e.index)
    axes = (*(a.var for a in nests[root].space), *store.axes)
    return _Closed(root, axes, store.index, value, places)


def _topological(
    places: Iterable[Place], skeletons: Mapping[Place, Expr], inside: frozenset[str]
) -> list[Place]:
    """Places with every place after those that its skeleton reads."""
    done: dict[Place, None] = {}
    for start in places:
        stack: list[tuple[Place, bool]] = [(start, False)]
        while stack:
            place, ready = stack.pop()
            if ready:
                done.setdefault(place)
            elif place not in done:
                stack.append((place, True))
                loads = _internal_loads(skeletons[place], inside)
                stack.extend(((x.buffer, x.index), False) for x in loads)
    return list(done)


def _internal_loads(e: Expr, inside: frozenset[str]) -> list[Load]:
    return [x for x in walk((e,)) if isinstance(x, Load) and x.buffer in inside]


def _at(nest: Nest, index: Index) -> Expr:
    """The value that a single-store nest computes for one element of its result."""
    store = nest.stores[0]
    pairs = zip(store.index, index, strict=True)
    values: dict[Sym, Dim] = {v: d for v, d in pairs if isinstance(v, Var)}
    scanned = {e.axis for e in nest.expressions if isinstance(e, Scanned)}
    if any(not isinstance(d, Var) for v, d in values.items() if v in scanned):
        raise _NoNestError("iteration-space", "a scan is read at a shifted index", store.buffer)
    return substitute_axes(store.value, values)


def _resolve(e: Expr, inside: frozenset[str], known: Mapping[Place, Expr]) -> Expr:
    def inlined(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or x.buffer not in inside:
            return None
        value = known[x.buffer, x.index]
        return value if x.guard is None else _guarded(value, rewrite(x.guard), x)

    rewrite = Rewriter(leaf=inlined)
    made = rewrite(e)
    _ = made.free  # computed here, where the operands' are known: never a deep recursion
    return made


def _guarded(value: Expr, guard: Expr, load: Load) -> Expr:
    """`value` where the guard holds, the load's `other` elsewhere; nothing is read out of range."""

    def narrowed(e: Expr) -> Expr | None:
        if isinstance(e, Reduced | Scanned):
            raise _NoNestError(
                "guarded-reduction", "a reduction is read behind a guard", load.buffer
            )
        if isinstance(e, Load):
            other = e.other or number(0, e.dtype)
            return Load(e.buffer, e.index, e.dtype, both(e.guard, guard), other)
        return None

    other = load.other or number(0, load.dtype)
    return Apply("where", (guard, Rewriter(node=narrowed)(value), other), load.dtype)


# ------------------------------------------------------------------ one space for all stores


def _reduction_axes(c: _Closed) -> tuple[Var, ...] | None:
    """The axes on which the reductions of a value depend; None when it holds no reduction."""
    found = [e for e in walk((c.value,)) if isinstance(e, Reduced | Scanned)]
    if not found:
        return None
    used = {a for e in found for a in e.free if not (isinstance(e, Scanned) and a is e.axis)}
    return tuple(v for v in c.axes if v in used)


def _anchor(closed: Mapping[str, _Closed]) -> _Closed:
    """The stored value that defines the space: one with reductions, then the largest."""

    def rank(c: _Closed) -> tuple[bool, int, int]:
        numel = product([v.extent for v in c.axes])
        return _reduction_axes(c) is not None, len(c.axes), numel if isinstance(numel, int) else 0

    return max(closed.values(), key=rank)


def _split_axes(c: _Closed) -> _Closed:
    """c with an axis that its reductions read as `axis // k` split into (axis // k, axis % k)."""
    lifts = tuple(x for e in walk((c.value,)) if isinstance(e, Reduced) for x in e.reduction.lift)
    dims = [d for e in walk(lifts) for d in dims_of(e)]
    values: dict[Sym, Dim] = {}
    for axis in c.axes:
        factor = _factor(axis, dims)
        if factor is not None:
            outer = Var(f"{axis.name}_o", axis.extent // factor)
            values[axis] = outer * factor + Var(f"{axis.name}_i", factor)
    return c.moved(values) if values else c


def _factor(axis: Var, dims: Sequence[Dim]) -> int | None:
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


def _align(
    first: _Closed, closed: Mapping[str, _Closed]
) -> tuple[tuple[Var, ...], tuple[_Closed, ...]]:
    """The group's space and every stored value in its axes."""
    anchor = _split_axes(first)
    outer = _reduction_axes(anchor)
    space = anchor.axes if outer is None else outer
    places: dict[str, Index] = {anchor.name: anchor.index, **anchor.places}
    placed = {anchor.name: anchor}
    waiting = [c for c in closed.values() if c.name != anchor.name]
    while waiting:
        c = next((c for c in waiting if _moves(c, places)), waiting[0])
        waiting.remove(c)
        split = c if outer is None else _split_axes(c)
        values = _moves(split, places) or _by_extent(split, anchor, space, outer is not None)
        moved = split.moved(values)
        placed[c.name] = moved
        places = {**moved.places, **places, c.name: moved.index}
    return space, tuple(placed[n] for n in closed)


def _moves(c: _Closed, places: Mapping[str, Index]) -> dict[Sym, Dim] | None:
    """Axes of c in the group's axes, through a value that both read at invertible places."""
    for other, mine in ((c.name, c.index), *c.places.items()):
        theirs = places.get(other)
        if theirs is None or len(theirs) != len(mine):
            continue
        values: dict[Sym, Dim] = {}
        for m, t in zip(mine, theirs, strict=True):
            if isinstance(m, Var) and m in c.axes and m not in values and _covers(t, m.extent):
                values[m] = t
        if set(values) >= set(c.axes) and _distinct(tuple(values[a] for a in c.axes)):
            return values
    return None


def _covers(d: Dim, extent: Dim) -> bool:
    """Whether d takes each value below extent exactly once as its axes run."""
    axes = tuple(dict.fromkeys(atoms(d)))
    if not all(isinstance(a, Var) for a in axes):
        return False
    whole = product([a.extent for a in axes if isinstance(a, Var)])
    return whole == extent and within(d, extent)


def _distinct(index: Index) -> bool:
    """Whether the components have no axis in common."""
    seen: set[Sym] = set()
    for d in index:
        own = set(atoms(d))
        if not own or own & seen:
            return False
        seen |= own
    return True


def _by_extent(
    c: _Closed, anchor: _Closed, space: tuple[Var, ...], reduces: bool
) -> dict[Sym, Dim]:
    """Axes matched by extent, or by linear position: any bijection of the spaces is right."""
    outer = _reduction_axes(c) if reduces else c.axes
    if outer is None and _extents(c.axes) == _extents(anchor.axes):
        return dict(zip(c.axes, anchor.axes, strict=True))
    if outer is not None and _extents(outer) == _extents(space):
        return dict(zip(outer, space, strict=True))
    mine, theirs = product(list(_extents(c.axes))), product(list(_extents(anchor.axes)))
    if mine == theirs and not reduces:
        return _by_position(c.axes, anchor.axes)
    raise _NoNestError(
        "iteration-space",
        f"{c.name} covers {_shape(c.axes)}, the group {_shape(anchor.axes)}",
        c.name,
        anchor.name,
    )


def _extents(axes: Sequence[Var]) -> Index:
    return tuple(a.extent for a in axes)


def _shape(axes: Iterable[Var]) -> str:
    return "x".join(str(a.extent) for a in axes) or "1"


def _by_position(mine: Sequence[Var], theirs: Sequence[Var]) -> dict[Sym, Dim]:
    flat: Dim = 0
    for axis in theirs:
        flat = flat * axis.extent + axis
    values: dict[Sym, Dim] = {}
    for axis in reversed(mine):
        values[axis] = flat % axis.extent
        flat = flat // axis.extent
    return values


def _store(c: _Closed, space: tuple[Var, ...], nests: Mapping[str, Nest]) -> Store:
    used = tuple(dict.fromkeys(a for d in c.index for a in atoms(d) if isinstance(a, Var)))
    missing = [v for v in space if v not in used and v.extent != 1]
    if missing:
        detail = f"{c.name} does not vary over extent {_shape(missing)} of the group"
        raise _NoNestError("iteration-space", detail, c.name)
    inner = tuple(v for v in used if v not in space)
    return replace(nests[c.name].stores[0], index=c.index, value=c.value, axes=inner)


def _check_reductions(space: Sequence[Var], stores: Sequence[Store]) -> None:
    """Every reduction varies over the whole space and over nothing else.

    A reduction of a reduction, sum_i sum_j x[p, i, j] in two steps, has an inner one that varies
    over i too, and is refused.
    """
    wanted = {v for v in space if v.extent != 1}
    for e in walk(tuple(e for s in stores for e in s.roots)):
        if not isinstance(e, Reduced | Scanned):
            continue
        free = {v for v in e.free if isinstance(v, Var) and v.extent != 1}
        if isinstance(e, Scanned):
            free -= {e.axis}
        if free != wanted:
            need = _shape(sorted(free, key=lambda v: v.name))
            detail = f"a reduction varies over {need}, the group over {_shape(space)}"
            raise _NoNestError("iteration-space", detail)


# ------------------------------------------------------------------ names of axes


def shared_names(stores: tuple[Store, ...], space: tuple[Var, ...]) -> dict[Sym, Dim]:
    """p0.. for the space; inner axes of equal extents are equal, so stages share expressions."""
    scopes: list[tuple[Var, ...]] = [s.axes for s in stores]
    for e in walk(tuple(e for s in stores for e in s.roots)):
        if isinstance(e, Reduced):
            scopes.append(e.reduction.axes)
        elif isinstance(e, Scanned):
            scopes.append((e.axis,))
    values: dict[Sym, Dim] = {v: Var(f"p{k}", v.extent) for k, v in enumerate(space)}
    names: dict[Index, tuple[Var, ...]] = {}
    fresh = 0
    for scope in scopes:
        extents = _extents(scope)
        if extents not in names:
            names[extents] = tuple(Var(f"r{fresh + k}", e) for k, e in enumerate(extents))
            fresh += len(extents)
        taken = {values[v] for v in scope if v in values}
        for old, new in zip(scope, names[extents], strict=True):
            if old not in values and new in taken:
                values[old] = Var(f"r{fresh}", old.extent)
                fresh += 1
            taken.add(values.setdefault(old, new))
    return values


def rename(store: Store, values: Mapping[Sym, Dim]) -> Store:
    """The store with axis variables replaced, its own axes included."""
    rewrite = Rewriter(index=lambda d: substitute(d, values))
    axes = tuple(a for v in store.axes for a in atoms(substitute(v, values)) if isinstance(a, Var))
    return replace(
        store,
        index=tuple(map(rewrite.dim, store.index)),
        value=rewrite(store.value),
        axes=tuple(dict.fromkeys(axes)),
        guard=None if store.guard is None else rewrite(store.guard),
    )


def _buffers(stores: tuple[Store, ...], nests: Sequence[Nest]) -> tuple[Buffer, ...]:
    declared = {b.name: b for n in nests for b in n.buffers}
    roots = tuple(e for s in stores for e in s.roots)
    reads = dict.fromkeys(e.buffer for e in walk(roots) if isinstance(e, Load))
    read = (replace(declared[n], access=Access.READ) for n in reads)
    written = (replace(declared[s.buffer], access=Access.WRITE) for s in stores)
    return (*read, *written)
