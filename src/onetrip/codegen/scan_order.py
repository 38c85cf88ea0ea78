"""Scans of a nest made ready for one forward walk each.

    all along one axis, one direction    one nest; a reversed axis is counted from its end
    anything else                        each scan a nest of its own, its result in a scratch buffer

Knows no chip, no tiles and no loops.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.sym import Dim, Sym, Var, add, mul, substitute
from ..ir.expr import Expr, Load, Rewriter, Scanned
from ..ir.nest import Access, Axis, Buffer, Nest, Store
from ..ir.types import TensorType
from .gpu_split import Pieces, flat, mapped, nest_of, size


def forward_scans(nest: Nest, stem: str) -> Pieces:
    """Nests in each of which all scans go forward along one axis, and the buffers between them."""
    if len({(e.axis, e.reverse) for e in nest.scans}) <= 1:
        return Pieces((turned(nest),), ())
    space = tuple(a.var for a in nest.space)
    pool = list(nest.buffers)
    scratch: list[Buffer] = []
    nests: list[Nest] = []
    known: dict[Expr, Expr] = {}
    rewrite = Rewriter(node=known.get)
    for number, scan in enumerate(nest.scans):
        name = f"{stem}_scan{number}"
        axes = _axes(scan, space)
        kind = TensorType.dense(scan.dtype, (size(axes),))
        scratch.append(Buffer(name, kind, Access.WRITE))
        pool.append(scratch[-1])
        inner = tuple(a for a in axes if a not in space)
        store = Store(name, (flat(axes),), rewrite(scan), inner)
        outer = tuple(Axis(a) for a in axes if a in space)
        nests.append(turned(nest_of(outer, (store,), pool)))
        known[store.value] = Load(name, (flat(axes),), scan.dtype)
        rewrite = Rewriter(node=known.get)
    rest = nest_of(nest.space, tuple(mapped(s, rewrite) for s in nest.stores), pool)
    return Pieces((*nests, rest), tuple(scratch))


def _axes(scan: Scanned, space: tuple[Var, ...]) -> tuple[Var, ...]:
    """What a scan varies over, its own axis last."""
    free = {a for a in scan.free if isinstance(a, Var) and a is not scan.axis}
    others = sorted(free - set(space), key=lambda a: a.name)
    return (*(a for a in space if a in free), *others, scan.axis)


def turned(nest: Nest) -> Nest:
    """The nest with the axis of its scans counted from its end, if all go backwards along one."""
    ways = {(e.axis, e.reverse) for e in nest.scans}
    if len(ways) != 1:
        return nest
    ((axis, reverse),) = ways
    if not reverse:
        return nest
    values: dict[Sym, Dim] = {axis: add(add(axis.extent, -1), mul(axis, -1))}

    def forward(e: Expr) -> Expr | None:
        return replace(e, reverse=False) if isinstance(e, Scanned) else None

    rewrite = Rewriter(index=lambda d: substitute(d, values), node=forward)
    return replace(nest, stores=tuple(mapped(s, rewrite) for s in nest.stores))
