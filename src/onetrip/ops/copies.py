"""Views as copies: `permute_copy(x)` is a clone of `permute(x)`, and so for every view.

Derived from the entries of the views: their forms, type rules, references and samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..ir.graph import Node, Value
from . import movement, statistics
from .composite import Outputs, composite, tensor
from .rows import form, sample
from .rules import normal_dim
from .schema import Builder, Form, Op

_VIEWS = {op.name: op for op in movement.OPS}
_SEVERAL = {op.name: op for op in statistics.OPS}
_NAMES = (
    "view", "squeeze", "unsqueeze", "permute", "expand", "slice", "select", "alias", "as_strided",
)  # fmt: skip
_WITHOUT_COPY = frozenset({
    "aten._unsafe_view.default", "aten.reshape.default", "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default", "aten.lift.default",
})  # fmt: skip


def _copied(f: Form) -> Form:
    """The overload that copies what another one views."""
    namespace, name, overload = f.target.split(".")
    return replace(f, target=f"{namespace}.{name}_copy.{overload}")


def _clone_of(view: str) -> Callable[[Builder, Node], Outputs]:
    return lambda build, node: (build("clone", build(view, *node.inputs, **node.attr)),)


def _copy(view: Op) -> Op:
    forms = tuple(_copied(f) for f in view.forms if f.target not in _WITHOUT_COPY)
    return composite(
        f"{view.name}_copy", forms, view.types, _clone_of(view.name), view.reference, view.samples
    )


def _piece(build: Builder, x: Value, dim: int, start: Any, size: Any) -> Value:
    return build("clone", build("slice", x, dim=dim, start=start, end=start + size, step=1))


def _pieces(build: Builder, node: Node) -> Outputs:
    x, start = tensor(node, 0), 0
    dim = normal_dim(node.attr.get("dim", 0), x.type.rank)
    found: list[Value] = []
    for out in node.outputs:
        size: Any = out.type.shape[dim]
        found.append(_piece(build, x, dim, start, size))
        start += size
    return tuple(found)


def _unbound(build: Builder, node: Node) -> Outputs:
    x = tensor(node, 0)
    dim = normal_dim(node.attr.get("dim", 0), x.type.rank)
    selected = (build("select", x, dim=dim, index=k) for k in range(len(node.outputs)))
    return tuple(build("clone", v) for v in selected)


X = ("f32", (2, 7))
OPS: tuple[Op, ...] = (
    *(_copy(_VIEWS[name]) for name in _NAMES),
    composite("split_copy", (form("split_copy.Tensor", ("self",), ("split_size", "dim")),
                             form("split_with_sizes_copy.default", ("self",),
                                  ("split_sizes", "dim"))),
              _SEVERAL["split"].types, _pieces, _SEVERAL["split"].reference,
              (sample(X, split_size=3, dim=1), sample(X, split_sizes=(1, 4, 2), dim=-1))),
    composite("unbind_copy", (form("unbind_copy.int", ("self",), ("dim",)),),
              _SEVERAL["unbind"].types, _unbound, _SEVERAL["unbind"].reference,
              (sample(X), sample(X, dim=-1))),
)  # fmt: skip
