"""What a schedule returns: the launches of one group, in order, and the memory between them.

Knows neither GPU nor CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.kernel import Kernel
from ..ir.nest import Buffer


@dataclass(frozen=True)
class Scheduled:
    """The kernels of one group.

    Attributes:
        kernels: launched in this order; a later one may read what an earlier one wrote.
        scratch: buffers that live only between these kernels (1-D, dense; undefined at first).
            A kernel names them among its `buffers` like any other.
    """

    kernels: tuple[Kernel, ...]
    scratch: tuple[Buffer, ...] = ()
