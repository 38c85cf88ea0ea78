"""The peak of a draft: what `lifetime` and `memory` say of a plan, from facts kept for each group.

    facts of a group   what it reads and stores, and whose memory its result may take over
    peak               the most bytes alive, over the groups in their order

Facts change only with the group, so that a peak over thousands of groups takes milliseconds.
`tests/plan/test_draft.py` compares it with the memory plan of the same groups.
Must not know where buffers lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..base.sym import Dim
from ..ir.graph import Value
from ..ops.opaque import may_alias, out_variant
from .index import Index
from .lifetime import reads_of, takes_over
from .plan import Group


@dataclass(frozen=True)
class Alive:
    """What of a group matters to memory.

    Attributes:
        stored: base values that it writes.
        sizes: their bytes.
        reads: base values that it reads.
        planned: whether what it stores lies in the arena or an output, not with the library.
        aliases: whether its results may be views of its operands.
        may_reuse: values whose memory its one result may take over, if they die here.
    """

    stored: tuple[str, ...]
    sizes: tuple[int, ...]
    reads: tuple[str, ...]
    planned: bool
    aliases: bool
    may_reuse: tuple[str, ...]


def facts_of(index: Index, group: Group, size: Callable[[Dim], int]) -> Alive:
    """The facts of a group."""
    types = (index.values[name].type for name in group.stored)
    return Alive(
        group.stored,
        tuple(size(t.storage_elements * t.dtype.itemsize) for t in types),
        reads_of(index, group),
        group.call is None or out_variant(group.call) is not None,
        group.call is not None and may_alias(group.call),
        takes_over(index, group),
    )


def peak_of(index: Index, groups: Sequence[Alive]) -> int:
    """Most bytes alive at one step, those that share memory counted once."""
    last, outputs = _last(index, groups), _outputs(index, groups)
    change = [0] * (len(groups) + 2)
    block: dict[str, str] = {}
    end: dict[str, int] = {}
    size: dict[str, int] = {}
    for step, group in enumerate(groups):
        for name, count in zip(group.stored, group.sizes, strict=True):
            until = last.get(name, step)
            arena = group.planned and name not in outputs
            source = _dying(group, block, last, step) if arena else None
            if source is not None:
                block[name] = root = block[source]
                end[root] = max(end[root], until)
                continue
            if arena:
                block[name] = name
            change[step] += count
            end[name], size[name] = until, count
    for name, step in end.items():
        change[step + 1] -= size[name]
    return max(accumulate(change), default=0)


def _dying(group: Alive, block: dict[str, str], last: dict[str, int], step: int) -> str | None:
    for name in group.may_reuse:
        if last.get(name) == step and name in block:
            return name
    return None


def _last(index: Index, groups: Sequence[Alive]) -> dict[str, int]:
    """The last step that needs each value; their number for what is needed in the end."""
    last: dict[str, int] = {}
    for step, group in enumerate(groups):
        for name in group.reads:
            last[name] = step
    last.update(dict.fromkeys(index.needed, len(groups)))
    for group in reversed(groups):
        if group.aliases:
            until = max((last.get(n, 0) for n in group.stored), default=0)
            last.update({n: max(last[n], until) for n in group.reads})
    return last


def _outputs(index: Index, groups: Sequence[Alive]) -> set[str]:
    names = {index.base(v.name) for v in index.graph.outputs if isinstance(v, Value)}
    for group in reversed(groups):
        if group.aliases and names.intersection(group.stored):
            names.update(group.reads)
    return names
