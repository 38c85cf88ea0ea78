"""Runs a Kernel: loops over tiles one after the other, the lanes of a tile as numpy dimensions.

A lane at or beyond the loop's end is inactive; what it would load is poison, so a kernel that
forgets a mask is found. Must not know: nests, backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..base.sym import Dim, Sym
from ..ir.kernel import Assign, Carry, Kernel, Let, Loop, Scratch, Stmt, statements
from ..ir.nest import Store
from .arrays import Array, InterpreterError, Memory, storage
from .evaluate import Evaluation, Frame
from .stores import memories, prepare, written


def run_kernel(
    kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> dict[str, Array]:
    """Executes one launch.

    Args:
        kernel: verified.
        buffers: for each buffer an array of its shape, or its flat storage; element types as
            `arrays.carrier` says. Written in place. Buffers that are only written may be left out.
        sizes: values of the symbolic sizes.

    Returns:
        The arrays of all buffers that the kernel writes or updates.
    """
    known = dict(sizes or {})
    tiles = {s.axis: s.tile for s in statements(kernel.body) if isinstance(s, Loop)}
    dims = {v: n for n, v in enumerate(tiles)}
    frame = Frame(dims, memories(kernel.buffers, buffers, known), known, tiles=tiles)
    _run(frame, kernel.body)
    return written(kernel.buffers, frame.memory)


def _run(frame: Frame, body: tuple[Stmt, ...]) -> None:
    """One pass over a body; what it declares ends with it."""
    names, buffers = set(frame.locals), set(frame.memory)
    for stmt in body:
        _RULES[type(stmt)](frame, stmt)
    for name in set(frame.locals) - names:
        del frame.locals[name]
    for name in set(frame.memory) - buffers:
        del frame.memory[name]


def _uniform(frame: Frame, d: Dim) -> int:
    values = np.unique(Evaluation(frame).index(d))
    if len(values) != 1:
        raise InterpreterError(f"the loop bound {d} differs between lanes", found=str(values))
    return int(values[0])


def _loop(frame: Frame, s: Loop) -> None:
    extent = _uniform(frame, s.axis.extent)
    start, stop = _uniform(frame, s.start), min(_uniform(frame, s.end), extent)
    for first in range(start, stop, s.tile):
        frame.bind(s.axis, np.arange(first, first + s.tile), stop)
        _run(frame, s.body)
    frame.lanes.pop(s.axis, None)
    frame.active.pop(s.axis, None)


def _let(frame: Frame, s: Let) -> None:
    frame.locals[s.name] = Evaluation(frame)(s.value)


def _carry(frame: Frame, s: Carry) -> None:
    init = Evaluation(frame)(s.init)
    frame.locals[s.name] = np.broadcast_to(init, frame.shape(s.over)).copy()


def _assign(frame: Frame, s: Assign) -> None:
    evaluation = Evaluation(frame)
    values = [evaluation(v) for v in s.values]
    for name, value in zip(s.names, values, strict=True):
        old = frame.locals[name]
        mask = frame.mask(v for v, n in frame.dims.items() if v in frame.lanes and old.shape[n] > 1)
        new = value if mask is None else np.where(mask, value, old)
        frame.locals[name] = np.broadcast_to(new, old.shape)


def _scratch(frame: Frame, s: Scratch) -> None:
    data = storage(s.type, frame.sizes)
    frame.memory[s.name] = Memory.of(s.name, s.type, data, frame.sizes)


def _store(frame: Frame, s: Store) -> None:
    lanes = [v for v in frame.dims if v in s.free or v in s.axes]
    prepare(Evaluation(frame), s, lanes).commit()


_RULES: dict[type, Callable[[Frame, Any], None]] = {
    Loop: _loop, Let: _let, Carry: _carry, Assign: _assign, Scratch: _scratch, Store: _store,
}  # fmt: skip
