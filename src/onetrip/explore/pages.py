"""The pages of one model that are open, what they ask for, and which of them are remembered.

Must not know HTTP.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ..base.cancel import cancelled_by, checkpoint
from ..base.errors import UsageError
from . import shown
from .boards import PRESETS, Boards, Place
from .pins import NO_PINS, Pins
from .session import Session
from .workshop import Workshop

MOST_SESSIONS = 16
"""Pages that are remembered: one without work goes first, then the one that was quiet longest."""
MOST_FORGOTTEN = 1000
"""Names of pages that went, which are told so."""


class Action(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /plan`; `number`: how many actions the page has asked for before."""

    do: Literal["preset", "toggle", "pin", "undo", "redo", "go"]
    number: int = 0
    preset: str = ""
    edge: int = -1
    kernel: str = ""
    everywhere: bool = False
    target: str = ""
    size: str = ""
    graph: int | None = None


ACTIONS: dict[str, Callable[[Session, Action], None]] = {
    "preset": lambda s, a: s.preset(a.preset),
    "toggle": lambda s, a: s.toggle(a.edge, a.everywhere),
    "pin": lambda s, a: s.pin(a.kernel, a.everywhere),
    "undo": lambda s, a: s.undo(),
    "redo": lambda s, a: s.redo(),
    "go": lambda s, a: s.go(target=a.target, size=a.size, graph=a.graph),
}


def needs(session: Session, action: Action) -> Iterator[tuple[Place, str, Pins]]:
    """The plans that an action shows: the place, the preset, and around which pins."""
    here = session.place
    if action.do == "preset":
        yield here, "eager", NO_PINS
        if action.preset in PRESETS:
            yield here, action.preset, here.state.pins
    elif action.do == "go" and (action.size or here.size) in session.boards.workshop.sizes:
        for place in session.places():
            moved = Place(action.target or here.target, action.size or here.size, place.graph)
            yield moved, "eager", NO_PINS
            if place.follows:
                yield moved, session.usual, NO_PINS
            elif place.state.preset in PRESETS:
                yield moved, place.state.preset, place.state.pins


@dataclass
class Page:
    """One open page: its session, what it was told, and what it waits for.

    Attributes:
        waiting: what ends the planning for each request under way, by the number of its action.
        dropped: actions up to this number are wanted no more.
    """

    session: Session
    told: shown.Told = field(default_factory=shown.Told)
    waiting: list[tuple[int, threading.Event]] = field(default_factory=list)
    dropped: int = 0

    def whole(self) -> dict[str, Any]:
        """All that a page is told when it opens."""
        self.told = shown.Told()
        return {"graph": shown.graph(self.session), "state": shown.state(self.session, self.told)}

    @property
    def holds_work(self) -> bool:
        """Whether anything would be lost with it."""
        return any(len(place.done) > 1 or place.undone for place in self.session.places())

    def drop(self, number: int | None) -> None:
        """Ends the planning for actions up to a number; None: for all that are waited for."""
        self.dropped = max(self.dropped, number or 0)
        for k, unwanted in list(self.waiting):
            if number is None or k <= number:
                unwanted.set()


class Explorer:
    """Every page of one model.

    Attributes:
        ending: whether the server that shows it is about to end.
        settle: called when plans were made, which stay in memory for good.
    """

    ending: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self, workshop: Workshop, target: str, settle: Callable[[], None] = lambda: None
    ) -> None:
        self.boards = Boards(workshop)
        self.target, self.settle = target, settle
        self.pages: OrderedDict[str, Page] = OrderedDict()
        self.forgotten: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.RLock()

    def page(self, name: str, *, opened: bool = False) -> Page:
        """The page of this name; a new one begins with Eager.

        Args:
            opened: whether the page has just been opened, so that a forgotten one may begin anew.

        Raises:
            UsageError: the page was forgotten, with how to go on.
        """
        if not name or len(name) > 64:
            raise UsageError("a request names its page", expected="?session=...", found=name[:80])
        with self._lock:
            if name in self.forgotten and not opened:
                raise UsageError(
                    "this page was forgotten, with all that was done on it",
                    expected=f"at most {MOST_SESSIONS} pages with work",
                    found="more of them, and this one was quiet longest",
                    next_step="reload it to begin anew, and save plans (s) that are to stay",
                )
            found = self.pages.get(name)
            if found is None:
                session = Session(self.boards, self.target, self.boards.workshop.given)
                found = self.pages[name] = Page(session)
                self._forget()
            self.pages.move_to_end(name)
            return found

    def _forget(self) -> None:
        """Forgets pages beyond those that are remembered."""
        while len(self.pages) > MOST_SESSIONS:
            *older, _ = self.pages
            gone = next((n for n in older if not self.pages[n].holds_work), older[0])
            if self.pages.pop(gone).holds_work:
                self.forgotten[gone] = None
        while len(self.forgotten) > MOST_FORGOTTEN:
            self.forgotten.popitem(last=False)

    def ask(self, name: str, question: Callable[[Page], Any]) -> Any:
        """The answer to a question about a page, one question at a time."""
        with self._lock:
            return question(self.page(name))

    def open(self, name: str) -> Any:
        """All of a page that has just been opened, perhaps again; `forgotten`: its work is lost."""
        with self._lock:
            page = self.page(name, opened=True)
            page.dropped = 0  # it counts its actions anew
            forgotten = self.forgotten.pop(name, 0) is None
            return page.whole() | {"forgotten": forgotten}

    def foresee(self, name: str, action: Action, unwanted: threading.Event) -> None:
        """Makes the plans that an action needs, while other pages go on.

        Args:
            unwanted: ends it; so does `Page.drop`.

        Raises:
            Cancelled: the page wants none any more.
        """
        page = self.page(name)
        entry = action.number, unwanted
        page.waiting.append(entry)
        try:
            if 0 < action.number <= page.dropped:
                unwanted.set()
            with cancelled_by(unwanted):
                checkpoint()
                for place, preset, pins in needs(page.session, action):
                    self.boards.planned(place, preset, pins)
        finally:
            page.waiting.remove(entry)
        if action.do in ("preset", "go"):
            self.settle()

    def best(self) -> dict[str, Any]:
        """The figures of Best where the pages began, with its bound."""
        workshop = self.boards.workshop
        t = workshop.plan(workshop.sizes[0], self.target, "best").document.totals
        self.settle()
        gap = t.estimated_us / t.bound_us - 1 if t.bound_us else 0.0
        return {
            "kernels": t.kernels,
            "us": t.estimated_us,
            "bound": t.bound_us,
            "kind": t.bound_kind,
            "gap": gap,
        }
