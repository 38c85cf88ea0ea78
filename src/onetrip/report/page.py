"""The blocks of a plan as one fragment of HTML for a notebook.

Self-contained: its style stands in it, under a class of its own, for light and dark pages. Every
text is escaped. Must not know plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .layout import Block, Column, Grid, Item, Notes

STYLE = """
.onetrip-plan { --ink: #1b1f24; --dim: #57606a; --rule: #d0d7de; --row: #f6f8fa;
  color: var(--ink); font: 13px/1.45 system-ui, sans-serif; overflow-x: auto; }
.onetrip-plan h4 { margin: 1em 0 .3em; font-size: 14px; }
.onetrip-plan table { border-collapse: collapse; }
.onetrip-plan th, .onetrip-plan td { padding: .15em .7em; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
.onetrip-plan th { color: var(--dim); font-weight: 600; }
.onetrip-plan tbody tr:nth-child(even) { background: var(--row); }
.onetrip-plan .n { text-align: right; font-variant-numeric: tabular-nums; }
.onetrip-plan dl { margin: 0; } .onetrip-plan dd { margin: 0 0 .2em 1.6em; }
.onetrip-plan dt { font-weight: 600; } .onetrip-plan p { margin: .2em 0; color: var(--dim); }
.onetrip-plan dt.plain { font-weight: 400; }
@media (prefers-color-scheme: dark) { .onetrip-plan {
  --ink: #e6edf3; --dim: #9198a1; --rule: #3d444d; --row: #161b22; } }
"""


def fragment(blocks: Iterable[Block]) -> str:
    """One `div` with its style."""
    parts = (_grid(b) if isinstance(b, Grid) else _notes(b) for b in blocks)
    return f'<div class="onetrip-plan"><style>{STYLE}</style>{"".join(parts)}</div>'


def _grid(grid: Grid) -> str:
    head = "".join(_cell("th", c, c.title) for c in grid.columns)
    rows = "".join(f"<tr>{_row(grid.columns, row)}</tr>" for row in grid.rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<h4>{escape(grid.title)}</h4>{table}{_below(grid.below)}"


def _row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    return "".join(_cell("td", c, text) for c, text in zip(columns, cells, strict=True))


def _cell(tag: str, column: Column, text: str) -> str:
    number = ' class="n"' if column.number else ""
    return f"<{tag}{number}>{escape(text)}</{tag}>"


def _notes(notes: Notes) -> str:
    items = "".join(map(_item, notes.items))
    return f"<h4>{escape(notes.title)}</h4><dl>{items}</dl>{_below(notes.below)}"


def _item(item: Item) -> str:
    plain = "" if item.body else ' class="plain"'
    body = "".join(f"<dd>{escape(text)}</dd>" for text in item.body)
    return f"<dt{plain}>{escape(item.head)}</dt>{body}"


def _below(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""
