"""A model and its arguments without their data, as fake tensors on the device planned for.

Copies structure, shares nothing with the original and allocates no tensor memory. It must not
know tracing or compilation.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..base.errors import CaptureError


def plain(t: Tensor) -> bool:
    """Whether a tensor is strided memory and nothing more."""
    subclass: bool = is_traceable_wrapper_subclass(t)
    return t.layout == torch.strided and not t.is_nested and not subclass


def indexed(device: torch.device) -> torch.device:
    """The device with an index where its kind has one: torch asks the hardware for it otherwise."""
    if device.type in ("cpu", "meta"):
        return device
    return torch.device(device.type, device.index or 0)


class _Copier(TorchFunctionMode):
    """Turns every tensor that ``copy.deepcopy`` meets into a fake one."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        super().__init__()
        self.mode = mode
        self.device = device
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.clone:  # how a parameter copies its data
            return self.fake(args[0])
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        original, memo = args
        if id(original) not in memo:
            memo[id(original)] = self.fake(original)
        return memo[id(original)]

    def fake(self, t: Tensor) -> Tensor:
        """A fake tensor with the sizes, strides, dtype and grad flag of ``t``.

        Tensors that share a storage share a fake one. Layouts other than strided keep their own
        device: nothing is known about moving them.
        """
        if t.is_quantized:
            return t
        if not plain(t):
            return self.mode.from_tensor(t)
        with self.mode, torch.no_grad():
            empty = torch.empty(0, dtype=t.dtype, device=self.device)
            copied = empty.set_(self._storage(t), t.storage_offset(), t.size(), t.stride())
            copied.requires_grad_(t.requires_grad)
        copied.__dict__.update({k: v for k, v in t.__dict__.items() if k.startswith("_dynamo")})
        return copied

    def _storage(self, t: Tensor) -> torch.UntypedStorage:
        original = t.untyped_storage()
        if original._cdata not in self.storages:
            whole = torch.empty(original.nbytes(), dtype=torch.uint8, device=self.device)
            self.storages[original._cdata] = whole.untyped_storage()
        return self.storages[original._cdata]


def _holds_tensors(value: Any, seen: set[int]) -> bool:
    if isinstance(value, (nn.Module, Tensor)):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        return any(_holds_tensors(v, seen) for v in _closed_over(value))
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, (list, tuple)) and any(_holds_tensors(v, seen) for v in value)


def _closed_over(function: types.FunctionType) -> list[Any]:
    cells = function.__closure__ or ()
    return [cell.cell_contents for cell in cells if cell != types.CellType()]


def _private_function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """A function with a code object of its own, so that what Dynamo caches on it dies with it,
    and with its closed-over values copied as the model's are."""
    if id(function) in memo:
        known: types.FunctionType = memo[id(function)]
        return known
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    private = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        cells,
    )
    memo[id(function)] = private
    private.__kwdefaults__ = function.__kwdefaults__
    private.__dict__.update(function.__dict__)
    private.__module__ = function.__module__
    for cell, original in zip(cells, function.__closure__ or (), strict=True):
        if original != types.CellType():
            cell.cell_contents = _private(original.cell_contents, memo)
    return private


def _private(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of what holds tensors; anything else is known to Dynamo by its identity."""
    if not _holds_tensors(value, set()):
        return value
    if isinstance(value, types.FunctionType):
        return _private_function(value, memo)
    return copy.deepcopy(value, memo)


def _private_model(model: Any, memo: dict[int, Any]) -> Any:
    if isinstance(model, types.FunctionType):
        return _private_function(model, memo)
    copied = copy.deepcopy(model, memo)
    forward = getattr(type(copied), "forward", None)
    own = getattr(copied, "__dict__", {})
    if isinstance(forward, types.FunctionType) and "forward" not in own:
        own["forward"] = types.MethodType(_private_function(forward, memo), copied)
    return copied


def fake_copy(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mode: FakeTensorMode,
    device: torch.device,
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Model and arguments with every tensor replaced by a fake one on ``device``.

    Raises:
        CaptureError: something in them cannot be copied.
    """
    memo: dict[int, Any] = {}
    try:
        with _Copier(mode, indexed(device)):
            copied = _private_model(model, memo)
            copied_args, copied_kwargs = copy.deepcopy((args, kwargs), memo)
    except (TypeError, RuntimeError) as refused:
        raise CaptureError(
            "the model or its arguments cannot be copied",
            expected="objects that copy.deepcopy can copy",
            found=str(refused).splitlines()[0],
            where=type(model).__name__,
            next_step="give the object a __deepcopy__, or pass a function that builds the model",
        ) from refused
    return copied, copied_args, copied_kwargs
