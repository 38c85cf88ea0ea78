"""A budget: what a model's plans may come to, target by target, and what of a plan is over it.

    Budget ::= how to plan, (target -> kernels?, traffic_bytes?, peak_bytes?, externs?, Group...)
    Group  ::= calls that must stay one kernel, and the values that it may store

A violation names what caused it: calls that the model had not got when the budget was written, the
boundary that runs through a group of the budget, or at which a value inside such a group has got a
reader outside; else the dearest boundaries of the plan.
Must not know how plans are made or how violations are shown.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..base.errors import UsageError
from ..base.files import File
from ..base.text import bytes_text, counted
from ..target import load
from .compare import boundary_text
from .keys import layerless, short
from .schema import Boundary, Count, Document, Graph
from .schema import Group as PlanGroup

T = TypeVar("T")
FORMAT = 1
FILE = File(
    "the budget",
    f"TOML with format = {FORMAT} and a table [target.NAME] for each target",
    "onetrip check MODEL --budget FILE --write makes a first budget",
)
_BARE = re.compile(r"^[\w-]+$", re.ASCII)
MOST_CAUSES = 3
"""Boundaries that are named for one violation."""
Rule = Literal["kernels", "traffic_bytes", "peak_bytes", "externs", "group"]
LIMITS: Mapping[Rule, str] = {
    "kernels": "kernels",
    "traffic_bytes": "moved",
    "peak_bytes": "at the peak",
}
"""Totals of a plan that a budget can limit, and the words for them."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls that must be one kernel.

    Attributes:
        name: for people.
        calls: short keys: module and operator, with an ordinal from the second on.
        stores: those of them whose results the kernel writes to memory; empty: unknown.
        graph: name of the graph that they are in.
    """

    name: str
    calls: tuple[str, ...]
    stores: tuple[str, ...] = ()
    graph: str = "inference"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the plan for one target may come to; None: anything.

    Attributes:
        externs: operators that may run as calls without an entry; None: any.
        calls: what the model computed when this was written, layers without their numbers; empty:
            unknown.
    """

    kernels: Count | None = None
    traffic_bytes: Count | None = None
    peak_bytes: Count | None = None
    externs: tuple[str, ...] | None = None
    calls: tuple[str, ...] = ()
    group: tuple[Group, ...] = ()


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A budget file: how the model is planned, and the limits for each target."""

    format: int
    target: dict[str, Limits]
    search: Literal["eager", "max", "best"] = "best"
    numerics: Literal["bitwise", "eager", "fast"] = "eager"
    training: bool = False


class Cause(msgspec.Struct, frozen=True):
    """A boundary of the plan, or a new call, that explains a violation.

    Attributes:
        text: sizes, both sides, verdict and reason in a sentence.
        line: `file.py:12`, where the value is read, or where it is made; empty where unknown.
        code: of the reason.
        remedy: how to change it.
    """

    text: str
    line: str
    code: str
    remedy: str


class Violation(msgspec.Struct, frozen=True):
    """A line of the budget that the plan does not keep.

    Attributes:
        subject: the group or the operator that it is about; empty for totals.
    """

    target: str
    rule: Rule
    message: str
    subject: str = ""
    causes: tuple[Cause, ...] = ()
    limit: int | None = None
    found: int | None = None

    @property
    def line(self) -> str:
        """Where in the user's code the violation is caused; empty where that is unknown."""
        return next((c.line for c in self.causes if c.line), "")


class Verdict(msgspec.Struct, frozen=True):
    """How a plan stands to the budget of its target.

    Attributes:
        checked: every rule that was looked at, with its limit and what was found, in words.
    """

    target: str
    checked: tuple[tuple[str, str], ...]
    violations: tuple[Violation, ...]


# ------------------------------------------------------------------ the file


def read(path: str | Path) -> Budget:
    """The budget in a file; UsageError where there is none."""
    found = FILE.decoded(FILE.read(path), _decoded, str(path))
    if found.format != FORMAT:
        raise UsageError(
            "the budget has another format",
            expected=f"format = {FORMAT}",
            found=f"format = {found.format}",
            where=str(path),
        )
    return found


def _decoded(text: str) -> Budget:
    """The budget that a text states; a ValueError names the table that is wrong."""
    data = tomllib.loads(text)
    tables = data.get("target")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        _converted(table, Limits, f"[{_table(name)}]")
    return _converted(data, Budget, "the file")


def _converted(data: Any, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message, _, inside = str(error).partition(" - at `$")
        line = f", {inside.strip('.`')}" if inside.strip(".`") else ""
        raise ValueError(f"in {place}{line}: {message}") from error


def limits_for(budget: Budget, name: str, path: str | Path) -> Limits:
    """The limits for a target; UsageError where the budget has none, or there is no such target."""
    if name not in budget.target:
        raise UsageError(
            f"the budget says nothing of {name}",
            expected=f"one of {', '.join(budget.target)}",
            found=name,
            where=str(path),
            next_step=f"--target {name} --write adds it",
        )
    try:
        load(name)
    except UsageError as error:
        raise UsageError(
            error.message,
            expected=error.expected,
            found=error.found,
            where=f"[{_table(name)}] in {path}",
            next_step="name the table after a target, or write the budget again: --write",
        ) from error
    return budget.target[name]


def limits_of(document: Document) -> Limits:
    """The budget that a plan keeps exactly, with all its kernels of several calls as groups."""
    t = document.totals
    return Limits(
        t.kernels,
        t.traffic_bytes,
        t.peak_bytes,
        tuple(sorted({op for _, g in _groups(document) for op in _extern_ops(g)})),
        tuple(sorted({layerless(c) for _, g in _groups(document) for c in calls_of(g)})),
        tuple(
            Group(group.name, calls, _stored(graph, group), graph.name)
            for graph, group in _groups(document)
            if group.generated and len(calls := tuple(calls_of(group))) > 1
        ),
    )


def encode(budget: Budget) -> str:
    """The text of a budget file."""
    lines = [
        "# What the plans of the model may come to: `onetrip check MODEL --budget FILE`.",
        f"format = {budget.format}",
        f'search = "{budget.search}"',
        f'numerics = "{budget.numerics}"',
        f"training = {str(budget.training).lower()}",
    ]
    for name, limits in budget.target.items():
        table = _table(name)
        lines += ["", f"[{table}]", *_pairs(limits, ("kernels", "traffic_bytes", "peak_bytes"))]
        lines += _pairs(limits, ("externs",))
        lines += [] if not limits.calls else ["calls = [", *_items(limits.calls), "]"]
        for group in limits.group:
            fields = ("name", "graph", "calls", "stores")
            lines += ["", f"[[{table}.group]]", *_pairs(group, fields)]
    return "\n".join(lines) + "\n"


def _table(name: str) -> str:
    return f"target.{name if _BARE.match(name) else json.dumps(name)}"


def _pairs(struct: msgspec.Struct, names: Iterable[str]) -> list[str]:
    """`key = value`; strings and lists of strings are spelled in TOML as in JSON."""
    values = ((name, getattr(struct, name)) for name in names)
    return [f"{name} = {json.dumps(v)}" for name, v in values if v is not None]


def _items(texts: Iterable[str]) -> list[str]:
    """A list with a line for each item, as a diff wants it."""
    return [f"    {json.dumps(text)}," for text in texts]


# ------------------------------------------------------------------ names


def calls_of(group: PlanGroup) -> dict[str, None]:
    """Short keys of the calls that a group has nodes of, in order."""
    return dict.fromkeys(map(call_of, group.nodes))


def call_of(node: str) -> str:
    """The short key of the call that a node's key belongs to."""
    return short(node.partition("[")[0])


def _groups(document: Document) -> Iterator[tuple[Graph, PlanGroup]]:
    return ((graph, group) for graph in document.graphs for group in graph.groups)


def _stored(graph: Graph, group: PlanGroup) -> tuple[str, ...]:
    inside = set(group.nodes)
    return tuple(dict.fromkeys(call_of(b.node) for b in graph.memory if b.node in inside))


def _extern_ops(group: PlanGroup) -> tuple[str, ...]:
    return group.ops if group.kind == "extern" else ()


# ------------------------------------------------------------------ judging


def judge(document: Document, limits: Limits) -> Verdict:
    """What of a plan is over the limits for its target."""
    checked: list[tuple[str, str]] = []
    violations: list[Violation] = []
    for rule, noun in LIMITS.items():
        limit, found = getattr(limits, rule), getattr(document.totals, rule)
        if limit is None:
            continue
        words = f"{_amount(rule, found)} of {_amount(rule, limit)}"
        checked.append((rule, words))
        if found > limit:
            text = f"{_amount(rule, found)} {noun}, {_amount(rule, limit)} in the budget"
            if rule != "kernels":
                text += f" ({found - limit} bytes too many)"
            causes = tuple(_causes(document, limits))
            violations.append(Violation(document.target, rule, text, "", causes, limit, found))
    if limits.externs is not None:
        checked.append(("externs", ", ".join(limits.externs) or "none allowed"))
        violations.extend(_externs(document, limits.externs))
    for group in limits.group:
        checked.append((f"group {group.name}", ", ".join(group.calls)))
        violations.extend(_broken(document, group))
    return Verdict(document.target, tuple(checked), tuple(violations))


def _amount(rule: Rule, count: int) -> str:
    return str(count) if rule == "kernels" else bytes_text(count)


def _externs(document: Document, allowed: tuple[str, ...]) -> Iterator[Violation]:
    seen: set[str] = set()
    for graph, group in _groups(document):
        for op in _extern_ops(group):
            if op in allowed or op in seen:
                continue
            seen.add(op)
            near = [b for b in graph.boundaries if group.name in (b.producer, b.consumer)]
            line = group.lines[0] if group.lines else ""
            causes = tuple(map(cause, near[:1])) or (
                Cause(f"{op} runs as a library call", line, "extern", ""),
            )
            causes = tuple(msgspec.structs.replace(c, line=line or c.line) for c in causes)
            text = f"{op} runs as a library call without an entry, which the budget does not allow"
            yield Violation(document.target, "externs", text, op, causes)


def _broken(document: Document, group: Group) -> Iterator[Violation]:
    """Whether calls that must be one kernel are."""
    graph = next((g for g in document.graphs if g.name == group.graph), None)
    known = {c for g in graph.groups for c in calls_of(g)} if graph else set()
    wanted = set(group.calls)
    title = f"the kernel {group.name!r} ({', '.join(group.calls)})"
    if not wanted <= known:
        lost = ", ".join(sorted(wanted - known))
        text = f"{title} names calls that the model no longer has: {lost}"
        yield Violation(document.target, "group", text, group.name)
        return
    assert graph is not None
    nodes = {n for g in graph.groups for n in g.nodes if call_of(n) in wanted}
    if any(nodes <= set(g.nodes) for g in graph.groups):
        return
    homes = sum(not nodes.isdisjoint(g.nodes) for g in graph.groups)
    causes = tuple(map(cause, _inside(graph, wanted)))[:MOST_CAUSES]
    text = f"{title} has become {counted(homes, 'kernel')}"
    yield Violation(document.target, "group", text, group.name, causes, 1, homes)


# ------------------------------------------------------------------ causes


def cause(boundary: Boundary) -> Cause:
    """A boundary as the cause of a violation."""
    line = boundary.consumer_line or boundary.producer_line
    return Cause(boundary_text(boundary), line, boundary.code, boundary.remedy)


def _causes(document: Document, limits: Limits) -> list[Cause]:
    """What explains why a total has grown: new calls first, then what a group of the budget proves.

    A boundary that an older plan had as well explains nothing: without a new call or a group that
    says otherwise, the dearest ones are all that can be named.
    """
    new = list(_new_calls(document, limits))
    groups = {g.name: [x for x in limits.group if x.graph == g.name] for g in document.graphs}
    split = [
        b
        for graph in document.graphs
        for group in groups[graph.name]
        for b in _inside(graph, set(group.calls))
    ]
    leaks = [
        b for graph in document.graphs for b in graph.boundaries if _leaks(b, groups[graph.name])
    ]
    dearest = sorted(
        (b for g in document.graphs for b in g.boundaries), key=lambda b: (-b.bytes, b.producer)
    )
    found = list(dict.fromkeys((*split, *leaks))) or ([] if new else dearest)
    return [*new, *map(cause, found)][:MOST_CAUSES]


def _new_calls(document: Document, limits: Limits) -> Iterator[Cause]:
    """Calls that the model had not got when the budget was written; of copies of a layer one."""
    if not limits.calls:
        return
    seen = set(limits.calls)
    for graph, node in ((graph, node) for graph, g in _groups(document) for node in g.nodes):
        call = call_of(node)
        if layerless(call) in seen:
            continue
        seen.add(layerless(call))
        text = f"{call} is no call of the model that the budget was written for"
        line = graph.call_lines.get(node.partition("[")[0], "")
        yield Cause(text, line, "new-call", "take it out, or accept it: --write")


def _inside(graph: Graph, calls: set[str]) -> list[Boundary]:
    """The boundaries between groups that both compute some of the calls, the dearest first."""
    held = {g.name for g in graph.groups if not calls.isdisjoint(calls_of(g))}
    found = [
        b
        for b in graph.boundaries
        if b.consumer in held and any(call_of(v) in calls for v in b.values)
    ]
    return sorted(found, key=lambda b: (-b.bytes, b.producer, b.consumer))


def _leaks(boundary: Boundary, groups: Iterable[Group]) -> bool:
    """Whether a value passes here that a group of the budget computes and does not store."""
    values = set(map(call_of, boundary.values))
    return any(
        bool(g.stores) and not values.isdisjoint(set(g.calls) - set(g.stores)) for g in groups
    )
