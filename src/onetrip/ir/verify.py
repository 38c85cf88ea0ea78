"""Invariants of all four levels, checked after every pass.

`INVARIANTS` is the table; each level's own file says what its invariants mean. An IR that breaks
one is a fault of onetrip: the report shows the lines around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .faults import Invariant, check
from .graph import Graph
from .kernel import Kernel, parts
from .nest import Nest
from .printer import Printable, listing
from .program import Launch, Program
from .verify_graph import GRAPH
from .verify_kernel import KERNEL
from .verify_nest import NEST
from .verify_program import PROGRAM

INVARIANTS: Mapping[type, tuple[Invariant[Any], ...]] = MappingProxyType(
    {Graph: GRAPH, Nest: NEST, Kernel: KERNEL, Program: PROGRAM}
)


def verify(ir: Printable, after: str = "") -> None:
    """Checks every invariant of an IR's level; the kernels of a program too.

    Args:
        ir: a Graph, Nest, Kernel or Program.
        after: the pass that made it, for the report.

    Raises:
        VerifyError: with the name of the first broken invariant and the lines around the fault.
    """
    check(ir, INVARIANTS[type(ir)], listing, after)
    if isinstance(ir, Program):
        launched = (k for s in ir.steps if isinstance(s, Launch) for k in parts(s.kernel))
        for kernel in dict.fromkeys(launched):
            verify(kernel, after)
