"""What a plan looks like: its figures first, then its dearest boundaries, then its groups.

The same blocks serve a terminal, a file (`layout.py`) and a notebook (`page.py`). Tables show the
largest rows and say how many more there are, so a plan of any size can be printed.
Must not know how a figure came about; it prints what the schema holds.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from ..base.text import bytes_text, counted, us_text
from .keys import short
from .layout import Block, Column, Grid, Item, Notes, laid_out
from .schema import Alternative, Boundary, Document, Graph, Group, Line, Refused

MOST_BOUNDARIES = 5
"""Boundaries of one graph that are shown unless all are asked for."""
MOST_GROUPS = 20
"""Rows of groups of one graph."""
MOST_LINES = 6
"""Wishes, and refused ones, of one graph."""
VIEWS = frozenset({
    "alias", "detach", "expand", "permute", "select", "slice", "split", "squeeze", "t",
    "transpose", "unsafe_view", "unsqueeze", "view",
})  # fmt: skip
"""Calls that read through to what they view: a list of operators is clearer without them."""
PLAIN_WIDTH = 100
"""Columns of a text that goes to no terminal."""
STYLES = {
    "illegal": "red",
    "over-limit": "magenta",
    "unprofitable": "green",
    "by-user": "cyan",
    "extern": "yellow",
}
"""Colour of a boundary's head by its verdict."""
_NUMBER = re.compile(r"^g\d+_")
T = TypeVar("T")


# ------------------------------------------------------------------ figures


def summary(document: Document) -> Notes:
    """What the whole plan comes to, in five lines."""
    t = document.totals
    gap = t.estimated_us / t.bound_us - 1 if t.bound_us else 0.0
    about = f"search {document.search}, numerics {document.numerics}" + (
        ", training" if document.training else ""
    )
    kind = "exact" if t.bound_kind == "exact" else "a floor that perhaps no plan reaches"
    items = (
        f"{counted(t.kernels, 'kernel')}, {bytes_text(t.traffic_bytes)} moved, "
        f"{bytes_text(t.peak_bytes)} at the peak",
        f"{us_text(t.estimated_us)} estimated, {us_text(t.bound_us)} lower bound ({kind}), "
        f"gap {gap:.1%}",
        _bound_by(document),
        f"generated kernels take over {t.generated_share:.1%} of eager's traffic outside "
        "contraction, convolution and attention",
    )
    return Notes(
        f"Plan for {document.target} ({about}); figures are estimates, {_asked(document)}",
        tuple(Item(text) for text in items if text),
    )


def _asked(document: Document) -> str:
    """What of a plan was measured."""
    clocks = [a.measured for graph in document.graphs for a in graph.alternatives if a.measured]
    if not clocks:
        return "nothing was run"
    return f"{counted(len(clocks), 'choice')} timed on {clocks[0].device}"


def _bound_by(document: Document) -> str:
    """`time bound by memory 80%, compute 15%, launch 5%`."""
    spent: dict[str, float] = {}
    for group in (g for graph in document.graphs for g in graph.groups):
        spent[group.bound_by] = spent.get(group.bound_by, 0.0) + group.estimated_us
    whole = sum(spent.values())
    if not whole:
        return ""
    parts = sorted(spent.items(), key=lambda part: -part[1])
    return "time bound by " + ", ".join(f"{name} {us / whole:.0%}" for name, us in parts)


def graphs_grid(document: Document) -> Grid:
    """One row for each graph."""
    graphs = document.graphs[:MOST_GROUPS]
    estimated = _decimals([g.estimated_us for g in graphs])
    bounds = _decimals([g.bound_us for g in graphs])
    rows = tuple(
        (g.name, str(g.kernels), _size(g.traffic_bytes), _size(g.peak_bytes), us, bound, kind)
        for g, us, bound, kind in zip(
            graphs, estimated, bounds, (g.bound_kind for g in graphs), strict=True
        )
    )
    titles = ("graph", "kernels", "moved", "peak", "est us", "bound us", "bound")
    columns = tuple(
        Column(t, t not in ("graph", "bound"), 12 if t == "graph" else 0) for t in titles
    )
    hidden = len(document.graphs) - len(rows)
    return Grid("graphs", columns, rows, f"{hidden} more graphs" if hidden else "")


# ------------------------------------------------------------------ groups

GROUP_COLUMNS: dict[Column, Callable[[Group], str]] = {
    Column("group", least=20): lambda g: g.name,
    Column("operators", least=20, listed=True): lambda g: _ops(g.ops),
    Column("module", least=20, leave_out=5): lambda g: g.modules[0] if g.modules else "",
    Column("kind", leave_out=3): lambda g: g.kind,
    Column("reads", number=True, leave_out=4): lambda g: _size(g.reads),
    Column("writes", number=True, leave_out=4): lambda g: _size(g.writes),
    Column("moved", number=True): lambda g: _size(g.bytes),
    Column("regs", number=True, leave_out=1): lambda g: _registers(g),
    Column("bound by"): lambda g: g.bound_by,
}
"""Columns and what a row shows of a group; its time is added by `groups_grid`."""


def _ops(ops: Sequence[str]) -> str:
    """Operators without the views between them, unless there is nothing else."""
    return ", ".join([op for op in ops if op not in VIEWS] or ops)


def _registers(group: Group) -> str:
    """`64` as an assembler says, `~64` as estimated."""
    if group.registers is None:
        return "-"
    mark = "~" if group.source == "estimated" else ""
    spilled = f" +{group.spill_bytes} B spilled" if group.spill_bytes else ""
    return f"{mark}{group.registers}{spilled}"


def _size(count: int) -> str:
    """Bytes with three digits always: `6.30 MB` stands under `8.39 MB`."""
    number, unit = bytes_text(count).split()
    return f"{number if unit == 'B' else f'{float(number):#.3g}'.rstrip('.')} {unit}"


def _decimals(values: Sequence[float]) -> list[str]:
    """Numbers with as many digits behind the point each as the largest leaves room for."""
    digits = 1 if max(values, default=0.0) >= 1000 else 2
    return [f"{v:.{digits}f}" for v in values]


def _alike(things: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Things with equal keys together, in order of the first."""
    found: dict[Hashable, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return list(found.values())


def _group_form(g: Group) -> Hashable:
    return (g.kind, g.ops, g.reads, g.writes, g.registers, g.spill_bytes, g.estimated_us)


def _spent(same: Sequence[Group]) -> float:
    return sum(g.estimated_us for g in same)


def groups_grid(graph: Graph, most: int | None = MOST_GROUPS) -> Grid:
    """One row for each kind of group, in order of launch; those that take most time are shown."""
    kinds = _alike(graph.groups, _group_form)
    longest = sorted(range(len(kinds)), key=lambda k: -_spent(kinds[k]))[:most]
    shown = [kinds[k] for k in sorted(longest)]
    each, sums = ([same[0].estimated_us for same in shown], [_spent(same) for same in shown])
    times = zip(_decimals(each), _decimals(sums), strict=True)
    whole = _spent(graph.groups)
    rows = tuple(
        (
            str(len(same)),
            *(show(same[0]) for show in GROUP_COLUMNS.values()),
            *time,
            f"{_spent(same) / whole:.0%}" if whole else "",
        )
        for same, time in zip(shown, times, strict=True)
    )
    hidden = len(graph.groups) - sum(map(len, shown))
    rest = whole - sum(sums)
    return Grid(
        f"{graph.name}: {counted(len(graph.groups), 'group')} in order of launch",
        (
            Column("x", number=True),
            *GROUP_COLUMNS,
            Column("us each", number=True),
            Column("us", number=True, leave_out=2),
            Column("time", number=True),
        ),
        rows,
        f"{counted(hidden, 'more group')}, {us_text(rest)} together" if hidden else "",
    )


# ------------------------------------------------------------------ boundaries


def _boundary_form(boundary: Boundary) -> Hashable:
    """Equal for the same boundary in copies of a layer."""
    sides = (_kind_of(boundary.producer), _kind_of(boundary.consumer))
    return (*sides, boundary.bytes, boundary.verdict, boundary.code)


def _kind_of(name: str) -> str:
    """A group without its number, or a key's operator."""
    return _NUMBER.sub("", name.rpartition(":")[2].partition("#")[0])


def _moved(same: Sequence[Boundary]) -> int:
    return sum(b.bytes for b in same)


def boundaries_notes(graph: Graph, most: int | None = MOST_BOUNDARIES) -> Notes:
    """Boundaries, those that move most bytes first; where not all are shown, like ones together."""
    ordered = sorted(graph.boundaries, key=lambda b: (-b.bytes, b.producer, b.consumer))
    kinds = [[b] for b in ordered] if most is None else _alike(ordered, _boundary_form)
    shown = sorted(kinds, key=lambda same: -_moved(same))[:most]
    hidden = len(graph.boundaries) - sum(map(len, shown))
    title = f"{graph.name}: {counted(len(graph.boundaries), 'boundary')}"
    if hidden:
        title += ", the dearest of them"
    below = f"{hidden} more that move fewer bytes: plan.boundaries" if hidden else ""
    return Notes(title, tuple(map(_boundary_item, shown)), below)


def _boundary_item(same: Sequence[Boundary]) -> Item:
    b = same[0]
    count = f"{len(same)} x " if len(same) > 1 else ""
    head = f"{count}{bytes_text(b.bytes)}  {short(b.producer)} -> {b.consumer}"
    verdict = f"{b.verdict} ({b.code})"
    fused = as_one_kernel(b)
    rest = [*([f"as one kernel: {fused}"] if fused else [])]
    rest += [f"to change it: {b.remedy}"] if b.remedy else []
    return Item(head, (f"{verdict}: {b.reason}", *rest), STYLES.get(b.verdict, ""))


def as_one_kernel(boundary: Boundary) -> str:
    """What both sides as one kernel would cost; empty where that is unknown."""
    fused = boundary.if_fused
    if fused is None:
        return ""
    spilled = f", {fused.spill_bytes} B spilled" if fused.spill_bytes else ""
    registers = "" if fused.registers is None else f", {fused.registers} registers{spilled}"
    return f"{bytes_text(fused.bytes)}, {us_text(fused.us)}{registers}"


# ------------------------------------------------------------------ shared launches


def together_notes(graph: Graph) -> Notes:
    """The launches that several groups share."""
    items = tuple(
        Item(
            f"{counted(len(one.groups), 'group')} as one kernel: {us_text(one.saved_us)} less",
            (f"{one.groups[0]} to {one.groups[-1]}",),
        )
        for one in graph.together[:MOST_LINES]
    )
    below = _more(graph.together, "kernel", "plan.graphs[...].together")
    return Notes(f"{graph.name}: groups launched side by side", items, below)


# ------------------------------------------------------------------ alternatives


def alternatives_notes(graph: Graph) -> Notes:
    """Second ways to compute parts of the graph, like ones together."""
    kinds = _alike(graph.alternatives, _alternative_form)
    items = tuple(map(_alternative_item, kinds[:MOST_LINES]))
    below = _more(kinds, "kind", "plan.alternatives")
    return Notes(f"{graph.name}: other ways to compute parts of it", items, below)


def _alternative_form(a: Alternative) -> Hashable:
    """Equal for copies of a layer."""
    return (a.kind, a.note, a.code, a.reason, len(a.calls))


def _alternative_item(same: Sequence[Alternative]) -> Item:
    a = same[0]
    count = f"{len(same)} x " if len(same) > 1 else ""
    calls = [_kind_of(key) for key in a.calls]
    body = [f"instead of {', '.join([c for c in calls if c not in VIEWS] or calls)}"]
    body.append(f"{'taken' if a.taken else f'not taken ({a.code})'}: {a.reason}")
    return Item(f"{count}{a.kind}" + (f": {a.note}" if a.note else ""), tuple(body))


# ------------------------------------------------------------------ wishes


def wishes_notes(graph: Graph) -> Iterator[Notes]:
    """What user and model ask for, and what of it cannot be had."""
    for by, title in (("user", "asked for"), ("model", "asked for in the model")):
        lines = [line for line in graph.lines if line.by == by]
        if lines:
            items = tuple(Item(line_text(line)) for line in lines[:MOST_LINES])
            yield Notes(f"{graph.name}: {title}", items, _more(lines, "line", "plan.lines"))
    if graph.refused:
        items = tuple(map(_refused_item, graph.refused[:MOST_LINES]))
        below = _more(graph.refused, "pair", "plan.refused")
        yield Notes(f"{graph.name}: asked for in the model and not possible here", items, below)


def line_text(line: Line) -> str:
    """A wish with short names: `cut(:mul, :gelu)`."""
    return f"{line.kind}({', '.join(map(short, line.calls))})"


def _refused_item(refused: Refused) -> Item:
    head = f"{refused.kind}({', '.join(map(short, refused.calls))})"
    body = (f"{refused.verdict} ({refused.code}): {refused.reason}",)
    return Item(head, body, STYLES.get(refused.verdict, ""))


def _more(things: Sequence[object], noun: str, where: str) -> str:
    hidden = len(things) - MOST_LINES
    return f"{counted(hidden, f'more {noun}')}: {where}" if hidden > 0 else ""


# ------------------------------------------------------------------ looks


def blocks(document: Document, *, all_boundaries: bool = False) -> list[Block]:
    """All that is shown of a plan."""
    most = None if all_boundaries else MOST_BOUNDARIES
    found: list[Block] = [summary(document)]
    if len(document.graphs) > 1:
        found.append(graphs_grid(document))
    for graph in document.graphs[:MOST_GROUPS]:
        if graph.boundaries:
            found.append(boundaries_notes(graph, most))
        if graph.groups:
            found.append(groups_grid(graph))
        if graph.together:
            found.append(together_notes(graph))
        if graph.alternatives:
            found.append(alternatives_notes(graph))
        found.extend(wishes_notes(graph))
    return found


def plain(document: Document, *, width: int = PLAIN_WIDTH, all_boundaries: bool = False) -> str:
    """A plan for a file or a pipe, no line wider than `width` columns (40 at least)."""
    lines = laid_out(blocks(document, all_boundaries=all_boundaries), width)
    return "\n".join(line.text for line in lines)


def rich_lines(document: Document, width: int, *, all_boundaries: bool = False) -> Iterator[Text]:
    """A plan for a terminal of this width."""
    for line in laid_out(blocks(document, all_boundaries=all_boundaries), width):
        yield Text(line.text, style=line.style, no_wrap=True)


def shown(document: Document, *, all_boundaries: bool = False) -> str:
    """A plan for wherever standard output goes: a terminal gets colour and its own width."""
    if not sys.stdout.isatty():
        return plain(document, all_boundaries=all_boundaries)
    width = shutil.get_terminal_size().columns
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width)
    for line in rich_lines(document, width, all_boundaries=all_boundaries):
        console.print(line)
    return out.getvalue().rstrip("\n")
