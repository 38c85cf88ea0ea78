"""What one page does to a model's plans: presets, cuts and fuses, undo, another target or size.

    state  ::= board, groups, the edges that the user cut, how it came about
    action ::= preset | toggle | undo | redo | target | size | graph

Every action answers with the state that it leads to. Sessions share prices and nothing else.
Must not know JSON or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..base.errors import UsageError
from ..plan.choose import plan_problem
from ..plan.decision import Decision
from ..plan.draft import Sums
from ..plan.draft_pool import Grouping
from ..plan.plan import GraphPlan, Totals
from ..plan.pool import Part
from ..report.compare import stem
from ..report.keys import named, short
from ..report.lines import constraints_of
from ..report.schema import Line
from ..report.view import Plan, Planned, check_lines, make_plan
from .board import Board, Edge, is_locked
from .workshop import Workshop

PRESETS = {"eager": "Eager", "max": "Fuse all", "best": "Best"}
MINE = "mine"
MOST_STEPS = 500
"""Steps that can be undone."""


@dataclass(frozen=True)
class State:
    """Groups of one graph.

    Attributes:
        board: `written`, or `rewritten` with the alternatives that pay.
        preset: which of the presets these groups are, or `mine`.
        cuts: ids of the edges that the user cut.
        label: what was done.
    """

    board: str
    grouping: Grouping
    preset: str
    cuts: frozenset[int]
    label: str


@dataclass(frozen=True)
class Lost:
    """An edge that was fused and is not on another target, with the reason."""

    producer: str
    consumer: str
    reason: str


@dataclass
class Place:
    """Where a session stands: target, size, graph; and what was done there."""

    target: str
    size: str
    graph: int = 0
    done: list[State] = field(default_factory=list)
    undone: list[State] = field(default_factory=list)
    lost: tuple[Lost, ...] = ()

    @property
    def state(self) -> State:
        """The state that is shown."""
        return self.done[-1]


class Boards:
    """The boards of a model for each target, size and graph; made once, for all sessions."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._made: dict[tuple[str, str, int, str], Board] = {}

    def planned(self, place: Place, search: str) -> Planned:
        """A preset's plan of the graph at a place."""
        return self.workshop.plan(place.size, place.target, search).planned[place.graph]

    def board_of(self, place: Place, search: str) -> str:
        """Which board a preset is drawn on."""
        if search == "eager" or not any(
            a.taken for a in self.planned(place, search).plan.alternatives
        ):
            return "written"
        return "rewritten"

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
            found = self._made[key] = Board(planned)
            found.start(planned.plan)
            found.learn()
        return found


class Session:
    """One page."""

    def __init__(self, boards: Boards, target: str, given: Plan | None = None) -> None:
        self.boards = boards
        self._mine: dict[tuple[str, str, int, str], Board] = {}
        self._others: dict[int, Place] = {}
        self.place = Place(target, boards.workshop.sizes[0])
        if given is None or not self._take(given):
            self.preset("eager")

    def _take(self, given: Plan) -> bool:
        """Begins with the groups of a plan; False where a page on its model cannot show them."""
        planned = given.planned[self.place.graph]
        if not planned.lines and given.settings and given.settings.search in PRESETS:
            self.preset(given.settings.search)
            return True
        which = "rewritten" if any(a.taken for a in planned.plan.alternatives) else "written"
        draft = self._board(which).draft
        grouping = draft.grouping_of(planned.plan.groups)
        if {k for atoms, _ in grouping for k in atoms} != set(range(len(draft.index.atoms))):
            return False
        draft.start(grouping)
        self._do(State(which, grouping, MINE, frozenset(), "as planned"))
        return True

    def aside(self) -> Session:
        """Another session at the same target, size and graph."""
        made = Session(self.boards, self.place.target)
        made.go(size=self.place.size, graph=self.place.graph)
        return made

    # -------------------------------------------------------------- what is shown

    @property
    def state(self) -> State:
        """The state that is shown."""
        return self.place.state

    @property
    def board(self) -> Board:
        """The board that it is on, with its groups."""
        return self._board(self.state.board)

    def _board(self, name: str) -> Board:
        p = self.place
        key = (p.target, p.size, p.graph, name)
        found = self._mine.get(key)
        if found is None:
            found = self._mine[key] = self.boards.board(p, name).twin()
        return found

    @property
    def plan(self) -> GraphPlan | None:
        """The preset's own plan where the groups are those of one."""
        preset = self.state.preset
        return self.boards.planned(self.place, preset).plan if preset in PRESETS else None

    @property
    def figures(self) -> Sums | Totals:
        """Those of the preset's plan, or of the draft."""
        return self.board.draft.sums() if self.plan is None else self.plan.totals

    def figures_of_all(self) -> tuple[Sums | Totals, ...]:
        """Those of each graph; one that was not looked at is in Eager."""
        here, found = self.place, list[Sums | Totals]()
        try:
            for k in range(len(self.graphs())):
                known = here if k == here.graph else self._others.get(k)
                if known is None:
                    found.append(self.boards.planned(replace(here, graph=k), "eager").plan.totals)
                    continue
                self.place = known
                found.append(self.figures)
        finally:
            self.place = here
        return tuple(found)

    def graphs(self) -> tuple[str, ...]:
        """Names of the model's graphs."""
        made = self.boards.workshop.plan(self.place.size, self.place.target, "eager")
        return tuple(g.name for g in made.graphs)

    # -------------------------------------------------------------- actions

    def preset(self, name: str) -> None:
        """The groups of a preset."""
        if name not in PRESETS:
            raise UsageError("there is no such preset", expected=", ".join(PRESETS), found=name)
        board = self._board(self.boards.board_of(self.place, name))
        grouping = board.draft.grouping_of(self.boards.planned(self.place, name).plan.groups)
        board.draft.start(grouping)
        which = self.boards.board_of(self.place, name)
        self._do(State(which, grouping, name, frozenset(), PRESETS[name]))

    def toggle(self, edge: int, everywhere: bool = False) -> None:
        """Cuts a fused edge, or fuses a cut one; `everywhere`: in all copies of its layer.

        Raises:
            UsageError: the edge does not exist, or may not be fused, with the reason.
        """
        board = self.board
        chosen = self.edge(edge)
        fused = board.is_fused(chosen)
        edges = board.like(chosen) if everywhere else (chosen,)
        done = self._cut(edges) if fused else self._fuse(edges)
        ids = {e.id for e in done}
        cuts = self.state.cuts | ids if fused else self.state.cuts - ids
        still = frozenset(k for k in cuts if not board.is_fused(board.edges[k]))
        what = f"{'cut' if fused else 'fuse'} {self.title(chosen)}"
        if len(done) > 1:
            what += f" and {len(done) - 1} alike"
        self._do(State(self.state.board, board.grouping, MINE, still, what))

    def edge(self, number: int) -> Edge:
        """The edge of this number; UsageError where there is none."""
        edges = self.board.edges
        if not 0 <= number < len(edges):
            raise UsageError(
                "the graph has no such edge", expected=f"0 to {len(edges) - 1}", found=str(number)
            )
        return edges[number]

    def part(self, name: str) -> Part:
        """The group of this name; UsageError where there is none."""
        found = self.board.parts().get(name)
        if found is None:
            raise UsageError("there is no such kernel", expected="a name such as K3", found=name)
        return found

    def _cut(self, edges: Sequence[Edge]) -> list[Edge]:
        done = [e for e in edges if self.board.is_fused(e) and self.board.cut(e)]
        if not done:
            raise UsageError(
                f"{self.title(edges[0])} cannot be cut",
                found="one call is computed in the middle of the other",
                next_step="cut before or behind both",
            )
        return done

    def _fuse(self, edges: Sequence[Edge]) -> list[Edge]:
        done: list[Edge] = []
        refused: Decision | None = None
        for e in edges:
            found = self.board.fuse(e)
            refused = refused or found
            done += [e] if found is None else []
        if not done:
            assert refused is not None
            raise UsageError(
                f"{self.title(edges[0])} cannot be one kernel: {self.named(refused.sentence)}",
                found=refused.code,
                next_step=self.named(refused.remedy) or None,
            )
        return done

    def undo(self) -> None:
        """The state before this one; the first stays."""
        if len(self.place.done) > 1:
            self.place.undone.append(self.place.done.pop())
            self._show()

    def redo(self) -> None:
        """The state that was undone last."""
        if self.place.undone:
            self.place.done.append(self.place.undone.pop())
            self._show()

    def go(self, *, target: str = "", size: str = "", graph: int | None = None) -> None:
        """Another target, size or graph; what the user fused is fused there as far as it may be."""
        old, before = self.place, self.board
        sizes = self.boards.workshop.sizes
        if size and size not in sizes:
            raise UsageError("there is no such size", expected=", ".join(sizes), found=size)
        count = len(self.graphs())
        if graph is not None and not 0 <= graph < count:
            raise UsageError(
                "there is no such graph", expected=f"0 to {count - 1}", found=str(graph)
            )
        new = Place(target or old.target, size or old.size, old.graph if graph is None else graph)
        if new.graph != old.graph:
            self._to_graph(new)
            return
        kept = old.state
        fused = [e for e in before.edges if before.is_fused(e)] if kept.preset == MINE else []
        names = [_ends(before, e) for e in fused]
        cut = {_ends(before, before.edges[k]) for k in kept.cuts}
        self.place = new
        try:
            self.preset("eager" if kept.preset == MINE else kept.preset)
        except Exception:
            self.place = old
            raise
        self._others.clear()  # they were of the old target or size
        if kept.preset == MINE:
            self._carry(names, cut)

    def _to_graph(self, new: Place) -> None:
        """Another graph of the model: as it was left, or in Eager."""
        self._others[self.place.graph] = self.place
        known = self._others.pop(new.graph, None)
        self.place = known or new
        if known is None:
            self.preset("eager")
        else:
            self._show()

    def _carry(self, fused: Sequence[tuple[str, str]], cut: set[tuple[str, str]]) -> None:
        """Fuses the edges between calls of these names, and marks those that the user cut."""
        board = self.board
        known = {_ends(board, e): e for e in board.edges}
        lost: list[Lost] = []
        for pair in fused:
            edge = known.get(pair)
            refused = board.fuse(edge) if edge else None
            if edge is None or refused is not None:
                why = self.named(refused.sentence) if refused else "the graph has no such edge here"
                lost.append(Lost(label(pair[0]), label(pair[1]), why))
        cuts = frozenset(known[p].id for p in cut if p in known and not board.is_fused(known[p]))
        self.place.lost = tuple(lost)
        self._do(State(self.state.board, board.grouping, MINE, cuts, "carried over"))

    def _do(self, state: State) -> None:
        self.place.done.append(state)
        del self.place.done[:-MOST_STEPS]
        self.place.undone.clear()

    def _show(self) -> None:
        self.board.draft.start(self.state.grouping)

    # -------------------------------------------------------------- words

    def title(self, edge: Edge) -> str:
        """`gelu → layer_norm` with modules where they have any."""
        a, b = (label(self.board.nodes[k].call.key) for k in (edge.a, edge.b))
        return f"{a} → {b}"

    def named(self, sentence: str) -> str:
        """A planner's sentence with the names of calls."""
        return named(sentence, self.board.planned.keys)

    def lock(self, edge: Edge) -> bool:
        """Whether no user can fuse this cut edge."""
        why = self.board.why(edge)
        return why is not None and is_locked(why)

    # -------------------------------------------------------------- files

    def lines(self) -> tuple[Line, ...]:
        """The groups as wishes: each generated kernel pinned, those that own a value first."""
        board, keys = self.board, self.board.planned.keys
        made: list[Line] = []
        for part in board.draft.order():
            if not board.draft.pool.is_generated(part):
                continue
            names = {board.draft.index.atoms[k].name for k in part.atoms}
            calls: dict[str, None] = {}
            for node in (board.nodes[board.node_of[k]] for k in part.atoms):
                inside = [board.draft.index.atoms[k].name for k in node.atoms]
                whole = all(name in names for name in inside)
                found = (
                    [node.call.key] if whole else [keys.by_node[n] for n in inside if n in names]
                )
                calls.update(dict.fromkeys(found))
            made.append(Line("pin", tuple(calls)))
        return tuple(made)

    def saved(self) -> Plan:
        """A plan with these groups, for `onetrip.compile(plan=...)`; graphs that were not looked at
        are as in Best.

        Raises:
            UsageError: a group cannot be pinned, with the reason.
        """
        return self.saving()()

    def saving(self) -> Callable[[], Plan]:
        """What makes `saved` of the groups as they are now, whatever becomes of them meanwhile."""
        here, wishes = self.place, dict[int, tuple[Line, ...]]()
        try:
            for place in (here, *self._others.values()):
                if place.state.preset != "best":
                    self.place = place
                    wishes[place.graph] = self.lines()
        finally:
            self.place = here

        def make() -> Plan:
            best = self.boards.workshop.plan(here.size, here.target, "best")
            made = list(best.planned)
            for graph, lines in wishes.items():
                made[graph] = _pinned(made[graph], lines)
            assert best.settings is not None
            return make_plan(tuple(made), best.settings)

        return make


def _pinned(planned: Planned, lines: tuple[Line, ...]) -> Planned:
    """The graph planned under more lines; UsageError where one is not honoured."""
    plan = plan_problem(planned.problem, constraints_of(lines, planned.keys))
    check_lines(plan, lines, planned.keys)
    return replace(planned, plan=plan, lines=(*planned.lines, *lines))


def label(key: str) -> str:
    """A key for people, which `Plan.fuse` understands as well: `gelu`, `norm:layer_norm`."""
    return short(key).removeprefix(":")


def _ends(board: Board, edge: Edge) -> tuple[str, str]:
    return stem(board.nodes[edge.a].call.key), stem(board.nodes[edge.b].call.key)
