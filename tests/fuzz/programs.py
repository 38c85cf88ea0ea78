"""What the fuzzer runs: tensors, ATen calls over them, and which values are returned.

    Program ::= (name, Leaf)*, Step*, results
    Leaf    ::= dtype, shape, layout, fill, seed       a tensor that is an input of the program
    Step    ::= name = target(args, kwargs)            an ATen overload, in place or not
    Ref     ::= name [part]                            a leaf, or an output of a step

Knows torch alone. A program is data, so that it can be cut smaller and printed as the Python text
that makes it again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, INF, -INF, NAN, 1e-40, -1e-40, 1e-30, 3e4, -300.0, 88.7, 1e-7)
"""Zeros, infinities, NaN, subnormals, and where functions leave the range of a dtype."""
EXTREMES = (0, 1, -1, 2, 127, -128, 255, 32767, -32768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
SPECIAL_SHARE = 0.3


@dataclass(frozen=True)
class Ref:
    """A value of a program: a leaf, a step's only output, or one part of several."""

    name: str
    part: int | None = None

    def __repr__(self) -> str:
        return self.name if self.part is None else f"{self.name}[{self.part}]"


@dataclass(frozen=True)
class Leaf:
    """An input tensor.

    Attributes:
        layout: a key of `LAYOUTS`.
        fill: a key of `FILLS`, or `given`.
        data: the elements, where the fill is `given`.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str = "dense"
    fill: str = "normal"
    seed: int = 0
    data: tuple[Any, ...] = ()

    def tensor(self) -> Tensor:
        """A new tensor, the same elements each time."""
        made = LAYOUTS[self.layout](self.shape, self._values)
        assert made.shape == self.shape
        return made

    def _values(self, shape: Sequence[int]) -> Tensor:
        if self.fill == "given":
            return torch.tensor(self.data, dtype=self.dtype).reshape(tuple(shape))
        generator = torch.Generator().manual_seed(self.seed)
        tiny = self.dtype.is_floating_point and self.dtype.itemsize == 1  # which computes nothing
        made = FILLS[self.fill](tuple(shape), torch.float32 if tiny else self.dtype, generator)
        return made.to(self.dtype)

    def __repr__(self) -> str:
        words = [str(self.dtype), str(self.shape), repr(self.layout), repr(self.fill)]
        return f"Leaf({', '.join([*words, str(self.data or self.seed)])})"


@dataclass(frozen=True)
class Step:
    """One call."""

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it changes the value that is its first argument."""
        return self.target.split(".")[1].endswith("_")

    @property
    def call(self) -> Callable[..., Any]:
        """The overload."""
        found: Any = torch.ops
        for word in self.target.split("."):
            found = getattr(found, word)
        made: Callable[..., Any] = found
        return made

    def __repr__(self) -> str:
        words = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs)]
        return f"{self.name} = {self.target}({', '.join(words)})"


@dataclass(frozen=True)
class Program:
    """Leaves, steps in order, and the values that are returned."""

    leaves: tuple[tuple[str, Leaf], ...]
    steps: tuple[Step, ...]
    results: tuple[Ref, ...]

    def __repr__(self) -> str:
        leaves = [f"{name} = {leaf!r}" for name, leaf in self.leaves]
        return "\n".join([*leaves, *map(repr, self.steps), f"return {self.results}"])


# ------------------------------------------------------------------ elements and layouts


def _normal(shape: tuple[int, ...], dtype: torch.dtype, g: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
    low, high = (0, 2) if dtype is torch.bool else (0 if dtype is torch.uint8 else -9, 10)
    return torch.randint(low, high, shape, generator=g).to(dtype)


def _special(shape: tuple[int, ...], dtype: torch.dtype, g: torch.Generator) -> Tensor:
    plain = _normal(shape, dtype, g)
    if dtype is torch.bool:
        return plain
    table: Tensor
    if dtype.is_floating_point:
        table = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    else:
        table = torch.tensor(EXTREMES, dtype=torch.int64).to(dtype)
    picked = table[torch.randint(0, len(table), shape, generator=g)]
    return torch.where(torch.rand(shape, generator=g) < SPECIAL_SHARE, picked, plain)


def _constant(shape: tuple[int, ...], dtype: torch.dtype, g: torch.Generator) -> Tensor:
    return _normal((), dtype, g).expand(shape).clone()


def _positive(shape: tuple[int, ...], dtype: torch.dtype, g: torch.Generator) -> Tensor:
    plain = _normal(shape, dtype, g)
    return plain if dtype is torch.bool else plain.abs() + 1


FILLS: Mapping[str, Callable[..., Tensor]] = {
    "normal": _normal, "special": _special, "constant": _constant, "positive": _positive,
}  # fmt: skip

Make = Callable[[Sequence[int]], Tensor]


def _transposed(shape: tuple[int, ...], make: Make) -> Tensor:
    return make(shape[::-1]).permute(tuple(reversed(range(len(shape)))))


def _expanded(shape: tuple[int, ...], make: Make) -> Tensor:
    narrow = (1, *shape[1:]) if len(shape) > 1 else (1,) * len(shape)
    return make(narrow).expand(shape)


def _strided(shape: tuple[int, ...], make: Make) -> Tensor:
    wide = make((*shape[:-1], 2 * shape[-1])) if shape else make(shape)
    return wide[..., ::2] if shape else wide


def _offset(shape: tuple[int, ...], make: Make) -> Tensor:
    return make((math.prod(shape) + 3,))[3:].view(shape)


LAYOUTS: Mapping[str, Callable[[tuple[int, ...], Make], Tensor]] = {
    "dense": lambda shape, make: make(shape),
    "transposed": _transposed, "expanded": _expanded, "strided": _strided, "offset": _offset,
}  # fmt: skip


# ------------------------------------------------------------------ as a graph


def module(programs: Sequence[Program]) -> fx.GraphModule:
    """One function of the leaves of all programs in order; it returns all their results."""
    graph = fx.Graph()
    known: dict[tuple[int, str], fx.Node] = {}
    for k, program in enumerate(programs):
        for name, _ in program.leaves:
            known[k, name] = graph.placeholder(f"p{k}_{name}")
    results: list[fx.Node] = []
    for k, program in enumerate(programs):

        def value(ref: Ref, k: int = k) -> fx.Node:
            whole = known[k, ref.name]
            if ref.part is None:
                return whole
            return graph.call_function(operator.getitem, (whole, ref.part))

        for step in program.steps:
            args, kwargs = tree_map_only(Ref, value, (step.args, dict(step.kwargs)))
            known[k, step.name] = graph.call_function(step.call, args, kwargs)
        results += map(value, program.results)
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph)


def tensors(program: Program) -> list[Tensor]:
    """New tensors for the leaves."""
    return [leaf.tensor() for _, leaf in program.leaves]
