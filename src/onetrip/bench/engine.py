"""Runs a suite: prepares every rival of a row, judges its values, times all of them interleaved.

The only module here that knows tables, rivals, clock and record together. A rival that fails to
build or run is a result like any other: it is recorded with its message.
"""

from __future__ import annotations

import copy
import datetime
import gc
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from onetrip.base.errors import UsageError
from onetrip.bench import timing, variants
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.models import MODELS
from onetrip.bench.record import Results, RowResult, VariantResult
from onetrip.bench.table import Row, Work, floor_bytes, tensors_of, torch_dtype
from onetrip.runtime import accuracy
from onetrip.runtime.clock import card_name

SUITES: dict[str, tuple[Row, ...]] = {"blocks": BLOCKS, "models": MODELS}
PACKAGES = ("onetrip", "torch", "triton", "transformers")
SEED = 7


@dataclass(frozen=True)
class Options:
    """What to measure and for how long.

    Attributes:
        device: `cpu` or `cuda`.
        size: a key of each row's sizes; by default the device's own.
        dtype: short name that takes the place of each row's own, or None.
        only: rows whose name contains this.
        rounds: most rounds of a row.
        seconds: about how long the rounds of a row may take together.
        against: names of the rivals to measure; empty for all.
        recorded: calls in one CUDA graph, whose time is divided by them.
        backend: what stands for onetrip, for tests of this bench.
    """

    device: str
    size: str = ""
    dtype: str | None = None
    only: str = ""
    rounds: int = 21
    seconds: float = 3.0
    against: tuple[str, ...] = ()
    recorded: int = 1
    backend: str = variants.OURS


@dataclass(frozen=True)
class Step:
    """Progress: rows finished of all, and what is being done now."""

    done: int
    total: int
    text: str


def select(suite: str, only: str) -> tuple[Row, ...]:
    """The rows of a suite whose name contains `only`.

    Raises:
        UsageError: no such suite, or no such row.
    """
    if suite not in SUITES:
        raise UsageError("unknown suite", expected=f"one of {', '.join(SUITES)}", found=repr(suite))
    rows = tuple(row for row in SUITES[suite] if only in row.name)
    if not rows:
        known = ", ".join(row.name for row in SUITES[suite])
        raise UsageError(f"no row of {suite} has {only!r} in its name", expected=known, found=only)
    return rows


def run_suite(
    suite: str, options: Options, report: Callable[[Step], None] = lambda step: None
) -> Results:
    """Measure the rows of a suite.

    Raises:
        UsageError: no such suite, row or device.
    """
    rows = select(suite, options.only)
    check_device(options.device)
    variants.on_device(options.device, only=options.against)
    report(Step(0, len(rows), "copy bandwidth and product rates"))
    used = sorted({options.dtype or row.dtype_on(options.device) for row in rows})
    rates = {name: timing.product_rate(options.device, torch_dtype(name)) for name in used}
    bandwidth = timing.copy_bandwidth(options.device)
    found: list[RowResult] = []
    for index, row in enumerate(rows):

        def tell(text: str, index: int = index, row: Row = row) -> None:
            report(Step(index, len(rows), f"{row.name}: {text}"))

        found.append(run_row(row, options, bandwidth, rates, tell))
    report(Step(len(rows), len(rows), "done"))
    return Results(
        suite=suite,
        device=options.device,
        card=card_name(options.device),
        threads=torch.get_num_threads(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions(),
        copy_bandwidth=bandwidth,
        product_rates=rates,
        rows=found,
    )


def run_row(
    row: Row,
    options: Options,
    bandwidth: float,
    rates: dict[str, float],
    tell: Callable[[str], None],
) -> RowResult:
    """Measure one row: eager, its rivals, and the float64 run that judges them."""
    size = options.size or options.device
    dtype = options.dtype or row.dtype_on(options.device)
    tell("eager and float64")
    work = row.work(options.device, size, dtype)
    reference = _reference(row, work, options.device)
    moved, flops, floor = _floor(row, work, size, bandwidth, rates[dtype])
    prepared: dict[str, Prepared] = {}
    for variant in variants.on_device(options.device, options.backend, options.against):
        tell(f"preparing {variant.name}")
        own = row.work(options.device, size, dtype) if work.writes else work
        prepared[variant.name] = prepare(variant, own, reference, row.random, options)
    calls = {name: p.call for name, p in prepared.items() if p.call is not None}
    tell(f"timing {len(calls)} variants")
    samples = timing.interleaved(
        calls, timing.CLOCKS[options.device], options.rounds, options.seconds
    )
    results = {name: _result(p, samples.get(name), floor) for name, p in prepared.items()}
    prepared.clear()
    calls.clear()
    torch._dynamo.reset()
    _release(options.device)
    return RowResult(
        name=row.name,
        about=row.about,
        dtype=dtype,
        size=list(row.sizes[size]),
        bytes=moved,
        flops=flops,
        floor_us=floor,
        variants=results,
    )


@dataclass(frozen=True)
class Reference:
    """What results are judged by: eager's, and those of a float64 run (None: could not be made)."""

    eager: tuple[Tensor, ...]
    exact: tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Prepared:
    """A rival ready to be timed, or why it is not; `call` does its work `times` times."""

    call: timing.Call | None
    verdict: accuracy.Verdict
    times: int = 1
    first_call_s: float | None = None
    peak_bytes: int | None = None


def prepare(
    variant: variants.Variant, work: Work, reference: Reference, random: bool, options: Options
) -> Prepared:
    """Build a rival, run it once, judge what it computed, and leave it warm."""
    device, times = options.device, options.recorded if variant.graph else 1
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            call = variants.call_of(variants.compiled(variant, work))
            torch.manual_seed(SEED)
            start = time.perf_counter()
            first = call()
            timing.synchronize(device)
            seconds = time.perf_counter() - start
            verdict = _judged(work, first, reference, random)
            del first
            if variant.graph:
                call = timing.captured(call, times)
                if not work.writes:
                    verdict = _judged(work, call(), reference, random)
            peak = _peak(call, device)
            for _ in range(timing.WARM_CALLS - 1):
                call()
            timing.synchronize(device)
    except Exception as error:
        _release(device)
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return Prepared(None, accuracy.Verdict(False, note=message[:400]))
    return Prepared(call, verdict, times, seconds, peak)


def _judged(work: Work, returned: object, reference: Reference, random: bool) -> accuracy.Verdict:
    results = variants.results_of(work, returned)
    return accuracy.judge(results, reference.eager, reference.exact, random)


def _reference(row: Row, work: Work, device: str) -> Reference:
    """Eager's results and the float64 run's; inputs that the program changes are copied first."""
    eager_work = _copied(work)
    torch.manual_seed(SEED)
    eager = _kept(variants.results_of(eager_work, variants.call_of(eager_work)()))
    if row.random:
        return Reference(eager, None)
    try:
        wide = _widened(work)
        exact = _kept(variants.results_of(wide, variants.call_of(wide)()))
    except torch.OutOfMemoryError:
        exact = None
    _release(device)
    return Reference(eager, exact)


def _kept(results: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone() for t in results)


def _copied(work: Work) -> Work:
    if not work.writes:
        return work
    args = (a.clone() if i in work.writes else a for i, a in enumerate(work.args))
    return replace(work, args=tuple(args))


def _widened(work: Work) -> Work:
    """The same work in float64: inputs, and the parameters of a module."""
    args = tuple(map(accuracy.wide, work.args))
    if isinstance(work.fn, nn.Module):
        module = copy.deepcopy(work.fn).double()
        sources = tuple(module.parameters()) if work.sources else ()
        return replace(work, fn=module, args=args, sources=sources)
    places = [next(i for i, a in enumerate(work.args) if a is s) for s in work.sources]
    return replace(work, args=args, sources=tuple(args[i] for i in places))


def _floor(
    row: Row, work: Work, size: str, bandwidth: float, rate: float
) -> tuple[int | None, int | None, float | None]:
    """Bytes, FLOPs, and the microseconds that no implementation beats."""
    if not row.bounded:
        return None, None, None
    with torch.no_grad():
        copied = _copied(work)
        outputs = tensors_of(copied.fn(*copied.args))
    moved = floor_bytes(row, work, outputs)
    flops = row.flops(*row.sizes[size]) if row.flops else None
    return moved, flops, max(moved / bandwidth, (flops or 0) / rate) * 1e6


def _result(
    prepared: Prepared, samples: timing.Samples | None, floor: float | None
) -> VariantResult:
    verdict = prepared.verdict
    if samples is None:
        return VariantResult(status="failed", note=verdict.note)
    low, middle, high = (us / prepared.times for us in samples.quartiles)
    return VariantResult(
        status="ok" if verdict.ok else "wrong",
        median_us=middle,
        low_us=low,
        high_us=high,
        rounds=len(samples.us),
        first_call_s=prepared.first_call_s,
        peak_bytes=prepared.peak_bytes,
        times_floor=middle / floor if floor else None,
        worst_ulp=verdict.worst_ulp,
        eager_ulp=verdict.eager_ulp,
        note=verdict.note,
    )


def _peak(call: timing.Call, device: str) -> int | None:
    """Most bytes of device memory that one call holds beside what stood there before."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _release(device: str) -> None:
    """Give memory back; what other rivals have compiled stays."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def check_device(device: str) -> None:
    """Raises UsageError where a device is unknown or not at hand."""
    if device not in timing.CLOCKS:
        raise UsageError("unknown device", expected="cpu or cuda", found=repr(device))
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "no CUDA device can be used here",
            found=f"torch {torch.__version__}",
            next_step="use --device cpu, or install a CUDA build of torch on a machine with a GPU",
        )


def versions() -> dict[str, str]:
    """Versions of what a result depends on; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
