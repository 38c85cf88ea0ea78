"""Runs a Nest: every expression once, over arrays with one dimension for each axis.

All values are computed before anything is stored, so a nest that updates a buffer in place reads
its old contents. Must not know: kernels, schedules, graphs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..base.sym import Sym, Var
from ..ir.nest import Nest
from ..ir.types import concrete
from .arrays import Array
from .evaluate import Evaluation, Frame
from .stores import memories, prepare, written


def run_nest(
    nest: Nest, buffers: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> dict[str, Array]:
    """Executes the stores of a nest.

    Args:
        nest: verified.
        buffers: for each buffer an array of its shape, or its flat storage; element types as
            `arrays.carrier` says. Written in place. Buffers that are only written may be left out.
        sizes: values of the symbolic sizes.

    Returns:
        The arrays of all buffers that the nest writes or updates.
    """
    known = dict(sizes or {})
    axes = _axes(nest)
    frame = Frame({v: n for n, v in enumerate(axes)}, memories(nest.buffers, buffers, known), known)
    for v in axes:
        frame.bind(v, np.arange(concrete(v.extent, known)))
    evaluation = Evaluation(frame)
    space = tuple(a.var for a in nest.space)
    pending = [prepare(evaluation, s, (*space, *s.axes)) for s in nest.stores]
    for p in pending:
        p.commit()
    return written(nest.buffers, frame.memory)


def _axes(nest: Nest) -> tuple[Var, ...]:
    """Every axis variable: the space, the stores' own, the reduced ones."""
    found = dict.fromkeys(a.var for a in nest.space)
    for s in nest.stores:
        found.update(dict.fromkeys(s.axes))
    for r in nest.reductions:
        found.update(dict.fromkeys(r.axes))
    return tuple(found)
