"""What one page does to a model's plans: presets, cuts and fuses, undo, another target or size.

    action ::= preset | toggle | pin | undo | redo | target | size | graph

Every action answers with the state that it leads to. Sessions share prices and nothing else.
Must not know JSON or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..base.errors import UsageError
from ..plan.decision import Decision
from ..plan.draft import ENTWINED, Sums, name_of
from ..plan.plan import GraphPlan, Together, Totals
from ..plan.pool import Part
from ..plan.reasons import as_drawn
from ..report.compare import stem
from ..report.keys import named, short
from ..report.schema import Line
from ..report.view import Plan, Planned, make_plan
from .board import Board, Edge, is_locked
from .boards import MINE, PRESETS, Boards, Lost, Place, State, around
from .pins import NO_PINS, Pins, alike, line_of, lines_of, pin_of, pinned

T = TypeVar("T")
MOST_STEPS = 500
"""Steps that can be undone."""


class Session:
    """One page."""

    def __init__(self, boards: Boards, target: str, given: Plan | None = None) -> None:
        self.boards = boards
        self._mine: dict[tuple[str, str, int, str], Board] = {}
        self._others: dict[int, Place] = {}
        self.usual = "eager"
        if given is not None and given.settings and given.settings.search in PRESETS:
            self.usual = given.settings.search
        first = self.place = Place(target, boards.workshop.sizes[0])
        if given is not None and given.lines:
            for graph, planned in enumerate(given.planned):
                self.place = replace(first, graph=graph, done=[], undone=[])
                if self._take(planned):
                    self._others[graph] = self.place
        self._stand(self._others.pop(0, replace(first, follows=True)))

    def _take(self, planned: Planned) -> bool:
        """Begins with the groups of a plan; False where a page on its model cannot show them."""
        which = "rewritten" if any(a.taken for a in planned.plan.alternatives) else "written"
        draft = self._board(which).draft
        grouping = draft.grouping_of(planned.plan.groups)
        if {k for atoms, _ in grouping for k in atoms} != set(range(len(draft.index.atoms))):
            return False
        draft.start(grouping)
        pins = frozenset(
            tuple(map(stem, line.calls)) for line in planned.lines if line.kind == "pin"
        )
        self._do(State(which, grouping, MINE, frozenset(), "as planned", pins))
        return True

    def aside(self) -> Session:
        """Another session at the same target, size and graph, with the same pins."""
        made = Session(self.boards, self.place.target)
        made.go(size=self.place.size, graph=self.place.graph)
        made._preset("eager", self.state.pins)
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
        preset, pins = self.state.preset, self.state.around
        return self.boards.planned(self.place, preset, pins).plan if preset in PRESETS else None

    @property
    def figures(self) -> Sums | Totals:
        """Those of the preset's plan, or of the draft."""
        return self.board.draft.sums() if self.plan is None else self.plan.totals

    def shared(self) -> tuple[Together, ...]:
        """The launches that several groups share; none in Eager."""
        return () if self.state.preset == "eager" else self.board.draft.shared()

    def places(self) -> list[Place]:
        """Where the session stands in each graph of the model, in order of the graphs."""
        known = {**self._others, self.place.graph: self.place}
        return [known.get(k) or self._place(k) for k in range(len(self.graphs()))]

    def _place(self, graph: int) -> Place:
        """A graph in which nothing was done yet."""
        return Place(self.place.target, self.place.size, graph, follows=True)

    def figures_of_all(self) -> tuple[Sums | Totals, ...]:
        """Those of each graph."""
        return tuple(
            self.boards.planned(place, self.usual).plan.totals
            if place.follows
            else self._at(place, lambda: self.figures)
            for place in self.places()
        )

    def _at(self, place: Place, ask: Callable[[], T]) -> T:
        """The answer to a question about another place; the session stays where it is."""
        here = self.place
        try:
            self._stand(place)
            return ask()
        finally:
            self.place = here

    def _stand(self, place: Place) -> None:
        """Goes to a place; one where nothing was done is in the preset that was chosen last."""
        self.place = place
        if place.follows:
            self._follow()
        else:
            self._show()

    def graphs(self) -> tuple[str, ...]:
        """Names of the model's graphs."""
        made = self.boards.workshop.plan(self.place.size, self.place.target, "eager")
        return tuple(g.name for g in made.graphs)

    # -------------------------------------------------------------- actions

    def preset(self, name: str) -> None:
        """The groups of a preset, around those that are pinned; graphs in which nothing was done
        follow."""
        self._preset(name, self.state.pins)
        self.usual = name

    def _preset(self, name: str, pins: Pins) -> None:
        if name not in PRESETS:
            raise UsageError("there is no such preset", expected=", ".join(PRESETS), found=name)
        which = self.boards.board_of(self.place, name, pins)
        board, planned = self._board(which), self.boards.planned(self.place, name, pins)
        grouping = board.draft.grouping_of(planned.plan.groups)
        board.draft.start(grouping)
        self._do(State(which, grouping, name, frozenset(), PRESETS[name], pins, pins))

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
        self._do(replace(self._mine_now(what), cuts=still))

    def pin(self, name: str, everywhere: bool = False) -> None:
        """Pins a group, or frees one that is pinned; `everywhere`: in all copies of its layer.

        Raises:
            UsageError: there is no such group, or it is a library's call.
        """
        board, part = self.board, self.part(name)
        if not board.draft.pool.is_generated(part):
            raise UsageError(
                f"{name} cannot be pinned",
                expected="a generated kernel",
                found="a library call, which stays as it is",
            )
        chosen = pin_of(board, part)
        changed = alike(board, chosen) if everywhere else frozenset((chosen,))
        free = chosen in self.state.pins
        pins = self.state.pins - changed if free else self.state.pins | changed
        what = f"{'unpin' if free else 'pin'} {name}"
        if len(changed) > 1:
            what += f" and {len(changed) - 1} alike"
        self._do(replace(self.state, pins=pins, label=what))

    def _mine_now(self, what: str) -> State:
        """The groups as they are now, by the user's hand."""
        return replace(self.state, grouping=self.board.grouping, preset=MINE, label=what)

    def pins_at(self, edge: Edge) -> list[str]:
        """Names of the pinned groups that make or read what an edge hands on."""
        return [name_of(p) for p in pinned(self.board, self.state.pins, self.board.ends(edge))]

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
        done: list[Edge] = []
        refused: str | None = None
        for e in filter(self.board.is_fused, self._free(edges)):
            found = self.board.cut(e)
            refused = refused or found
            done += [e] if found is None else []
        if not done:
            raise UsageError(
                f"{self.title(edges[0])} cannot be cut",
                found=self.named(refused or ENTWINED),
                next_step="cut before or behind both",
            )
        return done

    def _fuse(self, edges: Sequence[Edge]) -> list[Edge]:
        done: list[Edge] = []
        refused: Decision | None = None
        for e in self._free(edges):
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

    def _free(self, edges: Sequence[Edge]) -> list[Edge]:
        """Those at no pinned group; UsageError where there is none."""
        found = [e for e in edges if not self.pins_at(e)]
        if not found:
            raise UsageError(
                f"{self.title(edges[0])} stays as it is",
                found=f"{', '.join(self.pins_at(edges[0]))} is pinned",
                next_step="unpin that kernel first (i)",
            )
        return found

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
        here = self.place
        sizes, count = self.boards.workshop.sizes, len(self.graphs())
        if size and size not in sizes:
            raise UsageError("there is no such size", expected=", ".join(sizes), found=size)
        if graph is not None and not 0 <= graph < count:
            raise UsageError(
                "there is no such graph", expected=f"0 to {count - 1}", found=str(graph)
            )
        new = Place(target or here.target, size or here.size)
        if (new.target, new.size) != (here.target, here.size):
            self._move(new)
        if graph not in (None, self.place.graph):
            self._to_graph(replace(self.place, graph=graph, done=[], undone=[], lost=()))

    def _move(self, new: Place) -> None:
        """Another target or size, for all that was done in any graph."""
        here, others = self.place, self._others
        moved: dict[int, Place] = {}
        try:
            for old in (*others.values(), here):
                moved[old.graph] = self._carried(
                    old, replace(new, graph=old.graph, done=[], undone=[])
                )
        except Exception:
            self.place = here
            raise
        del moved[here.graph]
        self._others = moved

    def _carried(self, old: Place, new: Place) -> Place:
        """What was done at one place, at another target or size, where the session then is."""
        if old.follows:
            self._stand(replace(new, follows=True))
            return self.place
        self._stand(old)
        kept, before = old.state, self.board
        fused = [_ends(before, e) for e in before.edges if before.is_fused(e)]
        cut = {_ends(before, before.edges[k]) for k in kept.cuts}
        self.place = new
        if kept.preset == MINE:
            self._preset("eager", NO_PINS)
            self._carry(fused, cut, kept.pins)
        else:
            self._preset(kept.preset, kept.pins)
        return new

    def _to_graph(self, new: Place) -> None:
        """Another graph of the model: as it was left, or in the preset that was chosen last."""
        if self.place.done and not self.place.follows:
            self._others[self.place.graph] = self.place
        self._stand(self._others.pop(new.graph, replace(new, follows=True)))

    def _follow(self) -> None:
        """The preset that was chosen last, as the one thing done."""
        self.place.done.clear()
        self._preset(self.usual, NO_PINS)
        self.place.follows = True

    def _carry(
        self, fused: Sequence[tuple[str, str]], cut: set[tuple[str, str]], pins: Pins = NO_PINS
    ) -> None:
        """Fuses the edges between calls of these names, and marks those that the user cut; pins
        stay where their groups are."""
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
        still = frozenset(pin_of(board, p) for p in pinned(board, pins))
        lost += [
            Lost("pin", ", ".join(map(label, pin)), "there is no such kernel here")
            for pin in sorted(pins - still)
        ]
        self.place.lost = tuple(lost)
        self._do(replace(self._mine_now("carried over"), cuts=cuts, pins=still))

    def _do(self, state: State) -> None:
        """Adds a step, unless it leads to where the page is."""
        self.place.follows = False
        if self.place.done and replace(self.state, label=state.label) == state:
            return
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

    def why(self, edge: Edge) -> Decision | None:
        """Why an edge is not fused; None where it is. What Best did not reach is only drawn so in
        groups that Best did not choose."""
        found = self.board.why(edge)
        return found if found is None or self.state.preset == "best" else as_drawn(found)

    def lock(self, edge: Edge) -> bool:
        """Whether no user can fuse this cut edge."""
        why = self.why(edge)
        return why is not None and is_locked(why)

    # -------------------------------------------------------------- files

    def lines(self) -> tuple[Line, ...]:
        """The groups as wishes: each generated kernel pinned, those that own a value first; where
        they are Best around the pins, the pins alone."""
        board = self.board
        if self.state.preset == "best" and self.state.pins == self.state.around:
            return lines_of(self.state.pins, board.planned.keys)
        generated = filter(board.draft.pool.is_generated, board.draft.order())
        return tuple(line_of(board, part) for part in generated)

    def saved(self) -> Plan:
        """A plan with these groups, for `onetrip.compile(plan=...)`; graphs in which nothing was
        done are in the preset that was chosen last.

        Raises:
            UsageError: a group cannot be pinned, with the reason.
        """
        return self.saving()()

    def saving(self) -> Callable[[], Plan]:
        """What makes `saved` of the groups as they are now, whatever becomes of them meanwhile.

        Where all graphs are in one preset that is its plan; else Best around what each graph has.
        """
        here, places = self.place, self.places()
        presets = {self.usual if p.follows else _whole(p.state) for p in places}
        workshop = self.boards.workshop
        if len(presets) == 1 and (preset := presets.pop()):
            return lambda: workshop.plan(here.size, here.target, preset)
        wishes = [self._at(p, self.lines) for p in places]

        def make() -> Plan:
            best = workshop.plan(here.size, here.target, "best")
            made = tuple(
                around(planned, lines) if lines else planned
                for planned, lines in zip(best.planned, wishes, strict=True)
            )
            assert best.settings is not None
            return make_plan(made, best.settings)

        return make


def _whole(state: State) -> str:
    """The preset whose plan a state is, without a pin; else none."""
    return "" if state.preset == MINE or state.pins or state.around else state.preset


def label(key: str) -> str:
    """A key for people, which `Plan.fuse` understands as well: `gelu`, `norm:layer_norm`."""
    return short(key).removeprefix(":")


def _ends(board: Board, edge: Edge) -> tuple[str, str]:
    return stem(board.nodes[edge.a].call.key), stem(board.nodes[edge.b].call.key)
