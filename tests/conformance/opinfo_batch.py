"""Many samples as one program: what it leaves, in eager and compiled, and what was compiled.

A program has a line for each sample, so that every call of a captured graph says by its origin
which sample it belongs to.
"""

from __future__ import annotations

import importlib
import linecache
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import torch
from opinfo_entries import GRADIENTS, Sample, tensors_of
from torch import Tensor
from torch._dynamo.utils import counters, graph_break_reasons
from torch.utils._pytree import tree_leaves, tree_map

from onetrip.frontend.origin import origin_of

FILE = "<samples>"
OPTIONS = {"search": "max"}
"""All that may share a kernel does. Samples have nothing to do with each other: a search for the
best plan of them all would take longer than everything else."""
BEGIN = 3
"""Line of the first sample in the text of a program."""


@dataclass
class Left:
    """What one call leaves: its result's leaves, gradients after them, and its arguments."""

    kind: str
    leaves: list[Any]
    inputs: list[Tensor]


@dataclass
class Seen:
    """What a compilation made of a program, by sample number.

    Attributes:
        captured: samples of which a call stood in a graph that was built.
        externs: calls left to the library, with the reason.
        failed: (kind, message) of each graph that ran in eager.
        breaks: why Dynamo split the program at a sample.
    """

    captured: set[int] = field(default_factory=set)
    externs: dict[int, list[str]] = field(default_factory=dict)
    failed: list[tuple[str, str]] = field(default_factory=list)
    breaks: dict[int, str] = field(default_factory=dict)


# ------------------------------------------------------------------ arguments


def twin(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with every tensor changed, the same tensor each time to the same."""
    known: dict[int, Tensor] = {}

    def changed(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in known:
            known[id(x)] = change(x)
        return known[id(x)]

    return tree_map(changed, tree)


def cloned(t: Tensor) -> Tensor:
    """A tensor of the same bytes, strides and offset in storage of its own."""
    if t.layout is not torch.strided or t.is_conj() or t.is_neg() or t.is_quantized:
        return t.detach().clone().requires_grad_(t.requires_grad)
    fresh = torch.empty(0, dtype=t.dtype)
    fresh.set_(t.untyped_storage().clone(), t.storage_offset(), t.size(), t.stride())
    return fresh.requires_grad_(t.requires_grad)


WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128} | dict.fromkeys(
    (torch.float32, torch.float16, torch.bfloat16), torch.float64
)


def wide(t: Tensor) -> Tensor:
    """The tensor in double precision."""
    return cloned(t.detach()).to(WIDE.get(t.dtype, t.dtype)).requires_grad_(t.requires_grad)


def narrowed(t: Tensor) -> Tensor:
    """The tensor in single precision where it is in double precision."""
    dtype = torch.float32 if t.dtype is torch.float64 else t.dtype
    return cloned(t.detach()).to(dtype).requires_grad_(t.requires_grad)


# ------------------------------------------------------------------ one call


def left_by(
    results: Sequence[Any], given: Sequence[tuple[Any, Any]], chosen: Sequence[Sample], mode: str
) -> list[Left]:
    """What each call left, with the gradients of a fixed weighting of its result.

    Gradients of calls that one program made are asked for together: its backward half runs once.
    """
    inputs = [tensors_of(g) for g in given]
    gradients: list[list[Any]] = [[] for _ in results]
    if mode == GRADIENTS:
        shown = [s.shown(r) for s, r in zip(chosen, results, strict=True)]
        gradients = _gradients(shown, inputs)
    return [
        Left(
            type(result).__name__,
            [x.detach() if isinstance(x, Tensor) else x for x in (*tree_leaves(result), *asked)],
            [t.detach() for t in own],
        )
        for result, asked, own in zip(results, gradients, inputs, strict=True)
    ]


def _gradients(shown: Sequence[Any], inputs: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
    """For each call the gradients of the arguments that ask for one; none where no result does."""
    results = [[t for t in tensors_of(x) if t.requires_grad] for x in shown]
    wanted = [
        list({id(t): t for t in own if t.requires_grad}.values()) if made else []
        for own, made in zip(inputs, results, strict=True)
    ]
    every = [t for made in results for t in made]
    asked = [t for own in wanted for t in own]
    if not asked:
        return [[] for _ in shown]
    weights = [_weights(t) for t in every]
    found = iter(torch.autograd.grad(every, asked, weights, allow_unused=True))
    return [list(islice(found, len(own))) for own in wanted]


def _weights(t: Tensor) -> Tensor:
    """Between a half and three halves, from the position alone."""
    position = torch.arange(t.numel(), dtype=torch.float64)
    return (0.5 + (position * 0.618034) % 1).reshape(t.shape).to(t.dtype)


# ------------------------------------------------------------------ many calls


@cache
def program(count: int) -> Callable[..., list[Any]]:
    """A function of a callable and the arguments of so many calls."""
    lines = ["def samples(fn, given):", "    made = []"]
    lines += [f"    made.append(fn(*given[{k}][0], **given[{k}][1]))" for k in range(count)]
    text = "\n".join([*lines, "    return made", ""])
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    space: dict[str, Any] = {}
    exec(compile(text, FILE, "exec"), space)
    made: Callable[..., list[Any]] = space["samples"]
    return made


def compiled(
    fn: Callable[..., Any],
    given: Sequence[tuple[Any, Any]],
    chosen: Sequence[Sample],
    mode: str,
    backend: str = "onetrip",
) -> tuple[list[Left], Seen]:
    """The samples as one compiled program; raises what the compilation or the call raises."""
    torch._dynamo.reset()
    counters.clear()
    graph_break_reasons.clear()
    # A program asked about again must be compiled again: Dynamo keeps what it gave up on.
    program.cache_clear()
    with watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = OPTIONS if backend == "onetrip" else None
        run = torch.compile(program(len(given)), backend=backend, dynamic=False, options=options)
        results = run(fn, list(given))
        left = left_by(results, given, chosen, mode)
    if counters["frames"]["ok"] != counters["frames"]["total"]:
        seen.failed.append(("eager", "a frame is not captured"))
    seen.breaks.update(_breaks())
    return left, seen


def _breaks() -> Iterator[tuple[int, str]]:
    for found in graph_break_reasons:
        reason = " ".join(found.reason.split())[:160]
        yield from (
            (frame.lineno - BEGIN, reason) for frame in found.user_stack if frame.filename == FILE
        )


@contextmanager
def watched() -> Iterator[Seen]:
    """Records what every compilation inside makes of its graphs."""
    module = importlib.import_module("onetrip.api.backend")
    build, seen = module.build_captured, Seen()

    def spy(captured: Any, options: Any) -> Any:
        try:
            built = build(captured, options)
        except Exception as error:
            kind = type(error).__name__ if isinstance(error, module.RECOVERABLE) else "fault"
            seen.failed.append((kind, " ".join(str(error).split())[:300]))
            raise
        nodes = captured.module.graph.nodes
        seen.captured |= {_sample_of(origin_of(n)[1]) for n in nodes if n.op == "call_function"}
        for node in built.analyzed.graph.nodes:
            if node.op == "extern":
                why = f"{node.attr['target']}: {node.attr['reason']}"
                seen.externs.setdefault(_sample_of(node.origin.line), []).append(why)
        return built

    module.build_captured = spy
    try:
        yield seen
    finally:
        module.build_captured = build


def _sample_of(line: str) -> int:
    """Number of the sample whose line it is; -1 where torch recorded none."""
    file, _, number = line.rpartition(":")
    return int(number) - BEGIN if file == FILE else -1
