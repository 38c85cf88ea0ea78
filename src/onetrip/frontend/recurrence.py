"""Associative scans of a linear recurrence, found by the structure of their combination.

    combine((a, b), (c, d)) = (a * c, c * b + d)     h_t = a_t * h_(t-1) + b_t, and products of a

State-space models are written with torch's associative scan, an operator over programs that no
kernel of ours could hold. Where its program is this one, in any order of operands or components,
the scan becomes our operator; any other stays the library's. It must not know plans or kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional

from .fakes import plain

_PRODUCTS = (operator.mul, torch.mul, torch.ops.aten.mul.Tensor, "mul")
_SUMS = (operator.add, torch.add, torch.ops.aten.add.Tensor, "add")
_FLIPS = (torch.flip, torch.ops.aten.flip.default, "flip")
_SYMBOLS: dict[Any, str] = dict.fromkeys(_PRODUCTS, "*") | dict.fromkeys(_SUMS, "+")

Term = str | tuple[Any, ...]


# ---------------------------------------------------------------- what a scan becomes


def affine_scan(decay: Tensor, shift: Tensor, reverse: bool) -> Tensor:
    """The recurrence along dimension 0, in the dtype of ``shift``."""
    result: Tensor = torch.ops.onetrip.affine_scan(decay.to(shift.dtype), shift, 0, reverse)
    return result


def _running_product(decay: Tensor, reverse: bool) -> Tensor:
    """Products of ``decay`` as a recurrence: its gradient divides by no element."""
    rest = decay.shape[0] - 1
    first = decay.narrow(0, rest if reverse else 0, 1)
    apart = [rest, 0] if reverse else [0, rest]
    shift = functional.pad(first, [0, 0] * (decay.dim() - 1) + apart)
    return affine_scan(decay, shift, reverse)


def _scan(decay: Tensor, shift: Tensor, place: int, reverse: bool) -> list[Tensor]:
    """Both components of the scan; ``place`` is that of the products."""
    states = affine_scan(decay, shift, reverse)
    products = _running_product(decay, reverse)
    return [products, states] if place == 0 else [states, products]


# ---------------------------------------------------------------- where one stands


def _product(a: Term, b: Term) -> Term:
    return ("*", *sorted((a, b), key=repr))


def _sum(a: Term, b: Term) -> Term:
    return ("+", *sorted((a, b), key=repr))


_COMBINED: dict[str, Callable[[Term, Term], Term]] = {"*": _product, "+": _sum}


def _terms(combine: torch.fx.Graph) -> tuple[Term, ...]:
    """The outputs of a combination as sums and products of its inputs; empty: something else."""
    known: dict[torch.fx.Node, Term] = {}
    for number, node in enumerate(combine.find_nodes(op="placeholder")):
        known[node] = str(number)
    for node in combine.nodes:
        symbol = _SYMBOLS.get(node.target) if node.op in ("call_function", "call_method") else None
        if symbol is None or node.kwargs or len(node.args) != 2:
            continue
        if all(isinstance(x, torch.fx.Node) and x in known for x in node.args):
            known[node] = _COMBINED[symbol](*(known[x] for x in node.args))
    outputs = combine.output_node().args[0]
    flat = outputs if isinstance(outputs, Sequence) else (outputs,)
    found = [known.get(x) for x in flat if isinstance(x, torch.fx.Node)]
    return tuple(t for t in found if t is not None) if None not in found else ()


def _decay_place(combine: torch.fx.GraphModule) -> int | None:
    """Which of the two components is the product's; None where the combination is not affine."""
    terms = _terms(combine.graph)
    for place in (0, 1):
        a, b = str(place), str(1 - place)
        c, d = str(place + 2), str(3 - place)
        affine = {place: _product(a, c), 1 - place: _sum(_product(c, b), d)}
        if terms == (affine[0], affine[1]):
            return place
    return None


def _is_scan(node: torch.fx.Node) -> bool:
    scans = isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.op == "call_function" and scans and str(node.target) == "associative_scan"


def _operands(
    module: torch.fx.GraphModule, node: torch.fx.Node
) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]] | None:
    """(combination, scanned nodes) of a scan over two tensors along their first dimension.

    Whatever else the combination is given (sizes, where they are symbols) stands in one more list.
    """
    combine, scanned, *rest = (*node.args, *node.kwargs.values())
    if not isinstance(combine, torch.fx.Node) or not isinstance(scanned, Sequence):
        return None
    found = operator.attrgetter(str(combine.target))(module) if combine.op == "get_attr" else None
    nodes = [x for x in scanned if isinstance(x, torch.fx.Node)]
    lists = all(isinstance(x, Sequence) for x in rest)
    if not isinstance(found, torch.fx.GraphModule) or len(nodes) != 2 or not lists:
        return None
    return found, nodes


def _compiled(nodes: Sequence[torch.fx.Node]) -> bool:
    """Whether the scanned tensors are plain floating-point ones of one shape."""
    values = [n.meta.get("example_value") for n in nodes]
    tensors = [v for v in values if isinstance(v, Tensor) and plain(v) and v.is_floating_point()]
    return len(tensors) == len(nodes) and all(t.shape == tensors[0].shape for t in tensors)


def _turned(node: torch.fx.Node) -> torch.fx.Node | None:
    """What a node turns around along dimension 0, else None."""
    source = node.args[0] if node.args else None
    turns = node.op in ("call_function", "call_method") and node.target in _FLIPS
    if not turns or tuple(node.args[1:]) not in (([0],), ((0,),), (0,)):
        return None
    return source if isinstance(source, torch.fx.Node) else None


def _from_the_end(
    node: torch.fx.Node, scanned: Sequence[torch.fx.Node]
) -> tuple[list[torch.fx.Node], list[torch.fx.Node]] | None:
    """(what is turned around before, the nodes that turn the results) of a scan from the end."""
    sources = [s for s in map(_turned, scanned) if s is not None]
    results = [user for component in node.users for user in component.users]
    taken = all(c.target is operator.getitem for c in node.users)
    if not taken or len(sources) != len(scanned) or not all(map(_turned, results)):
        return None
    return sources, results


def rewrite_scan(module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Makes a call of ``associative_scan`` one of ours where it is a linear recurrence."""
    found = _operands(module, node) if _is_scan(node) else None
    if found is None or not _compiled(found[1]):
        return
    combine, scanned = found
    place = _decay_place(combine)
    if place is None:
        return
    backwards = _from_the_end(node, scanned)
    if backwards is not None:
        scanned, results = backwards
        for turn in results:
            turn.replace_all_uses_with(turn.args[0])  # type: ignore[arg-type]
            module.graph.erase_node(turn)
    node.target = _scan
    node.args = (scanned[place], scanned[1 - place], place, backwards is not None)
    node.kwargs = {}
