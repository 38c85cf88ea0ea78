"""A plan as tables: the same rows for a terminal (rich) and for a file (plain).

Must not know how a figure came about; it prints what the schema holds.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..base.text import bytes_text, counted, us_text
from .keys import short
from .schema import Boundary, Document, Graph, Group

MOST_BOUNDARIES = 12
"""Rows of boundaries of one graph that are shown unless all are asked for."""
_NUMBER = re.compile(r"^g\d+_")
SHOWN_OPS = 6
"""Operators of one group that are named."""


@dataclass(frozen=True)
class Grid:
    """A table without a look: a title, headings, cells, and which columns hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str]


GROUP_COLUMNS: dict[str, Callable[[Group], str]] = {
    "group": lambda g: g.name,
    "kind": lambda g: g.kind,
    "operators": lambda g: _ops(g.ops),
    "reads": lambda g: bytes_text(g.reads),
    "writes": lambda g: bytes_text(g.writes),
    "regs": lambda g: _registers(g),
    "bound by": lambda g: g.bound_by,
    "est us": lambda g: f"{g.estimated_us:.3g}",
}
"""Heading and what a row shows of a group."""

NUMBERS = frozenset({"reads", "writes", "regs", "est us", "bytes", "x"})


def _ops(ops: Sequence[str]) -> str:
    more = len(ops) - SHOWN_OPS
    return ", ".join(ops[:SHOWN_OPS]) + (f", +{more}" if more > 0 else "")


def _registers(group: Group) -> str:
    if group.registers is None:
        return "-"
    return f"{group.registers}" + (f" +{group.spill_bytes} B spilled" if group.spill_bytes else "")


def why(boundary: Boundary) -> str:
    """The reason in a sentence, and what one kernel would cost."""
    fused = boundary.if_fused
    if fused is None:
        return boundary.reason
    spilled = f", {fused.spill_bytes} B spilled" if fused.spill_bytes else ""
    registers = "" if fused.registers is None else f", {fused.registers} registers{spilled}"
    cost = f"{bytes_text(fused.bytes)}, {us_text(fused.us)}{registers}"
    return f"{boundary.reason} (as one kernel: {cost})"


def _alike(boundary: Boundary) -> tuple[object, ...]:
    """Equal for the same boundary in copies of a layer."""
    sides = (_kind_of(boundary.producer), _kind_of(boundary.consumer))
    return (*sides, boundary.bytes, boundary.verdict, boundary.code)


def _kind_of(name: str) -> str:
    """A group without its number, or a key's operator."""
    return _NUMBER.sub("", name.rpartition(":")[2].partition("#")[0])


# ------------------------------------------------------------------ grids


def groups_grid(graph: Graph) -> Grid:
    """One row for each kind of group; groups that are alike share a row with their count."""
    alike: dict[tuple[object, ...], list[Group]] = {}
    for g in graph.groups:
        key = (g.kind, g.ops, g.reads, g.writes, g.registers, g.spill_bytes, g.estimated_us)
        alike.setdefault(key, []).append(g)
    rows = [
        (str(len(same)), *(show(same[0]) for show in GROUP_COLUMNS.values()))
        for same in alike.values()
    ]
    title = f"{graph.name}: {counted(len(graph.groups), 'group')}"
    return Grid(title, ("x", *GROUP_COLUMNS), tuple(rows), NUMBERS)


def boundaries_grid(graph: Graph, most: int | None = MOST_BOUNDARIES) -> Grid:
    """Boundaries, those that move most bytes first; boundaries that are alike share a row."""
    alike: dict[tuple[object, ...], list[Boundary]] = {}
    for b in sorted(graph.boundaries, key=lambda b: (-b.bytes, b.producer, b.consumer)):
        alike.setdefault((b,) if most is None else _alike(b), []).append(b)
    shown = list(alike.values())[:most]
    rows = tuple((str(len(same)), bytes_text(same[0].bytes), _sentence(same[0])) for same in shown)
    title = f"{graph.name}: {counted(len(graph.boundaries), 'boundary')}"
    hidden = len(graph.boundaries) - sum(map(len, shown))
    more = f", {hidden} that move fewer bytes not shown" if hidden else ""
    return Grid(title + more, ("x", "bytes", "between, and why"), rows, NUMBERS)


def _sentence(b: Boundary) -> str:
    return f"{short(b.producer)} | {b.consumer}  {b.verdict}, {b.code}\n{why(b)}"


def totals_lines(document: Document) -> tuple[str, ...]:
    """What the whole plan comes to."""
    t = document.totals
    return (
        f"target {document.target}, search {document.search}, numerics {document.numerics}"
        + (", training" if document.training else ""),
        f"{counted(t.kernels, 'kernel')}, traffic {bytes_text(t.traffic_bytes)}, peak "
        f"{bytes_text(t.peak_bytes)}",
        f"estimated {us_text(t.estimated_us)}, lower bound {us_text(t.bound_us)} ({t.bound_kind})",
        f"generated kernels take over {t.generated_share:.1%} of eager's traffic outside "
        "contraction, convolution and attention",
    )


def lines_text(graph: Graph) -> tuple[str, ...]:
    """The user's wishes, one a line."""
    return tuple(f"{line.kind}({', '.join(line.calls)})" for line in graph.lines)


# ------------------------------------------------------------------ looks


def plain_grid(grid: Grid) -> str:
    """A grid as aligned text; the last column is as wide as it is and may have several lines."""
    last = len(grid.columns) - 1
    rows = [grid.columns, *grid.rows]
    widths = [max(len(r[k]) for r in rows) for k in range(last)]

    def line(cells: Sequence[str]) -> str:
        made = (
            cell.rjust(w) if column in grid.numbers else cell.ljust(w)
            for column, cell, w in zip(grid.columns, cells, widths, strict=False)
        )
        head = "".join(f"{cell}  " for cell in made)
        ending = cells[last].rjust(len(grid.columns[last])) if last_number else cells[last]
        return (head + ending.replace("\n", "\n" + " " * len(head))).rstrip()

    last_number = grid.columns[last] in grid.numbers
    rule = "  ".join("-" * w for w in (*widths, len(grid.columns[last])))
    return "\n".join([grid.title, line(grid.columns), rule, *map(line, grid.rows)])


def rich_grid(grid: Grid) -> Table:
    """A grid for a terminal."""
    table = Table(box=box.SIMPLE_HEAD, title=grid.title, title_justify="left")
    for column in grid.columns:
        number = column in grid.numbers
        table.add_column(column, justify="right" if number else "left", no_wrap=number)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def _blocks(document: Document, all_boundaries: bool) -> Iterable[Grid | str]:
    most = None if all_boundaries else MOST_BOUNDARIES
    for graph in document.graphs:
        yield groups_grid(graph)
        if graph.boundaries:
            yield boundaries_grid(graph, most)
        if graph.lines:
            yield "\n".join(("asked for:", *(f"  {line}" for line in lines_text(graph))))
    yield "\n".join(totals_lines(document))


def plain(document: Document, *, all_boundaries: bool = False) -> str:
    """A plan for a file or a pipe."""
    blocks = _blocks(document, all_boundaries)
    return "\n\n".join(plain_grid(b) if isinstance(b, Grid) else b for b in blocks)


def rich_blocks(document: Document, *, all_boundaries: bool = False) -> Iterator[Table | Text]:
    """A plan for a terminal."""
    for block in _blocks(document, all_boundaries):
        yield rich_grid(block) if isinstance(block, Grid) else Text(block + "\n")


def shown(document: Document, *, all_boundaries: bool = False) -> str:
    """A plan for wherever standard output goes: a terminal gets colour and its own width."""
    if not sys.stdout.isatty():
        return plain(document, all_boundaries=all_boundaries)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=Console().width)
    console.print(*rich_blocks(document, all_boundaries=all_boundaries), sep="\n")
    return out.getvalue().rstrip("\n")
