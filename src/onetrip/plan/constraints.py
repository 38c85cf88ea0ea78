"""What the user asks of a plan, by node names. Resolving other names is not done here."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.lazy import cached_property
from .decision import Decision

Pair = tuple[str, str]


@dataclass(frozen=True)
class Constraints:
    """Node names (`graph.Node.name`).

    Attributes:
        cut: pairs that may not share a kernel.
        fuse: pairs that must share one, profitable or not.
        want: pairs that share one where they may; where not, that is on record and no error.
        pin: sets of nodes that make exactly one group each; a node in several pins is recomputed
            in each but the first.
    """

    cut: tuple[Pair, ...] = ()
    fuse: tuple[Pair, ...] = ()
    pin: tuple[tuple[str, ...], ...] = ()
    want: tuple[Pair, ...] = ()

    @cached_property
    def cuts(self) -> frozenset[frozenset[str]]:
        """The cut pairs without their order."""
        return frozenset(frozenset(pair) for pair in self.cut)


@dataclass(frozen=True)
class Refusal:
    """A constraint that cannot be met, and why."""

    constraint: str
    names: tuple[str, ...]
    decision: Decision


NO_CONSTRAINTS = Constraints()
