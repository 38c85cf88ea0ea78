"""The places where pages stand, what was done there, and the boards and plans that they share.

    place ::= target, size, graph
    state ::= board, groups, the edges that the user cut, pins, how it came about

Must not know what a user does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..plan.choose import plan_problem
from ..plan.draft_pool import Grouping
from ..plan.totals import Bound
from ..report.lines import constraints_of
from ..report.schema import Line
from ..report.view import Planned, check_lines
from .board import Board
from .pins import NO_PINS, Pins, lines_of
from .workshop import Workshop

PRESETS = {"eager": "Eager", "max": "Fuse all", "best": "Best"}
MINE = "mine"
"""Groups by the user's hand, beside those of the presets."""


@dataclass(frozen=True)
class State:
    """Groups of one graph.

    Attributes:
        board: `written`, or `rewritten` with the alternatives that pay.
        preset: which of the presets these groups are, or `mine`.
        cuts: ids of the edges that the user cut.
        label: what was done.
        pins: groups that stay as they are.
        around: the pins that the preset was planned around.
    """

    board: str
    grouping: Grouping
    preset: str
    cuts: frozenset[int]
    label: str
    pins: Pins = NO_PINS
    around: Pins = NO_PINS


@dataclass(frozen=True)
class Lost:
    """An edge that was fused, or a pin, that is not on another target, with the reason."""

    producer: str
    consumer: str
    reason: str


@dataclass
class Place:
    """Where a session stands: target, size, graph; and what was done there.

    Attributes:
        follows: nobody did anything here: the graph is in the preset that was chosen last, in
            whichever graph.
    """

    target: str
    size: str
    graph: int = 0
    done: list[State] = field(default_factory=list)
    undone: list[State] = field(default_factory=list)
    lost: tuple[Lost, ...] = ()
    follows: bool = False

    @property
    def state(self) -> State:
        """The state that is shown."""
        return self.done[-1]


class Boards:
    """The boards of a model for each target, size and graph; made once, for all sessions."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._made: dict[tuple[str, str, int, str], Board] = {}
        self._around: dict[tuple[str, str, int, str, Pins], Planned] = {}

    def planned(self, place: Place, search: str, pins: Pins = NO_PINS) -> Planned:
        """A preset's plan of the graph at a place, around its pins.

        Raises:
            UsageError: a pin cannot be honoured there, with the reason.
        """
        found = self.workshop.plan(place.size, place.target, search).planned[place.graph]
        if not pins:
            return found
        key = (place.target, place.size, place.graph, search, pins)
        known = self._around.get(key)
        if known is None:
            lines = lines_of(pins, found.keys)
            known = self._around[key] = around(found, lines) if lines else found
        return known

    def bound(self, place: Place) -> Bound | None:
        """What no plan of the graph at a place goes below, whatever its groups: as Best has proved
        it; None where that is not planned yet."""
        best = self.workshop.made(place.size, place.target, "best")
        if best is None:
            return None
        totals = best.planned[place.graph].plan.totals
        return Bound(totals.bound_us, totals.bound_kind)

    def board_of(self, place: Place, search: str, pins: Pins = NO_PINS) -> str:
        """Which board a preset is drawn on."""
        planned = self.planned(place, search, pins)
        if not any(a.taken for a in planned.plan.alternatives):
            return "written"
        if planned.graph.nodes == self.planned(place, "best").graph.nodes:
            return "rewritten"
        name = f"rewritten around {sorted(pins)}"  # pins stand in the way of an alternative
        key = (place.target, place.size, place.graph, name)
        if key not in self._made:
            self._made[key] = self._begun(planned)
        return name

    def board(self, place: Place, name: str) -> Board:
        """The shared board of a place; sessions take twins."""
        key = (place.target, place.size, place.graph, name)
        found = self._made.get(key)
        if found is None:
            if name == "written":
                eager = self.planned(place, "eager")
                problem = replace(eager.problem, search="best")
                planned = replace(eager, problem=problem)
            else:
                planned = self.planned(place, "best")
            found = self._made[key] = self._begun(planned)
        return found

    def _begun(self, planned: Planned) -> Board:
        made = Board(planned)
        made.start(planned.plan)
        made.learn()
        return made


def around(planned: Planned, lines: tuple[Line, ...]) -> Planned:
    """The graph planned under more lines; UsageError where one is not honoured."""
    plan = plan_problem(planned.problem, constraints_of(lines, planned.keys))
    check_lines(plan, lines, planned.keys)
    return replace(planned, plan=plan, lines=(*planned.lines, *lines))
