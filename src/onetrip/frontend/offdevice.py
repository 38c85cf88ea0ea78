"""Tracing for a device that this machine or this torch build does not have.

Fake tensors of any device exist everywhere, but parts of torch still ask for the hardware:
autocast switches itself off, autograd's bookkeeping wants the device's guard, its engine the
device's stream, and convolutions the library that lays out their results. `device_at_hand`
supplies them for the length of a capture and does nothing where the device is present.
It must not know models or graphs.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.autograd.graph import get_gradient_edge
from torch.fx import traceback as fx_traceback

from ..base.errors import CaptureError

# c10::DeviceType; the registry is an array indexed by it.
_DEVICE_TYPES = {"cuda": 1, "hip": 6, "xpu": 12, "meta": 14}
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTRAR = (
    "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
)


def _present(device: torch.device) -> bool:
    if device.type in ("cpu", "meta"):
        return True
    module = getattr(torch, device.type, None)
    return module is not None and bool(module.is_available())


# ---------------------------------------------------------------- the device guard


def _register_guard(device: torch.device) -> None:
    """Gives the device type the guard of meta tensors, which does nothing.

    A build of torch without the device has an empty slot for it. A build with the device but
    without the hardware has its own way.
    """
    torch._C._ensureCUDADeviceGuardSet()
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        slots = (ctypes.c_void_p * 20).in_dll(library, _REGISTRY)
        registrar = library[_REGISTRAR]
    except (OSError, ValueError, AttributeError) as missing:
        raise CaptureError(
            f"torch {torch.__version__} cannot trace gradients for {device} on this machine",
            expected="the registry of device guards in libc10.so",
            found=str(missing),
            next_step="plan with training=False, or on a machine with the device",
        ) from missing
    index = _DEVICE_TYPES[device.type]
    if slots[index] is None:
        registrar.argtypes = (ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p)
        registrar.restype = None
        registrar(None, index, slots[_DEVICE_TYPES["meta"]])


# ---------------------------------------------------------------- autograd without its engine


def _undefined_as_zeros(node: Any, gradients: list[Tensor | None]) -> list[Tensor | None]:
    def zeros(info: Any) -> Tensor:
        made: Tensor = torch.ops.aten.zeros.default(
            info.shape, dtype=info.dtype, layout=torch.strided, device=info.device
        )
        return made

    infos = node._input_metadata
    return [zeros(i) if g is None else g for g, i in zip(gradients, infos, strict=True)]


def _call(node: Any, gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Runs one backward node: a gradient per entry of ``node.next_functions``."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        results = node(*gradients)
        return list(results) if isinstance(results, (tuple, list)) else [results]
    if getattr(node, "materialize_grads", True):
        gradients = _undefined_as_zeros(node, gradients)
    results = node.apply(*gradients)
    results = results if isinstance(results, (tuple, list)) else (results,)
    # A Python function answers per argument; edges that lead on are those it was asked for.
    wanted = (r for r, needed in zip(results, node.needs_input_grad, strict=False) if needed)
    return [None if edge[0] is None else next(wanted, None) for edge in node.next_functions]


def _fitted(gradient: Tensor | None, edge: tuple[Any, int]) -> Tensor | None:
    """What the engine does to a gradient before it hands it on: undo broadcast, fit the dtype."""
    following, position = edge
    if gradient is None or following is None:
        return None
    info = following._input_metadata[position]
    if tuple(gradient.shape) != tuple(info.shape):
        gradient = gradient.sum_to_size(info.shape)
    if gradient.is_complex() and not info.dtype.is_complex:
        gradient = torch.real(gradient)
    return gradient if gradient.dtype == info.dtype else gradient.to(info.dtype)


@contextlib.contextmanager
def _traced_as(node: Any) -> Iterator[None]:
    """Marks what is traced inside as the gradient of the node's forward call."""
    stack = node.metadata.get("traceback_", [])
    fx_traceback.set_stack_trace(stack)
    fx_traceback.set_grad_fn_seq_nr(node._sequence_nr())
    _optional("_mark_autograd_backward")
    yield
    fx_traceback.set_stack_trace([*stack, fx_traceback.GRADIENT_ACC_SPECIAL_STACK])
    fx_traceback.reset_grad_fn_seq_nr()
    _optional("_reset_autograd_backward")


def _optional(name: str) -> None:
    call = getattr(fx_traceback, name, None)  # absent before torch 2.12
    if call is not None:
        call()


class _Sweep:
    """One reverse sweep over the nodes between outputs and inputs, in the engine's order."""

    def __init__(self, roots: Sequence[Any], inputs: Sequence[Tensor]) -> None:
        self.pending: Counter[Any] = Counter()
        self.buffers: dict[Any, list[Tensor | None]] = {}
        self._order = itertools.count()
        self._ready: list[tuple[int, int, Any]] = []
        nodes = self._reachable(roots)
        # Asking torch for a leaf's node would trace a view of the leaf.
        leaves = {id(node.variable): node for node in nodes if hasattr(node, "variable")}
        self._sources = [(t.grad_fn or leaves.get(id(t)), t.output_nr) for t in inputs]
        self.targets = {node for node, _ in self._sources if node is not None}
        self.needed = self._leading_to_targets(nodes)

    def _reachable(self, roots: Sequence[Any]) -> list[Any]:
        seen = dict.fromkeys(roots)
        stack = list(seen)
        while stack:
            for following, _ in stack.pop().next_functions:
                if following is None:
                    continue
                self.pending[following] += 1
                if following not in seen:
                    seen[following] = None
                    stack.append(following)
        return list(seen)

    def _leading_to_targets(self, nodes: list[Any]) -> set[Any]:
        readers: dict[Any, list[Any]] = {}
        for node in nodes:
            for following, _ in node.next_functions:
                readers.setdefault(following, []).append(node)
        needed, stack = set(), list(self.targets)
        while stack:
            for reader in readers.get(stack.pop(), ()):
                if reader not in needed:
                    needed.add(reader)
                    stack.append(reader)
        return needed

    def add(self, node: Any, position: int, gradient: Tensor | None) -> None:
        buffer = self.buffers.setdefault(node, [None] * len(node._input_metadata))
        if gradient is not None:
            before = buffer[position]
            buffer[position] = gradient if before is None else before + gradient

    def gradients(self) -> tuple[Tensor | None, ...]:
        """One per input, None where nothing led to it."""
        return tuple(
            self.buffers[node][position] if node in self.buffers else None
            for node, position in self._sources
        )

    def release(self, node: Any) -> None:
        """Queues a node whose gradients are complete; later forward calls come first."""
        heapq.heappush(self._ready, (-node._sequence_nr(), next(self._order), node))

    def run(self) -> None:
        while self._ready:
            node = heapq.heappop(self._ready)[2]
            if node not in self.needed:
                continue
            gradients = self.buffers[node]
            if node not in self.targets:
                del self.buffers[node]
            with _traced_as(node):
                results = [
                    _fitted(gradient, edge)
                    for gradient, edge in zip(
                        _call(node, gradients), node.next_functions, strict=True
                    )
                ]
            for (following, position), gradient in zip(node.next_functions, results, strict=True):
                if following is None:
                    continue
                self.pending[following] -= 1
                if following in self.needed or following in self.targets:
                    self.add(following, position, gradient)
                    if self.pending[following] == 0:
                        self.release(following)


def gradients_without_engine(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad(..., allow_unused=True)`` on this thread, touching no stream.

    Calls the same nodes in the same order as the engine, so tracing it gives the same graph.
    """
    heads = [
        (get_gradient_edge(t).node, 0) if t.grad_fn is None else (t.grad_fn, t.output_nr)
        for t in outputs
    ]
    sweep = _Sweep([node for node, _ in heads], inputs)
    with torch.no_grad():
        for (node, position), gradient in zip(heads, grad_outputs, strict=True):
            sweep.add(node, position, gradient)
        for node in dict.fromkeys(node for node, _ in heads):
            if sweep.pending[node] == 0:
                sweep.release(node)
        sweep.run()
    return sweep.gradients()


_engine_grad = torch.autograd.grad


def _grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    several = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    if not several or all(_present(t.device) for t in several) or grad_outputs is None:
        return _engine_grad(outputs, inputs, grad_outputs, *args, **kwargs)
    single = isinstance(grad_outputs, Tensor)
    given = [grad_outputs] if single else list(grad_outputs)
    return gradients_without_engine(
        several, [inputs] if isinstance(inputs, Tensor) else list(inputs), given
    )


# ---------------------------------------------------------------- layout of convolutions


_FORMAT = "torch._C._conv_determine_backend_memory_format"


def _convolution_format(input: Tensor, weight: Tensor, backend: object) -> torch.memory_format:
    """The memory format of cuDNN's results, which only a build with cuDNN can say itself:
    channels last where input or weight is, but for float64."""
    if torch.float64 not in (input.dtype, weight.dtype):
        for format in (suggest_memory_format(input), suggest_memory_format(weight)):
            if format != torch.contiguous_format:
                return format
    return torch.contiguous_format


# ---------------------------------------------------------------- the current device


def _moved_to(index: int, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``Tensor.to`` for which the device at hand is current: torch asks the hardware which is."""

    def named(x: Any) -> Any:
        if isinstance(x, int) and not isinstance(x, bool):
            return torch.device("cuda", x)
        device = torch.device(x) if isinstance(x, str) else x
        lacks = isinstance(device, torch.device) and device.index is None
        return torch.device(device.type, index) if lacks and not _present(device) else x

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return method(self, *map(named, args), **{k: named(x) for k, x in kwargs.items()})

    return to


def _cuda(self: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    """``Tensor.cuda``, which also initializes the hardware."""
    index = device.index if isinstance(device, torch.device) else device
    where = torch.device(device if isinstance(device, str) else "cuda", index or 0)
    return self.to(where, non_blocking=non_blocking, **kwargs)


# ---------------------------------------------------------------- all together


@contextlib.contextmanager
def device_at_hand(device: torch.device) -> Iterator[None]:
    """Within it, fake tensors of ``device`` can be traced as if the hardware were there."""
    if _present(device):
        yield
        return
    _register_guard(device)
    with contextlib.ExitStack() as patches:
        for target, value in (
            ("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
            ("torch.cuda.is_bf16_supported", lambda *_, **__: True),
            ("torch.autograd.grad", _grad),
            ("torch.cuda.current_device", lambda: device.index or 0),
            ("torch.Tensor.to", _moved_to(device.index or 0, Tensor.to)),
            ("torch.Tensor.cuda", _cuda),
            # A constant that moves to the device is computed for real where its size allows it.
            ("torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT", -1),
        ):
            patches.enter_context(mock.patch(target, value))
        if not torch.backends.cudnn.is_available():
            patches.enter_context(mock.patch(_FORMAT, _convolution_format))
        yield
