"""Convolutions and products with what follows them, as operators of ours: fused library calls.

| operator | meaning |
|---|---|
| ``convolution_epilogue(...)`` | ``activation(convolution(input, weight) + bias + other)`` |
| ``linear_epilogue(...)`` | ``activation(input @ weight.T + bias)``, of matrices |

The result is rounded once. Which fused call runs is decided here, by device and dtype: oneDNN's on
a CPU, cuDNN's and cuBLASLt's on an NVIDIA GPU. Where the library lacks one, or has no kernel for a
shape, the steps run one after the other: slower, never wrong. Must not know graphs or costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .torch_ops import PURE, define

Numbers = Sequence[float]
Step = Callable[[Tensor, Numbers], Tensor]

_STEPS: Mapping[str, Step] = {
    "none": lambda y, n: y,
    "relu": lambda y, n: y.relu_(),
    "hardtanh": lambda y, n: functional.hardtanh_(y, *n),
    "leaky_relu": lambda y, n: functional.leaky_relu_(y, *n),
    "hardswish": lambda y, n: functional.hardswish(y, inplace=True),
    "sigmoid": lambda y, n: y.sigmoid_(),
    "tanh": lambda y, n: y.tanh_(),
    "silu": lambda y, n: functional.silu(y, inplace=True),
    "gelu": lambda y, n: functional.gelu(y),
    "gelu_tanh": lambda y, n: functional.gelu(y, approximate="tanh"),
}
"""Activations as steps of their own, in place where there is such a form."""

_ONEDNN: Mapping[str, tuple[str, str | None]] = {
    **{name: (name, None) for name in ("none", "relu", "hardtanh", "leaky_relu", "hardswish")},
    **{name: (name, None) for name in ("sigmoid", "tanh")},
    "silu": ("swish", None),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
}
"""Activations as oneDNN's bindings name them, with the algorithm."""

_CUBLASLT: Mapping[str, bool] = {"relu": False, "gelu_tanh": True}
"""Activations in cuBLASLt's epilogue: whether it is the gelu."""


# ---------------------------------------------------------------- convolution


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    numbers: Numbers,
) -> Tensor:
    form = (tuple(stride), tuple(padding), tuple(dilation), groups)
    if other is None and _onednn_convolves(input, weight, form):
        name, algorithm = _ONEDNN[activation]
        window = (form[1], form[0], form[2], groups)
        made: Tensor = torch.ops.mkldnn._convolution_pointwise.default(
            input, weight, bias, *window, name, list(numbers), algorithm
        )
        return made
    if activation == "relu" and input.is_cuda:
        fused = _cudnn_relu(input, weight, bias, other, form)
        if fused is not None:
            return fused
    rank = input.dim() - 2
    y = torch.convolution(input, weight, bias, *form[:3], False, (0,) * rank, groups)
    return _STEPS[activation](y if other is None else y.add_(other), numbers)


def _onednn_convolves(input: Tensor, weight: Tensor, form: tuple[Any, ...]) -> bool:
    """Whether oneDNN computes it on this CPU, and eager would have it do so too: alone on a
    thread, eager computes a convolution of single pixels as a matrix product, which is faster."""
    if input.device.type != "cpu" or not _onednn_has("_convolution_pointwise", input.dtype):
        return False
    plain = weight.numel() == weight.shape[0] * weight.shape[1]
    alone = plain and max((*form[0], *form[2])) == 1 and input.shape[0] < 16
    return input.numel() > 0 and not (alone and torch.get_num_threads() == 1)


@functools.cache
def _onednn_has(name: str, dtype: torch.dtype) -> bool:
    """Whether the bindings have a call, and this CPU the instructions for a dtype."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, name):
        return False
    return dtype is torch.float32 or has_instructions(dtype)


@functools.cache
def has_instructions(dtype: torch.dtype) -> bool:
    """Whether the library multiplies matrices of 16 bits on this CPU by more than plain loops."""
    checks: Mapping[torch.dtype, str] = {
        torch.bfloat16: "_is_mkldnn_bf16_supported",
        torch.float16: "_is_mkldnn_fp16_supported",
    }
    check = getattr(torch.ops.mkldnn, checks.get(dtype, ""), None)
    return check is not None and bool(check())


_REFUSED: set[Hashable] = set()
"""Convolutions for which cuDNN has no fused kernel."""


def _cudnn_relu(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    form: tuple[Any, ...],
) -> Tensor | None:
    """The fused convolution, None where cuDNN has none for it."""
    key = (input.dtype, input.shape, input.stride(), weight.shape, other is None, form)
    if key in _REFUSED:
        return None
    try:
        made: Tensor
        if other is None:
            made = torch.cudnn_convolution_relu(input, weight, bias, *form)
        else:
            made = torch.cudnn_convolution_add_relu(input, weight, other, 1.0, bias, *form)
        return made
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        _REFUSED.add(key)
        return None


def _convolution_fake(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    numbers: Numbers,
) -> Tensor:
    outer = (0,) * (input.dim() - 2)
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, outer, groups)


# ---------------------------------------------------------------- product


def _linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str, numbers: Numbers
) -> Tensor:
    made: Tensor
    if input.device.type == "cpu" and input.numel() and weight.numel():
        if _onednn_has("_linear_pointwise", input.dtype):
            name, algorithm = _ONEDNN[activation]
            made = torch.ops.mkldnn._linear_pointwise.default(
                input, weight, bias, name, list(numbers), algorithm
            )
            return made
    elif input.is_cuda and bias is not None and activation in _CUBLASLT:
        gelu = _CUBLASLT[activation]
        made = torch._addmm_activation(bias, input, weight.t(), use_gelu=gelu)
        return made
    return _STEPS[activation](functional.linear(input, weight, bias), numbers)


def _linear_fake(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str, numbers: Numbers
) -> Tensor:
    return input.new_empty(input.shape[0], weight.shape[0])


IMPLEMENTATIONS: Mapping[str, Callable[..., Any]] = {
    "convolution_epilogue": _convolution,
    "linear_epilogue": _linear,
}
"""What runs, by the operator's name."""

define(
    "convolution_epilogue(Tensor input, Tensor weight, Tensor? bias, Tensor? other, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str activation, "
    "float[] numbers) -> Tensor",
    PURE,
    _convolution,
    _convolution_fake,
)
define(
    "linear_epilogue(Tensor input, Tensor weight, Tensor? bias, str activation, float[] numbers)"
    " -> Tensor",
    PURE,
    _linear,
    _linear_fake,
)
