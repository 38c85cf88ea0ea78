"""Runs a Program: it is written as one Python function, in which a run of kernels is one call.

A `Frame` is what one call in flight owns: the scratch arena and the table of addresses that kernels
read. Frames are kept and reused, so a repeated call allocates only its outputs. Where work waits in
queues, the arena is a block that programs share (`scratch`), with a frame for each block. How
kernels are built and launched is the backend's affair; this module knows neither C++ nor Triton.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from ..ir.program import Program
from .blame import PROGRAM, step_of
from .frame import Backend, Frame
from .layout import Layout
from .scratch import Block, scratch_of
from .steps import Lines

Run = Callable[[list[Any]], list[Any]]

_QUEUED = (("f = take()",), "give(f)")
_AT_ONCE = (("try: f = idle.pop()", "except IndexError: f = new(0)"), "idle.append(f)")
"""How a call takes a frame and gives it back. One whose call fails is dropped."""


@dataclass
class Executable:
    """A program ready to run.

    Attributes:
        constants: what stands behind the program's last inputs, which no call gives.
        checked: positions of inputs whose strides are compared at each call.
        run: runs once; empties its list of arguments, as the boxed calling convention asks.
        text: the function behind `run`.
    """

    program: Program
    backend: Backend
    checked: frozenset[int] = frozenset()
    constants: tuple[Any, ...] = ()
    run: Run = field(init=False)
    text: str = field(init=False)
    _free: dict[int, list[Frame]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _of_blocks: WeakKeyDictionary[Block, Frame] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        values = self.program.inputs
        lasting = frozenset(range(len(values))) - self.checked
        self._layout = Layout(self.program, lasting)
        self._scratch = scratch_of(self.backend.device)
        need = self.program.arena_bytes
        self._shares = need if isinstance(need, int) and not self.backend.immediate else 0
        lines = Lines(self.program, self._layout, self.backend, self.constants, self.checked)
        results = ", ".join(map(lines.result, self.program.outputs))
        call = [*lines.call, f"return [{results}]"]
        if lines.framed:
            take, give = _AT_ONCE if self.backend.immediate else _QUEUED
            frame = "k = f.tensors; p = f.pointers; s = f.sizes"
            call = [*take, frame, *lines.call, f"r = [{results}]", give, "return r"]
        fixed = ["k = f.tensors; p = f.pointers; s = f.sizes", *lines.fixed]
        self.text = f"{_function('run(arguments)', call)}\n{_function('prepare(f)', fixed)}"
        names = {**lines.text.names, "take": self._take, "give": self._give,
                 "new": self._new_frame, "idle": self._free.setdefault(0, [])}  # fmt: skip
        exec(compile(self.text, PROGRAM, "exec"), names)
        self.run, self._prepare = names["run"], names["prepare"]
        self.run._boxed_call = True  # type: ignore[attr-defined]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs once; empties `arguments`."""
        return self.run(arguments)

    def step_of(self, error: BaseException) -> str | None:
        """What a call was at when an error was raised, None where that was not in a step."""
        return step_of(error, self.text)

    def rest(self) -> None:
        """Frees the memory of frames that wait for a call."""
        for waiting in self._free.values():
            waiting.clear()
        if self._shares:
            self._scratch.clear()

    def _take(self) -> Frame:
        """A frame whose earlier work lies on the same queue, so that work on it stays in order."""
        queue = self.backend.queue()
        if self.backend.capturing():
            return self._new_frame(queue, single=True)
        if self._shares:
            block = self._scratch.lease(queue, self._shares, self.backend.arena)
            frame = self._of_blocks.pop(block, None) or self._new_frame(queue, arena=block.arena)
            frame.block = block
            return frame
        try:
            return self._free[queue].pop()
        except (KeyError, IndexError):
            return self._new_frame(queue)

    def _give(self, frame: Frame) -> None:
        """Takes back the frame of a call that is over."""
        if frame.single:
            return
        if frame.block is None:
            self._free[frame.queue].append(frame)
            return
        block, frame.block = frame.block, None
        self._of_blocks[block] = frame
        self._scratch.give(frame.queue, block)

    def _new_frame(self, queue: int, single: bool = False, arena: Tensor | None = None) -> Frame:
        """A frame, of its own memory unless it is given some. One made inside a graph capture
        belongs to that graph, which keeps its memory for as long as it can be replayed, and serves
        no other call."""
        with self._lock:
            self._free.setdefault(queue, [])
        slots = len(self._layout.slots)
        frame = Frame(
            (ctypes.c_void_p * max(1, slots))(),
            [None] * slots,
            (ctypes.c_int64 * max(1, len(self.program.sizes)))(),
            arena,
            0 if arena is None else arena.data_ptr(),
            queue,
            single,
        )
        self._prepare(frame)
        return frame


def _function(head: str, lines: list[str]) -> str:
    return "\n    ".join([f"def {head}:", *lines, ""])
