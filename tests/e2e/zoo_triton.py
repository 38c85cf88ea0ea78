"""The generated Triton of a model of the zoo: run by the interpreter, assembled for any chip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from zoo import build
from zoo_runs import Compiled, Judgement, judged

from onetrip.api.devices import interpreted
from onetrip.api.pipeline import Analyzed, Built, analyze, schedule_groups
from onetrip.api.pipeline import build as build_kernels
from onetrip.base.options import Options
from onetrip.codegen.prelude_triton import dialect_of
from onetrip.codegen.triton import TritonText, emit
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph
from onetrip.runtime.triton_assemble import assemble_all
from onetrip.runtime.triton_build import body_of
from onetrip.target import Target, load

CHIPS = ("a100", "h100", "b200", "mi300x")
OPTIONS = Options()


def check(
    name: str, dtype: torch.dtype, training: bool, seeds: Sequence[int] = (0,)
) -> tuple[Compiled, Judgement]:
    """A model of the zoo with its kernels in Triton's interpreter, library calls on the CPU."""

    def compile_graph(captured: CapturedGraph, options: Options) -> Built:
        return build_kernels(analyze(captured, load("h100"), options), interpreted(), options)

    model, _ = build(name, dtype)
    ours = Compiled(model.train(training), compile_graph)
    return ours, judged(ours, (build(name, dtype, seed=k) for k in seeds), training)


@dataclass(frozen=True)
class Spill:
    """A kernel that puts registers into memory.

    Attributes:
        expected: whether the plan says so of its group.
    """

    kernel: str
    bytes: int
    expected: bool


@dataclass(frozen=True)
class Assembly:
    """All kernels of a model on one chip: how many distinct ones, and which spill or fail."""

    kernels: int
    spills: tuple[Spill, ...]
    most_registers: int


def planned(
    name: str, dtype: torch.dtype, training: bool, target: Target, **how: Any
) -> tuple[Analyzed, ...]:
    """The graphs of a model, planned for a chip that is not here."""
    model, inputs = build(name, dtype, **how)
    graphs = capture_graphs(
        model.train(training), (), inputs, device=torch.device("cuda"), training=training
    )
    return tuple(analyze(g, target, OPTIONS) for g in graphs)


def texts(analyzed: Iterable[Analyzed], target: Target) -> dict[str, tuple[TritonText, bool]]:
    """Each distinct kernel once, by its text, and whether its group's plan expects a spill."""
    dialect = dialect_of(target)
    found: dict[str, tuple[TritonText, bool]] = {}
    for a in analyzed:
        made = schedule_groups(a.plan, target, interpreted(), OPTIONS)
        for group, scheduled in made.items():
            spills = bool(a.plan.by_name[group].spill_bytes)
            for kernel in scheduled.kernels:
                text = emit(kernel, dialect)
                key = body_of(text.text)
                found[key] = (text, spills or (key in found and found[key][1]))
    return found


def assembled(
    name: str,
    dtype: torch.dtype,
    training: bool,
    chip: str,
    **how: Any,
) -> Assembly:
    """Cross-compiles the kernels of a model.

    Raises:
        ToolchainError: Triton or the chip's assembler rejects a kernel.
    """
    target = load(chip)
    distinct = texts(planned(name, dtype, training, target, **how), target).values()
    made = assemble_all([t for t, _ in distinct], target)
    spills = (
        Spill(t.name, a.spill_bytes, expected)
        for (t, expected), a in zip(distinct, made, strict=True)
        if a.spill_bytes
    )
    return Assembly(len(distinct), tuple(spills), max((a.registers for a in made), default=0))
