"""Compiled against eager and float64: values, dtype, shape, strides, untouched inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onetrip.runtime.accuracy import judge

OPTIONS: dict[str, Any] = {"strict": True}


def compiled(fn: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> Any:
    """`fn` through torch.compile, every test from a fresh Dynamo state."""
    torch._dynamo.reset()
    return torch.compile(fn, backend="onetrip", dynamic=dynamic, options={**OPTIONS, **options})


def tensors(result: Any) -> tuple[Tensor, ...]:
    """Every tensor of a result, in order."""
    if isinstance(result, Tensor):
        return (result,)
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    if isinstance(result, dict):
        result = tuple(result.values())
    return tuple(t for r in result or () for t in tensors(r))


def wide(x: Any) -> Any:
    """A float64 twin of a tensor or module."""
    if isinstance(x, torch.nn.Module):
        return copy.deepcopy(x).double()
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def check(fn: Callable[..., Any], *args: Any, calls: int = 2, **options: Any) -> Any:
    """Runs the compiled `fn` and compares it with eager; returns the compiled function."""
    ours_fn = compiled(fn, **options)
    with torch.no_grad():
        eager = tensors(fn(*args))
        exact = tensors(wide(fn)(*map(wide, args)))
        kept = [a.clone() if isinstance(a, Tensor) else a for a in args]
        for _ in range(calls):
            ours = tensors(ours_fn(*args))
            verdict = judge(ours, eager, exact)
            assert verdict.ok, verdict
            for mine, theirs in zip(ours, eager, strict=True):
                assert mine.dtype == theirs.dtype
                strides = [
                    (a, b)
                    for n, a, b in zip(mine.shape, mine.stride(), theirs.stride(), strict=False)
                    if n > 1
                ]
                assert all(a == b for a, b in strides), (mine.stride(), theirs.stride())
        for before, after in zip(kept, args, strict=False):
            if isinstance(before, Tensor):
                assert torch.equal(before, after)
    return ours_fn
