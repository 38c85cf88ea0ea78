"""Small groups that need none of each other become one launch, side by side in its grid.

    apart       sum of (launch + work)
    together    launch + max(longest work, sum of work x share of the chip that it keeps busy)

Groups next to each other in the order of execution are asked, and only those whose launch is a good
part of their time: a large kernel would gain nothing and share its registers with all. Memory of a
launch is alive throughout it. Must not know how a launch is spelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.sym import Size, Sym, atoms
from ..cost.roofline import Cost
from ..ir.nest import Nest
from ..target import Target
from .index import Index
from .lifetime import Targets, reads_of
from .memory import Range
from .plan import Group, Together

SMALL = 8.0
"""Times its launch that a group may work to be worth a place beside others."""
MOST_BUFFERS = 240
"""Addresses of one launch: a GPU gives its parameters 4 KiB."""
MOST_KINDS = 16
"""Unlike groups of one launch: each is a function of its own to be compiled."""
WORTH = 0.01
"""Least part of a graph's time that shared launches save: else each group stays a kernel by itself,
which the search has a bound for."""


@dataclass(frozen=True)
class _Member:
    """A group with the memory that it touches, by the name of what lies there first."""

    group: Group
    reads: frozenset[str]
    writes: frozenset[str]
    buffers: int

    def meets(self, other: _Member) -> bool:
        """Whether one writes what the other touches."""
        return bool(
            self.writes & (other.reads | other.writes) or other.writes & (self.reads | self.writes)
        )


def together(
    index: Index,
    groups: Sequence[Group],
    ranges: Sequence[Range],
    targets: Targets,
    target: Target,
    apart: Callable[[Sequence[Group]], bool],
) -> tuple[Together, ...]:
    """The launches that several groups share, in order.

    Args:
        ranges: of the stored values, by what they say whose memory a value takes over.
        targets: the values that lie in an input's memory, and in which.
        apart: whether the user wants two of some groups in kernels of their own.
    """
    if target.device != "cuda":
        return ()
    memory = {r.name: r.reuses for r in ranges if r.reuses is not None} | dict(targets)
    runs: list[list[_Member]] = []
    for group in groups:
        member = _member(index, group, memory, target)
        if member is None:
            runs.append([])
            continue
        last = runs[-1] if runs else []
        if last and _may_join(last, member, apart):
            last.append(member)
        else:
            runs.append([member])
    found = tuple(_saved(run, target) for run in runs if len(run) > 1)
    saved, whole = sum(one.saved_us for one in found), sum(g.cost.us for g in groups)
    return found if saved >= WORTH * whole else ()


def _member(
    index: Index, group: Group, memory: Mapping[str, str], target: Target
) -> _Member | None:
    nest = group.form
    if nest is None or not is_small(group.cost, target) or not _fixed(nest):
        return None

    def place(name: str) -> str:
        while name in memory:
            name = memory[name]
        return name

    reads = frozenset(place(n) for n in reads_of(index, group))
    writes = frozenset(place(n) for n in group.stored)
    return _Member(group, reads, writes, len(nest.buffers))


def is_small(cost: Cost, target: Target) -> bool:
    """Whether the launch of a generated kernel is a good part of its time."""
    return cost.us - cost.launch_us <= SMALL * target.replay_us


def may_pay(costs: Sequence[Cost | None], reads: Callable[[int], bool], target: Target) -> bool:
    """Whether kernels in their order could save enough by sharing launches; costs little to ask.

    Args:
        costs: None: a library call.
        reads: whether a kernel, by its place, reads what the one before it stores.
    """
    if target.device != "cuda":
        return False
    small = [c is not None and is_small(c, target) for c in costs]
    beside: set[int] = set()
    for k in range(1, len(costs)):
        if small[k - 1] and small[k] and not reads(k):
            beside |= {k - 1, k}
    known = [c.us if c is not None else 0.0 for c in costs]
    return bool(beside) and sum(known[k] for k in beside) >= WORTH * sum(known)


def _fixed(nest: Nest) -> bool:
    """Whether no extent is a symbol."""
    extents = [a.extent for a in nest.space]
    extents += [d for b in nest.buffers for d in b.type.shape]
    symbols: list[Sym] = [s for d in extents for s in atoms(d)]
    return not any(isinstance(s, Size) for s in symbols)


def _may_join(
    run: Sequence[_Member], member: _Member, apart: Callable[[Sequence[Group]], bool]
) -> bool:
    groups = [m.group for m in (*run, member)]
    return (
        sum(m.buffers for m in run) + member.buffers <= MOST_BUFFERS
        and len({(g.flops, g.bytes, g.registers) for g in groups}) <= MOST_KINDS
        and not any(m.meets(member) for m in run)
        and not apart(groups)
    )


def _saved(run: Sequence[_Member], target: Target) -> Together:
    costs = [m.group.cost for m in run]
    works = [c.us - c.launch_us for c in costs]
    busy = sum(w * _share(c, target) for w, c in zip(works, costs, strict=True))
    as_one = max(c.launch_us for c in costs) + max(*works, busy)
    names = tuple(m.group.name for m in run)
    return Together(names, sum(c.us for c in costs) - as_one)


def _share(cost: Cost, target: Target) -> float:
    """The share of the chip's bandwidth that a group by itself makes use of."""
    whole = 1e6 * cost.bytes / target.copy_bandwidth
    return min(1.0, whole / cost.memory_us) if cost.memory_us else 0.0


def alive_throughout(
    ranges: Sequence[Range], groups: Sequence[Group], shared: Sequence[Together]
) -> tuple[Range, ...]:
    """The ranges in which no value begins or ends within a launch."""
    step = {g.name: k for k, g in enumerate(groups)}
    first, last = list(range(len(groups) + 1)), list(range(len(groups) + 1))
    for one in shared:
        steps = [step[name] for name in one.groups]
        for k in steps:
            first[k], last[k] = min(steps), max(steps)
    return tuple(replace(r, first=first[r.first], last=last[r.last]) for r in ranges)
