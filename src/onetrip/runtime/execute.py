"""Runs a Program: one function call for each step that is no kernel, one for a run of kernels.

A `Frame` is what one call in flight owns: the scratch arena, the table of addresses that kernels
read, and the tensors that library calls read. Frames are kept and reused, so a repeated call
allocates only its outputs. How kernels are built and launched is the backend's affair; this
module knows neither C++ nor Triton.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base.sym import Dim
from ..ir.graph import Scalar, Value
from ..ir.program import Alias, Alloc, Bind, Call, Free, Launch, Program, Step, Update
from ..ir.types import TensorType
from .frame import Action, Backend, BoundLaunch, Frame
from .inputs import Writes, restrided
from .resolve import Sizes, dim_function, resolve_target, torch_dtype
from .spelling import Spelling


@dataclass
class Executable:
    """A program ready to run: call it with the list of inputs."""

    program: Program
    backend: Backend
    checked: frozenset[int] = frozenset()
    """Positions of inputs whose strides are compared at each call."""
    _free: dict[int, list[Frame]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        lasting = frozenset(range(len(self.program.inputs))) - self.checked
        self._layout = _Layout(self.program, lasting)
        self._actions = _compile_steps(self.program, self._layout, self.backend)
        self._results = [_result(o, self._layout) for o in self.program.outputs]
        self._inputs = [
            _input(v, self._layout, k in self.checked) for k, v in enumerate(self.program.inputs)
        ]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs once; empties `arguments`, as the boxed calling convention asks."""
        queue = self.backend.queue()
        captured = self.backend.capturing()
        frame = self._new_frame(queue) if captured else self._take(queue)
        try:
            self._bind(frame, arguments)
            arguments.clear()
            for act in self._actions:
                act(frame)
            return [r(frame) for r in self._results]
        finally:
            if not captured:
                self._return(frame, queue)

    def _bind(self, frame: Frame, arguments: list[Any]) -> None:
        """Places the inputs; this loop runs once for each of perhaps hundreds of parameters."""
        tensors, pointers = frame.tensors, frame.pointers
        for (slot, launched, strides), argument in zip(self._inputs, arguments, strict=True):
            tensors[slot] = argument
            if not isinstance(argument, Tensor):
                continue
            if strides is not None and argument.stride() != strides:
                argument = tensors[slot] = restrided(argument, strides)
            if launched:
                pointers[slot] = argument.data_ptr()

    def _take(self, queue: int) -> Frame:
        """A frame whose earlier work lies on the same queue, so that work on it stays in order."""
        with self._lock:
            idle = self._free.setdefault(queue, [])
            if idle:
                return idle.pop()
        return self._new_frame(queue)

    def _new_frame(self, queue: int) -> Frame:
        """A frame of its own memory. One made inside a graph capture belongs to that graph, which
        keeps its memory for as long as it can be replayed, and serves no other call."""
        layout = self._layout
        frame = Frame(
            (ctypes.c_void_p * max(1, len(layout.slots)))(),
            [None] * len(layout.slots),
            (ctypes.c_int64 * max(1, len(self.program.sizes)))(),
            queue=queue,
        )
        if not layout.symbolic_arena:
            _reserver(self.program, self.backend)(frame)
            for act in layout.fixed:
                act(frame)
        return frame

    def _return(self, frame: Frame, queue: int) -> None:
        tensors: list[Any] = [None] * len(frame.tensors)
        for slot in self._layout.kept:
            tensors[slot] = frame.tensors[slot]
        frame.tensors = tensors
        with self._lock:
            self._free[queue].append(frame)


class _Layout:
    """Slots of a program's values, and what of its frames never changes."""

    def __init__(self, program: Program, lasting: Iterable[int] = ()) -> None:
        """
        Args:
            lasting: positions of inputs that are the same tensors at each call.
        """
        self.program = program
        self.slots: dict[str, int] = {}
        self.types: dict[str, TensorType] = {}
        for value in program.inputs:
            self._add(value)
        for step in program.steps:
            if isinstance(step, Alias) and self._same_form(step):
                self.slots[step.value.name] = self.slots[step.source]
            for value in _made(step):
                self._add(value)
        self.launched = {a for s in program.steps if isinstance(s, Launch) for a in s.arguments}
        self.as_tensor = self._needed_as_tensors()
        self.kept: set[int] = set()
        self.lasting = {self.slots[program.inputs[k].name] for k in lasting}
        self.fixed: list[Action] = []
        self.symbolic_arena = not isinstance(program.arena_bytes, int)

    def _add(self, value: Value) -> None:
        self.slots.setdefault(value.name, len(self.slots))
        self.types[value.name] = value.type

    def _same_form(self, step: Alias) -> bool:
        """Whether an alias is its source under another name: it needs no step of its own."""
        return step.offset == 0 and step.value.type == self.types[step.source]

    def _needed_as_tensors(self) -> set[str]:
        """Values read as tensors: by library calls, updates and the caller, through aliases."""
        needed = {o for o in self.program.outputs if isinstance(o, str)}
        for step in self.program.steps:
            if isinstance(step, Call):
                needed |= {v.name for v in step.inputs if isinstance(v, Value)}
                needed |= {v.name for v in step.outputs}
            elif isinstance(step, Update):
                needed |= {step.target, step.value}
        for step in reversed(self.program.steps):
            if isinstance(step, Alias) and step.value.name in needed:
                needed.add(step.source)
        return needed


def _made(step: Step) -> tuple[Value, ...]:
    if isinstance(step, Alloc | Alias):
        return (step.value,)
    return step.outputs if isinstance(step, Call) else ()


# ---------------------------------------------------------------- inputs and results


def _input(value: Value, layout: _Layout, checked: bool) -> tuple[int, bool, Any]:
    """(slot, whether kernels read its address, strides to compare) of an input."""
    launched = value.name in layout.launched or any(
        isinstance(s, Alias) and s.source == value.name for s in layout.program.steps
    )
    static = checked and all(isinstance(s, int) for s in value.type.strides)
    return layout.slots[value.name], launched, tuple(value.type.strides) if static else None


def _result(output: str | Scalar | None, layout: _Layout) -> Callable[[Frame], Any]:
    if output is None:
        return lambda frame: None
    if isinstance(output, Scalar):
        text = Spelling(layout.program.sizes)
        number = text.function(text.spell(output.value))
        return lambda frame: number(frame.tensors, frame.sizes)
    slot = layout.slots[output]
    return lambda frame: frame.tensors[slot]


# ---------------------------------------------------------------- steps


def _compile_steps(program: Program, layout: _Layout, backend: Backend) -> list[Action]:
    """The actions of one call; consecutive launches become one."""
    actions: list[Action | int] = []
    segments: list[list[BoundLaunch]] = []
    open_segment = False
    reserved = not layout.symbolic_arena
    for step in program.steps:
        if isinstance(step, Launch):
            if not open_segment:
                actions.append(len(segments))
                segments.append([])
                open_segment = True
            segments[-1].append(_bound(step, program, layout))
            continue
        made = _STEPS[type(step)](step, layout, backend)
        if made is None:
            continue
        if isinstance(step, Update) and actions and isinstance(actions[-1], Writes):
            _add_write(actions[-1], step, layout)
            continue
        if not reserved and not isinstance(step, Bind):
            actions.append(_reserver(program, backend))
            reserved = True
        if open_segment and isinstance(step, Alloc):
            actions.insert(len(actions) - 1, made)
            continue
        open_segment = False
        actions.append(made)
    built = backend.build(segments) if segments else []
    return [built[a] if isinstance(a, int) else a for a in actions]


def _reserver(program: Program, backend: Backend) -> Action:
    size = dim_function(program.arena_bytes, program.sizes)

    def reserve(frame: Frame) -> None:
        need = size(frame.sizes)
        if need and (frame.arena is None or frame.arena.numel() < need):
            frame.arena = backend.arena(need)
            frame.base = frame.arena.data_ptr()

    return reserve


def _bound(step: Launch, program: Program, layout: _Layout) -> BoundLaunch:
    slots = tuple(layout.slots[a] for a in step.arguments)
    return BoundLaunch(step.kernel, slots, tuple(map(program.sizes.index, step.kernel.sizes)))


def _bind(step: Step, layout: _Layout, backend: Backend) -> Action:
    assert isinstance(step, Bind)
    slot, dim = layout.slots[step.source], step.dim
    position = layout.program.sizes.index(step.size)

    def number(frame: Frame) -> None:
        frame.sizes[position] = int(frame.tensors[slot])

    def extent(frame: Frame) -> None:
        frame.sizes[position] = frame.tensors[slot].shape[dim]

    return number if dim < 0 else extent


def _alloc(step: Step, layout: _Layout, backend: Backend) -> Action | None:
    assert isinstance(step, Alloc)
    if step.offset is None:
        return _alloc_output(step, layout, backend)
    made = _alloc_scratch(step, step.offset, layout)
    if layout.symbolic_arena:
        return made
    layout.fixed.append(made)
    layout.kept.add(layout.slots[step.value.name])
    return None


def _is_static(t: TensorType) -> bool:
    return all(isinstance(d, int) for d in (*t.shape, *t.strides))


def _shape_function(t: TensorType, layout: _Layout) -> Callable[[Sizes], tuple[Any, Any]]:
    sizes = layout.program.sizes
    if _is_static(t):
        fixed = (t.shape, t.strides)
        return lambda _: fixed
    shape = [dim_function(d, sizes) for d in t.shape]
    strides = [dim_function(d, sizes) for d in t.strides]
    return lambda s: (tuple(f(s) for f in shape), tuple(f(s) for f in strides))


def _alloc_output(step: Alloc, layout: _Layout, backend: Backend) -> Action:
    slot = layout.slots[step.value.name]
    dtype = torch_dtype(step.value.type.dtype)
    t = step.value.type
    form, empty = _shape_function(t, layout), backend.empty
    make = backend.maker(*form(()), dtype) if _is_static(t) else None

    def allocate(frame: Frame) -> None:
        made = empty(*form(frame.sizes), dtype) if make is None else make()
        frame.tensors[slot] = made
        frame.pointers[slot] = made.data_ptr()

    return allocate


def _alloc_scratch(step: Alloc, offset: Dim, layout: _Layout) -> Action:
    name, t = step.value.name, step.value.type
    slot, dtype = layout.slots[name], torch_dtype(t.dtype)
    at = dim_function(offset, layout.program.sizes)
    form = _shape_function(t, layout)
    wanted = name in layout.as_tensor

    def place(frame: Frame) -> None:
        start = at(frame.sizes)
        frame.pointers[slot] = frame.base + start
        if wanted:
            shape, strides = form(frame.sizes)
            frame.tensors[slot] = _view(frame.arena, start, shape, strides, dtype)

    return place


def _view(arena: Tensor | None, start: int, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    """A tensor over the arena's bytes from `start` on, in a storage that holds nothing else.

    Library calls may count from the start of a storage (as_strided_scatter) or copy it whole.
    """
    made = torch.empty(0, dtype=dtype, device=arena.device if arena is not None else None)
    if arena is None:
        return made.new_empty_strided(shape, strides)
    last = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    own = arena.untyped_storage()[start : start + last * made.element_size()]
    return made.set_(own, 0, shape, strides)


def _alias(step: Step, layout: _Layout, backend: Backend) -> Action | None:
    assert isinstance(step, Alias)
    name = step.value.name
    slot, source = layout.slots[name], layout.slots[step.source]
    if slot == source:
        return None
    shift = dim_function(step.offset, layout.program.sizes)
    form = _shape_function(step.value.type, layout)
    size = step.value.type.dtype.itemsize
    wanted, launched = name in layout.as_tensor, name in layout.launched

    # A parameter is the same tensor at each call, and so may its views be.
    remembered: list[tuple[Tensor, int, Tensor] | None] = [None]
    lasting = source in layout.lasting and _is_static(step.value.type)
    if lasting:
        layout.lasting.add(slot)

    def view_of(t: Tensor, moved: int, sizes: Sizes) -> Tensor:
        known = remembered[0]
        if known is not None and known[0] is t and known[1] == t.data_ptr():
            return known[2]
        made = t.as_strided(*form(sizes), t.storage_offset() + moved)
        if lasting:
            remembered[0] = (t, t.data_ptr(), made)
        return made

    def view(frame: Frame) -> None:
        moved = shift(frame.sizes)
        if launched:
            frame.pointers[slot] = (frame.pointers[source] or 0) + moved * size
        if wanted:
            frame.tensors[slot] = view_of(frame.tensors[source], moved, frame.sizes)

    if source in layout.kept:
        layout.kept.add(slot)
        layout.fixed.append(view)
        return None
    return view


_LAID_OUT_ANEW = frozenset({
    "aten.convolution.default", "aten.convolution_backward.default",
    "onetrip.convolution_epilogue.default",
})  # fmt: skip
"""Calls whose results may lie otherwise than they said when they were traced, as those of operators
over programs may: which kernel a library takes is known only when it runs."""


def _call(step: Step, layout: _Layout, backend: Backend) -> Action:
    """A library call as one function of its own text: `call = lambda t, s: f(t[3], t[5], c0)`."""
    assert isinstance(step, Call)
    slots = [layout.slots[v.name] if isinstance(v, Value) else -1 for v in step.inputs]
    outs = [layout.slots[v.name] for v in step.outputs]
    function = resolve_target(step.target)
    text = Spelling(layout.program.sizes, lambda ref: (step.inputs[ref.index], slots[ref.index]))
    named = [text.named(k, v) for k, v in step.kwargs]
    if step.out:
        named.append(f"out=t[{outs[0]}]")
    arguments = ", ".join([*map(text.spell, step.args), *named])
    made = text.function(f"{text.bound(function)}({arguments})")
    if step.out:
        return lambda frame: made(frame.tensors, frame.sizes)
    launched = [layout.slots[v.name] for v in step.outputs if v.name in layout.launched]
    varies = isinstance(function, torch._ops.HigherOrderOperator) or step.target in _LAID_OUT_ANEW
    forms = [_shape_function(v.type, layout) if varies else None for v in step.outputs]

    def call(frame: Frame) -> None:
        result = made(frame.tensors, frame.sizes)
        if isinstance(result, dict):
            result = tuple(result.values())
        results = result if isinstance(result, tuple | list) else (result,)
        for slot, form, r in zip(outs, forms, results, strict=False):
            if form is not None and isinstance(r, Tensor):
                r = restrided(r, form(frame.sizes)[1])
            frame.tensors[slot] = r
        for slot in launched:
            frame.pointers[slot] = frame.tensors[slot].data_ptr()

    return call


def _update(step: Step, layout: _Layout, backend: Backend) -> Action:
    writes = Writes()
    _add_write(writes, step, layout)
    return writes


def _add_write(writes: Writes, step: Step, layout: _Layout) -> None:
    assert isinstance(step, Update)
    slots, types = layout.slots, layout.types
    kinds = (types[step.target].dtype, types[step.value].dtype)
    writes.add(kinds, slots[step.target], slots[step.value])


def _release(step: Step, layout: _Layout, backend: Backend) -> Action | None:
    assert isinstance(step, Free)
    slot = layout.slots[step.value]
    if slot in layout.kept or step.value not in layout.as_tensor:
        return None

    def drop(frame: Frame) -> None:
        frame.tensors[slot] = None

    return drop


_STEPS: dict[type, Callable[[Step, _Layout, Backend], Action | None]] = {
    Bind: _bind,
    Alloc: _alloc,
    Alias: _alias,
    Call: _call,
    Update: _update,
    Free: _release,
}
