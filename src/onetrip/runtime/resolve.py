"""IR names as the framework's objects: dims as functions of sizes, dtypes, operators, literals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..base.dtype import DType
from ..base.sym import Dim, Size, Sym, render
from ..frontend import attention_ops, library_ops
from ..ir.graph import Literal

Sizes = Any
"""A ctypes array of int64: the symbolic sizes of one call."""


def dim_function(dim: Dim, sizes: Sequence[Size]) -> Callable[[Sizes], int]:
    """`dim` as a function of the array of sizes."""
    if isinstance(dim, int):
        return lambda _: dim
    position = {size: k for k, size in enumerate(sizes)}

    def name(atom: Sym) -> str:
        assert isinstance(atom, Size)
        return f"s[{position[atom]}]"

    made: Callable[[Sizes], int] = eval(f"lambda s: {render(dim, name)}")
    return made


def torch_dtype(dtype: DType) -> torch.dtype:
    """The framework's dtype."""
    found: torch.dtype = getattr(torch, dtype.torch_name)
    return found


DIRECT: Mapping[str, Callable[..., Any]] = {
    **{
        f"aten.{name}.{overload}": getattr(torch, name)
        for name in ("mm", "addmm", "bmm", "baddbmm")
        for overload in ("default", "out")
    },
    **{
        f"onetrip.{name}.default": function
        for ours in (attention_ops, library_ops)
        for name, function in ours.IMPLEMENTATIONS.items()
    },
}
"""What is called for an operator instead of its entry in the dispatcher, which costs a call of a
product as much again as the product's own launch: torch's own bindings, and our Python functions.
"""


def resolve_target(target: str) -> Callable[..., Any]:
    """The function behind the operator named `namespace.name.overload`."""
    direct = DIRECT.get(target)
    if direct is not None:
        return direct
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    resolved: Callable[..., Any] = found
    return resolved


def _named(text: str) -> Any:
    return getattr(torch, text)


_LITERALS: Mapping[str, Callable[[str], Any]] = {"device": torch.device, "operator": resolve_target}


def _literal(x: Literal) -> Any:
    made = _LITERALS.get(x.kind, _named)
    return made(x.text)


def constant(x: Any) -> Any:
    """A constant argument of a library call as the framework spells it."""
    if isinstance(x, DType):
        return torch_dtype(x)
    return _literal(x) if isinstance(x, Literal) else x
