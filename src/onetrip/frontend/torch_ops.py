"""Our own operators in torch, namespace ``onetrip``: what capture keeps whole.

Each has a real eager implementation (what an extern call runs), a fake kernel and, where it is
differentiable, a gradient formula. Random ones take a seed, so that autograd saves 8 bytes and
never a mask; their stream is the one of `philox`. Attention has a module of its own
(`attention_ops`). They must not know graphs or compilation.

| operator | meaning |
|---|---|
| ``seed(device, salt)`` | 0-d int64, see `draws`; ``salt`` tells calls apart |
| ``uniform(seed, size, dtype)`` | uniform numbers in [0, 1), contiguous |
| ``dropout(x, p, seed)`` | ``x * factor``, rounded once; its gradient is itself |
| ``affine_scan(a, b, dim, reverse)`` | ``h_t = a_t h_(t-1) + b_t`` along ``dim``, ``h_0 = b_0`` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .draws import draw
from .philox import dropout_factor, uniform_numbers

LIBRARY = torch.library.Library("onetrip", "DEF")
PURE = (torch.Tag.pt2_compliant_tag,)
_DRAWS = (torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded)


def define(
    schema: str,
    tags: Sequence[torch.Tag],
    eager: Callable[..., Any],
    fake: Callable[..., Any],
) -> None:
    """An operator ``onetrip::name`` with what eager runs and what fake tensors do."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=tuple(tags))
    LIBRARY.impl(name, eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"onetrip::{name}", fake, lib=LIBRARY)


# ---------------------------------------------------------------- random


def _seed(device: torch.device, salt: int) -> Tensor:
    return draw(device)


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


define("seed(Device device, int salt) -> Tensor", _DRAWS, _seed, _seed_fake)
define(
    "uniform(Tensor seed, SymInt[] size, ScalarType dtype) -> Tensor",
    PURE,
    uniform_numbers,
    _uniform_fake,
)
define("dropout(Tensor x, float p, Tensor seed) -> Tensor", PURE, _dropout, _dropout_fake)
torch.library.register_autograd(
    "onetrip::dropout", _dropout_gradient, setup_context=_dropout_context, lib=LIBRARY
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


define(
    "affine_scan(Tensor a, Tensor b, int dim, bool reverse) -> Tensor",
    PURE,
    _affine_scan,
    _affine_scan_fake,
)
torch.library.register_autograd(
    "onetrip::affine_scan",
    _affine_scan_gradient,
    setup_context=_affine_scan_context,
    lib=LIBRARY,
)
