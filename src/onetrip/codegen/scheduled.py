"""What a schedule returns: the launches of one group, in order, and the memory between them.

Knows neither GPU nor CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.kernel import Kernel
from ..ir.nest import Buffer


@dataclass(frozen=True)
class Scheduled:
    """The kernels of one group.

    Attributes:
        kernels: launched in this order; a later one may read what an earlier one wrote.
        scratch: buffers that live only between these kernels (1-D, dense; undefined at first).
            A kernel names them among its `buffers` like any other.
        values: pairs (buffer name, graph value) where they differ: kernels that several groups
            share name their buffers by position.
    """

    kernels: tuple[Kernel, ...]
    scratch: tuple[Buffer, ...] = ()
    values: tuple[tuple[str, str], ...] = ()

    def named(self, values: tuple[str, ...]) -> Scheduled:
        """The same kernels on the given values, in the order of the scheduled nest's buffers."""
        return replace(self, values=tuple((f"a{k}", name) for k, name in enumerate(values)))

    def arguments(self, kernel: Kernel, group: str) -> tuple[str, ...]:
        """Names of the values a kernel is launched on; scratch gets the group's name before it."""
        local = {b.name: f"{group}.{b.name}" for b in self.scratch}
        known = {**local, **dict(self.values)}
        return tuple(known.get(b.name, b.name) for b in kernel.buffers)
