"""The explorer's workshop: a model in its sizes, captured once for each device type, planned for
any target, and the source and time of any of its groups.

Must not know pages or sessions.
"""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..base.cancel import checkpoint
from ..base.errors import UsageError
from ..base.options import parse_options
from ..explore.workshop import Written
from ..frontend.ahead import capture_graphs
from ..frontend.capture import CapturedGraph
from ..plan.choose import plan_problem
from ..plan.plan import Group
from ..report.budget import Budget
from ..report.lines import constraints_of
from ..report.view import Plan, Planned, Settings, make_plan
from ..runtime.clock import CLOCKS, interleaved
from ..target import Target, load, names
from .devices import device_for, target_here
from .explain import call_text, source_of
from .kernels import built_alone
from .pipeline import analyze, schedule_groups

NONE_MADE_UP: Mapping[str, tuple[str, Target]] = {}
ROUNDS, SECONDS = 15, 1.0
"""Of timing one group."""
BEAT_SECONDS = 0.2
"""Between two looks whether who waits for another's plan still wants it."""
Program = Callable[[], tuple[Any, ...]]
"""Makes (model, args) or (model, args, kwargs)."""


class ModelWorkshop:
    """Plans, source and times of one model.

    Args:
        name: as on the command line.
        programs: the model in each size.
        measure: whether groups may be run on the device at hand.
        dynamic: sizes that vary, as `dynamic_shapes` of `onetrip.plan`.
        given: a plan whose groups a page begins with.
        made_up: chips that no one can buy, and the real one that each is a change of. No assembler
            knows them: what they need is estimated.
        budget: what plans may come to, which pages show beside their figures.
    """

    def __init__(
        self,
        name: str,
        programs: Mapping[str, Program],
        *,
        training: bool = False,
        numerics: str = "eager",
        measure: bool = False,
        dynamic: Any = None,
        given: Plan | None = None,
        made_up: Mapping[str, tuple[str, Target]] = NONE_MADE_UP,
        budget: Budget | None = None,
    ) -> None:
        self.name = name
        self.targets = (*names(), *made_up)
        self._made_up = made_up
        self.sizes = tuple(programs)
        self._programs = programs
        self._training = training
        self._options = parse_options(None, {"numerics": numerics})
        self.measures, self.given, self.budget = measure, given, budget
        self._dynamic = dynamic
        self._lock = threading.RLock()  # a capture has the process for itself
        self._captured: dict[tuple[str, str], Sequence[CapturedGraph]] = {}
        self._plans: dict[tuple[str, str, str], Plan] = {}

    def plan(self, size: str, target: str, search: str) -> Plan:
        """The plan of a preset; made once. One that is made already is not waited for.

        Raises:
            Cancelled: nobody wants it any more; nothing of it is kept.
        """
        found = self._plans.get((size, target, search))
        if found is not None:
            return found
        with self._alone():
            found = self._plans.get((size, target, search))
            if found is None:
                found = self._planned(size, target, search)
                self._plans[size, target, search] = found
            return found

    def made(self, size: str, target: str, search: str) -> Plan | None:
        """The plan of a preset if it is made already."""
        return self._plans.get((size, target, search))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        while not self._lock.acquire(timeout=BEAT_SECONDS):
            checkpoint()
        try:
            yield
        finally:
            self._lock.release()

    def _planned(self, size: str, target: str, search: str) -> Plan:
        if target in self._made_up:
            real, changed = self._made_up[target]
            return _on(self.plan(size, real, search), changed)
        chip = load(target)
        other = next((p for (s, t, _), p in self._plans.items() if (s, t) == (size, target)), None)
        if other is not None:
            assert other.settings is not None
            planned = tuple(_again(p, search) for p in other.planned)
            return make_plan(planned, replace(other.settings, search=search))  # type: ignore[arg-type]
        options = replace(self._options, search=search)  # type: ignore[arg-type]
        graphs = [analyze(g, chip, options) for g in self._graphs(size, chip.device)]
        settings = Settings(
            chip, options.search, options.numerics, self._training, str(torch.__version__)
        )
        made = (Planned(a.role, a.problem, a.plan, a.lines) for a in graphs)
        return make_plan(tuple(made), settings)

    def _graphs(self, size: str, device: str) -> Sequence[CapturedGraph]:
        found = self._captured.get((size, device))
        if found is None:
            model, args, *rest = self._programs[size]()
            found = self._captured[size, device] = capture_graphs(
                model,
                args,
                rest[0] if rest else None,
                device=torch.device(device),
                training=self._training,
                dynamic_shapes=self._dynamic,
            )
        return found

    def source(self, planned: Planned, group: Group) -> Written:
        """The generated text of a group, or the library's call."""
        target = planned.problem.target
        if group.call is not None:
            return Written("library", call_text(group.call), {})
        device = device_for(torch.device(target.device), target)
        plan = replace(planned.plan, groups=(group,))
        (scheduled,) = schedule_groups(plan, target, device, self._options).values()
        language, text = source_of(scheduled, target)
        return Written(language, text, dict(scheduled.values))

    def measured(self, planned: Planned, group: Group) -> float:
        """Microseconds of a generated group on the device at hand: the median of many launches."""
        target = planned.problem.target
        if not self.measures:
            raise UsageError(
                "nothing is run unless that was asked for",
                expected="onetrip explore --measure",
                found="an explorer without it",
            )
        here = target_here(target.device).name if _has(target.device) else "no such device"
        if here.partition(":")[0] != target.name.partition(":")[0]:
            raise UsageError(
                "times are of the device at hand",
                expected=f"the target {here}",
                found=target.name,
                next_step="choose that target on the page",
            )
        plan = replace(planned.plan, groups=(group,))
        device = torch.device(target.device)
        alone = built_alone(planned.role, plan, device, target, self._options)
        if not alone:
            raise UsageError(
                "this kernel cannot be run by itself",
                expected="a generated kernel of fixed sizes",
                found=f"a {group.kind}",
            )
        run = alone[0].place()
        clock = CLOCKS[target.device]
        return interleaved({"kernel": run}, clock, ROUNDS, SECONDS)["kernel"].median


def _on(plan: Plan, target: Target) -> Plan:
    """The same plan for a chip that no assembler knows."""
    assert plan.settings is not None
    changed = (replace(p.problem, target=target, resources=None) for p in plan.planned)
    planned = (
        replace(p, problem=q, plan=plan_problem(q, constraints_of(p.lines, p.keys)))
        for p, q in zip(plan.planned, changed, strict=True)
    )
    return make_plan(tuple(planned), replace(plan.settings, target=target))


def _again(planned: Planned, search: str) -> Planned:
    """The same graph under another search."""
    problem = replace(planned.problem, search=search)  # type: ignore[arg-type]
    plan = plan_problem(problem, constraints_of(planned.lines, planned.keys))
    return Planned(planned.role, problem, plan, planned.lines)


def _has(device: str) -> bool:
    return device == "cpu" or torch.cuda.is_available()


def server() -> Any:
    """The explorer's server, which an extra brings.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from ..explore import server as found
    except ImportError as error:
        raise UsageError(
            "the explorer's server is an extra",
            expected="starlette and uvicorn",
            found=str(error),
            next_step="pip install 'onetrip[explore]', or write a file with --export",
        ) from error
    return found


def opened(workshop: ModelWorkshop, target: str) -> Any:
    """A running server of a workshop, its page open where there is a browser."""
    running = server().start(workshop, target)
    webbrowser.open(running.url)
    return running
