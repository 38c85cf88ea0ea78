"""Runs a Graph: every node through the reference of its entry in the operator table.

Operands of bf16 and f16 are given to a reference in float32, the operation precision, and what
comes back is rounded once to the dtype of the node's output.
Must not know: nests, kernels, how an operator is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.dtype import BY_TORCH_NAME, DType
from ..base.host import Computed, evaluated
from ..base.sym import Sym, evaluate
from ..ir.graph import Graph, Node, Operand, Value
from ..ir.types import concrete
from ..ops.table import OPS
from .arrays import Array, InterpreterError, carrier, convert


def run_graph(
    graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> dict[str, Array]:
    """The value of every input, node output and result of a graph, by name.

    Args:
        graph: verified; without externs.
        inputs: an array for each graph input, in the shape of its type; bf16 carried in float32.
        sizes: symbolic sizes; those that an input's shape tells may be left out.

    Raises:
        InterpreterError: an input is missing or has another dtype or shape, a node is an extern,
            or a reference gives another shape than the node's type.
    """
    known = _sizes(graph, inputs) | dict(sizes or {})
    values: dict[str, Array] = {}
    for v in graph.inputs:
        if v.name not in inputs:
            raise InterpreterError(f"the graph input {v.name} is missing", expected=repr(v.type))
        values[v.name] = _checked(v, np.asarray(inputs[v.name]), known, "graph input")
    for node in graph.nodes:
        values.update(_run(node, values, known))
    return values


def outputs(
    graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> tuple[Array | int | float | bool | None, ...]:
    """What the graph returns for `inputs`; see `run_graph`."""
    known = _sizes(graph, inputs) | dict(sizes or {})
    values = run_graph(graph, inputs, known)
    return tuple(None if o is None else _operand(o, values, known)[0] for o in graph.outputs)


def _sizes(graph: Graph, inputs: Mapping[str, Array]) -> dict[Sym, int]:
    found: dict[Sym, int] = {}
    for size, name, dim in graph.sizes:
        if isinstance(name, Computed):
            found[size] = evaluated(name, lambda d: int(evaluate(d, found.__getitem__)))
        elif name in inputs:
            given = np.asarray(inputs[name])
            found[size] = int(given) if dim < 0 else given.shape[dim]
    return found


def _run(node: Node, values: Mapping[str, Array], sizes: Mapping[Sym, int]) -> dict[str, Array]:
    if node.op == "extern" or node.op not in OPS:
        raise InterpreterError(
            f"{node.name} = {node.op} has no reference",
            expected="an operator of the table",
            found=str(node.attr.get("target", node.op)),
            where=str(node.origin),
        )
    operands = [_operand(x, values, sizes) for x in node.inputs]
    attrs = {name: _concrete(value, sizes) for name, value in node.attrs}
    with np.errstate(all="ignore"):
        made = OPS[node.op].reference(*(_wide(x, d) for x, d in operands), attrs)
    parts = made if isinstance(made, tuple) else (made,)
    return {
        v.name: _checked(v, _rounded(np.asarray(part), v.type.dtype), sizes, node.op)
        for v, part in zip(node.outputs, parts, strict=True)
    }


def _operand(
    x: Operand, values: Mapping[str, Array], sizes: Mapping[Sym, int]
) -> tuple[Any, DType | None]:
    if isinstance(x, Value):
        return values[x.name], x.type.dtype
    return _concrete(x.value, sizes), None


def _concrete(value: Any, sizes: Mapping[Sym, int]) -> Any:
    """An attribute with its symbolic sizes replaced by numbers."""
    if isinstance(value, Sym):
        return int(evaluate(value, lambda atom: sizes[atom]))
    if isinstance(value, tuple):
        return tuple(_concrete(v, sizes) for v in value)
    return value


def _wide(x: Any, dtype: DType | None) -> Any:
    return x if dtype is None else convert(x, dtype, dtype.compute)


def _rounded(made: Array, target: DType) -> Array:
    return convert(made, BY_TORCH_NAME[made.dtype.name], target)


def _checked(v: Value, found: Array, sizes: Mapping[Sym, int], where: str) -> Array:
    shape = tuple(concrete(d, dict(sizes)) for d in v.type.shape)
    wanted: tuple[Any, ...] = (carrier(v.type.dtype), shape)
    if (found.dtype, found.shape) != wanted:
        raise InterpreterError(
            f"{v.name} has the wrong type",
            expected=f"{v.type!r}: {wanted[0]} {wanted[1]}",
            found=f"{found.dtype} {found.shape}",
            where=where,
        )
    return found
