"""The steps of a program as lines of one Python function, its call.

    t0, t1, = arguments         variables of the call: inputs, outputs, results of library calls
    p[0] = t0.data_ptr()        addresses, which kernels read
    k[3]                        tensors in the frame's arena, which stay
    s[0] = t0.shape[1]          symbolic sizes
    c5(f)                       a run of kernels; c0, c1, ... name what no text can spell

A line costs what it does and nothing else: no closure, no loop over steps. What never changes in a
frame is written into a second function, which runs once for each frame. Knows neither C++ nor
Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.host import Computed
from ..base.sym import Dim
from ..ir.graph import Ref, Scalar, Value
from ..ir.program import Alias, Alloc, Bind, Call, Free, Launch, Program, Step, Update
from ..ir.types import TensorType
from .calls import MOST_POINTERS
from .frame import Action, Backend, BoundLaunch, Native
from .inputs import Remembered, laid_out, restrided
from .layout import Layout, is_static
from .pool import alias
from .resolve import resolve_target, torch_dtype
from .spelling import Spelling

_LAID_OUT_ANEW = frozenset({
    "aten.convolution.default", "aten.convolution_backward.default",
    "onetrip.convolution_epilogue.default",
})  # fmt: skip
"""Calls whose results may lie otherwise than they said when they were traced, as those of operators
over programs may: which kernel a library takes is known only when it runs."""


class Lines:
    """The lines of one program's call, and those that prepare a frame.

    Attributes:
        fixed: lines over `f`, `k`, `p` that run once for each frame.
        call: lines between the inputs and the results of a call.
        text: what the lines name.
        placed: text of the address of each slot that a variable of the call holds.
        framed: whether a call needs a frame.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        backend: Backend,
        constants: Sequence[Any] = (),
        checked: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            constants: what stands behind the last inputs, which no call gives.
            checked: positions of inputs whose strides are compared at each call.
        """
        self.layout = layout
        self.backend = backend
        self.text = Spelling(program.sizes)
        self.placed: dict[int, str] = {}
        self.fixed: list[str] = []
        self.call: list[str] = self._inputs(program.inputs, constants, checked)
        self._runs: list[tuple[int, list[BoundLaunch]]] = []
        self._open = False
        self._writes: dict[Any, list[Update]] = {}
        self._sizes = program.sizes
        self._reserve = program.arena_bytes
        self._reserved = not layout.symbolic_arena
        if self._reserve != 0 and self._reserved:
            self.fixed.append(self._reserver())
        for step in program.steps:
            self._step(step)
        self._flush()
        self._launch()

    # ---------------------------------------------------------------- order

    def _step(self, step: Step) -> None:
        if isinstance(step, Launch):
            self._flush()
            self._add_launch(step)
            return
        if isinstance(step, Update):
            self._writes.setdefault(self._kinds(step), []).append(step)
            self._open = False
            return
        made = _STEPS[type(step)](self, step)
        if not made:
            return
        self._flush()
        if not self._reserved and not isinstance(step, Bind):
            self.call.append(self._reserver())
            self._reserved = True
        if self._open and isinstance(step, Alloc):
            place = self._runs[-1][0]
            self.call[place:place] = made
            self._runs[-1] = (place + len(made), self._runs[-1][1])
            return
        self._open = False
        self.call += made

    def _add_launch(self, step: Launch) -> None:
        """Consecutive launches become one line, written when all of them are known."""
        if not self._open:
            self._runs.append((len(self.call), []))
            self.call.append("")
            self._open = True
        slots = tuple(self.layout.slots[a] for a in step.arguments)
        sizes = tuple(map(self._sizes.index, step.kernel.sizes))
        self._runs[-1][1].append(BoundLaunch(step.kernel, slots, sizes, step.lookups))

    def _launch(self) -> None:
        """Builds the runs of kernels and writes their calls."""
        runs = [run for _, run in self._runs]
        actions = self.backend.build(runs) if runs else []
        pointers = self._pointers(actions)
        self.framed = pointers is None
        for (place, _), action in zip(self._runs, actions, strict=True):
            self.call[place] = self._run(action, pointers)
        if not self.framed:
            self.call = [line for line in self.call if not line.startswith("p[")]

    def _pointers(self, actions: Sequence[Action]) -> list[str] | None:
        """The address of each slot as text, where the one run of kernels can take them one by one:
        nothing lies in a frame, and no size is symbolic."""
        if len(actions) != 1 or self._sizes or self._reserve != 0:
            return None
        action, slots = actions[0], {k for b in self._runs[0][1] for k in b.slots}
        fits = isinstance(action, Native) and action.each is not None
        if not fits or max(slots, default=0) >= MOST_POINTERS - 1 or not slots <= {*self.placed}:
            return None
        return [self.placed.get(k, "0") for k in range(max(slots, default=-1) + 1)]

    def _run(self, action: Action, pointers: list[str] | None) -> str:
        if not isinstance(action, Native):
            return f"{self.text.bound(action)}(f)"
        threads, fault = map(self.text.bound, (torch.get_num_threads, action.fault))
        if pointers is None:
            called = f"{self.text.bound(action.function)}(*f.places, {threads}())"
        else:
            called = f"{self.text.bound(action.each)}({', '.join([*pointers, f'{threads}()'])})"
        return f"if e := {called}: {fault}(e)"

    def _kinds(self, step: Update) -> Any:
        types = self.layout.types
        return types[step.target].dtype, types[step.value].dtype

    def _flush(self) -> None:
        """Consecutive writes to inputs: those between the same dtypes become one call."""
        for updates in self._writes.values():
            targets = "".join(f"{self._name(u.target)}, " for u in updates)
            values = "".join(f"{self._name(u.value)}, " for u in updates)
            copy = self.text.bound(torch._foreach_copy_)
            self.call.append(f"{copy}([{targets}], [{values}])")
        self._writes = {}

    def _name(self, value: str) -> str:
        return self.layout.name(self.layout.slots[value])

    def _form(self, t: TensorType) -> tuple[str, str]:
        shape = "".join(f"{self.text.dim(d)}, " for d in t.shape)
        strides = "".join(f"{self.text.dim(d)}, " for d in t.strides)
        return f"({shape})", f"({strides})"

    # ---------------------------------------------------------------- inputs and results

    def _inputs(
        self, values: Sequence[Value], constants: Sequence[Any], checked: frozenset[int]
    ) -> list[str]:
        """Lines that take the arguments of a call, and stand constants behind them."""
        given = len(values) - len(constants)
        names = [f"t{self.layout.slots[v.name]}" for v in values]
        lines = [f"{''.join(f'{n}, ' for n in names[:given])} = arguments"] if given else []
        lines.append("arguments.clear()")
        for name, constant in zip(names[given:], constants, strict=True):
            lines.append(f"{name} = {self.text.bound(constant)}")
        for k, (name, value) in enumerate(zip(names, values, strict=True)):
            lines += self._input(name, value, k in checked)
        return lines

    def _input(self, name: str, value: Value, checked: bool) -> list[str]:
        t, slot = value.type, self.layout.slots[value.name]
        lines = []
        # Tokens that order effects stand as empty tensors, and come as None.
        laid_out = bool(t.shape) and 0 not in t.shape
        if checked and laid_out and all(isinstance(s, int) for s in t.strides):
            strides = repr(tuple(t.strides))
            moved = self.text.bound(restrided)
            dense = t.strides == TensorType.dense(t.dtype, t.shape).strides
            test = f"not {name}.is_contiguous()" if dense else f"{name}.stride() != {strides}"
            lines.append(f"if {test}: {name} = {moved}({name}, {strides})")
        if value.name in self.layout.addressed:
            # A tensor without dimensions may be given as a number, which no kernel reads.
            address = f"{name}.data_ptr()"
            is_tensor = f"isinstance({name}, {self.text.bound(Tensor)})"
            if not t.shape:
                address = f"({address} if {is_tensor} else 0)"
            lines.append(self._placing(slot, address))
        return lines

    def _placing(self, slot: int, address: str) -> str:
        """The line that writes a slot's address."""
        self.placed[slot] = address
        return f"p[{slot}] = {address}"

    def result(self, output: str | Scalar | None) -> str:
        """The text of one result."""
        if output is None:
            return "None"
        if isinstance(output, Scalar):
            return self.text.spell(output.value)
        return self._name(output)

    # ---------------------------------------------------------------- memory

    def _reserver(self) -> str:
        backend, size = self.backend, self.text.dim(self._reserve)

        def reserve(frame: Any, need: int) -> None:
            if need and (frame.arena is None or frame.arena.numel() < need):
                frame.arena = backend.arena(need)
                frame.base = frame.arena.data_ptr()

        return f"{self.text.bound(reserve)}(f, {size})"

    def _bind(self, step: Step) -> list[str]:
        assert isinstance(step, Bind)
        k = self._sizes.index(step.size)
        if isinstance(step.source, Computed):
            return [f"s[{k}] = {self.text.spell(step.source)}"]
        source = self._name(step.source)
        return [
            f"s[{k}] = " + (f"int({source})" if step.dim < 0 else f"{source}.shape[{step.dim}]")
        ]

    def _alloc(self, step: Step) -> list[str]:
        assert isinstance(step, Alloc)
        if step.offset is not None:
            return self._alloc_scratch(step, step.offset)
        t, slot = step.value.type, self.layout.slots[step.value.name]
        name, dtype = self.layout.name(slot), torch_dtype(t.dtype)
        if is_static(t):
            shape, strides = ([int(str(d)) for d in form] for form in (t.shape, t.strides))
            made = f"{self.text.bound(self.backend.maker(shape, strides, dtype))}()"
        else:
            empty = self.text.bound(self.backend.empty)
            made = f"{empty}({', '.join(self._form(t))}, {self.text.bound(dtype)})"
        return [f"{name} = {made}", *self._address(step.value.name)]

    def _address(self, name: str) -> list[str]:
        if name not in self.layout.addressed:
            return []
        slot = self.layout.slots[name]
        return [self._placing(slot, f"{self.layout.name(slot)}.data_ptr()")]

    def _alloc_scratch(self, step: Alloc, offset: Dim) -> list[str]:
        value, start = step.value, self.text.dim(offset)
        slot = self.layout.slots[value.name]
        lines = [f"p[{slot}] = f.base + {start}"]
        if value.name in self.layout.as_tensor:
            form = ", ".join(self._form(value.type))
            dtype = self.text.bound(torch_dtype(value.type.dtype))
            view = self.text.bound(_view)
            lines.append(f"{self.layout.name(slot)} = {view}(f.arena, {start}, {form}, {dtype})")
        return self._placed(slot, lines)

    def _placed(self, slot: int, lines: list[str]) -> list[str]:
        """Nothing to do at a call for what lies in the frame."""
        if slot not in self.layout.kept:
            return lines
        self.fixed += lines
        return []

    def _alias(self, step: Step) -> list[str]:
        assert isinstance(step, Alias)
        value, t = step.value.name, step.value.type
        slot, source = self.layout.slots[value], self.layout.slots[step.source]
        if slot == source:
            return []
        shift, lines = self.text.dim(step.offset), []
        if value in self.layout.addressed:
            bytes_ = f"{shift} * {t.dtype.itemsize}"
            lines.append(f"p[{slot}] = (p[{source}] or 0) + {bytes_}")
            if source in self.placed:
                self.placed[slot] = f"{self.placed[source]} + {bytes_}"
        if value in self.layout.as_tensor:
            form, of = ", ".join(self._form(t)), self.layout.name(source)
            made = f"{self.text.bound(alias)}({of}, {form}, {shift})"
            if slot in self.layout.lasting:
                moved = step.offset
                assert isinstance(moved, int)
                made = f"{self.text.bound(Remembered(t.shape, t.strides, moved))}({of})"
            lines.append(f"{self.layout.name(slot)} = {made}")
        return self._placed(slot, lines)

    def _free(self, step: Step) -> list[str]:
        assert isinstance(step, Free)
        slot = self.layout.slots[step.value]
        if slot in self.layout.kept or step.value not in self.layout.as_tensor:
            return []
        return [f"{self.layout.name(slot)} = None"]

    # ---------------------------------------------------------------- library calls

    def _call(self, step: Step) -> list[str]:
        assert isinstance(step, Call)

        def operand(ref: Ref) -> str | Scalar:
            found = step.inputs[ref.index]
            return found if isinstance(found, Scalar) else self._name(found.name)

        outs = [self.layout.name(self.layout.slots[v.name]) for v in step.outputs]
        given = [self.text.spell(x, operand) for x in step.args]
        given += [self.text.named(k, x, operand) for k, x in step.kwargs]
        if step.out:
            given.append(f"out={outs[0]}")
        function = resolve_target(step.target)
        made = f"{self.text.bound(function)}({', '.join(given)})"
        if step.out:
            return [made]
        if outs and returns_one(step.target):
            lines = [f"{outs[0]} = {made}"]
        else:
            lines = [f"r = {self.text.bound(_results)}({made})"]
            lines += [f"{name} = r[{k}]" for k, name in enumerate(outs)]
            lines.append("r = None")
        if isinstance(function, torch._ops.HigherOrderOperator) or step.target in _LAID_OUT_ANEW:
            moved = self.text.bound(laid_out)
            for name, value in zip(outs, step.outputs, strict=True):
                lines.append(f"{name} = {moved}({name}, {self._form(value.type)[1]})")
        return lines + [x for v in step.outputs for x in self._address(v.name)]


def returns_one(target: str) -> bool:
    """Whether the operator's schema says that its result is one tensor."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
    schema = getattr(found, "_schema", None)
    kinds = [str(r.type) for r in schema.returns] if schema is not None else []
    return kinds == ["Tensor"]


def _results(result: Any) -> Sequence[Any]:
    """The results of a call as a sequence: operators over programs may answer with a dict."""
    if isinstance(result, dict):
        return tuple(result.values())
    return result if isinstance(result, tuple | list) else (result,)


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


_STEPS: dict[type, Callable[[Lines, Step], list[str]]] = {
    Bind: Lines._bind,
    Alloc: Lines._alloc,
    Alias: Lines._alias,
    Call: Lines._call,
    Free: Lines._free,
}
