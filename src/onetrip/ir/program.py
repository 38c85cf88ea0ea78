"""Program: the host's steps for one call of a compiled graph.

    Step ::= Bind | Alloc | Alias | Launch | Call | Seed | Update | Free
    Program ::= inputs, steps, outputs

The runtime executes it; the memory planner reads it and places the scratch buffers in one arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from ..base.host import Computed
from ..base.sym import Dim, Size
from .graph import Scalar, Value
from .kernel import Launched
from .types import TensorType


@dataclass(frozen=True)
class Bind:
    """Reads a symbolic size from dimension `dim` of an input (dim -1: the input is the number), or
    computes it from those before it."""

    size: Size
    source: str | Computed
    dim: int


@dataclass(frozen=True)
class Alloc:
    """Memory for a value; `offset` in the arena (bytes), or None: an output of its own."""

    value: Value
    offset: Dim | None = None


@dataclass(frozen=True)
class Alias:
    """`value` is a view of `source`: other shape, strides (elements) and offset (elements)."""

    value: Value
    source: str
    offset: Dim = 0


@dataclass(frozen=True)
class Launch:
    """Generated kernels; `arguments` are value names in the order of kernel.buffers.

    `lookups` names the calls inside that read where an index says, for errors.
    """

    kernel: Launched
    arguments: tuple[str, ...]
    lookups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """A library call: ATen `target` with argument templates (`graph.Ref` stands for an input).

    `out`: the library writes into the outputs, which were allocated before; else it makes them.
    """

    target: str
    inputs: tuple[Value | Scalar, ...]
    outputs: tuple[Value, ...]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    reason: str = ""
    out: bool = False


@dataclass(frozen=True)
class Update:
    """Writes `value` back into the input `target` (the program changes its inputs only here)."""

    target: str
    value: str


@dataclass(frozen=True)
class Free:
    """The last use of a value is past."""

    value: str


Step: TypeAlias = Bind | Alloc | Alias | Launch | Call | Update | Free


@dataclass(frozen=True)
class Program:
    """Steps between inputs and outputs (value names; None is an absent output)."""

    inputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str | Scalar | None, ...]
    sizes: tuple[Size, ...] = ()
    arena_bytes: Dim = 0
    buffers: tuple[tuple[str, TensorType], ...] = ()
