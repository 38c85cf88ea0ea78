"""Invariants of a Graph."""

from __future__ import annotations

from collections.abc import Iterator

from .faults import Fault, Invariant, duplicates
from .graph import Graph, Value


def _names(g: Graph) -> Iterator[Fault]:
    yield from duplicates([(v.name, v) for v in g.values()])


def _order(g: Graph) -> Iterator[Fault]:
    known = {v.name for v in g.inputs}
    for n in g.nodes:
        for v in n.values:
            if v.name not in known:
                yield Fault(n, f"{v.name} made before {n.name}", "it is not made yet, or never")
        known.update(v.name for v in n.outputs)


def _types(g: Graph) -> Iterator[Fault]:
    types = {v.name: v.type for v in g.values()}
    for n in g.nodes:
        for v in n.values:
            if types[v.name] is not v.type and types[v.name] != v.type:
                yield Fault(n, f"{v.name}: {types[v.name]!r}", repr(v.type))
    for v in g.values():
        if len(v.type.shape) != len(v.type.strides):
            yield Fault(v, f"{len(v.type.shape)} strides", str(len(v.type.strides)))


def _results(g: Graph) -> Iterator[Fault]:
    types = {v.name: v.type for v in g.values()}
    inputs = {v.name for v in g.inputs}
    wanted = [o for o in g.outputs if isinstance(o, Value)] + [v for _, v in g.mutations]
    for v in wanted:
        if types.get(v.name) != v.type:
            yield Fault(g.outputs, f"a value {v.name}: {v.type!r}", repr(types.get(v.name)))
    for target, _ in g.mutations:
        if target.name not in inputs:
            yield Fault(target, "an input as the target of a mutation", target.name)


def _attrs(g: Graph) -> Iterator[Fault]:
    for n in g.nodes:
        names = [k for k, _ in n.attrs]
        if names != sorted(set(names)):
            yield Fault(n, "attributes sorted by name, each once", ", ".join(names))


def _sizes(g: Graph) -> Iterator[Fault]:
    inputs = {v.name: v.type.rank for v in g.inputs}
    for size, source, dim in g.sizes:
        if isinstance(source, str) and source in inputs and dim >= inputs[source]:
            yield Fault(size, f"a dimension of {source} below {inputs[source]}", str(dim))


GRAPH: tuple[Invariant[Graph], ...] = (
    Invariant("names are unique", _names),
    Invariant("a value is made before it is used", _order),
    Invariant("a value has one type wherever it stands", _types),
    Invariant("outputs and mutations are values of the graph", _results),
    Invariant("attributes are sorted", _attrs),
    Invariant("sizes are told by a dimension that exists", _sizes),
)
