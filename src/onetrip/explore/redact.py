"""A page's data without what tells of the user's code: modules, operators of theirs, lines, texts.

Every name is known from the graphs themselves and looked for as it is spelled, whatever letters it
has. Of a module's path `encoder.0.norm` the numbers stay, `m0.0.m1`: layers are counted by them.
Must not know what a page asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..report.keys import Call, call_name, layerless, without_layers

HIDDEN = "hidden"
OURS = ("aten", "prims", "onetrip")
"""Namespaces of operators that every program has."""
_BLANK = {"line": "", "model": HIDDEN, "lines": ()}
"""What is left out whole, by its key."""
_FIXED = frozenset(
    {"kind", "code", "verdict", "bound", "bound_kind", "source", "preset", "state", "edges"}
    | {"where", "unit", "type", "device", "target", "targets", "size", "sizes"}
)
"""Keys of lists and texts that hold words of the page alone."""
_NUMBERS = re.compile(r"\d+|\*")


class Names:
    """What stands for the user's names, in every state of a page alike."""

    def __init__(self, calls: Iterable[Call]) -> None:
        known = list(calls)
        modules = {c.module for c in known if c.module}
        parts = sorted({without_layers(p) for m in modules for p in m.split(".")} - {"*"})
        self._parts = {part: f"m{k}" for k, part in enumerate(parts)}
        forms = {layerless(f"{m}:").removesuffix(":") for m in modules}
        self._paths = {path: self._hidden_path(path) for path in modules | forms}
        self._ops = {name: f"op{k}" for k, name in enumerate(sorted(_own_operators(known)))}
        self._path = _any_of(self._paths, r"(?<![\w.*]){}(?=:\S)")
        self._op = _any_of(self._ops, r"(?<![^\W_]){}(?![^\W_])")

    def _hidden_path(self, path: str) -> str:
        return ".".join(map(self._hidden_part, path.split(".")))

    def _hidden_part(self, part: str) -> str:
        form = without_layers(part)
        if form == "*":
            return part
        numbers = _NUMBERS.findall(part) if "*" in form else []
        return "-".join([self._parts[form], *numbers])

    def redacted(self, value: Any, key: str = "") -> Any:
        """A value that stands under a key, with names of ours alone."""
        if key in _BLANK:
            return _BLANK[key]
        if key in _FIXED and (key == "edges" or not isinstance(value, dict)):
            return value
        if isinstance(value, dict):
            return {k: self.redacted(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [self.redacted(v) for v in value]
        if not isinstance(value, str):
            return value
        if key == "module":
            return self._paths.get(value, value)
        if self._path is not None:
            value = self._path.sub(lambda m: self._paths[m[0]], value)
        return value if self._op is None else self._op.sub(lambda m: self._ops[m[0]], value)


def _own_operators(calls: Iterable[Call]) -> set[str]:
    """Names and namespaces of the operators that the user registered."""
    found: set[str] = set()
    for node in (n for c in calls for n in c.nodes):
        for text in (node.origin.call, str(node.attr.get("target", ""))):
            space, dot, rest = text.partition(".")
            if dot and space not in OURS:
                found |= {space, rest.split(".")[0], call_name(node)}
    return found - {""}


def _any_of(names: Mapping[str, str], around: str) -> re.Pattern[str] | None:
    """Any of the names, the longest first; None where there is none."""
    longest = sorted(names, key=lambda n: (-len(n), n))
    one = "|".join(map(re.escape, longest))
    return re.compile(around.format(f"(?:{one})")) if one else None
