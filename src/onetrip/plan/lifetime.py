"""From when to when each stored value of a plan is alive, and which may take over another's memory.

Step k is group k. A value is alive from the group that stores it to the last that reads it, through
views as well; what the graph returns or writes back stays until the end. An extern may return a
view of an operand, since nothing is known of it: its operands stay as long as its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..cost.sizes import at_most
from ..ir.graph import Value
from ..ir.nest import Combine, Nest, Store
from ..ops.opaque import may_alias, out_variant
from .index import Index
from .memory import Range, Where
from .plan import Group

Targets = Mapping[str, str]
"""Values that are stored into the memory of an input, and which."""
NO_TARGETS: Targets = {}


def live_ranges(
    index: Index, groups: Sequence[Group], targets: Targets = NO_TARGETS
) -> tuple[Range, ...]:
    """Ranges of every stored value, in the order of their first step.

    Args:
        targets: the values that lie in an input's memory, and in which.
    """
    last = last_uses(index, groups)
    output_bases = output_memory(index, groups)
    ranges: list[Range] = []
    known: dict[str, Range] = {}
    for step, group in enumerate(groups):
        for name in group.stored:
            planned = group.call is None or out_variant(group.call) is not None
            where: Where = "arena" if planned else "library"
            where = "output" if planned and name in output_bases else where
            where = "input" if name in targets else where
            kind = index.values[name].type
            size = kind.storage_elements * kind.dtype.itemsize
            reuses = _reused(index, group, known, step) if where == "arena" else targets.get(name)
            made = Range(name, size, step, last.get(name, step), where, reuses)
            ranges.append(made)
            known[name] = made
    return tuple(ranges)


def output_memory(index: Index, groups: Sequence[Group]) -> frozenset[str]:
    """Base values that outlive the call: returned, or what a returned value may be a view of."""
    names = {index.base(v.name) for v in index.graph.outputs if isinstance(v, Value)}
    for group in reversed(groups):
        call = group.call
        if call is not None and may_alias(call) and names.intersection(group.stored):
            names.update(index.base(v.name) for v in call.values)
    return frozenset(names)


def reads_of(index: Index, group: Group) -> tuple[str, ...]:
    """Base values that a group reads from memory."""
    if group.call is not None:
        return tuple(dict.fromkeys(index.base(v.name) for v in group.call.values))
    assert group.form is not None
    return tuple(dict.fromkeys(index.base(group.here[e.buffer]) for e in group.form.loads))


def last_uses(index: Index, groups: Sequence[Group]) -> dict[str, int]:
    """The last step that needs each base value; what the graph needs in the end, after all."""
    last = dict.fromkeys(index.needed, len(groups))
    for step, group in enumerate(groups):
        for name in reads_of(index, group):
            last[name] = max(last.get(name, step), step)
    for group in reversed(groups):
        if group.call is not None and may_alias(group.call):
            until = max((last.get(n, 0) for n in group.stored), default=0)
            for name in reads_of(index, group):
                last[name] = max(last[name], until)
    return last


# ------------------------------------------------------------------ in place


def _reused(index: Index, group: Group, known: dict[str, Range], step: int) -> str | None:
    """A value that dies here and whose memory the result may take: same element, read first.

    With one store only: between two stores a schedule is free to load again.
    """
    for name in takes_over(index, group):
        source = known.get(name)
        if source is not None and source.where == "arena" and source.last == step:
            return name
    return None


def takes_over(index: Index, group: Group) -> tuple[str, ...]:
    """Values of the graph whose memory the one result of a group may take, if they die there."""
    form, here = group.form, group.here
    if form is None or len(form.stores) != 1 or form.reductions or form.scans:
        return ()
    (store,) = form.stores
    names = dict.fromkeys(e.buffer for e in form.loads if here[e.buffer] in index.maker)
    return tuple(here[n] for n in names if _same_element(form, store, n))


def _same_element(nest: Nest, store: Store, name: str) -> bool:
    old, new = nest.buffer(name).type, nest.buffer(store.buffer).type
    if old.dtype is not new.dtype or old.shape != new.shape or old.strides != new.strides:
        return False
    if store.combine is not Combine.SET or store.axes or store.guard is not None:
        return False
    loads = [e for e in nest.loads if e.buffer == name]
    whole = at_most(new.storage_elements, old.storage_elements)
    return whole and all(e.index == store.index and e.guard is None for e in loads)
