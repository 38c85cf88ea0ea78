"""Why a boundary stands: one record with numbers, from a table of reasons.

    Decision ::= code, class, sentence, evidence..., what fusing would give, how to change it

The same record feeds text, JSON, the explorer and budget checks. Must not know how a reason was
found: legality and search fill it in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Class = Literal["illegal", "over-limit", "unprofitable", "by-user", "extern"]


@dataclass(frozen=True)
class Evidence:
    """A figure against its limit: `limit` names the rule, `bound` is its value."""

    limit: str
    value: float
    unit: str
    bound: float | None = None


@dataclass(frozen=True)
class IfFused:
    """The two groups as one kernel; registers and spill are unknown for library calls."""

    kernels: int
    bytes: int
    registers: int | None
    spill_bytes: int | None
    us: float


@dataclass(frozen=True)
class Decision:
    """Why two groups are not one kernel."""

    code: str
    cls: Class
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    if_fused: IfFused | None = None
    remedy: str = ""

    def with_fused(self, fused: IfFused | None) -> Decision:
        """The same decision with the figures of the fused kernel."""
        return replace(self, if_fused=fused)


@dataclass(frozen=True)
class Reason:
    """A row of the table: class, sentence and remedy; `{...}` are filled in by `decide`.

    Attributes:
        milder: the class where one kernel could be made and is only slower.
    """

    cls: Class
    sentence: str
    remedy: str
    milder: Class | None = None


REASONS: dict[str, Reason] = {
    "iteration-space": Reason(
        "illegal",
        "{producer} and {consumer} have no iteration space in common: {detail}",
        "reduce over the same axes, or accept the value in memory between them",
    ),
    "convexity": Reason(
        "illegal",
        "a path from {producer} to {consumer} runs through {between}, which is in neither",
        "fuse {between} as well, or compute it apart from this path",
    ),
    "guarded-reduction": Reason(
        "illegal",
        "{consumer} reads a reduction of {producer} under a guard: {detail}",
        "pad or concatenate before the reduction",
    ),
    "scatter": Reason(
        "illegal",
        "a scatter shares its kernel with no other operator: {detail}",
        "none: the accumulation must be complete before it is read",
    ),
    "mutation": Reason(
        "extern",
        "{node} writes into its operands, as a library call in the program's own order: {detail}",
        "return a new tensor instead of writing into one",
    ),
    "rng": Reason(
        "extern",
        "{node} draws from the library's random stream: {detail}",
        "torch.rand, torch.randn, bernoulli and dropout draw in kernels of ours",
    ),
    "dtype": Reason(
        "extern",
        "{node} has operands of a dtype that no generated kernel computes on: {detail}",
        "convert to a supported dtype before {node}",
    ),
    "extern": Reason(
        "extern",
        "{node} runs as a library call: {detail}",
        "an entry in the operator table would let it share a kernel",
    ),
    "opaque-call": Reason(
        "extern",
        "{node} is a library call without matrix products; nothing can be put into it",
        "none: the library's kernel is a black box",
    ),
    "compute-bound-anchor": Reason(
        "extern",
        "{node} is the library's kernel for matrix products, {intensity:.3g} FLOP a byte (ridge "
        "{ridge:.3g}); it takes in no neighbour",
        "no line of a plan: it takes a kernel for {node} that also computes {neighbour}",
    ),
    "pressure-registers": Reason(
        "over-limit",
        "one kernel would need {value} registers a thread, the chip has {bound}",
        "cut elsewhere, or store one of the values that live across the kernel",
        milder="unprofitable",
    ),
    "pressure-shared-memory": Reason(
        "over-limit",
        "one kernel would need {value} bytes of shared memory a block, the chip has {bound}",
        "reduce over fewer elements at a time",
    ),
    "held-rows": Reason(
        "over-limit",
        "{producer} and {consumer} reduce over unlike axes; one walk would hold {detail}",
        "reduce over fewer elements at a time, or over the same axes",
    ),
    "peak-memory": Reason(
        "over-limit",
        "one kernel of {producer} and {consumer} would hold values alive beside others that eager "
        "has freed or not yet made: a plan that made such kernels needed more memory than eager",
        "fuse({producer}, {consumer}) forces it",
    ),
    "size": Reason(
        "over-limit",
        "one kernel would hold {detail}",
        "none: compile time grows faster than any saving",
    ),
    "recompute": Reason(
        "unprofitable",
        "{value} is read by {readers} groups; computing it in each costs {fused:.3g} us, "
        "storing it {apart:.3g} us",
        "pin({producer}) computes it once, in a kernel that stores it",
    ),
    "unprofitable": Reason(
        "unprofitable",
        "one kernel would take {fused:.3g} us, the two take {apart:.3g} us",
        "fuse({producer}, {consumer}) forces it",
    ),
    "not-reached": Reason(
        "unprofitable",
        "one kernel would take {fused:.3g} us instead of {apart:.3g} us, but not together with "
        "the rest of the plan",
        "fuse({producer}, {consumer}) forces it",
    ),
    "as-drawn": Reason(
        "by-user",
        "one kernel would take {fused:.3g} us instead of {apart:.3g} us: nothing but the groups "
        "that are shown keeps the two apart",
        "fuse({producer}, {consumer})",
    ),
    "user-cut": Reason("by-user", "cut({a}, {b}) was asked for", "take the cut back"),
    "user-pin": Reason(
        "by-user",
        "{node} is pinned to a group that holds no other node",
        "change the pin",
    ),
    "idle-pin": Reason(
        "by-user",
        "other pins compute {node} again where it is read: a kernel of its own would store nothing "
        "that is used",
        "take one of the pins back",
    ),
    "search-eager": Reason(
        "by-user",
        "search='eager' keeps one kernel for each call that eager makes",
        "search='best'",
    ),
}


def decide(
    code: str,
    *evidence: Evidence,
    if_fused: IfFused | None = None,
    milder: bool = False,
    **words: Any,
) -> Decision:
    """The decision of a code, its sentence and remedy filled in; KeyError for a missing word.

    Args:
        milder: of the milder class that the table has for the code.
    """
    reason = REASONS[code]
    cls = reason.milder if milder else reason.cls
    assert cls is not None, f"{code} has no milder class"
    return Decision(
        code,
        cls,
        reason.sentence.format(**words),
        evidence,
        if_fused,
        reason.remedy.format(**words),
    )
