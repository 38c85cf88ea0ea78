"""The torch.compile backend: options in, a compiled graph out, eager where that is not possible."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from ..base.collector import collector_at_rest
from ..base.errors import CacheError, OnetripError, ToolchainError, Unsupported, UsageError
from ..base.options import Options, parse_options
from ..frontend.capture import CapturedGraph, make_backend, on_reset, reset
from ..runtime.pool import outputs
from ..target import Target, load, told
from .devices import device_for, target_at_hand
from .honour import with_plan
from .measure import WayTimer
from .pipeline import Built, analyze, build
from .replays import replayed

builds: Counter[str] = Counter()
"""Graphs since the last `torch._dynamo.reset()`: `compiled`, and `eager`, which run in eager."""

RECOVERABLE = (Unsupported, ToolchainError, CacheError)
"""What stops a compilation but not the model: it then runs in eager."""


class FaultWarning(RuntimeWarning):
    """A graph runs in eager because of a fault of onetrip, found before anything ran, that should
    be reported."""


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The function behind `torch.compile(model, backend="onetrip")`.

    Args:
        module: Dynamo's graph.
        example_inputs: its inputs, fake or real.
        mode: `default`, `reduce-overhead` or `max-autotune`.
        options: see `base.options.Options`.

    Raises:
        UsageError: an unknown mode or option.
    """
    chosen = parse_options(mode, with_plan(options))
    made: Callable[..., Any] = make_backend(lambda g: compile_captured(g, chosen))(
        module, example_inputs
    )
    return made


backend.reset = reset  # type: ignore[attr-defined]
on_reset(outputs.release)
on_reset(builds.clear)


def compile_captured(captured: CapturedGraph, options: Options) -> Callable[..., Sequence[Any]]:
    """What runs one captured graph: ours, or eager's with a warning that says why."""
    try:
        built = build_captured(captured, options)
        made = replayed(captured, built, options) if options.cuda_graphs else runner(built)
    except UsageError:
        raise
    except Exception as error:
        if options.strict:
            raise
        _warn(captured, error)
        builds["eager"] += 1
        return captured.module
    builds["compiled"] += 1
    return made


def build_captured(captured: CapturedGraph, options: Options) -> Built:
    """Analyzes and builds one captured graph for the device it computes on."""
    device = captured.device
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(
            f"no kernels are generated for device type {device.type}",
            expected="cpu or cuda",
            found=str(device),
        )
    target = _target(captured, options)
    timer = WayTimer(device, target, options) if options.autotune else None
    way = device_for(device, target).begun(options)
    with collector_at_rest():
        analyzed = analyze(captured, target, options, timer)
    return build(analyzed, way, options)


def _target(captured: CapturedGraph, options: Options) -> Target:
    """The target that is asked for, or the device at hand where that is of another kind."""
    here = target_at_hand(captured.device)
    asked = load(options.target) if options.target else here
    if asked.device == here.device:
        return asked
    warnings.warn(
        f"onetrip plans a graph for {told(here.name)}: it computes on {captured.device}, and "
        f"target {asked.name} has figures for {asked.device} only",
        RuntimeWarning,
        stacklevel=2,
    )
    return here


def runner(built: Built) -> Callable[[list[Any]], list[Any]]:
    """A boxed function of the captured graph's inputs."""
    return built.run.run


def _warn(captured: CapturedGraph, error: Exception) -> None:
    calls = sum(n.op == "call_function" for n in captured.module.graph.nodes)
    expected = isinstance(error, RECOVERABLE)
    warnings.warn(
        f"onetrip runs a graph of {calls} calls in eager mode: "
        f"{error if isinstance(error, OnetripError) else _fault(error)}",
        RuntimeWarning if expected else FaultWarning,
        stacklevel=2,
    )


def _fault(error: Exception) -> str:
    """What an exception that nobody meant to raise says, and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error}\n  where: {last.filename}:{last.lineno}\n"
        "  next step: this is a fault of onetrip; report it with the lines above"
    )


__all__ = ["FaultWarning", "backend", "build_captured", "builds", "compile_captured", "runner"]
