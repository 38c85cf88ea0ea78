"""How many bytes come along with those that a nest asks for: memory moves whole lines.

    waste of a load = least step between neighbours x bytes of an element, at most a line,
                      / bytes of an element

A load that is contiguous along any of its axes wastes nothing, also when that is not the axis of
the lanes: a tile, or the cache, uses the rest of the line. What is found through an index from
memory has neighbours only along its other axes. Must not know targets beyond the line's length.
"""

from __future__ import annotations

from ..base.affine import coefficient
from ..base.sym import Dim, Opaque, Var, atoms
from ..ir.expr import Load
from ..ir.nest import Nest, Store


def wastes(nest: Nest, line_bytes: int) -> dict[str, float]:
    """Bytes moved for each byte that is asked for, by buffer; 1.0 where all are used."""
    found: dict[str, float] = {}
    accesses: list[Load | Store] = [*nest.loads, *nest.stores]
    for access in accesses:
        factor = _waste(nest, access, line_bytes)
        found[access.buffer] = min(found.get(access.buffer, factor), factor)
    return found


def _waste(nest: Nest, access: Load | Store, line_bytes: int) -> float:
    kind = nest.buffer(access.buffer).type
    size = kind.dtype.itemsize
    step = _step(kind.offset(access.index))
    return min(max(1, step) * size, max(line_bytes, size)) / size


def _step(offset: Dim) -> int:
    """The least distance between elements that differ in one axis; 1 where none is known."""
    axes = [a for a in atoms(offset) if isinstance(a, Var)]
    known = [abs(c) for c in (coefficient(offset, a) for a in axes) if isinstance(c, int) and c]
    scattered = any(isinstance(a, Opaque) for a in atoms(offset))
    return min(known, default=1 << 30 if scattered else 1)
