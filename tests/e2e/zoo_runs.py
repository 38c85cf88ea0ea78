"""One call or training step of a model of the zoo, compiled, in eager and in float64, and judged.

    ours, eager, exact : name -> tensor, for what is returned, the loss's gradients and the buffers

bfloat16 training is judged over several draws of weights and inputs taken together: where a ReLU or
a maximum decides the other way than float64, a whole row of a gradient moves, in eager as in ours,
and one draw's own distance says little about the next one's.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from zoo import Inputs, build

from onetrip.api.backend import build_captured, runner
from onetrip.api.pipeline import Analyzed, Built
from onetrip.base.options import Options
from onetrip.cost.roofline import is_anchor
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.ir.graph import Node
from onetrip.runtime.accuracy import InFloat64, Verdict, judge, wide

DRAWS = 16
"""Draws of weights and inputs that bfloat16 training is judged over."""
LIBRARY = frozenset({
    "aten.embedding_dense_backward.default",
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool2d_with_indices_backward.default",
    "aten.scatter_add.default",
    "aten.index_put.default",
})  # fmt: skip
"""What may stay a library call beside contraction, convolution and attention."""

Values = dict[str, Tensor]


# ------------------------------------------------------------------ what a call leaves


def leaves(x: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a result, caches and their layers included, under the path to it."""
    if isinstance(x, Tensor):
        yield name, x
    elif isinstance(x, list | tuple):
        for k, part in enumerate(x):
            yield from leaves(part, f"{name}.{k}")
    elif isinstance(x, dict):
        for key, part in x.items():
            yield from leaves(part, f"{name}.{key}")
    elif hasattr(x, "__dict__"):
        yield from leaves(vars(x), f"{name}:{type(x).__name__}")


def shape_of(returned: Any) -> list[tuple[Any, ...]]:
    """Type, names, dtypes and layouts of a result: what a reader of it relies on."""
    rows: list[tuple[Any, ...]] = [(type(returned),)]
    for name, t in leaves(returned):
        lying = tuple((n, s) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1)
        rows.append((name, t.dtype, t.shape, lying))
    return rows


@dataclass(frozen=True)
class Left:
    """What one call returned and every value that it left behind."""

    returned: Any
    values: Values


def call(run: Callable[..., Any], model: nn.Module, inputs: Inputs, training: bool) -> Left:
    """One call; in training with the gradients of the model's own loss. Inputs must not change."""
    given = {k: v.clone() for k, v in inputs.items()}
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(training):
        returned = run(**inputs)
    values = {name: t.detach().clone() for name, t in leaves(returned)}
    if training:
        returned.loss.backward()
        values |= {
            f"d {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
    values |= {f"buffer {n}": b.clone() for n, b in model.named_buffers()}
    assert all(torch.equal(before, inputs[k]) for k, before in given.items()), "an input changed"
    return Left(returned, values)


# ------------------------------------------------------------------ compiled, and judged


class Compiled:
    """A model under our backend, and everything that was built for it."""

    def __init__(self, model: nn.Module, compile_graph: Callable[..., Built] = build_captured):
        self.model = model
        self.built: list[Built] = []
        self.first_seconds = 0.0
        torch._dynamo.reset()

        def compile_one(captured: CapturedGraph) -> Any:
            self.built.append(compile_graph(captured, Options()))
            return runner(self.built[-1])

        self.run: Any = torch.compile(model, backend=make_backend(compile_one))

    def __call__(self, inputs: Inputs, training: bool) -> Left:
        """One call of the compiled model."""
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch._dynamo")
            left = call(self.run, self.model, inputs, training)
        self.first_seconds = self.first_seconds or time.perf_counter() - began
        return left

    @property
    def analyzed(self) -> tuple[Analyzed, ...]:
        """Every graph with its plan."""
        return tuple(b.analyzed for b in self.built)


@dataclass(frozen=True)
class Judgement:
    """The verdict on every value of a call, by name."""

    by_name: dict[str, Verdict]

    @property
    def wrong(self) -> dict[str, Verdict]:
        """Values out of the rule."""
        return {n: v for n, v in self.by_name.items() if not v.ok}

    @property
    def worst_ratio(self) -> float:
        """The largest distance from float64, as a share of what the rule allows."""
        return max((v.worst_ulp / v.allowed_ulp for v in self.by_name.values()), default=0)


def draws(dtype: torch.dtype, training: bool) -> int:
    """How many draws of weights and inputs a model is judged over."""
    return DRAWS if training and dtype is torch.bfloat16 else 1


def check(
    name: str, dtype: torch.dtype, training: bool, *, deep: bool = False, least: int = 1
) -> tuple[Compiled, Judgement]:
    """A model of the zoo against eager and float64, without dropout, over `least` draws or more."""
    model, _ = build(name, dtype, deep=deep)
    ours = Compiled(model.train(training))
    count = max(draws(dtype, training), least)
    drawn = (build(name, dtype, seed=k, deep=deep) for k in range(count))
    return ours, judged(ours, drawn, training)


def judged(ours: Compiled, drawn: Iterable[tuple[nn.Module, Inputs]], training: bool) -> Judgement:
    """The rule over all draws together; each is made by a model of the compiled one's kind."""
    three: tuple[list[Values], ...] = ([], [], [])
    for model, inputs in drawn:
        ours.model.load_state_dict(model.state_dict())
        mine = ours(inputs, training)
        twin = copy.deepcopy(model).double().train(training)
        theirs = call(model.train(training), model, inputs, training)
        with InFloat64():
            exact = call(twin, twin, {k: wide(v) for k, v in inputs.items()}, training)
        assert shape_of(mine.returned) == shape_of(theirs.returned)
        for found, values in zip(three, (mine.values, theirs.values, exact.values), strict=True):
            found.append(values)
    return Judgement({name: _verdict(name, *three) for name in three[0][0]})


def _verdict(name: str, *three: list[Values]) -> Verdict:
    ours, eager, exact = (torch.stack([v[name] for v in found]) for found in three)
    return judge((ours,), (eager,), (exact,))


# ------------------------------------------------------------------ what stays with a library


def library_calls(analyzed: Iterable[Analyzed]) -> list[Node]:
    """Calls that run in a library, beside contraction, convolution, attention and seeds."""
    return [
        node
        for a in analyzed
        for nests in (a.problem.lower(a.plan.graph),)
        for node in a.plan.graph.nodes
        if node.name not in nests and node.op != "seed" and not is_anchor(node)
    ]


def share(analyzed: Iterable[Analyzed]) -> float:
    """Share of eager's bytes outside products and attention that is generated."""
    totals = [a.plan.totals for a in analyzed]
    return sum(t.generated_bytes for t in totals) / sum(t.eligible_bytes for t in totals)
