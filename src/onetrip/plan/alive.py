"""The peak of a draft: what `lifetime` and `memory` say of a plan, from facts kept for each group.

    facts of a group   what it reads and stores, and whose memory its result may take over
    peak               the most bytes alive, over the groups in their order

Facts change only with the group, so that a peak over thousands of groups takes milliseconds.
`tests/plan/test_draft.py` compares it with the memory plan of the same groups.
Must not know where buffers lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..base.sym import Dim
from ..ir.graph import Value
from ..ops.opaque import may_alias, out_variant
from .index import Index
from .lifetime import reads_of, takes_over
from .plan import Group


class Alive(NamedTuple):
    """What of a group matters to memory.

    Attributes:
        stored: base values that it writes, with their bytes.
        reads: base values of the graph that it reads; inputs and parameters take no memory here.
        planned: whether what it stores lies in the arena or an output, not with the library.
        aliases: whether its results may be views of its operands.
        may_reuse: values whose memory its one result may take over, if they die here.
    """

    stored: dict[str, int]
    reads: tuple[str, ...]
    planned: bool
    aliases: bool
    may_reuse: tuple[str, ...]


def facts_of(index: Index, group: Group, size: Callable[[Dim], int]) -> Alive:
    """The facts of a group."""
    types = {name: index.values[name].type for name in group.stored}
    return Alive(
        {n: size(t.storage_elements * t.dtype.itemsize) for n, t in types.items()},
        tuple(name for name in reads_of(index, group) if name in index.maker),
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
    for step, (stored, _, planned, _, may_reuse) in enumerate(groups):
        for name, count in stored.items():
            until = last.get(name, step)
            if planned and name not in outputs:
                dying = (n for n in may_reuse if last.get(n) == step and n in block)
                source = next(dying, None) if may_reuse else None
                block[name] = root = name if source is None else block[source]
                if source is not None:
                    end[root] = max(end[root], until)
                    continue
            change[step] += count
            end[name], size[name] = until, count
    for name, step in end.items():
        change[step + 1] -= size[name]
    return max(accumulate(change), default=0)


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
