"""Wishes of a user and of a model's code: from names to lines of a plan file, from lines to the
planner's constraints, from what the planner could not meet to errors.

Must not know how the planner meets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from ..base.errors import UsageError
from ..ir.graph import Graph, Node
from ..ops.schema import Movement
from ..ops.table import OPS
from ..plan.constraints import Constraints, Pair, Refusal
from ..plan.decision import Evidence
from .keys import Call, Found, Keys, named, resolve, short
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


def asked_lines(graph: Graph, keys: Keys) -> tuple[Line, ...]:
    """What the model's own code asks for: a fuse for each region, cuts for each barrier."""
    regions: dict[tuple[int, bool], list[str]] = {}
    for call in keys.calls:
        for region in call.nodes[0].origin.regions:
            regions.setdefault(region, []).append(call.key)
    fused = [
        Line("fuse", tuple(calls), "model", strict)
        for (_, strict), calls in sorted(regions.items())
        if len(calls) > 1
    ]
    pairs = (
        (maker, reader)
        for call in keys.calls
        if call.nodes[0].origin.stored
        for maker in _makers(call, keys)
        for reader in _readers(call, graph, keys)
    )
    return (*fused, *(Line("cut", pair, "model") for pair in dict.fromkeys(pairs)))


def _makers(call: Call, keys: Keys) -> tuple[str, ...]:
    """A barrier's call, and those whose results it moves, which may be to view them."""
    found: dict[str, None] = {call.key: None}
    open_ = list(call.nodes)
    while open_:
        node = open_.pop()
        found[keys.call_of[node.name].key] = None
        if _moves(node):
            open_.extend(keys.by_name[m] for v in node.values if (m := keys.maker.get(v.name)))
    return tuple(found)


def _readers(call: Call, graph: Graph, keys: Keys) -> tuple[str, ...]:
    """The calls that read what a barrier's call makes, also through movements, which may be views.

    Calls of the same barrier are parts of one call of the model.
    """
    number = call.nodes[0].origin.stored
    found: dict[str, None] = {}
    open_ = [v.name for n in call.nodes for v in n.outputs]
    seen = set(open_)
    while open_:
        for reader in graph.consumers.get(open_.pop(), ()):
            if reader.origin.stored != number:
                found[keys.call_of[reader.name].key] = None
            if _moves(reader):
                more = [v.name for v in reader.outputs if v.name not in seen]
                seen.update(more)
                open_.extend(more)
    return tuple(found)


def _moves(node: Node) -> bool:
    op = OPS.get(node.op)
    return op is not None and isinstance(op.body, Movement)


def constraints_of(lines: Iterable[Line], keys: Keys) -> Constraints:
    """What the lines mean for the nodes of a graph.

    Calls that a user fuses take along those between them, and all must share one kernel; of a
    region in the model's code as many as can.

    Raises:
        UsageError: lines name calls that the graph does not have.
    """
    cut: list[Pair] = []
    fuse: list[Pair] = []
    pin: list[tuple[str, ...]] = []
    want: list[Pair] = []
    missing: list[UsageError] = []
    for line in lines:
        try:
            members = [_names(key, line, keys) for key in line.calls]
        except UsageError as error:
            missing.append(error)
            continue
        nodes = tuple(name for names in members for name in names)
        if line.kind == "pin":
            pin.append(nodes)
        elif line.kind == "cut":
            cut.extend((a, b) for a, b in product(*members))
        elif line.by == "model":
            want.extend(_linked(nodes, keys))
        else:
            # In graph order, so that each step adds to a group without a hole.
            whole = keys.between(nodes)
            fuse.extend((a, b) for k, b in enumerate(whole) for a in whole[:k])
    raise_all(missing)
    return Constraints(tuple(cut), tuple(fuse), tuple(pin), tuple(want))


def _linked(names: Iterable[str], keys: Keys) -> Iterator[Pair]:
    """Each node of a region with those whose values it reads, through movements as well; one that
    reads none of the region's with the node before it."""
    inside = dict.fromkeys(names)
    sources: dict[str, tuple[str, ...]] = {}
    before = ""
    for node in map(keys.by_name.__getitem__, inside):
        makers = (keys.maker.get(v.name, "") for v in node.values)
        direct = [m for m in makers if m in inside]
        near = tuple(dict.fromkeys((*direct, *(s for m in direct for s in sources.get(m, ())))))
        sources[node.name] = near if _moves(node) else ()
        yield from ((a, node.name) for a in near or (before,) if a)
        before = node.name


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


Asked = Mapping[tuple[str, tuple[str, ...]], Line]
"""Lines by the constraints that they became: (which kind, names of nodes)."""


def asked_by(lines: Iterable[Line], keys: Keys) -> Asked:
    """The line that each constraint came from; of several the first."""
    found: dict[tuple[str, tuple[str, ...]], Line] = {}
    for line in lines:
        made = constraints_of((line,), keys)
        for kind in ("cut", "fuse", "pin", "want"):
            for names in getattr(made, kind):
                found.setdefault((kind, names), line)
    return found


def is_binding(line: Line | None) -> bool:
    """Whether a refused line is an error; others are on record in the plan."""
    return line is None or line.by == "user" or line.strict


def calls_of(refusal: Refusal, keys: Keys) -> tuple[str, ...]:
    """Keys of the calls that a refused constraint is about."""
    found = (keys.call_of[n].key for n in refusal.names if n in keys.call_of)
    return tuple(dict.fromkeys(found))


def raise_all(errors: Sequence[UsageError]) -> None:
    """Raises UsageError for wishes that cannot be honoured, each with its reason; none: nothing."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        each = [e.message + (f" ({e.found})" if e.found else "") for e in errors]
        raise UsageError(
            f"{len(errors)} lines cannot be honoured",
            found="; ".join(each),
            next_step="plan the model as it is now, and ask for these lines in another way",
        )


def refused(refusals: Sequence[Refusal], lines: Sequence[Line], keys: Keys) -> Iterator[UsageError]:
    """An error for each binding line that the planner could not meet, and why."""
    asked = asked_by(lines, keys) if refusals else {}
    told: set[Line] = set()
    for refusal in refusals:
        line = asked.get((refusal.constraint, refusal.names))
        if is_binding(line) and (line is None or line not in told):
            yield _refused(refusal, line, keys)
            told |= {line} if line is not None else set()


def _refused(refusal: Refusal, line: Line | None, keys: Keys) -> UsageError:
    decision = refusal.decision
    pair = ", ".join(calls_of(refusal, keys))
    text = f"{refusal.constraint}({pair})" if line is None else line_text(line)
    inside = f", of which {pair}," if line is not None and len(line.calls) > 2 else ""
    return UsageError(
        f"{text}{inside} cannot be honoured: {named(decision.sentence, keys)}",
        found=evidence_text(decision.evidence) or decision.code,
        where="with onetrip.fuse(strict=True) in the model" if line and line.strict else None,
        next_step=named(decision.remedy, keys) or None,
    )


def evidence_text(evidence: Iterable[Evidence]) -> str:
    """`registers of a thread 400 registers, limit 255`."""
    return "; ".join(
        f"{e.limit} {e.value:.4g} {e.unit}" + ("" if e.bound is None else f", limit {e.bound:.4g}")
        for e in evidence
    )


def views_among(
    lines: Iterable[Line], keys: Keys, views: Mapping[str, str]
) -> Iterator[UsageError]:
    """An error for each of a user's cuts and fuses that names a view: no kernel computes it.

    Args:
        views: names of the nodes that are views, and of the values that they are views of.
    """
    for line in lines:
        if line.kind == "pin" or line.by == "model":
            continue
        for key in line.calls:
            names = _names(key, line, keys)
            base = views.get(names[-1])
            if base is None or not all(n in views for n in names):
                continue
            yield UsageError(
                f"{line_text(line)} cannot be honoured: {short(key)} is a view, which every kernel "
                "reads through and none computes",
                expected="calls that compute",
                found=f"{short(key)}, a view of {short(keys.by_node.get(base, 'an input'))}",
                next_step="name the call that makes what it views, or the one that reads it",
            )
            break
