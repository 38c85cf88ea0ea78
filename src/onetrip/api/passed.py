"""What follows every step of the pipeline: its invariants are checked, and shown on request.

ONETRIP_DEBUG: 1 a line for each graph, 2 every boundary's reason, 3 every group's cost, 4 generated
text, 5 the IR after every pass. All of it goes to standard error.
"""

from __future__ import annotations

import sys
from typing import TypeVar

from ..base import knobs
from ..base.text import bytes_text, us_text
from ..ir.graph import Graph
from ..ir.nest import Nest
from ..ir.printer import text
from ..ir.program import Program
from ..ir.verify import verify
from ..plan.plan import GraphPlan

IR = TypeVar("IR", Graph, Nest, Program)


def passed(ir: IR, after: str) -> IR:
    """The IR itself, verified.

    Raises:
        VerifyError: the pass broke an invariant; the lines around the fault are in the message.
    """
    verify(ir, after)
    if knobs.DEBUG.get() >= 5:
        show(5, f"after {after}", text(ir, comments=True))
    return ir


def show(level: int, title: str, body: str = "") -> None:
    """Writes to standard error when ONETRIP_DEBUG asks for this level."""
    if knobs.DEBUG.get() >= level:
        sys.stderr.write("\n".join([f"[onetrip] {title}", *([body] if body else []), ""]))


def show_plan(role: str, plan: GraphPlan) -> None:
    """Summary, decisions and costs of a plan, as far as ONETRIP_DEBUG asks for them."""
    if knobs.DEBUG.get() < 1:
        return
    found = plan.totals
    moved, us = bytes_text(found.traffic_bytes), us_text(found.estimated_us)
    show(1, f"{role}: {found.kernels} kernels, {moved}, estimated {us} on {plan.target}")
    reasons = (f"{b.producer} | {b.consumer}: {b.code}: {b.reason}" for b in plan.boundaries)
    show(2, f"{role}: boundaries", "\n".join(reasons))
    costs = (f"{g.name}: {us_text(g.estimated_us)}, {g.bound_by}" for g in plan.groups)
    show(3, f"{role}: groups", "\n".join(costs))
