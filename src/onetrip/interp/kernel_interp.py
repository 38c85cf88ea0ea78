"""Runs a Kernel: loops over tiles one after the other, the lanes of a tile as numpy dimensions.

A lane at or beyond the loop's end is inactive; what it would load is poison, so a kernel that
forgets a mask is found. Must not know: nests, backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.sym import Dim, Sym, Var
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
    axes = dict.fromkeys(s.axis for s in statements(kernel.body) if isinstance(s, Loop))
    dims = {v: n for n, v in enumerate(axes)}
    frame = Frame(dims, memories(kernel.buffers, buffers, known), known)
    _Run(frame).body(kernel.body)
    return written(kernel.buffers, frame.memory)


@dataclass(frozen=True)
class _Run:
    """One launch going on: what is bound now, and the axes of each Carry."""

    frame: Frame
    over: dict[str, tuple[Var, ...]] = field(default_factory=dict)

    def body(self, body: tuple[Stmt, ...]) -> None:
        """Runs statements once; what they declare ends with them."""
        names, buffers = set(self.frame.locals), set(self.frame.memory)
        for stmt in body:
            _RULES[type(stmt)](self, stmt)
        for name in set(self.frame.locals) - names:
            del self.frame.locals[name]
        for name in set(self.frame.memory) - buffers:
            del self.frame.memory[name]

    def uniform(self, d: Dim) -> int:
        """The value of a loop's bound."""
        values = np.unique(Evaluation(self.frame).index(d))
        if len(values) != 1:
            raise InterpreterError(f"the bound {d} differs between lanes", found=str(values))
        return int(values[0])

    def loop(self, s: Loop) -> None:
        """Each tile of the axis, from start to the end or the extent."""
        extent = self.uniform(s.axis.extent)
        start, stop = self.uniform(s.start), min(self.uniform(s.end), extent)
        for first in range(start, stop, s.tile):
            self.frame.bind(s.axis, np.arange(first, first + s.tile), stop)
            self.body(s.body)
        self.frame.lanes.pop(s.axis, None)
        self.frame.active.pop(s.axis, None)

    def let(self, s: Let) -> None:
        """A value, bound once."""
        self.frame.locals[s.name] = Evaluation(self.frame)(s.value)

    def carry(self, s: Carry) -> None:
        """A value for each lane of the bound axes; along others it grows when it is set."""
        init = Evaluation(self.frame)(s.init)
        self.frame.locals[s.name] = np.broadcast_to(init, self.frame.shape(s.over))
        self.over[s.name] = s.over

    def assign(self, s: Assign) -> None:
        """New values for all names at once; inactive lanes keep theirs."""
        frame = self.frame
        evaluation = Evaluation(frame)
        values = [evaluation(v) for v in s.values]
        for name, value in zip(s.names, values, strict=True):
            old = frame.locals[name]
            mask = frame.mask(self.over[name])
            new = value if mask is None else np.where(mask, value, old)
            shape = np.broadcast_shapes(old.shape, frame.shape(self.over[name]), new.shape)
            frame.locals[name] = np.broadcast_to(new, shape)

    def scratch(self, s: Scratch) -> None:
        """A buffer full of poison."""
        data = storage(s.type, self.frame.sizes)
        self.frame.memory[s.name] = Memory.of(s.name, s.type, data, self.frame.sizes)

    def store(self, s: Store) -> None:
        """Once for each active lane of the axes that the store depends on or names."""
        lanes = [v for v in self.frame.dims if v in s.free or v in s.axes]
        prepare(Evaluation(self.frame), s, lanes).commit()


_RULES: dict[type, Callable[[_Run, Any], None]] = {
    Loop: _Run.loop,
    Let: _Run.let,
    Carry: _Run.carry,
    Assign: _Run.assign,
    Scratch: _Run.scratch,
    Store: _Run.store,
}
