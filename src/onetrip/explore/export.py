"""The page as one file that opens from disk: code, style and every preset in it, no network.

Without Python there is no cost model, so the file shows the states that it was given and changes
none. Must not know HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from ..base.files import File
from ..report.keys import Call
from . import shown, source, timeline
from .boards import MINE, PRESETS
from .redact import Names
from .session import Session

_STATIC = files("onetrip.explore") / "static"
_SCRIPT = re.compile(r'<script src="/static/([\w.-]+)"( defer)?></script>')
_STYLE = re.compile(r'<link rel="stylesheet" href="/static/([\w.-]+)">')
MOST_SOURCES = 60
"""Kernels whose source is put into the file, the dearest first."""
MOST_FUSED = 500
"""Fused edges whose cut is tried for the file, those of most bytes first."""
FILE = File("the page", "HTML that the explorer wrote", "export it again")


def page(session: Session, *, redact: bool = False) -> str:
    """The HTML of the file.

    Args:
        redact: leave out source lines, names of modules and of the user's operators, and
            generated text.
    """
    html = (_STATIC / "index.html").read_text(encoding="utf-8")
    data = json.dumps(_data(session, redact), separators=(",", ":")).replace("</", "<\\/")
    html = _STYLE.sub(lambda m: f"<style>{_text(m[1])}</style>", html)
    scripts = [m[1] for m in _SCRIPT.finditer(html)]
    html = _SCRIPT.sub("", html)
    code = "\n".join(_text(name) for name in scripts).replace("</script", "<\\/script")
    holder = f'<script type="application/json" id="exported">{data}</script>'
    return html.replace("</body>", f"{holder}<script>{code}</script></body>")


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _data(session: Session, redact: bool) -> dict[str, Any]:
    """Every preset and the groups that are shown, each with all that the page may ask about it."""
    session.boards.planned(session.place, "best")  # the bound that all of them show
    aside, states = session.aside(), {}
    for name in PRESETS:
        aside.preset(name)
        states[name] = _state(aside, redact)
    if session.state.preset == MINE:
        states[MINE] = _state(session, redact)
    shown_states: dict[str, Any] = {"shown": session.state.preset, "states": states}
    return Names(_calls(session)).redacted(shown_states) if redact else shown_states


def _calls(session: Session) -> Iterator[Call]:
    """The calls of every graph, and of all alternatives of theirs."""
    for preset in PRESETS:
        for planned in session.boards.workshop.plan(
            session.place.size, session.place.target, preset
        ).planned:
            yield from planned.keys.calls


def _state(session: Session, redact: bool) -> dict[str, Any]:
    board = session.board
    graph, state = shown.graph(session), shown.state(session, shown.Told())
    parts = board.parts()
    dearest = sorted(parts, key=lambda n: -board.draft.price(parts[n]).cost.us)[:MOST_SOURCES]
    fused = sorted(filter(board.is_fused, board.edges), key=lambda e: -e.bytes)[:MOST_FUSED]
    told = {e.id for e in board.edges if not board.is_fused(e)} | {e.id for e in fused}
    return {
        "graph": graph,
        "state": state,
        "why": {str(k): shown.why(session, board.edges[k]) for k in sorted(told)},
        "kernels": {} if redact else {n: source.kernel(session, parts[n]) for n in dearest},
        "memory": timeline.memory(session),
    }
