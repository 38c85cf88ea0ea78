"""plan, load_plan and compile: a model becomes a Plan without running, or runs as one says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..base.collector import collector_at_rest
from ..base.options import MODES, Options, parse_options
from ..frontend.ahead import capture_graphs
from ..frontend.direct import directly
from ..report.view import Plan, Planned, Settings, make_plan
from ..target import Target, load
from .arguments import check_arguments, check_options
from .backend import backend
from .honour import given_plan, with_plan
from .measure import timer_here
from .pipeline import Analyzed, analyze

Args = tuple[Any, ...] | Tensor


def plan(
    model: Callable[..., Any],
    args: Args = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "h200",
    search: str = "best",
    training: bool = False,
    dynamic_shapes: Any = None,
    numerics: str = "eager",
    autotune: bool = False,
    plan: Plan | str | Path | None = None,
) -> Plan:
    """The plan of a model for a chip that need not be here; nothing is run or allocated.

    Args:
        model: a module or function, on any device, meta included.
        args: positional arguments; a lone tensor stands for a tuple of one.
        kwargs: keyword arguments.
        target: name of a chip, see `onetrip targets`; h200 unless given, whatever is at hand.
        search: `best` (by cost), `max` (all that is legal) or `eager` (a kernel for each call).
        training: whether gradients are traced: then the backward graph is planned as well.
        dynamic_shapes: None or False for fixed sizes; True or a dict of `torch.export.Dim`.
        numerics: `bitwise`, `eager` (eager's rounding points) or `fast`; see `base.options`.
        autotune: whether ways that the cost model cannot tell apart are timed, which runs them on
            made-up values; the target is then the device at hand.
        plan: its cuts, fuses and pins are honoured, as `compile` does.

    Raises:
        UsageError: an argument that is not one; an unknown target, search or numerics; autotune
            for a device that is not here; lines of the plan that cannot be honoured.
        CaptureError: the model's Python needs a tensor's value, or raised.
        Unsupported: a graph holds what the planner has no form for.
    """
    chosen = {"search": search, "numerics": numerics, "autotune": autotune}
    options = parse_options(None, {**chosen, "plan": given_plan(plan)})
    chip = load(target)
    analyzed = analyze_model(
        model, args, kwargs, chip, options, training=training, dynamic=dynamic_shapes
    )

    def explorer(given: Plan) -> Any:
        from .workshop import ModelWorkshop, opened  # made of this file's functions

        programs = {"as given": lambda: (model, args, kwargs)}
        return opened(
            ModelWorkshop(
                "model",
                programs,
                training=training,
                numerics=numerics,
                dynamic=dynamic_shapes,
                given=given,
            ),
            target,
        )

    return plan_of(analyzed, chip, options, training, explorer)


def analyze_model(
    model: Callable[..., Any],
    args: Args,
    kwargs: Mapping[str, Any] | None,
    target: Target,
    options: Options,
    *,
    training: bool,
    dynamic: Any = None,
) -> tuple[Analyzed, ...]:
    """Every graph of a model with its plan; with `autotune`, timed where the cost model must guess.

    Raises:
        UsageError: autotune for a target that is not the device at hand; otherwise as `plan`.
    """
    check_arguments(
        model=model, args=args, kwargs=kwargs, training=training, dynamic_shapes=dynamic
    )
    timer = timer_here(target, options) if options.autotune else None
    graphs = capture_graphs(
        model,
        args,
        kwargs,
        device=torch.device(target.device),
        training=training,
        dynamic_shapes=dynamic,
    )
    with collector_at_rest():
        return tuple(analyze(g, target, options, timer) for g in graphs)


def plan_of(
    analyzed: tuple[Analyzed, ...],
    target: Target,
    options: Options,
    training: bool,
    explorer: Callable[[Plan], Any] | None = None,
) -> Plan:
    """The public plan of analyzed graphs."""
    settings = Settings(
        target, options.search, options.numerics, training, str(torch.__version__), explorer
    )
    planned = (Planned(a.role, a.problem, a.plan, a.lines) for a in analyzed)
    return make_plan(tuple(planned), settings)


def load_plan(path: str | Path) -> Plan:
    """The plan that `Plan.save` wrote.

    Raises:
        UsageError: the argument is no path, or no file can be read there.
        OnetripError: the file is no plan, or of another format.
    """
    check_arguments(path=path)
    return Plan.load(path)


def compile(
    model: Callable[..., Any],
    *,
    plan: Plan | str | Path | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`torch.compile` with this backend, under a plan where one is given.

    Args:
        model: a module or function.
        plan: its cuts, fuses and pins are honoured; its search and numerics hold unless given.
        mode, dynamic, fullgraph: as for `torch.compile`.
        options: see `base.options.Options`.

    Raises:
        UsageError: an argument, mode or option that is not one, an unknown target, or a folder
            that cannot be written. A line of the plan that cannot be honoured is named when the
            model is first called.
    """
    check_arguments(model=model, dynamic=dynamic, fullgraph=fullgraph)
    if plan is not None:
        options["plan"] = plan
    check_options(parse_options(mode, options))
    chosen = {**MODES[mode or "default"], **with_plan(options)}
    # torch.compile takes a mode or options, never both; every mode has a spelling in options.
    made: Callable[..., Any] = torch.compile(
        model, backend=backend, dynamic=dynamic, fullgraph=fullgraph, options=chosen or None
    )
    return directly(made, torch._TorchCompileWrapper(backend, None, chosen or None, dynamic))


__all__ = ["Plan", "analyze_model", "compile", "load_plan", "plan", "plan_of"]
