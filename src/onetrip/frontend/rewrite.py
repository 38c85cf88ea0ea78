"""Rewrites of Dynamo's graph, before anything is decomposed: attention, dropout and linear
recurrences become ours.

A rewrite may only replace a call by one with the same meaning. It must not know targets, plans
or kernels. What it leaves alone (no dropout in evaluation, tensor subclasses, vmap) decomposes as
torch decides, and the joint graph's random calls are replaced later, in `seeded`.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional

from . import attention_ops, torch_ops  # noqa: F401  (registers the operators)
from .fakes import plain
from .recurrence import rewrite_scan

Salts = Iterator[int]


# ---------------------------------------------------------------- what the rewritten calls mean


def _autocast(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """Casts that autocast makes before attention: floats but float64, on the region's device."""
    kind = next(t.device.type for t in tensors if t is not None)
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)

    def cast(t: Tensor | None) -> Tensor | None:
        if t is None or not t.is_floating_point() or t.dtype == torch.float64:
            return t
        return t.to(dtype) if t.device.type == kind else t

    return [cast(t) for t in tensors]


def _repeated(t: Tensor, query: Tensor) -> Tensor:
    return t.repeat_interleave(query.shape[-3] // t.shape[-3], -3)


def _attention_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    seed: Tensor,
) -> Tensor:
    """softmax(q k^T * scale + mask), dropped out, times v: the library's own definition.

    16-bit inputs are computed in float32, as the library's composite does.
    """
    dtype = query.dtype
    wide = torch_ops.operation_dtype(dtype)
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(query.shape[-1]))
    if enable_gqa:
        key, value = _repeated(key, query), _repeated(value, query)
    scores = (query.to(wide) * root) @ (key.to(wide) * root).transpose(-2, -1)
    if is_causal:
        length, source = scores.shape[-2:]
        allowed = torch.ones(length, source, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    # A row that is masked out whole is 0, not NaN; a causal mask leaves no such row.
    softmax = torch.softmax if attn_mask is None else torch.ops.aten._safe_softmax
    weights: Tensor = torch.ops.onetrip.dropout(softmax(scores, -1), dropout_p, seed)
    return (weights @ value.to(wide)).to(dtype)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    salt: int,
) -> Tensor:
    """``F.scaled_dot_product_attention`` in terms of our operators, autocast applied."""
    query, key, value, attn_mask = _autocast([query, key, value, attn_mask])  # type: ignore[assignment]
    if dropout_p == 0.0:
        inputs = (query, key, value, attn_mask, is_causal, scale, enable_gqa)
        wanted = [t is not None and t.requires_grad for t in inputs[:4]]
        whole: Tensor
        if torch.is_grad_enabled() and any(wanted):
            whole, _ = torch.ops.onetrip.attention_saving(*inputs, wanted[3])
        else:
            whole = torch.ops.onetrip.attention(*inputs)
        return whole
    seed = torch.ops.onetrip.seed(query.device, salt)
    return _attention_with_dropout(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, seed
    )


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, salt: int
) -> Tensor:
    """``F.dropout`` in terms of our operators."""
    if not training or p == 0.0:
        return input
    seed = torch.ops.onetrip.seed(input.device, salt)
    dropped: Tensor = torch.ops.onetrip.dropout(input, p, seed)
    if inplace:
        input.copy_(dropped)
        return input
    return dropped


def _torch_dropout(input: Tensor, p: float, train: bool, *, salt: int) -> Tensor:
    return dropout(input, p, train, salt=salt)


def _torch_dropout_inplace(input: Tensor, p: float, train: bool, *, salt: int) -> Tensor:
    return dropout(input, p, train, inplace=True, salt=salt)


_REWRITES: dict[Any, Callable[..., Tensor]] = {
    functional.scaled_dot_product_attention: attention,
    functional.dropout: dropout,
    torch.dropout: _torch_dropout,
    torch.dropout_: _torch_dropout_inplace,
}
_BY_NAME: dict[str, Callable[..., Tensor]] = {
    "scaled_dot_product_attention": attention,
    "dropout": dropout,
}
_COMPOSITES = frozenset({functional.multi_head_attention_forward})
"""Python functions that Dynamo keeps whole and that call what `_BY_NAME` replaces."""


# ---------------------------------------------------------------- where they apply


def _applies(arguments: tuple[Any, ...]) -> bool:
    """Whether every tensor is a plain one and the first a real floating-point one."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    return bool(tensors) and tensors[0].is_floating_point() and all(map(plain, tensors))


def _redirected(composite: types.FunctionType, first: int) -> Callable[..., Any]:
    """The composite with the names that it calls bound to ours; its salts count from ``first``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        salts = itertools.count(first)  # anew: tracing may run the call more than once

        def bound(original: Any, replacement: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def inner(*args: Any, **kwargs: Any) -> Tensor:
                if _applies((*args, *kwargs.values())):
                    return replacement(*args, **kwargs, salt=next(salts))
                untouched: Tensor = original(*args, **kwargs)
                return untouched

            return inner

        scope = dict(composite.__globals__)
        scope.update({n: bound(getattr(functional, n), r) for n, r in _BY_NAME.items()})
        private = types.FunctionType(composite.__code__, scope, argdefs=composite.__defaults__)
        scope[composite.__name__] = private  # it names itself to an overriding mode
        return private(*args, **kwargs)

    call.__name__ = f"onetrip_{composite.__name__}_{first}"
    return call


_SALTS_PER_COMPOSITE = 4


def _example(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, torch.fx.Node) else argument


def _rewrite_node(node: torch.fx.Node, salts: Salts) -> None:
    if node.target in _COMPOSITES and isinstance(node.target, types.FunctionType):
        first, *_ = itertools.islice(salts, _SALTS_PER_COMPOSITE)
        node.target = _redirected(node.target, first)
        return
    replacement = _REWRITES.get(node.target)
    if replacement is None:
        return
    arguments = (*node.args, *node.kwargs.values())
    if _applies(tuple(map(_example, arguments))):
        node.target = replacement
        node.kwargs = {**node.kwargs, "salt": next(salts)}


def _batched(graph: torch.fx.Graph) -> bool:
    """Whether a function transform (vmap, grad) is entered inside: our operators have no rule."""
    return any("_functorch" in str(getattr(n.target, "__module__", "")) for n in graph.nodes)


def rewrite_dynamo_graph(module: torch.fx.GraphModule) -> None:
    """Replaces calls that are operators of ours in Dynamo's graph and in graphs nested in it.

    Salts count up in the order of the graph, so the same program gets the same ones.
    """
    salts = itertools.count()
    for part in module.modules():
        if not isinstance(part, torch.fx.GraphModule) or _batched(part.graph):
            continue
        for node in part.graph.nodes:
            if node.op == "call_function":
                _rewrite_node(node, salts)
                rewrite_scan(part, node)
        part.recompile()
