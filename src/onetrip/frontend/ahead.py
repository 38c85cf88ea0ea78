"""Capture without running: the graphs of a model on a device that need not exist.

The model is copied as fake tensors, Dynamo runs over the copy, and every compiled graph answers
with fake tensors, so that Python goes on behind a graph break. It must not know what becomes of
the graphs.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.fx
from torch import Tensor
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
from torch._dynamo import convert_frame, pgo
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from ..base.errors import CaptureError, OnetripError
from .capture import CapturedGraph, make_backend
from .fakes import fake_copy, indexed
from .offdevice import device_at_hand

_MANY = 1 << 16  # a plan may meet the same code in more shapes than a running program


def _answer(module: torch.fx.GraphModule, mode: FakeTensorMode) -> Callable[..., Any]:
    def run(inputs: list[Any]) -> Any:
        with mode:
            return torch.fx.Interpreter(module).boxed_run(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


# ---------------------------------------------------------------- dynamic shapes


def _mark(argument: Any, dims: Any) -> None:
    """Marks dimensions of a tensor, or of tensors in nested containers, as dynamic."""
    if dims is None:
        return
    if isinstance(argument, Tensor):
        entries = dims.items() if isinstance(dims, Mapping) else enumerate(dims)
        for axis, dim in entries:
            _mark_axis(argument, axis, dim)
    elif isinstance(argument, Mapping):
        for key, inner in dims.items():
            _mark(argument[key], inner)
    elif isinstance(argument, (list, tuple)):
        for item, inner in zip(argument, dims, strict=True):
            _mark(item, inner)


def _mark_axis(tensor: Tensor, axis: int, dim: Any) -> None:
    static = dim is None or isinstance(dim, int) or getattr(dim, "name", "") == "STATIC"
    if static:
        return
    low, high = getattr(dim, "min", None), getattr(dim, "max", None)
    ranged = isinstance(low, int) and isinstance(high, int)
    bounds = {"min": low, "max": high} if ranged else {}
    torch._dynamo.mark_dynamic(tensor, axis, **bounds)


def _mark_inputs(args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any, model: Any) -> None:
    if isinstance(shapes, Mapping):
        names = _argument_names(model, args)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, dims in shapes.items():
            if name not in given:
                raise CaptureError(
                    "dynamic_shapes names an argument that is not given",
                    expected=f"one of {', '.join(given)}",
                    found=str(name),
                    next_step="use the parameter names of the model's forward",
                )
            _mark(given[name], dims)
    else:
        _mark(tuple(args), tuple(shapes))


def _argument_names(model: Any, args: Sequence[Any]) -> list[str]:
    function = getattr(model, "forward", model)
    code = getattr(function, "__code__", None) or getattr(function, "__func__", function).__code__
    names = list(code.co_varnames[: code.co_argcount])
    if getattr(function, "__self__", None) is not None:
        names = names[1:]
    return names[: len(args)]


# ---------------------------------------------------------------- errors


def _user_line(error: BaseException) -> str:
    """Innermost frame that is neither torch's nor ours, traced by Dynamo or executed."""
    inside = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    traced = getattr(error, "real_stack", None) or ()
    users = [
        f
        for f in [*traceback.extract_tb(error.__traceback__), *traced]
        if not f.filename.startswith(inside)
    ]
    return f"{users[-1].filename}:{users[-1].lineno}: {users[-1].line}" if users else ""


def _root(error: BaseException) -> BaseException:
    """The error that torch's compiler reports: its own wrap it."""
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return _root(inner) if inner is not None and isinstance(error, TorchDynamoException) else error


_VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)
_TWO_DEVICES = re.compile(r"found (at least )?two (different )?devices")
"""What torch says of operands on unlike devices; not all versions have a class for that error."""


def _capture_error(error: Exception) -> OnetripError:
    inner = _root(error)
    if isinstance(inner, OnetripError):
        return inner
    if isinstance(inner, _VALUE_ERRORS):
        return CaptureError(
            "the model needs the value of a tensor, and planning computes none",
            expected="a program whose Python does not depend on tensor values",
            found=str(inner),
            where=_user_line(error),
            next_step="keep the value in a tensor (torch.where), or compile and run the model",
        )
    if _TWO_DEVICES.search(str(inner)):
        return CaptureError(
            "the model computes on two devices at once: its arguments and parameters were put on "
            "the target's, and it reads another tensor that stayed where it is",
            expected="tensors that are arguments, parameters or buffers, or made on their device",
            found=str(inner),
            where=_user_line(error),
            next_step="pass that tensor as an argument, or plan for its device (target='cpu')",
        )
    return CaptureError(
        "the model raised while it was traced",
        found=f"{type(inner).__name__}: {inner}".partition("\n")[0],
        where=_user_line(error),
        next_step="run the model once in eager mode with the same arguments",
    )


# ---------------------------------------------------------------- traces left in Dynamo


@contextlib.contextmanager
def _forgotten(backend: Callable[..., Any]) -> Iterator[None]:
    """Leaves Dynamo's memory of the user's code as it was.

    Dynamo keeps compiled code and the sizes seen per code object, counts entries against a limit
    and makes sizes that vary symbolic: what was only planned must not count, in either direction.
    """
    codes: set[types.CodeType] = set()
    handle = convert_frame.register_bytecode_hook(lambda code, _: codes.add(code))
    try:
        with (
            mock.patch.object(pgo, "_CODE_STATE", defaultdict(pgo.CodeState)),
            mock.patch.dict(convert_frame.FRAME_COMPILE_COUNTER),
        ):
            yield
    finally:
        handle.remove()
        for code in codes:
            entries = _debug_get_cache_entry_list(code)
            if all(getattr(e.backend, "compiler_fn", None) is backend for e in entries):
                reset_code(code)


# ---------------------------------------------------------------- the capture


@contextlib.contextmanager
def _settings(dynamic_shapes: Any, training: bool) -> Iterator[None]:
    """Every graph is captured, backward too, and shapes stay fixed unless asked otherwise."""
    with (
        torch._dynamo.config.patch(
            automatic_dynamic_shapes=False,
            assume_static_by_default=dynamic_shapes is not True,
            suppress_errors=False,
            recompile_limit=_MANY,
            accumulated_recompile_limit=_MANY,
        ),
        functorch_config.patch(force_non_lazy_backward_lowering=True),
        torch.set_grad_enabled(training),
    ):
        yield


def capture_graphs(
    model: Callable[..., Any],
    args: tuple[Any, ...] | Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: torch.device,
    training: bool,
    dynamic_shapes: Any = None,
) -> tuple[CapturedGraph, ...]:
    """The graphs that compiling ``model`` for ``device`` would see; nothing is run or allocated.

    Args:
        model: a module or function; it and its arguments may lie on any device, meta included.
        args: positional arguments; a lone tensor stands for a tuple of one.
        kwargs: keyword arguments.
        device: where model and arguments are imagined to be.
        training: whether gradients are traced: then each forward graph is followed by its
            backward graph. The model's own train or eval mode is left alone.
        dynamic_shapes: None or False for fixed sizes, True for symbolic ones wherever torch
            allows, or a dict from argument names (or a sequence by position) to
            ``{axis: torch.export.Dim}``.

    Raises:
        CaptureError: the model's Python needs a tensor's value, or raised.
    """
    arguments = (args,) if isinstance(args, Tensor) else tuple(args)
    model = getattr(model, "_orig_mod", model)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    graphs: list[CapturedGraph] = []

    def compile_graph(graph: CapturedGraph) -> Callable[..., Any]:
        graphs.append(graph)
        return _answer(graph.module, mode)

    with device_at_hand(indexed(device)):
        copied, fake_args, fake_kwargs = fake_copy(
            model, arguments, dict(kwargs or {}), mode, device
        )
        if dynamic_shapes is not None and not isinstance(dynamic_shapes, bool):
            _mark_inputs(fake_args, fake_kwargs, dynamic_shapes, copied)
        dynamic = True if dynamic_shapes is True else None
        backend = make_backend(compile_graph)
        traced = torch.compile(copied, backend=backend, dynamic=dynamic)
        try:
            with _forgotten(backend), _settings(dynamic_shapes, training), mode:
                traced(*fake_args, **fake_kwargs)
        except Exception as error:
            raise _capture_error(error) from error
    return tuple(graphs)
