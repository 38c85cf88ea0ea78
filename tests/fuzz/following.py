"""What eager makes of values that a compiled run left, where exact calls alone lead on from them.

A call that is not exact may be a unit in the last place off, and everything behind it with it, so
beside eager's own values it can only be said how far a result may lie: a rounding that is lost
brings it nearer to float64, and shows in nothing. But the run says what it made of that call where
the program returns it. From there on the exact calls have eager's bits, or a kernel keeps something
else in its registers than what it stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from programs import Program, Ref, Step
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Values = Mapping[str, Any]
"""Leaves and what each step answers, by name."""


def valued(program: Program, leaves: Sequence[Tensor], given: Mapping[Ref, Tensor]) -> Values:
    """Every value of the program in eager, where readers of a given one read that instead."""
    names = [name for name, _ in program.leaves]
    made: dict[str, Any] = dict(zip(names, leaves, strict=True))

    def read(ref: Ref) -> Tensor:
        return given[ref] if ref in given else part(made, ref)

    for step in program.steps:
        args, kwargs = tree_map_only(Ref, read, (step.args, dict(step.kwargs)))
        made[step.name] = step.call(*args, **kwargs)
    return made


def part(made: Values, ref: Ref) -> Tensor:
    """A leaf, the only output of a step, or one of several."""
    found: Tensor = made[ref.name] if ref.part is None else made[ref.name][ref.part]
    return found


def exact_names(
    program: Program, made: Values, exact: Collection[str], given: Collection[Ref] = ()
) -> frozenset[str]:
    """Leaves and steps that depend on exact calls alone, behind leaves and given values.

    Args:
        made: the values of a run in eager, which say what lies in the same memory.
        exact: targets of calls that have eager's bits.
    """
    found = {name for name, _ in program.leaves}
    spoilt: set[int] = set()
    for step in program.steps:
        read = refs(step)
        known = all(r in given or r.name in found for r in read)
        clean = not any(_memory(part(made, r)) in spoilt for r in read)
        if step.target in exact and known and clean:
            found.add(step.name)
        elif step.writes:
            spoilt.add(_memory(part(made, read[0])))
    spoils = (name for name in found if any(_memory(t) in spoilt for t in tree_leaves(made[name])))
    return frozenset(found - set(spoils))


def kept(program: Program, made: Values) -> frozenset[Ref]:
    """The results in whose memory nothing is written: they are what the steps read."""
    written = {_memory(part(made, refs(s)[0])) for s in program.steps if s.writes}
    return frozenset(r for r in program.results if _memory(part(made, r)) not in written)


def refs(step: Step) -> list[Ref]:
    """What a step reads, in order."""
    return [r for r in tree_leaves((step.args, step.kwargs)) if isinstance(r, Ref)]


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()
