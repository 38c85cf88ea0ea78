"""The page as one file that opens from disk: code, style and every preset in it, no network.

Without Python there is no cost model, so the file shows the states that it was given and changes
none. Must not know HTTP.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from ..base.files import File
from . import shown, source, timeline
from .boards import MINE, PRESETS
from .session import Session

_STATIC = files("onetrip.explore") / "static"
_SCRIPT = re.compile(r'<script src="/static/([\w.-]+)"( defer)?></script>')
_STYLE = re.compile(r'<link rel="stylesheet" href="/static/([\w.-]+)">')
_PATH_OF_CALL = re.compile(r"(?<![\w.*])[\w*]+(?:\.[\w*]+)*(?=:\w)")
MOST_SOURCES = 60
"""Kernels whose source is put into the file, the dearest first."""
HIDDEN = "hidden"
FILE = File("the page", "HTML that the explorer wrote", "export it again")


def page(session: Session, *, redact: bool = False) -> str:
    """The HTML of the file.

    Args:
        redact: leave out source lines, module names and generated text.
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
    aside, states = session.aside(), {}
    for name in PRESETS:
        aside.preset(name)
        states[name] = _state(aside, redact)
    if session.state.preset == MINE:
        states[MINE] = _state(session, redact)
    names: dict[str, str] = {}
    if redact:
        states = {name: _redacted(found, names) for name, found in states.items()}
    return {"shown": session.state.preset, "states": states}


def _state(session: Session, redact: bool) -> dict[str, Any]:
    board = session.board
    graph, state = shown.graph(session), shown.state(session, shown.Told())
    parts = board.parts()
    dearest = sorted(parts, key=lambda n: -board.draft.price(parts[n]).cost.us)[:MOST_SOURCES]
    cut = [e for e in board.edges if not board.is_fused(e)]
    return {
        "graph": graph,
        "state": state,
        "why": {str(e.id): shown.why(session, e) for e in cut},
        "kernels": {} if redact else {n: source.kernel(session, parts[n]) for n in dearest},
        "memory": timeline.memory(session),
    }


def _redacted(found: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Without what tells of the user's code: modules, lines, names of the model.

    Of a module's path `encoder.0.norm` the numbers stay, `m0.0.m1`: layers are counted by them. In
    texts a path stands before a colon and an operator.

    Args:
        names: what stands for the parts of paths; new ones are added.
    """
    for word in sorted({w for n in found["graph"]["nodes"] for w in _words(n["module"])}):
        names.setdefault(word, f"m{len(names)}")

    def path(text: str) -> str:
        known = names.keys() >= _words(text)
        return ".".join(names.get(w, w) for w in text.split(".")) if known else text

    def clean(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: clean(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [] if key == "lines" else [clean(v) for v in value]
        if isinstance(value, str):
            if key in ("line", "model"):
                return HIDDEN if key == "model" else ""
            if key == "module":
                return path(value)
            return _PATH_OF_CALL.sub(lambda m: path(m[0]), value)
        return value

    cleaned: dict[str, Any] = clean(found)
    return cleaned


def _words(path: str) -> set[str]:
    """The parts of a module's path, or of a form of it, that the user named."""
    return {w for w in path.split(".") if w and w != "*" and not w.isdecimal()}
