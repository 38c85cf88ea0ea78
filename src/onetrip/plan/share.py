"""How much of eager's traffic outside products generated kernels take over.

    bytes of a call = sum of what it reads from before it + sum of what it leaves behind, each once
    eligible        = calls without a contraction, convolution or attention
    generated       = eligible calls of which nothing runs in a library

A figure of the graph alone: fusing more or less moves other bytes, but takes over the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..cost.roofline import is_anchor
from .index import Atom, Index

OWN_DRAW = "seed"
"""Eager has no such call: its random kernels draw their own seeds."""


@dataclass(frozen=True)
class EagerBytes:
    """Bytes of eager's calls: all that are eligible, and those of them that are generated."""

    eligible: int
    generated: int


def eager_bytes(index: Index, size: Callable[[str], int]) -> EagerBytes:
    """The figures of one graph.

    Args:
        size: bytes of a value, by name.
    """
    eligible = generated = 0
    for atoms in calls(index):
        if any(is_anchor(a.node) for a in atoms if not a.generated):
            continue
        moved = _bytes(index, atoms, size)
        eligible += moved
        generated += moved if all(a.generated for a in atoms) else 0
    return EagerBytes(eligible, generated)


def calls(index: Index) -> Iterable[Sequence[Atom]]:
    """The atoms of each eager call; an atom that stems from none is one of its own."""
    found: dict[tuple[str, int], list[Atom]] = {}
    for a in index.atoms:
        if a.node.op != OWN_DRAW:
            call = a.node.call
            found.setdefault(("call", call) if call >= 0 else ("atom", a.number), []).append(a)
    return found.values()


def _bytes(index: Index, atoms: Sequence[Atom], size: Callable[[str], int]) -> int:
    numbers = {a.number for a in atoms}
    made = [v.name for a in atoms for v in a.node.outputs]
    read: dict[str, int] = {}
    for name in (v.name for a in atoms for v in a.node.values):
        base = index.base(name)
        if base not in made:
            read[base] = max(read.get(base, 0), size(name))
    left = (n for n in made if n in index.needed or not numbers.issuperset(_readers(index, n)))
    return sum(read.values()) + sum(map(size, left))


def _readers(index: Index, name: str) -> tuple[int, ...]:
    return index.readers.get(name, ())
