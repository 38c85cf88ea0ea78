"""`cuda_graphs`: whether a compiled graph is recorded and replayed, and on record why it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..base.errors import Unsupported
from ..base.options import Options
from ..frontend.capture import CapturedGraph, on_reset
from ..ir.graph import Literal
from ..ir.program import Call, Launch, Program
from ..runtime.layout import is_static
from ..runtime.recording import DeviceGraphs, Run
from ..runtime.replay import Refusal, Replayed, forget, refused
from ..runtime.resolve import resolve_target
from .passed import show
from .pipeline import Built

on_reset(forget)

FEWEST = 2
"""Launches and library calls of a program that gains by a replay: a single one is issued as fast,
and its inputs need no copies."""
READING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Marks of calls whose result the host must know before it goes on."""


def _cuda_graphs(device: torch.device) -> DeviceGraphs:
    from ..runtime.cuda_graphs import CudaGraphs

    return CudaGraphs(device)


GRAPHS: dict[str, Callable[[torch.device], DeviceGraphs]] = {"cuda": _cuda_graphs}
"""How a device type records work; others have nothing to gain."""


def replayed(captured: CapturedGraph, built: Built, options: Options) -> Run:
    """What runs a graph that is to be replayed: in recordings, or plainly where it cannot be.

    Raises:
        Unsupported: it cannot be recorded, and `options.strict` is set.
    """
    calls = sum(n.op == "call_function" for n in captured.module.graph.nodes)
    name = f"the {captured.role} graph of {calls} calls"
    useless = _nothing_to_gain(captured, built.program)
    if useless is not None:
        _refuse(name, useless)
        return built.run.run
    obstacle = next(_obstacles(captured, built.program), None)
    if obstacle is None:
        return _replays(captured, built, options, name)
    _refuse(name, obstacle)
    if options.strict:
        raise Unsupported(
            f"{name} cannot be replayed, and strict=True asks for that",
            found=obstacle,
            next_step="leave out strict=True, or cuda_graphs and mode='reduce-overhead'",
        )
    warnings.warn(f"onetrip runs {name} launch by launch: {obstacle}", RuntimeWarning, stacklevel=3)
    return built.run.run


def _replays(captured: CapturedGraph, built: Built, options: Options, name: str) -> Replayed:
    inputs = built.program.inputs
    return Replayed(
        built.run,
        GRAPHS[captured.device.type](captured.device),
        name,
        lasting=captured.parameters,
        sized=frozenset(k for k, v in enumerate(inputs) if not is_static(v.type)),
        written=frozenset(k for k, _ in captured.writes),
        strict=options.strict,
    )


def _refuse(name: str, reason: str) -> None:
    refused.append(Refusal(name, reason))
    show(1, f"{name} is not replayed: {reason}")


def _nothing_to_gain(captured: CapturedGraph, program: Program) -> str | None:
    """Why a replay would be no faster."""
    if captured.device.type not in GRAPHS:
        reason = (
            f"cuda_graphs has no effect on a {captured.device.type}, where kernels between two "
            "library calls are one call already"
        )
        warnings.warn(f"onetrip: {reason}", RuntimeWarning, stacklevel=4)
        return reason
    issued = sum(isinstance(s, Launch | Call) for s in program.steps)
    return None if issued >= FEWEST else f"{issued} launches: nothing to gain"


def _obstacles(captured: CapturedGraph, program: Program) -> Iterator[str]:
    """What a recording cannot do again."""
    device = captured.device
    for k, value in enumerate(captured.inputs):
        if isinstance(value, Tensor) and value.device != device:
            yield f"input {k} lies on {value.device}, where a recording does not read it anew"
    for step in program.steps:
        if isinstance(step, Call):
            yield from _obstacles_of(step, device)


def _obstacles_of(call: Call, device: torch.device) -> Iterator[str]:
    if any(tag in READING for tag in getattr(resolve_target(call.target), "tags", ())):
        yield f"{call.target}: the host must know its result before it goes on"
    for value in (*call.args, *(x for _, x in call.kwargs)):
        if isinstance(value, Literal) and value.kind == "device" and _differs(value.text, device):
            yield f"{call.target}: works on {value.text}"


def _differs(name: str, device: torch.device) -> bool:
    other = torch.device(name)
    return other.type != device.type or other.index not in (None, device.index)
