"""A finished pool becomes a GraphPlan: order, names, nests, reasons of boundaries, memory, totals.

Must not change which groups there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..base.text import identifier
from ..cost.roofline import is_anchor
from ..cost.sizes import Hints
from ..target import Target
from .constraints import Refusal
from .decision import Evidence, decide
from .evaluate import Evaluator, Priced
from .in_place import written_in_place
from .index import Index
from .legality import Legality
from .lifetime import Targets, live_ranges
from .memory import MemoryPlan, plan_memory
from .order import near_graph_order
from .plan import Boundary, GraphPlan, Group, Together
from .pool import Part, Pool, topological
from .reasons import reason
from .recompute import Recomputed, recomputed
from .together import alive_throughout, together
from .totals import Bound, totals

MOST_WORDS = 4
"""Operators named in the name of a group."""


def assemble(
    pool: Pool,
    evaluator: Evaluator,
    legality: Legality,
    search: str,
    refusals: tuple[Refusal, ...],
    bound: Bound | None = None,
) -> GraphPlan:
    """The plan of a finished pool.

    Args:
        bound: what the search proved; None: the floor of the whole graph.
    """
    index = pool.index
    parts = execution_order(pool)
    groups = tuple(group_of(pool, evaluator, part, k) for k, part in enumerate(parts))
    names = {p.key: g.name for p, g in zip(parts, groups, strict=True)}
    costs = {p.key: g for p, g in zip(parts, groups, strict=True)}
    stored = _boundaries(pool, legality, search, parts, costs)
    targets = written_in_place(index, groups)
    atoms = {g.name: p.atoms for g, p in zip(groups, parts, strict=True)}

    def apart(some: Sequence[Group]) -> bool:
        return search == "eager" or legality.is_cut([a for g in some for a in atoms[g.name]])

    memory, shared = launched(index, groups, targets, evaluator.target, evaluator.hints, apart)
    sums = totals(index, evaluator, groups, search, bound, shared)
    sums = replace(sums, peak_bytes=memory.peak_bytes)
    return GraphPlan(
        index.graph,
        evaluator.target.name,
        search,
        groups,
        (*stored, *_recomputed(evaluator, recomputed(pool, evaluator), names)),
        tuple(index.views.values()),
        memory,
        sums,
        refusals,
        together=shared,
    )


def launched(
    index: Index,
    groups: Sequence[Group],
    targets: Targets,
    target: Target,
    hints: Hints,
    apart: Callable[[Sequence[Group]], bool],
) -> tuple[MemoryPlan, tuple[Together, ...]]:
    """Where every value lies, and which groups are launched as one if that needs no more memory.

    Args:
        targets: the values that lie in an input's memory, and in which.
        apart: whether some groups are to be kernels of their own.
    """
    ranges = live_ranges(index, groups, targets)
    memory = plan_memory(ranges, hints)
    shared = together(index, groups, ranges, targets, target, apart)
    if not shared:
        return memory, ()
    longer = plan_memory(alive_throughout(ranges, groups, shared), hints)
    return (memory, ()) if longer.peak_bytes > memory.peak_bytes else (longer, shared)


def execution_order(pool: Pool) -> list[Part]:
    """Groups with every group after those whose values it reads, near the graph's own order."""
    sources = {p.key: set(pool.waits_for(p)) for p in pool.parts.values()}
    if len(topological(sources)) < len(sources):  # the user pinned what computes a value again
        sources = {p.key: {s.key for s in pool.sources_of(p)} for p in pool.parts.values()}
    order = near_graph_order({key: p.atoms for key, p in pool.parts.items()}, sources)
    assert len(order) == len(pool.parts), "the groups of a plan depend on each other in a circle"
    return [pool.parts[key] for key in order]


# ------------------------------------------------------------------ groups


def group_of(pool: Pool, evaluator: Evaluator, part: Part, number: int) -> Group:
    """A group of a pool with its price, nest and name."""
    index = pool.index
    stored = pool.stores(part)
    priced = evaluator.price(part.atoms, stored)
    assert isinstance(priced, Priced), f"a group of the plan has no nest: {priced}"
    node = index.atoms[part.atoms[0]].node
    library = not index.atoms[part.atoms[0]].generated
    form, values = (None, ()) if library else evaluator.form(part.atoms, stored)
    needs = priced.need
    return Group(
        f"g{number}_{_words(index, part.atoms)}",
        priced.kind,
        (node.name,) if library else index.members(part.atoms),
        node if library else None,
        form,
        values,
        stored if form is not None else tuple(v.name for v in node.outputs),
        None if needs is None else needs.registers,
        None if needs is None else needs.spill_bytes,
        None if needs is None else needs.shared_bytes,
        None if needs is None else needs.occupancy,
        "library" if needs is None else needs.source,
        library and is_anchor(node),
        priced.cost,
    )


def _words(index: Index, atoms: Sequence[int]) -> str:
    """Names of the eager calls in a group, each once: `add_gelu_layer_norm`."""
    words = dict.fromkeys(_word(index, k) for k in atoms)
    shown = list(words)[:MOST_WORDS]
    more = [f"{len(words) - len(shown)}_more"] if len(words) > len(shown) else []
    return identifier("_".join([*shown, *more]))


def _word(index: Index, atom: int) -> str:
    node = index.atoms[atom].node
    text = node.origin.call or str(node.attr.get("target", node.op))
    parts = text.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "onetrip", "prims") else parts[-1]


# ------------------------------------------------------------------ boundaries


def _boundaries(
    pool: Pool,
    legality: Legality,
    search: str,
    parts: Sequence[Part],
    groups: Mapping[int, Group],
) -> list[Boundary]:
    found: list[Boundary] = []
    for part in parts:
        passing: dict[int, list[str]] = {}
        for name in pool.reads(part):
            maker = pool.index.maker.get(name)
            if maker is not None:
                passing.setdefault(pool.owner[maker], []).append(name)
        for key, values in sorted(passing.items()):
            source = pool.parts[key]
            both = (groups[key].estimated_us, groups[part.key].estimated_us)
            decision = reason(legality, search, (source, part), sum(both))
            size = sum(legality.evaluator.value_bytes(n) for n in values)
            found.append(
                Boundary(
                    groups[key].name,
                    groups[part.key].name,
                    tuple(values),
                    size,
                    "stored",
                    decision,
                )
            )
    return found


def _recomputed(
    evaluator: Evaluator, choices: Sequence[Recomputed], names: Mapping[int, str]
) -> list[Boundary]:
    found: list[Boundary] = []
    for choice in choices:
        size = sum(evaluator.value_bytes(n) for n in choice.values)
        for home in choice.homes:
            decision = decide(
                "recompute",
                Evidence(
                    "time with the value computed again instead of stored",
                    choice.together_us,
                    "us",
                    choice.apart_us,
                ),
                value=choice.name,
                readers=len(choice.homes),
                fused=choice.together_us,
                apart=choice.apart_us,
                producer=choice.name,
                consumer=names[home],
            )
            found.append(
                Boundary(choice.name, names[home], choice.values, size, "recomputed", decision)
            )
    return found
