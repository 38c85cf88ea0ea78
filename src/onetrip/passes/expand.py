"""Composites -> primitives: every composite node becomes the nodes that it means.

    softmax(x)  ->  to, amax, sub, exp, sum, div, to        (origin and call are the node's)

The last nodes take over the composite's own output values, so users of it do not change. Nested
composites expand until only primitives, library calls and externs are left. A call that gives no
element reads nothing. Deterministic: names are `<first output>_e<number>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import count
from types import MappingProxyType

from ..base.dtype import COMPILED
from ..base.errors import VerifyError
from ..ir.graph import Graph, Node, Operand, Value, freeze
from ..ir.types import same_shape
from ..ops.build import Recorder
from ..ops.pooling import VALUES_ONLY
from ..ops.schema import Composite, Movement
from ..ops.table import OPS

Expansion = Callable[[Recorder, Node], "tuple[Value | None, ...] | None"]


def expand(graph: Graph, forms: Mapping[str, Expansion] = MappingProxyType({})) -> Graph:
    """The graph without composites; types and names of existing values stay.

    Args:
        forms: by operator, expansions that are tried before its own; None leaves the node.
    """
    taken = {v.name for v in graph.values()}
    wanted = graph.needed | graph.consumers.keys()
    made: list[Node] = []
    for node in graph.nodes:
        made.extend(_expanded(node, taken, wanted, forms))
    return graph.with_nodes(tuple(made))


def _expanded(
    node: Node, taken: set[str], wanted: Set[str], forms: Mapping[str, Expansion]
) -> Iterator[Node]:
    if _gives_nothing(node):
        yield from map(partial(_empty, node), node.outputs)
        return
    node = _without_extras(node, wanted)
    recorder = Recorder(_names(node.name, taken).__next__, node.origin, node.call)
    results = _results(recorder, node, forms)
    if results is None:
        yield node
        return
    results = _with_absent(node, recorder, results, wanted)
    for inner in _renamed(node, recorder, results):
        yield from _expanded(inner, taken, wanted, forms)


def _gives_nothing(node: Node) -> bool:
    """Whether no output has an element, all of them of types that kernels compute on."""
    types = [v.type for v in node.outputs]
    known = node.op in OPS and bool(types)
    return known and all(t.numel == 0 and t.dtype in COMPILED for t in types)


def _empty(node: Node, value: Value) -> Node:
    """What gives a value without elements: nothing is read, whatever the operator asks of sizes."""
    attrs = {"size": value.type.shape, "fill_value": 0, "dtype": value.type.dtype}
    return Node("full", (), (value,), freeze(attrs), node.origin, node.call)


def _results(
    recorder: Recorder, node: Node, forms: Mapping[str, Expansion]
) -> tuple[Value | None, ...] | None:
    """What a node's expansion gives, None where it has none."""
    form = forms.get(node.op)
    found = None if form is None else form(recorder, node)
    op = OPS.get(node.op)
    if found is None and op is not None and isinstance(op.body, Composite):
        return op.body.expand(recorder, node)
    return found


def _without_extras(node: Node, wanted: Set[str]) -> Node:
    """A call of which only the first output is read, as the operator that computes just that."""
    plain = VALUES_ONLY.get(node.op)
    read = any(v.name in wanted for v in node.outputs[1:])
    if plain is None or read:
        return node
    attrs = tuple((k, v) for k, v in node.attrs if k not in ("target", "args", "kwargs"))
    return replace(node, op=plain, outputs=node.outputs[:1], attrs=attrs)


def _with_absent(
    node: Node, recorder: Recorder, results: tuple[Value | None, ...], wanted: Set[str]
) -> tuple[Value | None, ...]:
    """An output that the call leaves empty is an empty tensor where something reads it."""
    return tuple(
        recorder("full", size=own.type.shape, fill_value=0, dtype=own.type.dtype)
        if result is None and own.name in wanted and own.type.numel == 0
        else result
        for own, result in zip(node.outputs, results, strict=True)
    )


def _names(stem: str, taken: set[str]) -> Iterator[str]:
    for number in count():
        name = f"{stem}_e{number}"
        if name not in taken:
            taken.add(name)
            yield name


def _renamed(node: Node, recorder: Recorder, results: tuple[Value | None, ...]) -> tuple[Node, ...]:
    """The new nodes, the results under the names and types of the node's own outputs."""
    if len(results) != len(node.outputs):
        raise _wrong(node, f"{len(node.outputs)} outputs", f"{len(results)}")
    produced = {v.name for n in recorder.nodes for v in n.outputs}
    final: dict[str, Value] = {}
    for own, result in zip(node.outputs, results, strict=True):
        if result is None:
            continue
        _check(node, own, result)
        known = result.name in produced and result.name not in final
        if not known or _lies_otherwise(own, result, recorder):
            result = recorder("clone", result)
        final[result.name] = own
    return tuple(_with_values(n, final) for n in recorder.nodes)


def _lies_otherwise(own: Value, result: Value, recorder: Recorder) -> bool:
    """Whether a result is a view with other strides than the node's own output has."""
    node = next(n for n in recorder.nodes if result in n.outputs)
    op = OPS.get(node.op)
    if op is None or not isinstance(op.body, Movement) or op.body.view is None:
        return False
    view = op.body.view(node) if node.values else None
    return view is not None and view[0] != own.type.strides


def _check(node: Node, own: Value, result: Value) -> None:
    if result.type.dtype is not own.type.dtype or not same_shape(result.type.shape, own.type.shape):
        raise _wrong(node, str(own.type), str(result.type))


def _wrong(node: Node, expected: str, found: str) -> VerifyError:
    return VerifyError(
        f"the expansion of {node.op} does not give what the node has",
        expected=expected,
        found=found,
        where=str(node.origin),
        next_step=f"correct the entry of {node.op} in ops/",
    )


def _with_values(node: Node, final: dict[str, Value]) -> Node:
    def new(x: Operand) -> Operand:
        return final.get(x.name, x) if isinstance(x, Value) else x

    inputs = tuple(map(new, node.inputs))
    outputs = tuple(final.get(v.name, v) for v in node.outputs)
    return Node(node.op, inputs, outputs, node.attrs, node.origin, node.call)
