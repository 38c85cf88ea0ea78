"""Measures the cost model: every generated kernel of blocks and models alone, and plans as a whole.

    cold    copies of a kernel's buffers are run through one after the other; they are several times
            as large as the last cache, which was filled with something else before
    warm    one copy is run again and again; only kernels whose buffers fit into half the cache

On a GPU either is a replayed CUDA graph, so that a launch costs what it costs in one. The compiler
comes from above, as its public functions: `kernels`, `plan` and `compile`.
"""

from __future__ import annotations

import datetime
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import torch

from onetrip.base.errors import OnetripError, UsageError
from onetrip.base.options import SEARCHES
from onetrip.bench import cost_record as record
from onetrip.bench import timing, variants
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.cost_rows import SPLIT, Program, programs
from onetrip.bench.engine import Step, check_device, versions
from onetrip.bench.table import Row, Work
from onetrip.runtime.clock import card_name

REGIMES = (
    "cold: copies of a kernel's buffers, several times the last cache together, one after the "
    "other; warm: the same buffers again and again, where they fit into half the cache; on a GPU "
    "both are launches of a replayed CUDA graph"
)
SPREAD = 4
"""All copies together are this many times the last cache."""
COPIES = {"small": (8, 128), "large": (3, 3)}
"""Fewest and most copies; large are kernels of more than LARGE bytes."""
LARGE = 1 << 29
REPEATS = 7
WARM_LAUNCHES = 64
AHEAD_CYCLES = 1_000_000
"""A GPU waits so long before a replay that the host is done with submitting it."""
RANKED = (
    "matmul_bias_gelu_add_norm", "rmsnorm_qkv", "add_rmsnorm", "rmsnorm_fp8_quant", "softmax",
    "chain8", "groupnorm_silu", "siblings", "reductions", "transpose_add",
)  # fmt: skip
"""Blocks that are run under several plans."""


class Compiler(Protocol):
    """The public functions of the compiler whose cost model is judged."""

    @property
    def kernels(self) -> Callable[..., Any]:
        """Every generated group of a model by itself."""
        ...

    @property
    def plan(self) -> Callable[..., Any]:
        """The plan of a model."""
        ...

    @property
    def compile(self) -> Callable[..., Any]:
        """The model compiled under a plan."""
        ...


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        target: the target whose cost model is judged.
        size: `tiny` for tests.
        only: rows whose name contains this.
        seconds: no further program is begun after it; plans take a third at most.
    """

    device: str
    target: str
    size: str = ""
    only: str = ""
    seconds: float = 120.0


def run(
    compiler: Compiler, options: Options, report: Callable[[Step], None] = lambda step: None
) -> record.Costs:
    """Measure every program that the time allows.

    Raises:
        UsageError: no such device, or no row of that name.
    """
    check_device(options.device)
    chosen = programs(options.device, options.size, options.only)
    if not chosen:
        raise UsageError("no program has this in its name", found=repr(options.only))
    start = time.monotonic()
    left_out: dict[str, str] = {}
    plans = _plans(compiler, options, start, left_out, report)
    kernels: dict[str, record.Kernel] = {}
    for number, program in enumerate(chosen):
        report(Step(number, len(chosen), program.name))
        if time.monotonic() - start > options.seconds:
            left_out[program.name] = "no time left"
            continue
        with _Noted(program.name, left_out):
            for kernel in _kernels(compiler, program, options, kernels):
                kernels[kernel.nest] = kernel
        _release(options.device)
    found = list(kernels.values())
    return record.Costs(
        device=options.device,
        card=card_name(options.device),
        target=options.target,
        threads=torch.get_num_threads(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions(),
        split=SPLIT,
        regimes=REGIMES,
        spreads=record.spreads(found),
        ranking=record.ranking(plans),
        plans=plans,
        left_out=left_out,
        kernels=found,
    )


class _Noted(suppress):
    """Keeps the message of a program that cannot be built or does not fit, and goes on."""

    def __init__(self, name: str, notes: dict[str, str]) -> None:
        super().__init__(OnetripError, torch.OutOfMemoryError)
        self._name, self._notes = name, notes

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if error is not None:
            self._notes[self._name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return super().__exit__(kind, error, trace)


def _release(device: str) -> None:
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()


# ------------------------------------------------------------------ kernels


def _kernels(
    compiler: Compiler, program: Program, options: Options, known: dict[str, record.Kernel]
) -> Iterator[record.Kernel]:
    """The program's kernels that were not measured yet."""
    work = program.work()
    made = compiler.kernels(
        work.fn,
        work.args,
        device=options.device,
        target=options.target,
        training=bool(work.sources),
    )
    for alone in made:
        if alone.nest not in known:
            yield _measured(alone, program, options.device)


def _measured(alone: Any, program: Program, device: str) -> record.Kernel:
    clock = CLOCKS[device]
    fewest, most = COPIES["large" if alone.footprint > LARGE else "small"]
    wanted = -(-SPREAD * alone.cache_bytes // max(1, alone.footprint))
    copies = [alone.place() for _ in range(max(fewest, min(most, wanted)))]
    cold = clock(copies, alone.cache_bytes)
    warm = None
    if 2 * alone.footprint <= alone.cache_bytes:
        warm = record.Time(alone.warm.us, clock(copies[:1] * WARM_LAUNCHES, 0))
    return record.Kernel(
        name=alone.group,
        program=program.name,
        part=program.part,
        ops=list(alone.ops),
        bytes=alone.cold.bytes,
        flops=alone.cold.flops,
        special=alone.cold.special,
        bound_by=alone.cold.bound_by,
        launches=[record.Launch(x.family, x.programs, x.warps) for x in alone.launches],
        cold=record.Time(alone.cold.us, cold),
        warm=warm,
        nest=alone.nest,
    )


def _cuda_us(runs: list[Callable[[], None]], flush_bytes: int) -> float:
    """Microseconds of one launch among these, replayed as one CUDA graph."""
    runs[0]()
    torch.cuda.synchronize()
    graph = _captured(runs)
    other = torch.empty(2 * flush_bytes, dtype=torch.uint8, device="cuda")
    graph.replay()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        other.fill_(1)
        torch.cuda._sleep(AHEAD_CYCLES)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(float(start.elapsed_time(end)) * 1e3 / len(runs))
    return median(found)


def _captured(runs: list[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    """The launches as a graph. torch's own context would collect garbage each time."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        for run in runs:
            run()
        graph.capture_end()
    return graph


def _cpu_us(runs: list[Callable[[], None]], flush_bytes: int) -> float:
    """Microseconds of one call among these; pages were touched when they were filled."""
    other = torch.empty(2 * flush_bytes, dtype=torch.uint8)
    found = []
    for _ in range(REPEATS):
        other.fill_(1)
        start = time.perf_counter_ns()
        for run in runs:
            run()
        found.append((time.perf_counter_ns() - start) / 1e3 / len(runs))
    return median(found)


CLOCKS: dict[str, Callable[[list[Callable[[], None]], int], float]] = {
    "cpu": _cpu_us,
    "cuda": _cuda_us,
}


# ------------------------------------------------------------------ plans


def _plans(
    compiler: Compiler,
    options: Options,
    start: float,
    left_out: dict[str, str],
    report: Callable[[Step], None],
) -> list[record.Plan]:
    """Some blocks under several plans each."""
    rows = [r for r in BLOCKS if r.name in RANKED and options.only in r.name]
    found: list[record.Plan] = []
    for number, row in enumerate(rows):
        report(Step(number, len(rows), f"plans of {row.name}"))
        name = f"plans of {row.name}"
        if time.monotonic() - start > options.seconds / 3:
            left_out[name] = "no time left"
            continue
        with _Noted(name, left_out):
            found.extend(_plans_of(compiler, row, options))
        _release(options.device)
    return found


def _plans_of(compiler: Compiler, row: Row, options: Options) -> Iterator[record.Plan]:
    work = row.work(options.device, options.size or options.device)
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for name, plan in _candidates(compiler, work, options):
        grouping = tuple(g.nodes for g in plan.groups)
        if grouping in seen:
            continue
        seen.add(grouping)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            fn = compiler.compile(work.fn, plan=plan, target=options.target)
        call = variants.call_of(Work(fn, work.args))
        for _ in range(timing.WARM_CALLS):
            call()
        if options.device == "cuda":
            call = timing.captured(call)
        clock = timing.CLOCKS[options.device]
        calls = timing.calls_per_sample(clock(call, 1))
        us = median(clock(call, calls) for _ in range(REPEATS))
        yield record.Plan(row.name, name, plan.kernels, expected(plan), us)
        torch._dynamo.reset()


def expected(plan: Any) -> float:
    """The estimate of what runs: replayed launches, also of library calls."""
    target = plan.settings.target
    replayed = target.replay_us / target.launch_us
    total = 0.0
    for group in (g for p in plan.planned for g in p.plan.groups):
        library = group.call is not None
        total += group.cost.us - (group.cost.launch_us * (1 - replayed) if library else 0.0)
    return total


def _candidates(compiler: Compiler, work: Any, options: Options) -> Iterator[tuple[str, Any]]:
    """Plans by name: one for each search, and the best with its largest group cut, twice."""
    plans = {
        s: compiler.plan(work.fn, work.args, target=options.target, search=s) for s in SEARCHES
    }
    yield from plans.items()
    best = plans["best"]
    nodes = max((g.nodes for g in best.groups if g.generated), key=len, default=())
    for place in sorted({len(nodes) // 3, 2 * len(nodes) // 3} - {0}):
        with suppress(UsageError):
            yield f"best, cut {place}", best.cut(nodes[place - 1], nodes[place])
