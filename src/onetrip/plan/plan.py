"""GraphPlan: the groups of one graph in execution order, their boundaries, memory and totals.

Everything that a report, a plan file or a program needs stands here as plain values. Must not know
how the groups were found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base.lazy import cached_property
from ..cost.roofline import BoundBy, Cost
from ..ir.graph import Graph, Node
from ..ir.nest import Nest
from ..passes.anonymize import renamed
from .constraints import Refusal
from .decision import Class, Decision, Evidence, IfFused
from .index import View
from .memory import MemoryPlan

Sizes = tuple[tuple[str, int], ...]
Verdict = Literal["stored", "recomputed"]


@dataclass(frozen=True)
class Group:
    """One kernel or library call.

    Attributes:
        name: unique in the plan, from the operators in it.
        kind: `pointwise`, `reduction`, `scan` or `scatter` for a generated kernel; `contraction`,
            `opaque`, ... or `extern` for a library call.
        nodes: the nodes computed here, views that are read through included, in graph order.
        call: the library call; None for a generated kernel.
        form: what a generated kernel computes; None for a library call. Groups that differ in names
            only have one, under the names of one of them.
        values: what the buffers of `form` are here, in their order.
        stored: the values that it writes to memory.
        reads, writes: (value, bytes) in device memory.
        registers, spill_bytes: of a thread; shared_bytes: of a block; None for a library call.
        source: whether those are estimated or assembled.
        anchor: whether it is a contraction, a convolution or attention.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    call: Node | None
    form: Nest | None
    values: tuple[str, ...]
    stored: tuple[str, ...]
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int | None
    occupancy: float | None
    source: str
    anchor: bool
    cost: Cost

    @cached_property
    def nest(self) -> Nest | None:
        """`form` under the names of this group."""
        return None if self.form is None else renamed(self.form, self.here)

    @cached_property
    def here(self) -> dict[str, str]:
        """The values that the buffers of `form` are."""
        buffers = () if self.form is None else self.form.buffers
        return {b.name: value for b, value in zip(buffers, self.values, strict=True)}

    @property
    def generated(self) -> bool:
        """Whether the kernel is ours."""
        return self.call is None

    @property
    def reads(self) -> Sizes:
        """(value, bytes) read."""
        return self.cost.reads

    @property
    def writes(self) -> Sizes:
        """(value, bytes) written."""
        return self.cost.writes

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.cost.bytes

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return self.cost.flops

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.cost.intensity

    @property
    def estimated_us(self) -> float:
        """Microseconds, launch included."""
        return self.cost.us

    @property
    def bound_by(self) -> BoundBy:
        """What the time is mostly spent on."""
        return self.cost.bound_by


@dataclass(frozen=True)
class Boundary:
    """A dependence between two groups and why it is one.

    Attributes:
        producer, consumer: names of groups; for `recomputed` the producer is a node.
        values: what passes.
        bytes: bytes of these values.
        verdict: `stored` in memory, or `recomputed` in the consumer.
    """

    producer: str
    consumer: str
    values: tuple[str, ...]
    bytes: int
    verdict: Verdict
    decision: Decision

    @property
    def code(self) -> str:
        """The reason's code."""
        return self.decision.code

    @property
    def cls(self) -> Class:
        """The reason's class."""
        return self.decision.cls

    @property
    def reason(self) -> str:
        """The reason in a sentence."""
        return self.decision.sentence

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Figures against limits."""
        return self.decision.evidence

    @property
    def if_fused(self) -> IfFused | None:
        """What one kernel would cost."""
        return self.decision.if_fused


@dataclass(frozen=True)
class Measured:
    """What two ways took on a device, in microseconds of one call.

    Attributes:
        as_is_us, replaced_us: medians; None for a way that could not be built or run.
        device: what they were timed on.
        failure: why a way has no time; empty where both have one.
    """

    as_is_us: float | None
    replaced_us: float | None
    device: str
    failure: str = ""

    @property
    def replaced_wins(self) -> bool | None:
        """Whether the second way is the one to take; None where neither was timed."""
        if self.as_is_us is None or self.replaced_us is None:
            return None if self.as_is_us == self.replaced_us else self.as_is_us is None
        return self.replaced_us < self.as_is_us


@dataclass(frozen=True)
class Choice:
    """A second way to compute some nodes, and whether it was taken.

    Attributes:
        kind: which idea it is: `attention`, ...
        nodes: the nodes that it replaces, or would.
        note: what it puts in their place.
        code: `taken`, `cost`, `measured`, `numerics`, `overlap`, `by-user`, `search`, or `no-form`
            where the nodes look alike but have no second way.
        reason: the same in a sentence.
        as_is_us, replaced_us: what both ways cost by estimate; None where that was not asked.
        measured: what the device said, which then decided; None where it was not asked.
    """

    kind: str
    nodes: tuple[str, ...]
    note: str
    taken: bool
    code: str
    reason: str
    as_is_us: float | None
    replaced_us: float | None
    measured: Measured | None = None


@dataclass(frozen=True)
class Together:
    """Groups that are launched as one kernel, and the microseconds of launches that this saves.

    They stand next to each other in the order of execution, and none needs another.
    """

    groups: tuple[str, ...]
    saved_us: float


@dataclass(frozen=True)
class Totals:
    """Figures of one call of the graph.

    Attributes:
        kernels: launches, library calls counted; views are free, drawing a seed is no kernel, and
            groups launched together are one.
        traffic_bytes: bytes read and written in device memory.
        peak_bytes: most bytes of intermediates and outputs alive at once.
        bound_us: no plan of this vocabulary is faster: see totals.py. Where groups are launched
            together it is a floor, since other groups could be as well.
        eligible_bytes: of eager's calls outside contractions, convolutions and attention.
        generated_bytes: of those of them that generated kernels take over: see share.py.
    """

    kernels: int
    traffic_bytes: int
    peak_bytes: int
    estimated_us: float
    bound_us: float
    bound_kind: Literal["exact", "floor"]
    eligible_bytes: int
    generated_bytes: int

    @property
    def generated_share(self) -> float:
        """Share of the eligible bytes that is generated; 1.0 when there are none."""
        return self.generated_bytes / self.eligible_bytes if self.eligible_bytes else 1.0


@dataclass(frozen=True)
class GraphPlan:
    """The plan of one graph.

    Attributes:
        groups: in execution order.
        views: the values that are aliases of others; they cost nothing.
        refusals: what the user asked for and cannot have.
        alternatives: second ways to compute parts of the graph as captured, taken or not.
        together: the launches that several groups share, in order.
    """

    graph: Graph
    target: str
    search: str
    groups: tuple[Group, ...]
    boundaries: tuple[Boundary, ...]
    views: tuple[View, ...]
    memory: MemoryPlan
    totals: Totals
    refusals: tuple[Refusal, ...] = ()
    alternatives: tuple[Choice, ...] = ()
    together: tuple[Together, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Group]:
        """Groups by name."""
        return {g.name: g for g in self.groups}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """The graph's nodes by name."""
        return {n.name: n for n in self.graph.nodes}

    @cached_property
    def bases(self) -> dict[str, str]:
        """The value that each alias is a view of."""
        return {v.value.name: v.base for v in self.views}

    @property
    def kernels(self) -> int:
        """Launches of one call, library calls counted."""
        return self.totals.kernels

    @property
    def traffic_bytes(self) -> int:
        """Bytes read and written in device memory by one call."""
        return self.totals.traffic_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes of intermediates and outputs alive at once."""
        return self.totals.peak_bytes

    @property
    def estimated_us(self) -> float:
        """Microseconds of one call."""
        return self.totals.estimated_us

    @property
    def bound_us(self) -> float:
        """A lower bound of the microseconds of any plan."""
        return self.totals.bound_us
