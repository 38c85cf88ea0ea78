"""The source of a group as lines of coloured HTML, each with the calls that it belongs to.

A line belongs to a call where it loads or stores the value that the call makes, or where the
comment above the kernel names the call's source line. Must not know how source is generated.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from ..plan.pool import Part
from .board import Board
from .session import Session
from .workshop import Written

_BUFFER = re.compile(r"\b(a\d+)\b")
_FROM = re.compile(r"^(?:#|//) from (?:\S+ )?(\S+:\d+)$")
LEXERS = {"Triton": "python", "C++": "cpp", "library": "python"}


def kernel(session: Session, part: Part) -> dict[str, Any]:
    """Language, lines and what reproduces a group."""
    board, workshop = session.board, session.boards.workshop
    group = board.draft.group(part)
    written = workshop.source(board.planned, group)
    calls = dict.fromkeys(board.node_of[k] for k in part.atoms)
    return {
        "language": written.language,
        "text": written.text,
        "lines": [
            {"html": html, "calls": links}
            for html, links in zip(
                coloured(written), _links(board, written, list(calls)), strict=True
            )
        ],
        "reproducer": reproducer(session, list(calls)),
    }


def coloured(written: Written) -> list[str]:
    """Each line as HTML of classes; plain where Pygments is not installed."""
    text = written.text.rstrip("\n")
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import get_lexer_by_name
    except ImportError:
        return [escape(line) for line in text.split("\n")]
    lexer = get_lexer_by_name(LEXERS[written.language], stripnl=False, ensurenl=False)
    lines: list[str] = highlight(text, lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    count = text.count("\n") + 1
    return lines + [""] * (count - len(lines))


def _links(board: Board, written: Written, calls: list[int]) -> list[list[int]]:
    index = board.draft.index
    made = {
        v.name: board.node_of[k]
        for call in calls
        for k in board.nodes[call].atoms
        for v in index.atoms[k].node.outputs
    }
    readers = {
        name: board.node_of[k]
        for call in reversed(calls)
        for k in reversed(board.nodes[call].atoms)
        for name in index.atoms[k].reads
    }
    at_line: dict[str, list[int]] = {}
    for call in calls:
        at_line.setdefault(board.nodes[call].call.nodes[0].origin.line, []).append(call)
    found: list[list[int]] = []
    for line in written.text.rstrip("\n").split("\n"):
        comment = _FROM.match(line)
        if comment:
            found.append(at_line.get(comment[1], []))
            continue
        touches = "load(" in line or "store(" in line or "[" in line
        values = [written.values.get(n, "") for n in _BUFFER.findall(line)] if touches else []
        ends = [made.get(index.base(v), readers.get(index.base(v), -1)) for v in values if v]
        found.append(sorted({k for k in ends if k >= 0}))
    return found


def reproducer(session: Session, calls: list[int]) -> str:
    """A program that plans the model with this kernel alone pinned, and prints it."""
    board, place = session.board, session.place
    keys = [board.nodes[k].call.key for k in calls]
    name = session.boards.workshop.name
    pins = ",\n    ".join(map(repr, keys))
    return (
        "import onetrip\nfrom onetrip.api import load_model\n\n"
        f"model = load_model({name!r})\n"
        f"plan = onetrip.plan(model.model, model.args, model.kwargs, target={place.target!r})\n"
        f"plan = plan.pin(\n    {pins},\n)\n"
        "print(plan)\n"
    )
