"""A plan given to a compilation: its settings as defaults, its lines as constraints.

Must not know how constraints are met.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from ..base.text import counted
from ..ir.graph import Graph
from ..plan.constraints import NO_CONSTRAINTS, Constraints
from ..plan.plan import GraphPlan
from ..report.keys import Keys, keys_of
from ..report.lines import constraints_of, line_text, refuse
from ..report.schema import Line
from ..report.view import Plan

INHERITED = ("search", "numerics")
"""Options that a plan sets unless they are given as well."""


def given_plan(plan: Any) -> Plan | None:
    """The plan behind the option `plan`: a Plan, or the path of a file."""
    if plan is None or isinstance(plan, Plan):
        return plan
    if isinstance(plan, str | Path):
        return Plan.load(plan)
    raise UsageError(
        "option plan has a value of the wrong type",
        expected="a Plan or the path of a saved one",
        found=type(plan).__name__,
        next_step="pass what onetrip.plan or onetrip.load_plan returned",
    )


def with_plan(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options in which a given plan is loaded and its settings hold unless others are named."""
    chosen = dict(options or {})
    plan = given_plan(chosen.get("plan"))
    if plan is None:
        return chosen
    inherited = {name: getattr(plan.document, name) for name in INHERITED}
    return {**inherited, **chosen, "plan": plan}


def lines_for(plan: Plan | None, role: str, keys: Keys) -> tuple[Line, ...]:
    """The lines of a plan that are about a graph.

    Among several graphs of a role the one with the same calls counts; a lone one is taken as it
    is, and a line whose calls the model no longer has is then refused by name.

    Raises:
        UsageError: the plan has lines, but no graph that this one could be.
    """
    if plan is None or not plan.lines:
        return ()
    same_role = [g for g in plan.graphs if g.role == role]
    same = [g for g in same_role if g.key == keys.fingerprint] or same_role
    if len(same) == 1 or (same and len({g.lines for g in same}) == 1):
        return same[0].lines
    raise UsageError(
        f"the plan's line {line_text(plan.lines[0])} cannot be honoured: the plan has no graph "
        "with the calls of the one that is compiled",
        expected=", ".join(f"{g.name} ({counted(g.kernels, 'kernel')})" for g in plan.graphs),
        found=f"a graph for {role} of {counted(len(keys.calls), 'call')}",
        next_step="plan the model as it is now, with training=True for a training step",
    )


def constraints_for(plan: Plan | None, role: str, graph: Graph) -> Constraints:
    """What a plan asks of a graph."""
    if plan is None or not plan.lines:
        return NO_CONSTRAINTS
    keys = keys_of(graph)
    return constraints_of(lines_for(plan, role, keys), keys)


def check_honoured(plan: Plan | None, role: str, graph: Graph, made: GraphPlan) -> None:
    """Raises UsageError for the first line that the planner could not meet."""
    if plan is not None and made.refusals:
        keys = keys_of(graph)
        refuse(made.refusals, lines_for(plan, role, keys), keys)
