"""Two plans side by side: groups added, removed and changed, by bytes, with the reasons.

Groups are matched by the calls that they compute, without the hash of shapes, so that plans of two
revisions of a model, of two sizes or of two chips can be compared. A change is explained by
the boundaries that it has at its sides and the other plan has not: a value that now lies in memory
for a reader, or no longer does. Must not know how plans are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from ..base.lazy import cached_property
from ..base.text import bytes_text, counted, us_text
from .keys import short
from .schema import Boundary, Document, Graph, Group, Totals

Kind = Literal["added", "removed", "changed"]
FIGURES = ("reads", "writes", "registers", "spill_bytes", "kind")
"""What makes two groups of the same calls differ; a time follows from these and the chip."""
TOTALS = ("kernels", "traffic_bytes", "peak_bytes", "estimated_us")
MOST_REASONS = 4
"""Boundaries that are told of one change."""


class Change(msgspec.Struct, frozen=True):
    """A group that one of the plans has and the other has not, or has otherwise.

    Attributes:
        graph: name of the graph.
        before, after: the group in either plan.
        bytes: what the second plan moves here more than the first.
        gained, lost: short names of the calls that the group computes now and did not, and back.
        reasons: boundaries that are new or gone here, in a sentence each.
    """

    kind: Kind
    graph: str
    before: Group | None
    after: Group | None
    bytes: int
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True):
    """The difference of two plans; `changes` in the order of the bytes that they move."""

    before: Totals
    after: Totals
    targets: tuple[str, str]
    changes: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """Whether both plans have the same groups with the same figures."""
        return not self.changes and self.before == self.after


def stem(key: str) -> str:
    """A key without the hash of its shapes."""
    call, _, rest = key.partition("@")
    return call + (rest[rest.index("[") :] if "[" in rest else "")


def compare(before: Document, after: Document) -> Comparison:
    """What the second plan does otherwise than the first."""
    old = {g.name: g for g in before.graphs}
    new = {g.name: g for g in after.graphs}
    changes = [
        change
        for name in dict.fromkeys((*old, *new))
        for change in _graph_changes(name, _Side(old.get(name)), _Side(new.get(name)))
    ]
    changes.sort(key=lambda c: (-abs(c.bytes), c.graph, _name(c)))
    return Comparison(before.totals, after.totals, (before.target, after.target), tuple(changes))


def encode(comparison: Comparison) -> str:
    """The comparison as JSON."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode() + "\n"


def _name(change: Change) -> str:
    group = change.after or change.before
    return "" if group is None else group.name


def _graph_changes(name: str, old: _Side, new: _Side) -> Iterator[Change]:
    for a, b in _pairs(old.groups, new.groups):
        if a is not None and b is not None and _same(a, b):
            continue
        mine = new.calls[b.name] if b else set()
        theirs = old.calls[a.name] if a else set()
        reasons = [f"new boundary: {boundary_text(x)}" for x in new.unlike(old, b)]
        reasons += [f"gone: {boundary_text(x)}" for x in old.unlike(new, a)]
        yield Change(
            "added" if a is None else "removed" if b is None else "changed",
            name,
            a,
            b,
            (b.bytes if b else 0) - (a.bytes if a else 0),
            tuple(short(k) for k in (b.nodes if b else ()) if a and stem(k) not in theirs),
            tuple(short(k) for k in (a.nodes if a else ()) if b and stem(k) not in mine),
            tuple(reasons[:MOST_REASONS]),
        )


def _same(a: Group, b: Group) -> bool:
    calls = set(map(stem, a.nodes)) == set(map(stem, b.nodes))
    return calls and all(getattr(a, f) == getattr(b, f) for f in FIGURES)


def _pairs(
    old: Sequence[Group], new: Sequence[Group]
) -> Iterator[tuple[Group | None, Group | None]]:
    """Each group with the one of the other plan that has most of its calls, at most once."""
    homes: dict[str, list[int]] = {}
    for k, g in enumerate(old):
        for key in g.nodes:
            homes.setdefault(stem(key), []).append(k)
    shared: dict[tuple[int, int], int] = {}
    for j, g in enumerate(new):
        for key in g.nodes:
            for k in homes.get(stem(key), ()):
                shared[k, j] = shared.get((k, j), 0) + 1

    def likeness(pair: tuple[int, int]) -> float:
        k, j = pair
        return shared[pair] / (len(old[k].nodes) + len(new[j].nodes) - shared[pair])

    partner: dict[int, int] = {}
    taken: set[int] = set()
    for k, j in sorted(shared, key=lambda pair: (-likeness(pair), pair)):
        if k not in taken and j not in partner:
            partner[j] = k
            taken.add(k)
    for j, g in enumerate(new):
        yield (old[partner[j]] if j in partner else None), g
    yield from ((g, None) for k, g in enumerate(old) if k not in taken)


# ------------------------------------------------------------------ reasons


@dataclass(frozen=True)
class _Side:
    """One plan's graph, for questions about what its groups read; None: the plan has none."""

    graph: Graph | None

    @property
    def groups(self) -> Sequence[Group]:
        """The graph's groups."""
        return self.graph.groups if self.graph else ()

    @cached_property
    def calls(self) -> dict[str, set[str]]:
        """Stems of the calls of each group."""
        return {g.name: set(map(stem, g.nodes)) for g in self.groups}

    @cached_property
    def readers(self) -> dict[str, set[str]]:
        """For each value in memory between groups, the calls of the groups that read it."""
        found: dict[str, set[str]] = {}
        for b in self.graph.boundaries if self.graph else ():
            for value in b.values:
                found.setdefault(stem(value), set()).update(self.calls.get(b.consumer, ()))
        return found

    def unlike(self, other: _Side, group: Group | None) -> Iterator[Boundary]:
        """The boundaries at a group's sides that the other plan has not."""
        for b in self.graph.boundaries if self.graph and group else ():
            if group and group.name in (b.producer, b.consumer):
                calls = self.calls.get(b.consumer, set())
                if any(calls.isdisjoint(other.readers.get(stem(v), ())) for v in b.values):
                    yield b


def boundary_text(boundary: Boundary) -> str:
    """`33.6 MB :mm -> g1_gelu (net.py:12), extern (compute-bound-anchor): ...`."""
    value = short(boundary.values[0]) if boundary.values else boundary.producer
    line = boundary.consumer_line or boundary.producer_line
    where = f" ({line})" if line else ""
    return (
        f"{bytes_text(boundary.bytes)} {value} -> {boundary.consumer}{where}, "
        f"{boundary.verdict} ({boundary.code}): {boundary.reason}"
    )


# ------------------------------------------------------------------ text

_MARKS: dict[Kind, str] = {"added": "+", "removed": "-", "changed": "~"}


def text(comparison: Comparison, most: int | None = None) -> str:
    """The comparison for a terminal, the changes that move most bytes first.

    Args:
        most: changes that are shown; None: all.
    """
    lines = list(_head(comparison))
    shown = comparison.changes[:most]
    for change in shown:
        lines.extend(_change_lines(change))
    hidden = len(comparison.changes) - len(shown)
    if hidden:
        lines.append(f"{counted(hidden, 'more change')} that move fewer bytes")
    if comparison.same:
        lines.append("no difference")
    return "\n".join(lines)


def _head(comparison: Comparison) -> Iterable[str]:
    a, b = comparison.targets
    yield f"plans for {a}" if a == b else f"a plan for {a} and one for {b}"
    show: dict[str, Callable[[float], str]] = {"kernels": str, "estimated_us": us_text}
    for name in TOTALS:
        old, new = getattr(comparison.before, name), getattr(comparison.after, name)
        word = show.get(name, bytes_text)
        label = name.removesuffix("_bytes").removesuffix("_us")
        change = "the same" if old == new else f"{_signed(new - old, word)}, {_percent(old, new)}"
        yield f"  {label:<10} {word(old):>9} -> {word(new):<9} {change}".rstrip()


def _signed(value: float, word: Callable[[float], str]) -> str:
    return f"{'-' if value < 0 else '+'}{word(abs(value))}"


def _percent(old: float, new: float) -> str:
    return f"{new / old - 1:+.1%}" if old else "from nothing"


def _change_lines(change: Change) -> Iterator[str]:
    group = change.after or change.before
    assert group is not None
    calls = ", ".join(group.ops)
    moved = _signed(change.bytes, bytes_text)
    yield f"{_MARKS[change.kind]} {moved}  {change.graph}/{group.name}: {calls}"
    if change.gained:
        yield f"    takes in {', '.join(change.gained)}"
    if change.lost:
        yield f"    gives up {', '.join(change.lost)}"
    if change.before and change.after:
        yield from _figures(change.before, change.after)
    yield from (f"    {reason}" for reason in change.reasons)


def _figures(a: Group, b: Group) -> Iterator[str]:
    found = [
        f"{f} {getattr(a, f)} -> {getattr(b, f)}"
        for f in FIGURES
        if getattr(a, f) != getattr(b, f) and f not in ("reads", "writes")
    ]
    if a.bytes != b.bytes:
        found.insert(0, f"moves {bytes_text(a.bytes)} -> {bytes_text(b.bytes)}")
    if found:
        yield f"    {'; '.join(found)}"
