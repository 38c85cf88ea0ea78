"""Fusion of the nests of one group into one nest: closed values aligned on one iteration space.

    closed      y[y_0, y_1] = f(x[y_0, y_1]);  s[s_0] = sum_r g(x[s_0, r])      (passes/close.py)
    aligned     y_0 -> s_0, since both read x there
    one nest    for p0: s[p0] = ..., for r0: y[p0, r0] = ...

The axes that all reductions of the group leave free become its space; the other axes of a store are
its own. A group that has no such space is one nest only where one walk over some of its axes
computes it (mixed.py) and the target can make that walk; else the answer says why it is none.
Knows nothing of costs: it says what a group computes, or that it cannot be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..base.lazy import cached_property
from ..base.sym import (
    Dim,
    Size,
    Sym,
    Var,
    atoms,
    product,
    substitute,
)
from ..ir.expr import Load, Reduced, Rewriter, dims_of, walk
from ..ir.nest import Access, Axis, Buffer, Combine, Nest, Store
from .close import MAX_EXPRESSIONS, Closed, Closing, Folding, NoNestError, Unfusable
from .mixed import varies_inside
from .unify import covers, divisor, fold_axes, unified

Index = tuple[Dim, ...]
Walkable = Callable[[Nest], bool]


def fuse(
    members: Sequence[str],
    nests: Mapping[str, Nest],
    stored: frozenset[str],
    closing: Closing | None = None,
    *,
    bounded: bool = True,
    mixed: Walkable | None = None,
) -> Nest | Unfusable:
    """One nest that computes the stored values of a group.

    Args:
        members: names of the values that the group computes, producers first.
        nests: the nest of each value, with one store each (passes/lower.py).
        stored: the members that must exist in memory afterwards.
        closing: of these nests: what it remembers makes the next group cheaper.
        bounded: whether too large a group is refused; one that is a single operator's cannot be.
        mixed: whether the target computes a nest, whose reductions leave unlike axes free, in one
            walk (passes/mixed.py); without it none may.
    """
    try:
        return _fuse(members, nests, stored, closing or Closing(nests), bounded, mixed)
    except NoNestError as failure:
        return failure.reason


def _fuse(
    members: Sequence[str],
    nests: Mapping[str, Nest],
    stored: frozenset[str],
    closing: Closing,
    bounded: bool,
    mixed: Walkable | None,
) -> Nest:
    scattered = [m for m in members if nests[m].stores[0].combine is not Combine.SET]
    if scattered and len(members) > 1:
        raise NoNestError(
            "scatter", "an accumulating store shares its kernel with none", *scattered
        )
    wanted = [name for name in members if name in stored]
    closed = closing.close(wanted, members, bounded=bounded)
    try:
        nest = _uniform(closed, members, nests)
    except NoNestError:
        walked = None if mixed is None else _mixed(closed, members, nests, mixed)
        if walked is None:
            raise
        nest = walked
    if bounded and len(nest.expressions) > MAX_EXPRESSIONS:
        count = len(nest.expressions)
        detail = f"{count} expressions, at most {MAX_EXPRESSIONS}"
        raise NoNestError("size", detail, count=(count, MAX_EXPRESSIONS))
    return nest


def _uniform(
    closed: Mapping[str, Closed], members: Sequence[str], nests: Mapping[str, Nest]
) -> Nest:
    """The nest over a space that all reductions leave free."""
    aligned = {n: Aligned.of(c) for n, c in closed.items()}
    space, placed = _align(_anchor(aligned), aligned)
    inner = [_inner(c, space) for c in placed]
    _check_reductions(space, placed)  # before equal names hide an axis of another reduction
    folded = [c.now(fold_axes(fold)) for c in placed for fold in c.closed.folds]
    return _nest(placed, inner, space, _names([*inner, *folded], space), members, nests)


def _mixed(
    closed: Mapping[str, Closed],
    members: Sequence[str],
    nests: Mapping[str, Nest],
    walkable: Walkable,
) -> Nest | None:
    """The nest of reductions over unlike axes; None where no walk computes it."""
    if not any(isinstance(e, Reduced) for c in closed.values() for e in c.folds):
        return None
    values = unified(tuple(closed.values()))
    if values is None:
        return None
    placed = [Aligned.of(c).moved(values) for c in closed.values()]
    used = [[a for d in c.index for a in atoms(d) if isinstance(a, Var)] for c in placed]
    folded = [c.now(fold_axes(fold)) for c in placed for fold in c.closed.folds]
    bound = {a for axes in folded for a in axes}
    space = tuple(a for a in dict.fromkeys(used[0]) if a not in bound and all(a in u for u in used))
    inner = [tuple(a for a in dict.fromkeys(u) if a not in space) for u in used]
    names = own_names([*inner, *folded], space)
    nest = _nest(placed, inner, space, names, members, nests)
    return nest if walkable(nest) else None


def _nest(
    placed: Sequence[Aligned],
    inner: Sequence[tuple[Var, ...]],
    space: tuple[Var, ...],
    names: Mapping[Sym, Dim],
    members: Sequence[str],
    nests: Mapping[str, Nest],
) -> Nest:
    stores = _stores(placed, inner, names, nests)
    axes = tuple(Axis(Var(f"p{k}", v.extent)) for k, v in enumerate(space))
    return Nest(axes, _buffers(stores, [nests[m] for m in members]), stores)


@dataclass(frozen=True)
class Aligned:
    """A closed value whose axes are to become others: `values` says which.

    The value itself is rewritten once, when all of its axes are known.
    """

    closed: Closed
    axes: tuple[Var, ...]
    index: Index
    places: Mapping[str, Index]
    values: Mapping[Sym, Dim] = field(default_factory=dict)

    @classmethod
    def of(cls, closed: Closed) -> Aligned:
        """The value over its own axes."""
        return cls(closed, closed.axes, closed.index, closed.places)

    @property
    def name(self) -> str:
        """The stored value."""
        return self.closed.name

    def moved(self, values: Mapping[Sym, Dim]) -> Aligned:
        """The same value over other axes."""
        move = Rewriter(index=lambda d: substitute(d, values)).dim
        axes = tuple(a for v in self.axes for a in atoms(move(v)))
        old = {k: move(d) for k, d in self.values.items()}
        return Aligned(
            self.closed,
            tuple(a for a in dict.fromkeys(axes) if isinstance(a, Var)),
            tuple(map(move, self.index)),
            {k: tuple(map(move, i)) for k, i in self.places.items()},
            {**values, **old},
        )

    def now(self, axes: Iterable[Sym]) -> tuple[Var, ...]:
        """What axes of the closed value have become."""
        found = (a for v in axes for a in atoms(self.values.get(v, v)))
        return tuple(a for a in dict.fromkeys(found) if isinstance(a, Var))

    @cached_property
    def outer(self) -> tuple[Var, ...] | None:
        """The axes on which the reductions depend; None when there is no reduction."""
        if not self.closed.folds:
            return None
        used = {a for e in self.closed.folds for a in self.varies_over(e)}
        return tuple(v for v in self.axes if v in used)

    def varies_over(self, fold: Folding) -> tuple[Var, ...]:
        """The axes on which the result of a reduction, or the start of a scan, depends."""
        if all(isinstance(self.values.get(v, v), Var | Size) for v in fold.free):
            free, own = self.now(fold.free), fold_axes(fold)
        else:  # x[i // 2] depends on one of the axes that i becomes: the indices must be seen
            below = tuple(walk((fold,)))
            dims = dict.fromkeys(d for e in below for d in dims_of(e))
            found = dict.fromkeys(a for d in dims for a in atoms(substitute(d, self.values)))
            free = tuple(a for a in found if isinstance(a, Var))
            inner = tuple(a for e in below if isinstance(e, Reduced) for a in e.reduction.axes)
            own = (*inner, *fold_axes(fold))
        bound = self.now(own)
        return tuple(a for a in free if a not in bound)


# ------------------------------------------------------------------ one space for all stores


def _anchor(closed: Mapping[str, Aligned]) -> Aligned:
    """The stored value that defines the space: one with reductions, then the largest."""

    def rank(c: Aligned) -> tuple[bool, int, int]:
        numel = product([v.extent for v in c.axes])
        return c.outer is not None, len(c.axes), numel if isinstance(numel, int) else 0

    return max(closed.values(), key=rank)


def _split_axes(c: Aligned) -> Aligned:
    """c with an axis that its reductions read as `axis // k` split into (axis // k, axis % k)."""
    lifts = tuple(x for e in c.closed.folds if isinstance(e, Reduced) for x in e.reduction.lift)
    dims = [d for e in walk(lifts) for d in dims_of(e)]
    values: dict[Sym, Dim] = {}
    for axis in c.axes:
        factor = divisor(axis, dims)
        if factor is not None:
            outer = Var(f"{axis.name}_o", axis.extent // factor)
            values[axis] = outer * factor + Var(f"{axis.name}_i", factor)
    return c.moved(values) if values else c


def _align(
    first: Aligned, closed: Mapping[str, Aligned]
) -> tuple[tuple[Var, ...], tuple[Aligned, ...]]:
    """The group's space and every stored value in its axes."""
    anchor = _split_axes(first)
    outer = anchor.outer
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


def _moves(c: Aligned, places: Mapping[str, Index]) -> dict[Sym, Dim] | None:
    """Axes of c in the group's axes, through a value that both read at invertible places."""
    for other, mine in ((c.name, c.index), *c.places.items()):
        theirs = places.get(other)
        if theirs is None or len(theirs) != len(mine):
            continue
        values: dict[Sym, Dim] = {}
        for m, t in zip(mine, theirs, strict=True):
            if isinstance(m, Var) and m in c.axes and m not in values and covers(t, m.extent):
                values[m] = t
        if set(values) >= set(c.axes) and _distinct(tuple(values[a] for a in c.axes)):
            return values
    return None


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
    c: Aligned, anchor: Aligned, space: tuple[Var, ...], reduces: bool
) -> dict[Sym, Dim]:
    """Axes matched by extent, or by linear position: any bijection of the spaces is right."""
    outer = c.outer if reduces else c.axes
    if outer is None and _extents(c.axes) == _extents(anchor.axes):
        return dict(zip(c.axes, anchor.axes, strict=True))
    if outer is not None and _extents(outer) == _extents(space):
        return dict(zip(outer, space, strict=True))
    mine, theirs = product(list(_extents(c.axes))), product(list(_extents(anchor.axes)))
    if mine == theirs and not reduces:
        return _by_position(c.axes, anchor.axes)
    raise NoNestError(
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


def _inner(c: Aligned, space: tuple[Var, ...]) -> tuple[Var, ...]:
    """The axes of a store that are not the group's; it must vary over all that are."""
    used = tuple(dict.fromkeys(a for d in c.index for a in atoms(d) if isinstance(a, Var)))
    missing = [v for v in space if v not in used and v.extent != 1]
    if missing:
        detail = f"{c.name} does not vary over extent {_shape(missing)} of the group"
        raise NoNestError("iteration-space", detail, c.name)
    return tuple(v for v in used if v not in space)


def _check_reductions(space: Sequence[Var], placed: Sequence[Aligned]) -> None:
    """Every reduction varies over the whole space and over nothing else.

    A reduction of a reduction, sum_i sum_j x[p, i, j] in two steps, has an inner one that varies
    over i too, and is refused.
    """
    wanted = {v for v in space if v.extent != 1}
    for c in placed:
        for fold in c.closed.folds:
            free = {v for v in c.varies_over(fold) if v.extent != 1}
            if free != wanted:
                need = _shape(sorted(free, key=lambda v: v.name))
                detail = f"a reduction varies over {need}, the group over {_shape(space)}"
                raise NoNestError("iteration-space", detail)


def _stores(
    placed: Sequence[Aligned],
    inner: Sequence[tuple[Var, ...]],
    names: Mapping[Sym, Dim],
    nests: Mapping[str, Nest],
) -> tuple[Store, ...]:
    """The stores over p0.. and r0..: every value is rewritten once, what they share once."""
    values: dict[Sym, Dim] = dict(names)
    for c in placed:  # axes bear the names of their values: no two stores disagree on one
        values.update(c.moved(names).values)
    rewrite = Rewriter(index=lambda d: substitute(d, values))
    made: list[Store] = []
    for c, own in zip(placed, inner, strict=True):
        store = nests[c.name].stores[0]
        made.append(
            replace(
                store,
                index=tuple(map(rewrite.dim, store.index)),
                value=rewrite(c.closed.value),
                axes=tuple(a for v in own if isinstance(a := names[v], Var)),
                guard=None if store.guard is None else rewrite(store.guard),
            )
        )
    return tuple(made)


# ------------------------------------------------------------------ names of axes


def shared_names(stores: tuple[Store, ...], space: tuple[Var, ...]) -> dict[Sym, Dim]:
    """p0.. for the space; inner axes of equal extents are equal, so stages share expressions."""
    folds = [e for e in walk(tuple(e for s in stores for e in s.roots)) if isinstance(e, Folding)]
    scopes = [*(s.axes for s in stores), *map(fold_axes, folds)]
    return own_names(scopes, space) if varies_inside(folds, space) else _names(scopes, space)


def own_names(scopes: Iterable[tuple[Var, ...]], space: tuple[Var, ...]) -> dict[Sym, Dim]:
    """p0.. for the space and r0.. for all others: reductions that meet keep their axes apart."""
    inner = [v for v in dict.fromkeys(v for scope in scopes for v in scope) if v not in space]
    values: dict[Sym, Dim] = {v: Var(f"p{k}", v.extent) for k, v in enumerate(space)}
    return values | {v: Var(f"r{k}", v.extent) for k, v in enumerate(inner)}


def _names(scopes: Iterable[tuple[Var, ...]], space: tuple[Var, ...]) -> dict[Sym, Dim]:
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
