"""A loop over lanes in pieces, in each of which a comparison with a fixed place is decided.

    p in [0, 64): p < 32 ? f(p) : g(p)    ->    p in [0, 32): f(p);  p in [32, 64): g(p)

Concatenations, paddings and rotations of halves choose by place what they read. In a piece nothing
is chosen: no masks, and neither side is computed where the other is wanted. Pieces begin at
multiples of the widest vector. Those of one length that read the same elements are one loop again:

    p in [0, 32): y[p] = a f(x[p]);  p in [32, 64): y[p] = b f(x[p - 32])
    p in [0, 32): y[p] = a f(x[p]);  y[p + 32] = b f(x[p])

Must not know families of schedules, text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ..base.affine import coefficient
from ..base.dtype import bool_
from ..base.sym import Dim, Var, add, mul, rebuild
from ..ir.expr import Apply, Const, Expr, Load, Local, Position, Rewriter
from ..ir.kernel import Assign, Carry, Let, Loop, Scratch, Stmt, statements
from ..ir.nest import Store
from .cpp_index import MOST_LANES
from .cpu_statements import expressions, renamed

MOST_PIECES = 4
"""Pieces of one loop: each is a copy of its text."""

BELOW: dict[str, tuple[int, bool]] = {
    "lt": (0, True), "le": (1, True), "gt": (1, False), "ge": (0, False),
}  # fmt: skip
"""Comparison of a place with a number n: it changes at n + shift; its truth below that."""


def in_pieces(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements with every loop over lanes parted where its comparisons change."""
    out: list[Stmt] = []
    for s in body:
        if not isinstance(s, Loop):
            out.append(s)
            continue
        loop = replace(s, body=in_pieces(s.body))
        out += _parted(loop) if loop.tile > 1 else [loop]
    return tuple(out)


def _parted(loop: Loop) -> Sequence[Loop]:
    extent = loop.axis.extent
    if not isinstance(extent, int) or loop.start != 0 or loop.stop not in (None, extent):
        return [loop]
    turns = sorted(
        {t for e in expressions(loop.body) for t in _turns(e, loop.axis) if 0 < t < extent}
    )
    if not turns or len(turns) >= MOST_PIECES or any(t % MOST_LANES for t in turns):
        return [loop]
    edges = [0, *turns, extent]
    return _at_once([_piece(loop, a, b) for a, b in pairwise(edges)])


def _at_once(pieces: Sequence[Loop]) -> Sequence[Loop]:
    """One loop over pieces of one length where that saves loads; else the pieces.

    Nothing is carried from lanes to lanes, and nothing that they write is read by them.
    """
    length = pieces[0].end
    leaves = [s for piece in pieces for s in piece.body]
    written = {s.buffer for s in leaves if isinstance(s, Store)}
    loads = [_loads(_from_zero(piece), piece.axis) for piece in pieces]
    if (
        any(piece.end != add(piece.start, length) for piece in pieces)
        or not all(isinstance(s, Let | Store) for s in leaves)
        or any(e.buffer in written for found in loads for e in found)
        or not any(a & b for a, b in pairwise(loads))
    ):
        return pieces
    joined = _once([s for piece in pieces for s in _from_zero(piece)])
    return [replace(pieces[0], body=joined, stop=length)]


def _from_zero(piece: Loop) -> tuple[Stmt, ...]:
    """The statements of a piece by their distance from its begin."""
    axis, place = piece.axis, add(piece.axis, piece.start)

    def moved(d: Dim) -> Dim:
        return rebuild(d, lambda atom: place if atom is axis else None)

    values = Rewriter(index=moved)
    return tuple(renamed(s, {}, values) for s in piece.body)


def _loads(body: Sequence[Stmt], axis: Var) -> set[Load]:
    return {e for e in expressions(body) if isinstance(e, Load) and axis in e.free}


def _once(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Values, each of them once, and then the stores."""
    names: dict[Expr, str] = {}
    same: dict[str, str] = {}

    def leaf(e: Expr) -> Expr | None:
        return replace(e, name=same[e.name]) if isinstance(e, Local) and e.name in same else None

    values, lets, stores = Rewriter(leaf=leaf), [], []
    for s in body:
        made = renamed(s, {}, values)
        if isinstance(s, Let) and isinstance(made, Let):
            same[s.name] = names.setdefault(made.value, s.name)
            lets += [made] if same[s.name] == s.name else []
        else:
            stores.append(made)
    return (*lets, *stores)


def _piece(loop: Loop, start: int, stop: int) -> Loop:
    decide = Rewriter(node=lambda e: _decided(e, loop.axis, start))
    body = _needed([x for s in loop.body for x in _rewritten(s, decide)])
    return replace(loop, body=_own_names(body, start), start=start, stop=stop)


def _own_names(body: tuple[Stmt, ...], start: int) -> tuple[Stmt, ...]:
    """The statements of one piece with names that no other piece has."""
    made = [s.name for s in statements(body) if isinstance(s, Let | Carry | Scratch)]
    if start == 0 or not made:
        return body
    new = {name: f"{name}_from{start}" for name in made}

    def leaf(e: Expr) -> Expr | None:
        return replace(e, name=new[e.name]) if isinstance(e, Local) and e.name in new else None

    def node(e: Expr) -> Expr | None:
        return replace(e, buffer=new[e.buffer]) if isinstance(e, Load) and e.buffer in new else None

    values = Rewriter(leaf=leaf, node=node)
    return tuple(renamed(s, new, values) for s in body)


def _needed(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements without values that nobody reads any more."""
    used: set[str] = set()
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, Let) and s.name not in used:
            continue
        kept.append(s)
        used |= {e.name for e in expressions((s,)) if isinstance(e, Local)}
    return tuple(reversed(kept))


def _turns(e: Expr, axis: Var) -> Iterator[int]:
    """Where along the axis a comparison changes."""
    found = _compared(e, axis)
    if found is not None:
        yield found[0]


def _compared(e: Expr, axis: Var) -> tuple[int, bool] | None:
    """(place at which e changes, its truth below) of a comparison of `axis + k` with a number."""
    if not isinstance(e, Apply) or e.op not in BELOW:
        return None
    left, right = e.args
    if not isinstance(left, Position) or not isinstance(right, Const):
        return None
    rest = add(left.value, mul(axis, -1))
    if coefficient(left.value, axis) != 1 or not isinstance(rest, int):
        return None
    shift, below = BELOW[e.op]
    return int(right.value) + shift - rest, below


def _decided(e: Expr, axis: Var, start: int) -> Expr | None:
    """What e is in the piece that begins at `start`, where that is less than e."""
    if isinstance(e, Load):
        return _unguarded(e)
    found = _compared(e, axis)
    if found is not None:
        turn, below = found
        return Const(below == (start < turn), bool_)
    if not isinstance(e, Apply) or not isinstance(e.args[0], Const | Apply):
        return None
    return _chosen(e) if e.op == "where" else _joined(e)


def _unguarded(e: Load) -> Expr | None:
    if not isinstance(e.guard, Const):
        return None
    if e.guard.value:
        return Load(e.buffer, e.index, e.dtype)
    return e.other if e.other is not None else Const(0, e.dtype)


def _chosen(e: Apply) -> Expr | None:
    condition, a, b = e.args
    if not isinstance(condition, Const):
        return None
    return a if condition.value else b


def _joined(e: Apply) -> Expr | None:
    """`and`, `or` and `not` of what is decided."""
    known = [a for a in e.args if isinstance(a, Const) and a.dtype is bool_]
    if e.op == "logical_not" and known:
        return Const(not known[0].value, bool_)
    if e.op not in ("logical_and", "logical_or", "bitwise_and", "bitwise_or") or not known:
        return None
    if e.dtype is not bool_:
        return None
    settles = e.op.endswith("or")
    if any(bool(k.value) is settles for k in known):
        return Const(settles, bool_)
    other = [a for a in e.args if a not in known]
    return other[0] if other else known[0]


def _rewritten(s: Stmt, decide: Rewriter) -> list[Stmt]:
    """The statement as decided; nothing of a store that is never made."""
    if isinstance(s, Store):
        guard = None if s.guard is None else decide(s.guard)
        if isinstance(guard, Const):
            if not guard.value:
                return []
            guard = None
        index = tuple(map(decide.dim, s.index))
        return [replace(s, index=index, value=decide(s.value), guard=guard)]
    if isinstance(s, Let):
        return [replace(s, value=decide(s.value))]
    if isinstance(s, Assign):
        return [replace(s, values=tuple(map(decide, s.values)))]
    if isinstance(s, Loop):
        return [replace(s, body=tuple(y for x in s.body for y in _rewritten(x, decide)))]
    return [s]
