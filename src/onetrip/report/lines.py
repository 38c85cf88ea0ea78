"""The user's wishes: from names to lines of a plan file, from lines to the planner's constraints.

Must not know how the planner meets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from ..base.errors import UsageError
from ..plan.constraints import Constraints, Pair, Refusal
from .keys import Found, Keys, named, resolve
from .schema import Line, Wish

OPPOSITE: dict[Wish, Wish] = {"cut": "fuse", "fuse": "cut"}


def line_text(line: Line) -> str:
    """`cut(a, b)`."""
    return f"{line.kind}({', '.join(line.calls)})"


def wish(kind: Wish, names: Sequence[str], graphs: Sequence[tuple[str, Keys]]) -> tuple[int, Line]:
    """The graph that a wish is about, and its line.

    Raises:
        UsageError: a name means nothing or several calls, or they stand in different graphs.
    """
    found = [resolve(name, graphs) for name in names]
    places = dict.fromkeys(graphs[f.graph][0] for f in found)
    if len(places) != 1 or (kind != "pin" and len({f.names for f in found}) != 2):
        raise UsageError(
            f"{kind}({', '.join(names)}) names no two calls of one graph",
            expected="different calls of one graph",
            found=", ".join(f"{graphs[f.graph][0]}/{f.call.key}" for f in found) or "no name",
            next_step="print(plan) shows the calls of each graph",
        )
    return found[0].graph, Line(kind, tuple(_key(f, graphs[f.graph][1]) for f in found))


def _key(found: Found, keys: Keys) -> str:
    return found.call.key if found.names == found.call.names else keys.by_node[found.names[0]]


def added(lines: Sequence[Line], new: Line) -> tuple[Line, ...]:
    """The lines with a new one; it takes the place of those that it contradicts."""
    opposite = OPPOSITE.get(new.kind)
    kept = tuple(
        line
        for line in lines
        if line != new and not (line.kind == opposite and set(line.calls) == set(new.calls))
    )
    return (*kept, new)


def constraints_of(lines: Iterable[Line], keys: Keys) -> Constraints:
    """What the lines mean for the nodes of a graph; calls that are fused take along those between.

    Raises:
        UsageError: a line names a call that the graph does not have.
    """
    cut: list[Pair] = []
    fuse: list[Pair] = []
    pin: list[tuple[str, ...]] = []
    for line in lines:
        members = [_names(key, line, keys) for key in line.calls]
        nodes = tuple(name for names in members for name in names)
        if line.kind == "pin":
            pin.append(nodes)
        elif line.kind == "cut":
            cut.extend((a, b) for a, b in product(*members))
        else:
            # In graph order, so that each step adds to a group without a hole.
            whole = keys.between(nodes)
            fuse.extend((a, b) for k, b in enumerate(whole) for a in whole[:k])
    return Constraints(tuple(cut), tuple(fuse), tuple(pin))


def _names(key: str, line: Line, keys: Keys) -> tuple[str, ...]:
    call = keys.by_key.get(key)
    if call is not None:
        return call.names
    node = next((n for n, k in keys.by_node.items() if k == key and n in keys.call_of), None)
    if node is not None:
        return (node,)
    stem = key.split("@")[0]
    near = [k for k in keys.by_key if k.split("@")[0] == stem]
    raise UsageError(
        f"the plan's line {line_text(line)} cannot be honoured: the model has no such call",
        expected=key,
        found=f"{near[0]}, whose shapes differ" if near else "no call of that module and operator",
        next_step="plan the model as it is now and ask for the line again",
    )


def refuse(refusals: Sequence[Refusal], lines: Sequence[Line], keys: Keys) -> None:
    """Raises UsageError for the first wish that the planner could not meet, with its reason."""
    if not refusals:
        return
    first = refusals[0]
    calls = dict.fromkeys(keys.by_node.get(name, name).split("[")[0] for name in first.names)
    asked = next((line for line in lines if _is_about(line, first, calls)), None)
    text = line_text(asked) if asked else f"{first.constraint}({', '.join(calls)})"
    decision = first.decision
    figures = "; ".join(
        f"{e.limit} {e.value:.4g} {e.unit}" + ("" if e.bound is None else f", limit {e.bound:.4g}")
        for e in decision.evidence
    )
    raise UsageError(
        f"{text} cannot be honoured: {named(decision.sentence, keys)}",
        found=figures or decision.code,
        next_step=named(decision.remedy, keys) or None,
    )


def _is_about(line: Line, refusal: Refusal, calls: Iterable[str]) -> bool:
    if line.kind != refusal.constraint:
        return False
    return bool({c.split("[")[0] for c in line.calls} & set(calls))
