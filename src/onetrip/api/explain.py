"""explain: a plan with the source generated for each of its groups, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..base.errors import UsageError
from ..base.options import parse_options
from ..codegen import cpp, triton
from ..codegen.prelude_triton import dialect_of
from ..codegen.scheduled import Scheduled
from ..ir.graph import Node, Value
from ..report.view import Plan
from ..target import Target, load
from .devices import device_for
from .pipeline import Analyzed, schedule_groups
from .plans import Args, analyze_model, plan_of
from .resources import with_assembled


@dataclass(frozen=True)
class Source:
    """What is generated for a group: C++ or Triton text, or what is called instead."""

    graph: str
    group: str
    language: str
    text: str


@dataclass(frozen=True)
class Explanation:
    """A plan and its sources, in the order of its groups."""

    plan: Plan
    sources: tuple[Source, ...]

    def source(self, group: str) -> Source:
        """The source of a group, named as in the plan, or `backward/g0_add` where graphs differ.

        Raises:
            UsageError: no group has that name, or several graphs have one.
        """
        found = [s for s in self.sources if group in (s.group, f"{s.graph}/{s.group}")]
        if len(found) == 1:
            return found[0]
        names = [f"{s.graph}/{s.group}" for s in found or self.sources]
        raise UsageError(
            f"{len(found) or 'no'} groups are named {group!r}",
            expected=f"one of {', '.join(names)}",
            found=repr(group),
        )

    def __str__(self) -> str:
        parts = (f"=== {s.graph}/{s.group} ({s.language})\n{s.text.rstrip()}" for s in self.sources)
        return "\n\n".join([str(self.plan), *parts])


def explain(
    model: Callable[..., Any],
    args: Args = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "h200",
    search: str = "best",
    training: bool = False,
    dynamic_shapes: Any = None,
    numerics: str = "eager",
) -> Explanation:
    """The plan of a model and the source of every group: Triton for a GPU, C++ for a CPU.

    Neither a GPU nor a compiler is needed. Where Triton is installed, registers, spills and shared
    memory of every generated group are its assembler's. Arguments and errors are those of `plan`.
    """
    options = parse_options(None, {"search": search, "numerics": numerics})
    chip = load(target)
    analyzed = analyze_model(
        model, args, kwargs, chip, options, training=training, dynamic=dynamic_shapes
    )
    device = device_for(torch.device(chip.device), chip)
    scheduled = [schedule_groups(a.plan, chip, device, options) for a in analyzed]
    known = tuple(
        replace(a, plan=with_assembled(a.plan, s, chip, options))
        for a, s in zip(analyzed, scheduled, strict=True)
    )
    made = plan_of(known, chip, options, training)
    sources: list[Source] = []
    for graph, one, kernels in zip(made.graphs, known, scheduled, strict=True):
        texts = _texts(one, kernels, chip)
        parts = zip(graph.groups, texts, strict=True)
        sources.extend(Source(graph.name, g.name, *t) for g, t in parts)
    return Explanation(made, tuple(sources))


def _texts(
    analyzed: Analyzed, scheduled: Mapping[str, Scheduled], target: Target
) -> list[tuple[str, str]]:
    """Language and text of each group."""
    return [
        source_of(scheduled[g.name], target) if g.call is None else ("library", call_text(g.call))
        for g in analyzed.plan.groups
    ]


def source_of(scheduled: Scheduled, target: Target) -> tuple[str, str]:
    """Language and text of the kernels of a group."""
    if target.device == "cpu":
        return "C++", cpp.emit_unit(scheduled.kernels, ())
    dialect = dialect_of(target)
    return "Triton", "\n\n".join(triton.emit(k, dialect).text for k in scheduled.kernels)


def call_text(node: Node) -> str:
    """A library call as ATen writes it, under the reason why it is one."""
    operands = (x.name if isinstance(x, Value) else str(x.value) for x in node.inputs)
    reason = node.attr.get("reason")
    head = f"# {reason}\n" if reason else ""
    return f"{head}{node.attr.get('target', node.op)}({', '.join(operands)})  # {node.origin}"
