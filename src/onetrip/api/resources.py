"""The real assembler behind the planner's `Resources`: a nest is scheduled, spelled and assembled.

    nest -> kernels -> Triton texts -> cross-compiled -> registers, spilled and shared bytes

Asked for groups near a limit of the chip only, and for so many of a graph; answers are kept on
disk, so a second run asks nobody. Whatever prevents an answer (no Triton, no tool, a text that is
rejected, sizes that are symbols) leaves the estimate and its mark. Must not know what is searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..base.errors import OnetripError
from ..base.options import Options
from ..codegen import triton
from ..codegen.prelude_triton import dialect_of
from ..codegen.scheduled import Scheduled
from ..cost.occupancy import Assembled, estimate, near_limit, occupancy
from ..ir.kernel import Facts
from ..ir.nest import Nest
from ..passes.anonymize import anonymize
from ..passes.collapse import collapse
from ..passes.relax import relax
from ..plan.plan import GraphPlan, Group
from ..runtime.cache import Cache
from ..target import Target
from .devices import device_for

MOST_ASKED = 96
"""Distinct nests of a graph that are assembled; it is counted, so that plans do not depend on
what the cache holds."""


@dataclass
class Assembler:
    """Answers for the nests of one graph; see the head of this file.

    Attributes:
        asked: nests that were scheduled and assembled, or found in the cache.
    """

    options: Options
    asked: int = 0
    _known: dict[Nest, Assembled | None] = field(default_factory=dict)

    def __call__(self, nest: Nest, target: Target) -> Assembled | None:
        """The need of the nest's kernels, if it is near a limit and there is an answer."""
        if not near_limit(estimate(nest, target), target):
            return None
        nest = relax(nest) if self.options.numerics == "fast" else nest
        nest, _ = anonymize(collapse(nest))
        if nest not in self._known:
            if self.asked >= MOST_ASKED:
                return None
            self.asked += 1
            self._known[nest] = self._answer(nest, target)
        return self._known[nest]

    def _answer(self, nest: Nest, target: Target) -> Assembled | None:
        device = device_for(torch.device(target.device), target)
        try:
            scheduled = device.schedule(nest, target, name="kernel", facts=Facts())
        except OnetripError:
            return None
        return assembled([scheduled], target, self.options)[0]


def resources_for(target: Target, options: Options) -> Assembler | None:
    """Who is asked about a target's kernels; nobody for a CPU, whose compiler spills unasked."""
    return Assembler(options) if target.device == "cuda" else None


def assembled(
    groups: Sequence[Scheduled], target: Target, options: Options
) -> list[Assembled | None]:
    """The need of each group's kernels, several assembled at a time; None where none is known."""
    try:
        from ..runtime.triton_assemble import try_assemble_all
    except ImportError:
        return [None] * len(groups)
    dialect = dialect_of(target)
    texts: list[list[triton.TritonText]] = [_texts(g, dialect) for g in groups]
    made = iter(
        try_assemble_all([t for own in texts for t in own], target, Cache(options.cache_dir))
    )
    found: list[Assembled | None] = []
    for own in texts:
        answers = [next(made) for _ in own]
        whole = [a for a in answers if a is not None]
        found.append(Assembled.most(whole) if own and len(whole) == len(own) else None)
    return found


def _texts(scheduled: Scheduled, dialect: str) -> list[triton.TritonText]:
    """The texts of a group's kernels; none where one has symbolic sizes or no spelling."""
    if any(k.sizes for k in scheduled.kernels):
        return []
    try:
        return [triton.emit(k, dialect) for k in scheduled.kernels]
    except OnetripError:
        return []


def with_assembled(
    plan: GraphPlan, scheduled: Mapping[str, Scheduled], target: Target, options: Options
) -> GraphPlan:
    """The plan with the assembler's figures in every generated group that it answers for.

    Costs stay: what is near a limit was assembled while the plan was searched.
    """
    if target.device != "cuda":
        return plan
    distinct = list({scheduled[g.name].kernels: scheduled[g.name] for g in plan.groups
                     if g.generated}.values())  # fmt: skip
    answers = dict(
        zip((s.kernels for s in distinct), assembled(distinct, target, options), strict=True)
    )

    def known(group: Group) -> Group:
        answer = answers[scheduled[group.name].kernels] if group.generated else None
        return group if answer is None else _marked(group, answer, target)

    return replace(plan, groups=tuple(map(known, plan.groups)))


def _marked(group: Group, answer: Assembled, target: Target) -> Group:
    assert group.nest is not None
    threads = estimate(group.nest, target).threads
    return replace(
        group,
        registers=answer.registers,
        spill_bytes=answer.spill_bytes,
        shared_bytes=answer.shared_bytes,
        occupancy=occupancy(target, answer.registers, answer.shared_bytes, threads),
        source="assembled",
    )
