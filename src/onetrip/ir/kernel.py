"""Kernel: one launch, as a tree of loops over tiles.

    Kernel ::= buffers: Buffer...  body: Stmt...
    Stmt   ::= Loop(axis, tile, mapping, start, stop, body)     axis.var := start + tile lanes
             | Let(name, value)                                 a tile-local value, bound once
             | Carry(name, init, over)                          an accumulator or loop-carried tile
             | Assign(name, value)                              new value of a Carry
             | Scratch(name, type)                              a tile-local buffer
             | Store                                            to a buffer or a scratch

The values are the expressions of ir/expr.py. Inside `Loop(axis, tile)` the variable `axis.var`
stands for the lanes of one tile, so an expression means a tile over all the tile axes in its free
variables (named dimensions: broadcasting needs no order). A loop with tile 1 binds a plain
number. A loop's bounds may read plain numbers, which gives one tile of another loop its own range
(`start=64*q_tile`). Lanes at or beyond the loop's end or the axis' extent, whichever comes first,
are inactive: they load nothing, store nothing, leave a Carry as it is and take no part in a Fold,
Prefix or Contract.

Loops over one axis may have different tiles, and a loop whose start is not below its end runs not
at all. A Carry may be over the axis of a loop that comes after it: it then holds one value for each
lane of that loop's tile, from tile to tile. Outside the loop all these lanes count, and a Fold
along the axis joins them, or another such Carry collects them; all loops that set one Carry over
the axis have the same tile.

A Store happens once for each active lane of the tile axes on which its index, value or guard
depends, and of `Store.axes`: a store that adds, of a value that is the same in all lanes, names the
axes along which it adds once per lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import TypeAlias

from ..base.sym import Dim, Size, Var
from .expr import Expr
from .nest import Buffer, Store
from .types import TensorType


class Mapping(Enum):
    """Who runs the iterations of a loop."""

    GRID = "grid"
    THREADS = "threads"
    SERIAL = "serial"


@dataclass(frozen=True)
class Loop:
    """For each tile of `axis` from start to stop (default 0 to its extent).

    `tile` is the number of lanes; a tile as large as the extent makes the loop run once.
    """

    axis: Var
    tile: int
    mapping: Mapping
    body: tuple[Stmt, ...]
    start: Dim = 0
    stop: Dim | None = None

    @property
    def end(self) -> Dim:
        """Where the loop ends, before the axis' extent cuts it off."""
        return self.axis.extent if self.stop is None else self.stop


@dataclass(frozen=True)
class Let:
    """A named tile value."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Carry:
    """A tile variable over the axes `over`, first equal to `init`."""

    name: str
    init: Expr
    over: tuple[Var, ...] = ()


@dataclass(frozen=True)
class Assign:
    """Gives Carries new values, all at once: each value reads the old state."""

    names: tuple[str, ...]
    values: tuple[Expr, ...]


@dataclass(frozen=True)
class Scratch:
    """A tile-local buffer that lives as long as the enclosing loop's iteration."""

    name: str
    type: TensorType


Stmt: TypeAlias = Loop | Let | Carry | Assign | Scratch | Store


@dataclass(frozen=True)
class Facts:
    """What a kernel costs and where it came from; written into the head of the generated text.

    bytes and flops may be symbolic; `origins` are "module line" texts; `ops` the operators.
    """

    bytes_read: Dim = 0
    bytes_written: Dim = 0
    flops: Dim = 0
    ops: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
        name: a stable identifier without provenance.
        buffers: in the order of the launch arguments.
        sizes: symbolic sizes passed after the buffers.
        family: the schedule family: pointwise, row, column, ...
        warps, stages: launch parameters of a GPU; ignored on a CPU.
        backwards: a GPU begins with the last program: what the kernel before it touched last is
            still in the cache.
        reload: each step of a serial loop loads the tiles that all steps share: registers of a
            GPU are short.
        resident: programs that one multiprocessor shall hold, where the registers come near.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    sizes: tuple[Size, ...] = ()
    family: str = "pointwise"
    warps: int = 4
    stages: int = 1
    facts: Facts = field(default_factory=Facts)
    backwards: bool = False
    reload: bool = False
    resident: int = 1


@dataclass(frozen=True)
class Packed:
    """Kernels of fixed sizes launched as one, side by side in its grid: none needs another."""

    name: str
    parts: tuple[Kernel, ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Those of the parts, one after the other."""
        return tuple(
            replace(b, name=f"k{n}_{b.name}") for n, k in enumerate(self.parts) for b in k.buffers
        )

    @property
    def sizes(self) -> tuple[Size, ...]:
        """None: the parts' sizes are fixed."""
        return ()


Launched: TypeAlias = Kernel | Packed


def parts(kernel: Launched) -> tuple[Kernel, ...]:
    """The kernels of one launch."""
    return kernel.parts if isinstance(kernel, Packed) else (kernel,)


def spans(kernel: Launched) -> tuple[tuple[Kernel, slice], ...]:
    """The kernels of one launch and where their buffers stand among its own."""
    ends = list(accumulate(len(k.buffers) for k in parts(kernel)))
    return tuple(
        (k, slice(end - len(k.buffers), end)) for k, end in zip(parts(kernel), ends, strict=True)
    )


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, Loop):
            yield from statements(stmt.body)
