"""Groups that a user pinned: neither a preset nor an edit changes them.

    pin ::= the calls of a group, or nodes of them, by keys without hashes of shapes

So a pin means the same group on another target and at another size. Must not know sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..plan.pool import Part
from ..report.compare import stem
from ..report.keys import Keys, layerless
from ..report.schema import Line
from .board import Board

Pin = tuple[str, ...]
Pins = frozenset[Pin]
NO_PINS: Pins = frozenset()


def line_of(board: Board, part: Part) -> Line:
    """A group as a wish: its calls, or nodes of those that it computes in part."""
    keys, atoms = board.planned.keys, board.draft.index.atoms
    names = {atoms[k].name for k in part.atoms}
    calls: dict[str, None] = {}
    for node in (board.nodes[board.node_of[k]] for k in part.atoms):
        inside = [atoms[k].name for k in node.atoms]
        whole = names.issuperset(inside)
        found = [node.call.key] if whole else [keys.by_node[n] for n in inside if n in names]
        calls.update(dict.fromkeys(found))
    return Line("pin", tuple(calls))


def pin_of(board: Board, part: Part) -> Pin:
    """What pins a group."""
    return tuple(map(stem, line_of(board, part).calls))


def pinned(board: Board, pins: Pins, parts: Iterable[Part] | None = None) -> Iterator[Part]:
    """Those of the groups, or of all, that are pinned."""
    if pins:
        for part in board.draft.pool.parts.values() if parts is None else parts:
            if board.draft.pool.is_generated(part) and pin_of(board, part) in pins:
                yield part


def alike(board: Board, pin: Pin) -> Pins:
    """The same group in all copies of its layer."""
    form = tuple(map(layerless, pin))
    generated = filter(board.draft.pool.is_generated, board.draft.pool.parts.values())
    found = (pin_of(board, p) for p in generated)
    return frozenset(p for p in found if tuple(map(layerless, p)) == form)


def lines_of(pins: Pins, keys: Keys) -> tuple[Line, ...]:
    """The pins as wishes about a graph, those left out whose calls it does not have."""
    known = {stem(key): key for key in (*keys.by_key, *keys.by_node.values())}
    return tuple(
        Line("pin", tuple(known[name] for name in pin))
        for pin in sorted(pins)
        if known.keys() >= set(pin)
    )
