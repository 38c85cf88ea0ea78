"""Nest: what one operator, or one fused group, does for each point of its iteration space.

    Nest  ::= space: Axis...  buffers: Buffer...  stores: Store...
    Store ::= buffer[index] (= | += | max=) value   for each point of space x store.axes

Reductions and scans stand inside the values as expressions (`Reduced`, `Scanned`), so a Nest is
closed under fusion: putting a producer into a consumer is a substitution. A nest says what is
computed, never in which order or on what machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..base.lazy import cached_property
from ..base.sym import Dim, Opaque, Sym, Var, atoms
from .expr import Expr, Load, Reduced, Reduction, Scanned, payloads, walk
from .types import TensorType


class AxisKind(Enum):
    """How the points of an axis depend on each other."""

    PARALLEL = "parallel"
    REDUCTION = "reduction"
    SCAN = "scan"


@dataclass(frozen=True)
class Axis:
    """An axis of an iteration space; `var` carries its name and extent."""

    var: Var
    kind: AxisKind = AxisKind.PARALLEL

    @property
    def name(self) -> str:
        """The name of the axis variable."""
        return self.var.name

    @property
    def extent(self) -> Dim:
        """The number of points."""
        return self.var.extent


class Combine(Enum):
    """How a store joins what is in memory."""

    SET = "="
    ADD = "+="
    MAX = "max="
    MIN = "min="
    MUL = "*="


class Access(Enum):
    """How a kernel uses a buffer."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"


@dataclass(frozen=True)
class Buffer:
    """A tensor that a nest reads, writes or updates in place."""

    name: str
    type: TensorType
    access: Access


@dataclass(frozen=True)
class Store:
    """buffer[index] combined with value, for each point of the nest's space and of `axes`."""

    buffer: str
    index: tuple[Dim, ...]
    value: Expr
    axes: tuple[Var, ...] = ()
    combine: Combine = Combine.SET
    guard: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Every expression that stands directly in the store."""
        indirect = tuple(p for d in self.index for p in payloads(d))
        return (self.value, *indirect, *(() if self.guard is None else (self.guard,)))

    @cached_property
    def free(self) -> frozenset[Sym]:
        """The axis variables and sizes on which index, value and guard depend."""
        direct = frozenset(a for d in self.index for a in atoms(d) if not isinstance(a, Opaque))
        return direct.union(*(e.free for e in self.roots))


@dataclass(frozen=True)
class Nest:
    """An iteration space and the stores made at each of its points.

    `space` are the axes that all reductions and stores share; each reduction brings its own
    axes, and so does each store (`Store.axes`).
    """

    space: tuple[Axis, ...]
    buffers: tuple[Buffer, ...]
    stores: tuple[Store, ...]

    @cached_property
    def roots(self) -> tuple[Expr, ...]:
        """Every expression that stands directly in a store."""
        return tuple(e for s in self.stores for e in s.roots)

    @cached_property
    def expressions(self) -> tuple[Expr, ...]:
        """Every distinct expression, operands first."""
        return tuple(walk(self.roots))

    @cached_property
    def reductions(self) -> tuple[Reduction, ...]:
        """Distinct reductions, each after those it depends on."""
        return tuple(dict.fromkeys(e.reduction for e in self.expressions if isinstance(e, Reduced)))

    @cached_property
    def scans(self) -> tuple[Scanned, ...]:
        """Distinct scans, operands first."""
        return tuple(e for e in self.expressions if isinstance(e, Scanned))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Distinct loads, operands first."""
        return tuple(e for e in self.expressions if isinstance(e, Load))

    def buffer(self, name: str) -> Buffer:
        """The declaration of a buffer; KeyError when there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.buffers}
