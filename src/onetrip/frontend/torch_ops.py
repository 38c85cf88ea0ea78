"""Our own operators in torch, namespace ``onetrip``: what capture keeps whole.

Each has a real eager implementation (what an extern call runs), a fake kernel and, where it is
differentiable, a gradient formula. Random ones take a seed, so that autograd saves 8 bytes and
never a mask; their stream is the one of `philox`. They must not know graphs or compilation.

| operator | meaning |
|---|---|
| ``seed(device, salt)`` | 0-d int64 from torch's default generator; ``salt`` tells calls apart |
| ``uniform(seed, size, dtype)`` | uniform numbers in [0, 1), contiguous |
| ``dropout(x, p, seed)`` | ``x * factor``, rounded once; its gradient is itself |
| ``attention(...)`` | ``F.scaled_dot_product_attention`` without dropout |
| ``attention_backward(...)`` | its gradients, recomputed through the library's attention |
| ``affine_scan(a, b, dim, reverse)`` | ``h_t = a_t h_(t-1) + b_t`` along ``dim``, ``h_0 = b_0`` |
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .philox import dropout_factor, uniform_numbers

_LIBRARY = torch.library.Library("onetrip", "DEF")
_PURE = (torch.Tag.pt2_compliant_tag,)
_DRAWS = (torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded)

_ATTENTION_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "bool is_causal, float? scale, bool enable_gqa"
)


def _define(
    schema: str,
    tags: Sequence[torch.Tag],
    eager: Callable[..., Any],
    fake: Callable[..., Any],
) -> None:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tuple(tags))
    _LIBRARY.impl(name, eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"onetrip::{name}", fake, lib=_LIBRARY)


# ---------------------------------------------------------------- random


def _seed(device: torch.device, salt: int) -> Tensor:
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=device)


def _seed_fake(device: torch.device, salt: int) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


def _uniform_fake(seed: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    return seed.new_empty(tuple(size), dtype=dtype)


def operation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype an elementwise operator computes in: float32 for the 16-bit floats."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    wide = operation_dtype(x.dtype)
    dropped = x.to(wide) * dropout_factor(seed, x.shape, p, wide)
    return torch.empty_like(x).copy_(dropped)


def _dropout_fake(x: Tensor, p: float, seed: Tensor) -> Tensor:
    return torch.empty_like(x)


def _dropout_context(ctx: Any, inputs: tuple[Tensor, float, Tensor], output: Tensor) -> None:
    _, ctx.p, seed = inputs
    ctx.save_for_backward(seed)


def _dropout_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (seed,) = ctx.saved_tensors
    return torch.ops.onetrip.dropout(gradient, ctx.p, seed), None, None


_define("seed(Device device, int salt) -> Tensor", _DRAWS, _seed, _seed_fake)
_define(
    "uniform(Tensor seed, SymInt[] size, ScalarType dtype) -> Tensor",
    _PURE,
    uniform_numbers,
    _uniform_fake,
)
_define("dropout(Tensor x, float p, Tensor seed) -> Tensor", _PURE, _dropout, _dropout_fake)
torch.library.register_autograd(
    "onetrip::dropout", _dropout_gradient, setup_context=_dropout_context, lib=_LIBRARY
)


# ---------------------------------------------------------------- attention


def _attention_shape(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[int, ...]:
    """(..., L, Ev): the leading axes broadcast; with grouped queries the heads are the query's."""
    inner = 3 if enable_gqa else 2
    heads = tuple(query.shape[-3:-2]) if enable_gqa else ()
    lead = torch.broadcast_shapes(*(t.shape[:-inner] for t in (query, key, value)))
    return (*lead, *heads, query.shape[-2], value.shape[-1])


def _attention_order(query: Tensor, value: Tensor, rank: int) -> tuple[int, ...]:
    """Axes of the result from outermost to innermost in memory: the query's order, as the
    library's fast kernels have it; a rule of our own for the others, because a plan must not
    depend on which kernel is chosen.

    Three axes and fewer are contiguous. So is a CPU's result where its width is another than the
    query's, or where the query's rows are scattered.
    """
    if rank != 4 or query.dim() != 4:
        return tuple(range(rank))
    alike = query.shape[-1] == value.shape[-1] and query.stride(-1) == 1
    if query.device.type == "cpu" and not alike:
        return tuple(range(rank))
    strides = query.stride()
    outer = sorted(range(3), key=lambda axis: -strides[axis])
    return (*outer, 3)


def _laid_out(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense tensor stored with its axes in ``order``, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def _restrided(result: Tensor, strides: Sequence[int]) -> Tensor:
    """``result`` with the given strides: itself where every axis longer than 1 has them."""
    axes = zip(result.shape, result.stride(), strides, strict=True)
    if all(extent <= 1 or have == want for extent, have, want in axes):
        return result
    return result.new_empty_strided(tuple(result.shape), tuple(strides)).copy_(result)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    result = functional.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    order = _attention_order(query, value, result.dim())
    return _restrided(result, _laid_out(result.shape, order))


def _attention_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    shape = _attention_shape(query, key, value, enable_gqa)
    strides = _laid_out(shape, _attention_order(query, value, len(shape)))
    return query.new_empty_strided(shape, strides)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Autograd switched on, also where a dispatch mode called us from beneath it."""
    hidden = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        hidden = hidden.remove(getattr(torch._C.DispatchKey, key))
    shown = torch._C._dispatch_tls_local_include_set()
    guard = torch._C._ForceDispatchKeyGuard(shown, hidden)
    with torch.inference_mode(False), guard, torch.enable_grad():
        yield


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_gradient: bool,
) -> list[Tensor]:
    with _recording():
        q, k, v = leaves = [t.detach().requires_grad_() for t in (query, key, value)]
        mask = None if attn_mask is None else attn_mask.detach().requires_grad_(mask_gradient)
        result = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            0.0,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    sources = [*leaves, mask] if mask_gradient and mask is not None else leaves
    gradients = torch.autograd.grad(result, sources, gradient)
    return [
        _restrided(g, _like(tuple(source.shape), source.stride()))
        for g, source in zip(gradients, sources, strict=True)
    ]


@functools.lru_cache(maxsize=1024)
def _like(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of what ``empty_like`` makes of a tensor of these."""
    source = torch.empty_strided(shape, strides, device="meta")
    return torch.empty_like(source).stride()


def _attention_backward_fake(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_gradient: bool,
) -> list[Tensor]:
    sources = [query, key, value]
    if mask_gradient and attn_mask is not None:
        sources.append(attn_mask)
    return [torch.empty_like(source) for source in sources]


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, attn_mask, *ctx.flags = inputs
    ctx.mask_gradient = attn_mask is not None and attn_mask.requires_grad
    ctx.save_for_backward(query, key, value, attn_mask)


def _attention_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.onetrip.attention_backward(
        gradient, *ctx.saved_tensors, *ctx.flags, ctx.mask_gradient
    )
    of_mask = gradients[3] if ctx.mask_gradient else None
    return (*gradients[:3], of_mask, None, None, None)


_define(f"attention({_ATTENTION_INPUTS}) -> Tensor", _PURE, _attention, _attention_fake)
_define(
    f"attention_backward(Tensor gradient, {_ATTENTION_INPUTS}, bool mask_gradient) -> Tensor[]",
    _PURE,
    _attention_backward,
    _attention_backward_fake,
)
torch.library.register_autograd(
    "onetrip::attention", _attention_gradient, setup_context=_attention_context, lib=_LIBRARY
)


# ---------------------------------------------------------------- linear recurrences


def _affine_scan(a: Tensor, b: Tensor, dim: int, reverse: bool) -> Tensor:
    """The recurrence step by step, its state in operation precision."""
    wide = operation_dtype(b.dtype)
    result = torch.empty_like(b, memory_format=torch.contiguous_format)
    steps = range(b.shape[dim])
    state: Tensor | None = None
    for t in reversed(steps) if reverse else steps:
        shift = b.select(dim, t).to(wide)
        state = shift if state is None else a.select(dim, t).to(wide) * state + shift
        result.select(dim, t).copy_(state)
    return result


def _affine_scan_fake(a: Tensor, b: Tensor, dim: int, reverse: bool) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


def _moved(x: Tensor, dim: int, by: int) -> Tensor:
    """``x`` moved along ``dim`` by one place to its end (1) or its start (-1), 0 moved in."""
    after = x.dim() - 1 - dim % x.dim()
    return functional.pad(x, [0, 0] * after + [by, -by])


def _affine_scan_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, _, ctx.dim, ctx.reverse = inputs
    ctx.save_for_backward(a, output)


def _affine_scan_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
    """G_t = g_t + a_(t+1) G_(t+1) is the gradient of b, and G_t h_(t-1) that of a."""
    a, states = ctx.saved_tensors
    onward = -1 if ctx.reverse else 1
    following = _moved(a, ctx.dim, -onward)
    of_b = torch.ops.onetrip.affine_scan(following, gradient, ctx.dim, not ctx.reverse)
    return of_b * _moved(states, ctx.dim, onward), of_b, None, None


_define(
    "affine_scan(Tensor a, Tensor b, int dim, bool reverse) -> Tensor",
    _PURE,
    _affine_scan,
    _affine_scan_fake,
)
torch.library.register_autograd(
    "onetrip::affine_scan",
    _affine_scan_gradient,
    setup_context=_affine_scan_context,
    lib=_LIBRARY,
)
