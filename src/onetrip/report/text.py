"""A plan as tables: the same rows for a terminal (rich) and for a file (plain).

Must not know how a figure came about; it prints what the schema holds.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..base.text import bytes_text, us_text
from .schema import Boundary, Document, Evidence, Graph, Group

MOST_BOUNDARIES = 12
"""Boundaries of one graph that are shown unless all are asked for."""
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

BOUNDARY_COLUMNS: dict[str, Callable[[Boundary], str]] = {
    "bytes": lambda b: bytes_text(b.bytes),
    "between": lambda b: f"{b.producer} | {b.consumer}",
    "verdict": lambda b: b.verdict,
    "code": lambda b: b.code,
    "why": lambda b: why(b),
}
NUMBERS = frozenset({"reads", "writes", "regs", "est us", "bytes", "x"})


def _ops(ops: Sequence[str]) -> str:
    more = len(ops) - SHOWN_OPS
    return ", ".join(ops[:SHOWN_OPS]) + (f", +{more}" if more > 0 else "")


def _registers(group: Group) -> str:
    if group.registers is None:
        return "-"
    return f"{group.registers}" + (f" +{group.spill_bytes} B spilled" if group.spill_bytes else "")


def why(boundary: Boundary) -> str:
    """The reason, its figures and what fusing would give, in one line."""
    parts = [boundary.reason, *map(evidence_text, boundary.evidence)]
    fused = boundary.if_fused
    if fused is not None:
        cost = f"{bytes_text(fused.bytes)}, {us_text(fused.us)}"
        registers = "" if fused.registers is None else f", {fused.registers} registers"
        parts.append(f"if fused: {cost}{registers}")
    return "; ".join(parts)


def evidence_text(found: Evidence) -> str:
    """`arithmetic intensity 54.2 FLOP/byte, limit 230`."""
    bound = "" if found.bound is None else f", limit {found.bound:.4g}"
    return f"{found.limit} {found.value:.4g} {found.unit}{bound}"


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
    title = f"{graph.name}: {len(graph.groups)} groups"
    return Grid(title, ("x", *GROUP_COLUMNS), tuple(rows), NUMBERS)


def boundaries_grid(graph: Graph, most: int | None = MOST_BOUNDARIES) -> Grid:
    """Boundaries of a graph, those that move most bytes first."""
    found = sorted(graph.boundaries, key=lambda b: (-b.bytes, b.producer, b.consumer))
    shown = found if most is None else found[:most]
    rows = tuple(tuple(show(b) for show in BOUNDARY_COLUMNS.values()) for b in shown)
    hidden = len(found) - len(shown)
    title = f"{graph.name}: {len(found)} boundaries" + (
        f", the {len(shown)} that move most bytes" if hidden else ""
    )
    return Grid(title, tuple(BOUNDARY_COLUMNS), rows, NUMBERS)


def totals_lines(document: Document) -> tuple[str, ...]:
    """What the whole plan comes to."""
    t = document.totals
    return (
        f"target {document.target}, search {document.search}, numerics {document.numerics}"
        + (", training" if document.training else ""),
        f"kernels {t.kernels}, traffic {bytes_text(t.traffic_bytes)}, peak "
        f"{bytes_text(t.peak_bytes)}",
        f"estimated {us_text(t.estimated_us)}, lower bound {us_text(t.bound_us)} ({t.bound_kind})",
        f"generated kernels move {t.generated_share:.1%} of the bytes that are neither "
        "contraction, convolution nor attention",
    )


def lines_text(graph: Graph) -> tuple[str, ...]:
    """The user's wishes, one a line."""
    return tuple(f"{line.kind}({', '.join(line.calls)})" for line in graph.lines)


# ------------------------------------------------------------------ looks


def plain_grid(grid: Grid) -> str:
    """A grid as aligned text; the last column is as wide as it is."""
    rows = [grid.columns, *grid.rows]
    widths = [max(len(r[k]) for r in rows) for k in range(len(grid.columns))]
    last = len(grid.columns) - 1

    def line(cells: Sequence[str]) -> str:
        made = (
            cell.rjust(widths[k])
            if grid.columns[k] in grid.numbers
            else (cell if k == last else cell.ljust(widths[k]))
            for k, cell in enumerate(cells)
        )
        return "  ".join(made).rstrip()

    rule = "  ".join("-" * (len(c) if k == last else widths[k]) for k, c in enumerate(grid.columns))
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
