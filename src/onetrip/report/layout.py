"""Tables and paragraphs laid out as lines that are no wider than asked for.

    Grid      columns that shrink where they may, and are left out where even that is too wide
    Notes     items of a heading and paragraphs under it, wrapped

A line has one style, so the same lines serve a file (plain) and a terminal (rich).
Must not know plans.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GAP = 2
"""Blanks between columns."""
LEAST_WIDTH = 40
"""Narrower than this nothing is laid out."""


@dataclass(frozen=True)
class Line:
    """One line; `style` is a style of rich, empty for none."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a grid.

    Attributes:
        number: set to the right.
        least: width to which its cells may be shortened in the middle; 0: they may not.
        listed: cells are lists, which are shortened by whole words at their end.
        leave_out: where columns have to go, the one with the highest goes first; 0: it stays.
    """

    title: str
    number: bool = False
    least: int = 0
    leave_out: int = 0
    listed: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: a title, columns, cells, and what is said below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    below: str = ""


@dataclass(frozen=True)
class Item:
    """A heading with paragraphs under it."""

    head: str
    body: tuple[str, ...] = ()
    style: str = ""


@dataclass(frozen=True)
class Notes:
    """Items under a title, and what is said below them."""

    title: str
    items: tuple[Item, ...]
    below: str = ""


Block = Grid | Notes


def shortened(text: str, width: int) -> str:
    """A text with its middle left out where it is too wide: `encoder.la...self:softmax`."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    end = (width - 3) // 2
    return f"{text[: width - 3 - end]}...{text[len(text) - end :]}"


def shortened_list(text: str, width: int) -> str:
    """A list with words at its end left out where it is too wide: `add, gelu, +4`."""
    if len(text) <= width:
        return text
    words = text.split(", ")
    for kept in range(len(words) - 1, 0, -1):
        made = f"{', '.join(words[:kept])}, +{len(words) - kept}"
        if len(made) <= width:
            return made
    more = f", +{len(words) - 1}" if len(words) > 1 else ""
    return shortened(words[0], width - len(more)) + more


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """A paragraph as lines; a word that is too long is shortened, never broken."""
    room = max(width - len(indent), 8)
    words = " ".join(shortened(word, room) for word in text.split())
    lines = textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False)
    return [indent + line for line in lines]


def laid_out(blocks: Sequence[Block], width: int) -> Iterator[Line]:
    """The lines of blocks, an empty one between two."""
    width = max(width, LEAST_WIDTH)
    for k, block in enumerate(blocks):
        if k:
            yield Line("")
        yield from _grid(block, width) if isinstance(block, Grid) else _notes(block, width)


# ------------------------------------------------------------------ grids


def _grid(grid: Grid, width: int) -> Iterator[Line]:
    yield from _title(grid.title, width)
    shown, widths = fitted(grid, width)
    columns = [grid.columns[k] for k in shown]

    def line(cells: Sequence[str]) -> str:
        made = (_cell(cells[k], c, w) for k, c, w in zip(shown, columns, widths, strict=True))
        return (" " * GAP).join(made).rstrip()

    yield Line(line([c.title for c in grid.columns]), "dim")
    yield Line((" " * GAP).join("-" * w for w in widths), "dim")
    for row in grid.rows:
        yield Line(line(row))
    yield from (Line(text, "dim") for text in wrapped(grid.below, width))


def _cell(text: str, column: Column, width: int) -> str:
    cut = shortened_list if column.listed else shortened
    return cut(text, width).rjust(width) if column.number else cut(text, width).ljust(width)


def fitted(grid: Grid, width: int) -> tuple[list[int], list[int]]:
    """The columns that are shown, and how wide each is."""
    natural = [
        max([len(c.title), *(len(row[k]) for row in grid.rows)]) for k, c in enumerate(grid.columns)
    ]
    shown = list(range(len(natural)))
    while True:
        room = width - GAP * (len(shown) - 1)
        widths = _shrunk([natural[k] for k in shown], [grid.columns[k].least for k in shown], room)
        last = max(shown, key=lambda k: grid.columns[k].leave_out)
        if sum(widths) <= room or not grid.columns[last].leave_out:
            return shown, widths
        shown.remove(last)


def _shrunk(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit, the widest of those that may shrink made narrower first."""
    widths = list(natural)
    while sum(widths) > room:
        able = [k for k, w in enumerate(widths) if least[k] and w > least[k]]
        if not able:
            break
        widest = max(able, key=lambda k: (widths[k], k))
        widths[widest] -= 1
    return widths


# ------------------------------------------------------------------ notes


def _title(title: str, width: int) -> Iterator[Line]:
    yield from (Line(text, "bold") for text in wrapped(title, width))


def _notes(notes: Notes, width: int) -> Iterator[Line]:
    yield from _title(notes.title, width)
    for item in notes.items:
        yield from (Line(text, item.style) for text in wrapped(item.head, width, " " * GAP))
        for paragraph in item.body:
            yield from (Line(text) for text in wrapped(paragraph, width, " " * (2 * GAP)))
    yield from (Line(text, "dim") for text in wrapped(notes.below, width))
