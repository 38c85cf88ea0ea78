"""Why two groups of a finished plan are two: the first rule that keeps them apart, or the price.

A boundary that a rule keeps has the figures of the one kernel all the same, wherever one could be
made. Must not change which groups there are.
"""

from __future__ import annotations

from dataclasses import replace

from ..cost.occupancy import register_limit
from ..target import Target
from .decision import REASONS, Decision, Evidence, decide
from .evaluate import Priced
from .legality import Fused, Legality, if_fused
from .pool import Part

TIME = "time of one kernel instead of two"


def reason(legality: Legality, search: str, parts: tuple[Part, Part], apart_us: float) -> Decision:
    """The record of a boundary.

    Args:
        parts: the group that stores and the group that reads.
        apart_us: what the two take.
    """
    if search == "eager" and all(map(legality.pool.is_generated, parts)):
        return decide("search-eager").with_fused(legality.as_one(parts))
    answer = legality.check(parts)
    if isinstance(answer, Fused):
        return _unprofitable(legality, answer, apart_us)
    return answer if answer.if_fused else answer.with_fused(legality.as_one(parts))


def _unprofitable(legality: Legality, fused: Fused, apart_us: float) -> Decision:
    """A legal merge that was not made."""
    cost = fused.priced.cost
    pressed = _pressed(fused.priced, legality.evaluator.target, apart_us)
    if pressed is not None:
        return pressed
    return decide(
        "unprofitable" if cost.us >= apart_us else "not-reached",
        Evidence(TIME, cost.us, "us", apart_us),
        if_fused=if_fused(fused.priced),
        fused=cost.us,
        apart=apart_us,
        producer=legality.label(fused.parts[0]),
        consumer=legality.label(fused.parts[-1]),
    )


def _pressed(priced: Priced, target: Target, apart_us: float) -> Decision | None:
    """Register pressure, where two kernels are faster and would not be without the spills."""
    cost, needs = priced.cost, priced.need
    spill_us = 1e6 * cost.spill_bytes / target.spill_bandwidth
    if needs is None or not cost.us - spill_us < apart_us <= cost.us:
        return None
    wanted = needs.registers + needs.spill_bytes // 4
    limit = register_limit(target, needs.threads)
    return decide(
        "pressure-registers",
        Evidence("registers of a thread", wanted, "registers", limit),
        Evidence("spilled bytes of a thread", needs.spill_bytes, "bytes", 0),
        Evidence("traffic of spilled registers", cost.spill_bytes, "bytes", 0),
        Evidence(TIME, cost.us, "us", apart_us),
        if_fused=if_fused(priced),
        milder=True,
        value=wanted,
        bound=limit,
    )


def as_drawn(decision: Decision) -> Decision:
    """The same where no search chose the groups: what keeps a legal merge from being made."""
    if decision.code != "not-reached":
        return decision
    time, row = decision.evidence[0], REASONS["as-drawn"]
    sentence = row.sentence.format(fused=time.value, apart=time.bound)
    return replace(decision, code="as-drawn", cls=row.cls, sentence=sentence)
