"""Numbers of a captured graph that are no tensors: dims where the IR can say them, else computed
on the host at each call. Knows fx nodes and torch's symbols, nothing of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from ..base.dtype import BY_TORCH_NAME
from ..base.errors import Unsupported
from ..base.host import HOST, Computed
from ..base.sym import Size, Sym, add, is_nonnegative, mul
from ..ir.types import TensorType
from .sizes import Sizes

NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_KINDS: Mapping[type, str] = {
    float: "float64",
    torch.SymFloat: "float64",
    bool: "bool",
    torch.SymBool: "bool",
}


def number_type(val: Any) -> TensorType:
    """The type of a tensor that holds a number; anything that is no number counts as an int."""
    return TensorType(BY_TORCH_NAME[_KINDS.get(type(val), "int64")], (), ())


def is_nested(val: Any) -> bool:
    """Whether a size stands for the ragged dimension of a nested tensor: it has no number."""
    if not isinstance(val, torch.SymInt):
        return False
    node = val.node
    return node.is_nested_int() or (node.has_hint() and isinstance(node.hint, torch.SymInt))


def computed(node: fx.Node, val: Any, sizes: Sizes, resolve: Callable[[Any], Any]) -> Any:
    """A constant, a Dim or a Computed of a node whose value is a number.

    Raises:
        Unsupported: the number is read from a tensor, or by a function that the host lacks.
    """
    if node.target is torch.ops.aten._local_scalar_dense.default:
        raise Unsupported(f"{node.name} reads a tensor's value on the host")
    if isinstance(val, bool | float):
        return val
    try:
        return sizes.dim(val)
    except Unsupported:
        name = str(getattr(node.target, "__name__", node.target))
        if name not in HOST:
            raise Unsupported(f"{node.name} computes a number by {name}") from None
        return Computed(name, tuple(map(resolve, node.args)))


def holds_computed(value: Any) -> bool:
    """Whether an argument is computed on the host, or contains what is."""
    if isinstance(value, tuple):
        return any(map(holds_computed, value))
    return isinstance(value, Computed)


_DIFFERENCES: Mapping[str, Callable[[Any, Any], Any]] = {
    "ge": lambda a, b: add(a, mul(b, -1)),
    "le": lambda a, b: add(b, mul(a, -1)),
    "gt": lambda a, b: add(add(a, mul(b, -1)), -1),
    "lt": lambda a, b: add(add(b, mul(a, -1)), -1),
}
"""Comparisons of dims, as what is not negative where they hold."""


def is_true(condition: Any) -> bool:
    """Whether a condition holds for every value of the sizes: no call need check it."""
    if isinstance(condition, bool):
        return condition
    if not isinstance(condition, Computed) or condition.function not in _DIFFERENCES:
        return False
    a, b = condition.arguments
    dims = all(isinstance(x, int | Sym) for x in (a, b))
    return dims and is_nonnegative(_DIFFERENCES[condition.function](a, b))


def check_sizes(
    node: fx.Node, types: Iterable[TensorType], sizes: Sizes, known: Collection[Size]
) -> None:
    """Raises Unsupported where a result has a size that depends on data: no input tells it."""
    for t in types:
        for dim in t.shape:
            unknown = sizes.untold(dim, known)
            if unknown is not None:
                raise Unsupported(f"{node.name} has a size {unknown!r} that depends on data")
