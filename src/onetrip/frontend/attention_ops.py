"""Attention as an operator of ours: the library's, with what its gradient needs carried along.

| operator | meaning |
|---|---|
| ``attention(...)`` | ``F.scaled_dot_product_attention`` without dropout |
| ``attention_saving(...)`` | the same, and a token: what training runs |
| ``attention_backward(gradient, ..., token)`` | the gradients of query, key, value and mask |

Which kernel the library takes, and what that one saves, is its own affair and differs by device and
shape. So the token is an empty tensor that holds, as an attribute, the result with the library's
autograd graph behind it. Where the attribute is gone (saved tensors were moved or stored), or where
it was made of other memory than the backward's own operands, the forward is run again. So it is,
in f32, on a CPU whose library has but plain loops for gradients of 16 bits: nothing is kept then.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from ..ops.attention_layout import RANK, dense_strides, result_order
from .library_ops import has_instructions
from .torch_ops import LIBRARY, PURE, define

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "bool is_causal, float? scale, bool enable_gqa"
)


def _attention_shape(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[int, ...]:
    """(..., L, Ev): the leading axes broadcast; with grouped queries the heads are the query's."""
    inner = 3 if enable_gqa else 2
    heads = tuple(query.shape[-3:-2]) if enable_gqa else ()
    lead = torch.broadcast_shapes(*(t.shape[:-inner] for t in (query, key, value)))
    return (*lead, *heads, query.shape[-2], value.shape[-1])


def _result_strides(query: Tensor, value: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a result; three axes and fewer are contiguous."""
    if len(shape) != RANK or query.dim() != RANK:
        return dense_strides(shape, range(len(shape)))
    alike = query.shape[-1] == value.shape[-1] and query.stride(-1) == 1
    on_cpu = query.device.type == "cpu"
    order = result_order(query.stride(), alike, on_cpu, operator.ge)
    return dense_strides(shape, order)


def _restrided(result: Tensor, strides: Sequence[int]) -> Tensor:
    """``result`` with the given strides: itself where every axis longer than 1 has them.

    Along an axis of stride 0 all elements are equal: gradients of attention to no keys are a zero
    that the library spreads.
    """
    axes = list(zip(result.shape, result.stride(), strides, strict=True))
    if all(extent <= 1 or have == want for extent, have, want in axes):
        return result
    first = result[tuple(slice(1) if want == 0 else slice(None) for *_, want in axes)]
    laid = first.new_empty_strided(tuple(first.shape), tuple(strides)).copy_(first)
    return laid.expand(result.shape)


# ---------------------------------------------------------------- forward


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
    return _in_order(result, query, value)


def _in_order(result: Tensor, query: Tensor, value: Tensor) -> Tensor:
    return _restrided(result, _result_strides(query, value, result.shape))


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
    strides = _result_strides(query, value, shape)
    return query.new_empty_strided(shape, strides)


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A result of the library with its autograd graph, and the leaves it was computed from."""

    result: Tensor
    leaves: tuple[Tensor, ...]
    """Query, key, value, and the mask where there is one."""

    def is_of(self, operands: Sequence[Tensor]) -> bool:
        """Whether these operands are the leaves' own memory: then the graph reads their values."""
        return len(operands) == len(self.leaves) and all(map(_same_memory, self.leaves, operands))


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
    )


def _recording() -> contextlib.AbstractContextManager[Any]:
    """Autograd switched on, also where a dispatch mode called us from beneath it."""
    hidden = torch._C._dispatch_tls_local_exclude_set()
    if torch.is_inference_mode_enabled() or hidden.has(torch._C.DispatchKey.AutogradFunctionality):
        return _uncovered(hidden)
    return torch.enable_grad()


@contextlib.contextmanager
def _uncovered(hidden: Any) -> Iterator[None]:
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        hidden = hidden.remove(getattr(torch._C.DispatchKey, key))
    shown = torch._C._dispatch_tls_local_include_set()
    guard = torch._C._ForceDispatchKeyGuard(shown, hidden)
    with torch.inference_mode(False), guard, torch.enable_grad():
        yield


def _record(operands: Sequence[Tensor], flags: Sequence[Any], of_mask: bool) -> _Recorded:
    is_causal, scale, enable_gqa = flags
    with _recording():
        leaves = tuple(t.detach().requires_grad_(k < 3 or of_mask) for k, t in enumerate(operands))
        q, k, v, *mask = leaves
        result = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            mask[0] if mask else None,
            0.0,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return _Recorded(result, leaves)


def _present(*operands: Tensor | None) -> list[Tensor]:
    return [t for t in operands if t is not None]


def _attention_saving(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_gradient: bool,
) -> tuple[Tensor, Tensor]:
    token = _token(query)
    if _is_looped(query):
        return _attention(query, key, value, attn_mask, is_causal, scale, enable_gqa), token
    operands = _present(query, key, value, attn_mask)
    recorded = _record(operands, (is_causal, scale, enable_gqa), mask_gradient)
    token.recorded = recorded  # type: ignore[attr-defined]
    return _in_order(recorded.result.detach(), query, value), token


def _is_looped(query: Tensor) -> bool:
    """Whether gradients of a dtype are computed by plain loops here: in f32 they take a quarter of
    the time, the forward again included."""
    narrow = query.dtype in (torch.bfloat16, torch.float16)
    return narrow and query.device.type == "cpu" and not has_instructions(query.dtype)


def _widened(t: Tensor) -> Tensor:
    return t.float() if t.is_floating_point() else t


def _token(query: Tensor) -> Tensor:
    return query.new_empty(0, dtype=torch.uint8)


def _attention_saving_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_gradient: bool,
) -> tuple[Tensor, Tensor]:
    result = _attention_fake(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return result, _token(query)


# ---------------------------------------------------------------- gradients


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
    token: Tensor | None,
) -> list[Tensor]:
    operands = _present(query, key, value, attn_mask)
    recorded: _Recorded | None = getattr(token, "recorded", None)
    if recorded is None or not recorded.is_of(operands):
        read = list(map(_widened, operands)) if _is_looped(query) else operands
        recorded = _record(read, (is_causal, scale, enable_gqa), mask_gradient)
    sources = recorded.leaves if mask_gradient else recorded.leaves[:3]
    given = gradient.to(recorded.result.dtype)
    gradients = torch.autograd.grad(recorded.result, sources, given, retain_graph=True)
    flags = (is_causal, scale, enable_gqa, mask_gradient)
    laid = _laid(gradient.device, tuple(map(_form, (gradient, *operands))), flags)
    rows = zip(gradients, laid, operands, strict=False)
    return [_restrided(g.to(t.dtype), strides) for g, strides, t in rows]


_Form = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


def _form(t: Tensor) -> _Form:
    return t.dtype, tuple(t.shape), t.stride()


@functools.lru_cache(maxsize=1024)
def _laid(
    device: torch.device, forms: tuple[_Form, ...], flags: tuple[Any, ...]
) -> list[tuple[int, ...]]:
    """Strides that a compilation was told of, for a gradient and operands of these forms."""
    *shown, mask_gradient = flags
    with FakeTensorMode(), _recording():
        gradient, *operands = (
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for dtype, shape, strides in forms
        )
        return [t.stride() for t in _gradients_like(gradient, operands, shown, mask_gradient)]


def _gradients_like(
    gradient: Tensor, operands: Sequence[Tensor], flags: Sequence[Any], of_mask: bool
) -> list[Tensor]:
    """Tensors without values that lie as the library's gradients do.

    On a CPU by its own steps on tensors without values: which kernel it takes, and how that one
    lays a gradient, is its own affair. A GPU's kernels lay theirs like the operands.
    """
    sources = operands if of_mask else operands[:3]
    if gradient.device.type != "cpu":
        return [torch.empty_like(t) for t in sources]
    recorded = _record(operands, flags, of_mask)
    leaves = recorded.leaves[: len(sources)]
    return list(torch.autograd.grad(recorded.result, leaves, gradient))


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
    token: Tensor | None,
) -> list[Tensor]:
    operands = _present(query, key, value, attn_mask)
    made = _gradients_like(gradient, operands, (is_causal, scale, enable_gqa), mask_gradient)
    return [t.detach() for t in made]


def _context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, attn_mask, *ctx.flags = inputs
    ctx.flags.append(attn_mask is not None and attn_mask.requires_grad)
    ctx.save_for_backward(query, key, value, attn_mask, None)


def _saving_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, attn_mask, *ctx.flags = inputs
    ctx.save_for_backward(query, key, value, attn_mask, output[1])


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *operands, token = ctx.saved_tensors
    gradients = torch.ops.onetrip.attention_backward(gradient, *operands, *ctx.flags, token)
    return (*gradients[:3], gradients[3] if ctx.flags[-1] else None, None, None, None)


def _saving_gradients(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
    return (*_gradients(ctx, gradient), None)


IMPLEMENTATIONS: Mapping[str, Callable[..., Any]] = {
    "attention": _attention,
    "attention_saving": _attention_saving,
    "attention_backward": _attention_backward,
}
"""What the operators run, for callers that need no dispatcher in between."""

_DECLARED = (
    (f"attention({_INPUTS}) -> Tensor", _attention_fake),
    (f"attention_saving({_INPUTS}, bool mask_gradient) -> (Tensor, Tensor)",
     _attention_saving_fake),
    (f"attention_backward(Tensor gradient, {_INPUTS}, bool mask_gradient, Tensor? token)"
     " -> Tensor[]", _attention_backward_fake),
)  # fmt: skip
for _schema, _fake in _DECLARED:
    define(_schema, PURE, IMPLEMENTATIONS[_schema.partition("(")[0]], _fake)
torch.library.register_autograd(
    "onetrip::attention", _gradients, setup_context=_context, lib=LIBRARY
)
torch.library.register_autograd(
    "onetrip::attention_saving", _saving_gradients, setup_context=_saving_context, lib=LIBRARY
)
