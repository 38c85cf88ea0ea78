"""Where a program's values stand while it runs: their slots, and which of them lie in the frame.

Knows no steps' meaning beyond what they read and make, and no text but a value's name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import Value
from ..ir.program import Alias, Alloc, Call, Launch, Program, Step, Update
from ..ir.types import TensorType


class Layout:
    """Slots of a program's values, and what of its frames never changes.

    Attributes:
        slots: slot of each value by name; an alias of the same form shares its source's.
        types: type of each value by name.
        addressed: names whose address a kernel reads, itself or through an alias.
        as_tensor: names that are read as tensors: by library calls, updates and the caller.
        kept: slots whose tensor and address belong to the frame, the same at each of its calls.
        lasting: slots whose tensor is the same at each call: parameters and views of them.
        symbolic_arena: whether the arena's size, and so everything in it, is known only at a call.
    """

    def __init__(self, program: Program, lasting: Iterable[int] = ()) -> None:
        """
        Args:
            lasting: positions of inputs that are the same tensors at each call.
        """
        self.program = program
        self.slots: dict[str, int] = {}
        self.types: dict[str, TensorType] = {}
        self.symbolic_arena = not isinstance(program.arena_bytes, int)
        self.kept: set[int] = set()
        for value in program.inputs:
            self._add(value)
        self.lasting = {self.slots[program.inputs[k].name] for k in lasting}
        for step in program.steps:
            self._place(step)
        aliases = [s for s in program.steps if isinstance(s, Alias)]
        self.addressed = {a for s in program.steps if isinstance(s, Launch) for a in s.arguments}
        _through(aliases, self.addressed)
        self.as_tensor = _read_as_tensors(program)
        _through(aliases, self.as_tensor)

    def name(self, slot: int) -> str:
        """The text of a slot's tensor: an entry of the frame, or a variable of the call."""
        return f"k[{slot}]" if slot in self.kept else f"t{slot}"

    def _place(self, step: Step) -> None:
        if isinstance(step, Alias) and self._same_form(step):
            self.slots[step.value.name] = self.slots[step.source]
        for value in _made(step):
            self._add(value)
        if isinstance(step, Alloc) and step.offset is not None and not self.symbolic_arena:
            self.kept.add(self.slots[step.value.name])
        if isinstance(step, Alias):
            slot, source = self.slots[step.value.name], self.slots[step.source]
            static = is_static(step.value.type) and isinstance(step.offset, int)
            for same in (self.kept, self.lasting):
                if source in same and static:
                    same.add(slot)

    def _add(self, value: Value) -> None:
        self.slots.setdefault(value.name, len(self.slots))
        self.types[value.name] = value.type

    def _same_form(self, step: Alias) -> bool:
        """Whether an alias is its source under another name: it needs no step of its own."""
        return step.offset == 0 and step.value.type == self.types[step.source]


def is_static(t: TensorType) -> bool:
    """Whether shape and strides are numbers."""
    return all(isinstance(d, int) for d in (*t.shape, *t.strides))


def _made(step: Step) -> tuple[Value, ...]:
    if isinstance(step, Alloc | Alias):
        return (step.value,)
    return step.outputs if isinstance(step, Call) else ()


def _read_as_tensors(program: Program) -> set[str]:
    needed = {o for o in program.outputs if isinstance(o, str)}
    for step in program.steps:
        if isinstance(step, Call):
            needed |= {v.name for v in step.inputs if isinstance(v, Value)}
            needed |= {v.name for v in step.outputs}
        elif isinstance(step, Update):
            needed |= {step.target, step.value}
    return needed


def _through(aliases: list[Alias], needed: set[str]) -> None:
    """What an alias needs its source needs too."""
    for step in reversed(aliases):
        if step.value.name in needed:
            needed.add(step.source)
