"""What a compilation is to honour: a given plan's settings and lines, and the model's own wishes.

Must not know how constraints are met.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..base.errors import UsageError
from ..base.text import counted
from ..plan.choose import Problem, plan_problem
from ..plan.measured import Way
from ..plan.plan import GraphPlan, Measured
from ..report.keys import Keys, keys_of
from ..report.lines import asked_lines, constraints_of, line_text
from ..report.record import calls_behind
from ..report.schema import Line
from ..report.view import Plan, check_lines
from ..target import Target, told

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


def honoured(given: Any, role: str, problem: Problem) -> tuple[GraphPlan, tuple[Line, ...]]:
    """The plan of a graph under what a given plan and the model's own code ask, and these lines.

    Args:
        given: the option `plan`.

    Raises:
        UsageError: a line of the given plan, or a strict one of the model, cannot be honoured; or
            the plan has lines and is of another model.
    """
    plan, keys = given_plan(given), keys_of(problem.graph, problem.made)
    try:
        wished = lines_for(plan, role, keys)
        if plan is not None and not wished:
            _check_graph(plan, role, keys, problem.target)
        lines = (*wished, *asked_lines(problem.graph, keys))
        problem = replace(problem, measured=measured_in(plan, role, keys, problem))
        made = plan_problem(problem, constraints_of(lines, keys))
        check_lines(made, lines, keys)
    except UsageError as error:
        if plan is None:
            raise
        raise _beside(error, differences(plan, role, keys, problem.target)) from error
    return made, lines


def measured_in(plan: Plan | None, role: str, keys: Keys, problem: Problem) -> dict[Way, Measured]:
    """What a plan for this chip holds on record of the graph's alternatives, which then decides."""
    if plan is None or plan.target != problem.target.name:
        return {}
    same_role = [g for g in plan.graphs if g.role == role]
    graphs = [g for g in same_role if g.key == keys.fingerprint] or same_role
    known = {(a.kind, a.calls): a.measured for g in graphs for a in g.alternatives if a.measured}
    found: dict[Way, Measured] = {}
    for a in problem.made:
        m = known.get((a.kind, calls_behind(a.nodes, keys)))
        if m is not None:
            found[a.kind, a.nodes] = Measured(m.as_is_us, m.replaced_us, m.device, m.failure)
    return found


class PlanWarning(RuntimeWarning):
    """A graph is compiled under a plan that was made for another one and asks nothing of it."""


def _check_graph(plan: Plan, role: str, keys: Keys, target: Target) -> None:
    """Warns of a graph that the plan neither knows nor asks anything of.

    Raises:
        UsageError: the plan asks something of other graphs, and shares no call with this one.
    """
    if any(g.role == role and g.key == keys.fingerprint for g in plan.graphs):
        return
    by_user = _by_user(plan.lines)
    if by_user and not planned_calls(plan) & keys.by_key.keys():
        raise UsageError(
            f"the plan is of another model: its line {line_text(by_user[0])} cannot be honoured",
            expected="a graph of the model that was planned",
            next_step="plan this model: onetrip.plan(model, args)",
        )
    warnings.warn(
        "the plan was made for another graph and has no lines for this one: only its search and "
        f"numerics hold ({'; '.join(differences(plan, role, keys, target))})",
        PlanWarning,
        stacklevel=2,
    )


def _by_user(lines: Sequence[Line]) -> tuple[Line, ...]:
    return tuple(line for line in lines if line.by == "user")


def lines_for(plan: Plan | None, role: str, keys: Keys) -> tuple[Line, ...]:
    """The user's lines of a plan that are about a graph.

    Among several graphs of a role the one with the same calls counts; a lone one is taken as it
    is, and a line whose calls the model no longer has is then refused by name.

    Raises:
        UsageError: the plan has lines, but no graph that this one could be.
    """
    by_user = () if plan is None else _by_user(plan.lines)
    if plan is None or not by_user:
        return ()
    same_role = [g for g in plan.graphs if g.role == role]
    same = [g for g in same_role if g.key == keys.fingerprint] or same_role
    if len(same) == 1 or (same and len({g.lines for g in same}) == 1):
        return _by_user(same[0].lines)
    purpose = PURPOSES[role]
    reason, next_step = purpose.reason, purpose.next_step
    if same_role:
        reason, next_step = "no graph of the plan is the one that is compiled", REPLAN
    raise UsageError(
        f"the plan's line {line_text(by_user[0])} cannot be honoured: {reason}",
        expected=", ".join(f"{g.name} ({counted(g.kernels, 'kernel')})" for g in plan.graphs),
        found=f"a graph for {role} of {counted(len(keys.calls), 'call')}",
        next_step=next_step,
    )


@dataclass(frozen=True)
class Purpose:
    """What a graph is compiled for, and what is wrong with a plan that is of the other purpose."""

    reason: str
    next_step: str


REPLAN = "plan the model as it is now: onetrip.plan(model, args)"
_INFERENCE = Purpose(
    "the plan is of a training step, and the model is compiled for inference",
    "plan without training=True, or call the model with gradients enabled and required",
)
_TRAINING = Purpose(
    "the plan is of inference, and the model is compiled for a training step",
    "onetrip.plan(..., training=True), or call the model under torch.no_grad()",
)
PURPOSES = {"inference": _INFERENCE, "forward": _TRAINING, "backward": _TRAINING}
"""By the role of the graph that is compiled."""


def planned_calls(plan: Plan) -> set[str]:
    """Keys of the calls that a plan has in its groups."""
    return {k.split("[")[0] for g in plan.groups for k in g.nodes}


def differences(plan: Plan, role: str, keys: Keys, target: Target) -> tuple[str, ...]:
    """In what a plan was made for something else than this graph, chip and torch; may be empty."""
    planned = planned_calls(plan)
    known = len(planned & keys.by_key.keys())
    made_with = plan.document.torch
    purpose = PURPOSES[role]
    facts = (
        (
            all(g.role != role for g in plan.graphs),
            f"{purpose.reason}: {purpose.next_step}",
        ),
        (
            all(g.key != keys.fingerprint for g in plan.graphs),
            f"the plan's fingerprints are {', '.join(g.key for g in plan.graphs) or 'none'}, "
            f"this graph's is {keys.fingerprint}",
        ),
        (
            known < len(planned),
            f"{known} of the plan's {counted(len(planned), 'call')} are in this graph of "
            f"{counted(len(keys.calls), 'call')}",
        ),
        (
            plan.target != target.name,
            f"the plan is for {told(plan.target)}, this is {told(target.name)}",
        ),
        (
            made_with not in ("", torch.__version__),
            f"it was made with torch {made_with}, this is {torch.__version__}",
        ),
    )
    return tuple(text for differs, text in facts if differs)


def _beside(error: UsageError, facts: Sequence[str]) -> UsageError:
    """The error with what else differs."""
    return UsageError(
        error.message,
        expected=error.expected,
        found="; ".join([*([error.found] if error.found else []), *facts]),
        where=error.where,
        next_step=error.next_step,
    )
