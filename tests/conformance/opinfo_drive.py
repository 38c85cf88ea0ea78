"""One entry of the ring: its samples in eager, in float64 and compiled, and a verdict on each.

Samples are compiled together. Where that raises, or a graph of theirs runs in eager, they are
compiled in halves until the one that is the cause stands alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from opinfo_batch import Left, Seen, cloned, compiled, left_by, narrowed, twin, wide
from opinfo_entries import (
    ERRORS,
    FORWARD,
    GRADIENTS,
    Entry,
    Sample,
    called,
    operators,
    samples,
    tensors_of,
)
from opinfo_judge import Others, judged
from opinfo_kinds import kind_of
from torch import Tensor
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_map

from onetrip.runtime.accuracy import InFloat64

UNDEFINED = ("empty", "new_empty", "resize_")
"""Operators with elements that nobody wrote begin so."""
TOGETHER = 48
"""Samples in one program."""
LANES = 64
"""Elements that any vector loop of eager takes at a time, whatever the chip, or a multiple."""

ELEMENTWISE = (core.UnaryUfuncInfo, core.BinaryUfuncInfo)

RIGHT, WRONG, ERROR, UPSTREAM = "right", "wrong", "error", "upstream"


@dataclass(frozen=True)
class Outcome:
    """What became of one sample.

    Attributes:
        verdict: `right`, `wrong`, `error` (ours raises), or `upstream`: torch's own `aot_eager`,
            which runs no kernel of ours, is as wrong.
        road: `compiled` (no extern), `nothing` (its graph has nothing to compute), `extern`,
            `eager` (a graph, or what stands between two, ran in eager), or `fault` (it did because
            of a fault of ours).
        note: what is wrong, or why it is not compiled.
    """

    label: str
    verdict: str
    road: str = "eager"
    note: str = ""


@dataclass(frozen=True)
class _Case:
    """A sample, what eager leaves of it, and whether its values depend on a seed."""

    sample: Sample
    eager: Left
    random: bool


def outcomes(
    entry: Entry, most: int | None, started: Callable[[str], None], skipped: Sequence[str] = ()
) -> Iterator[Outcome]:
    """A verdict on every sample of an entry that eager accepts.

    Args:
        most: samples of each kind.
        started: told the labels of the samples that are about to run.
        skipped: labels of samples that are left out.
    """
    if entry.mode == ERRORS:
        yield from rejections(entry, started, skipped)
        return
    fn = called(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = [s for s in samples(entry, most) if s.label not in skipped]
        found = (_case(entry, fn, s) for s in chosen)
        cases = [c for c in found if c is not None]
    step = 1 if skipped else TOGETHER
    for k in range(0, len(cases), step):
        yield from _together(entry, fn, cases[k : k + step], started)


def _call(
    fn: Callable[..., Any],
    s: Sample,
    mode: str,
    change: Callable[..., Any],
    within: Callable[[], Any] = nullcontext,
) -> Left:
    given = twin((s.args, s.kwargs), change)
    with torch.set_grad_enabled(mode == GRADIENTS), within():
        return left_by([fn(*given[0], **given[1])], [given], [s], mode)[0]


def _case(entry: Entry, fn: Callable[..., Any], s: Sample) -> _Case | None:
    """None where eager itself raises."""
    try:
        torch.manual_seed(1)
        eager = _call(fn, s, entry.mode, cloned)
        draws = any(_draws(entry, fn, s, eager, seed) for seed in _seeds(operators()[entry.op]))
    except Exception:
        return None
    undefined = operators()[entry.op].name.startswith(UNDEFINED)
    return _Case(s, eager, undefined or draws)


def _seeds(op: Any) -> range:
    """Seeds beside the first: of few numbers that are drawn, two may well be the same."""
    return range(2, 20 if kind_of(op) == "random" else 3)


def _draws(entry: Entry, fn: Callable[..., Any], s: Sample, eager: Left, seed: int) -> bool:
    torch.manual_seed(seed)
    return bool(_compared(_call(fn, s, entry.mode, cloned), eager, s))


def _named(s: Sample, change: Callable[[torch.dtype], torch.dtype]) -> Sample:
    """The sample with every dtype among its arguments changed."""
    args, kwargs = tree_map(
        lambda x: change(x) if isinstance(x, torch.dtype) else x, (s.args, s.kwargs)
    )
    return replace(s, args=args, kwargs=kwargs)


def _exact(entry: Entry, fn: Callable[..., Any], s: Sample) -> list[Any] | None:
    """What the call leaves in double precision, or None where it has no such form."""
    double = _named(s, lambda d: torch.float64 if d.is_floating_point else d)
    change = _wide_number if isinstance(operators()[entry.op], ELEMENTWISE) else wide
    for within in (InFloat64, nullcontext):
        try:
            left = _call(fn, double, entry.mode, change, within)
            return [*left.leaves, *left.inputs]
        except Exception:
            continue
    return None


def _wide_number(t: Tensor) -> Tensor:
    """The tensor in double precision, an integer as elementwise functions take it: as a float."""
    return wide(t if t.is_floating_point() or t.is_complex() else t.float())


def _narrow(entry: Entry, fn: Callable[..., Any], s: Sample) -> list[Any] | None:
    """What the call leaves in single precision, or None where it has no such form."""
    single = _named(s, lambda d: torch.float32 if d is torch.float64 else d)
    try:
        left = _call(fn, single, entry.mode, narrowed)
    except Exception:
        return None
    return [*left.leaves, *left.inputs]


def _inner(entry: Entry, fn: Callable[..., Any], s: Sample) -> list[Any] | None:
    """What a function of one element leaves of each inside a whole vector; else None."""
    unary = isinstance(operators()[entry.op], core.UnaryUfuncInfo) and entry.mode == FORWARD
    if not unary or len(tensors_of((s.args, s.kwargs))) != 1:
        return None
    (x,) = tensors_of((s.args, s.kwargs))
    many = x.detach().reshape(-1).repeat_interleave(LANES)
    found = fn(many, *s.args[1:], **s.kwargs)
    return [t.reshape(*x.shape, LANES)[..., 0] for t in tensors_of(found)]


def _compared(ours: Left, eager: Left, s: Sample) -> str:
    return judged(ours, eager, tensors_of((s.args, s.kwargs)), Others(), False)


def _verdict(entry: Entry, fn: Callable[..., Any], case: _Case, ours: Left) -> str:
    s = case.sample
    before = tensors_of((s.args, s.kwargs))
    made = (partial(make, entry, fn, s) for make in (_exact, _narrow, _inner))
    return judged(ours, case.eager, before, Others(*made), case.random)


def _together(
    entry: Entry, fn: Callable[..., Any], cases: Sequence[_Case], started: Callable[[str], None]
) -> Iterator[Outcome]:
    for case in cases if len(cases) == 1 else ():
        started(case.sample.label)
    given = [twin((c.sample.args, c.sample.kwargs), cloned) for c in cases]
    grad = torch.set_grad_enabled(entry.mode == GRADIENTS)
    try:
        with grad:
            left, seen = compiled(fn, given, [c.sample for c in cases], entry.mode)
    except Exception as error:
        left, seen = [], Seen(failed=[("error", f"{type(error).__name__}: {error}"[:300])])
    if seen.failed and len(cases) > 1:
        half = len(cases) // 2
        yield from _together(entry, fn, cases[:half], started)
        yield from _together(entry, fn, cases[half:], started)
        return
    if not left:
        yield _upstream(entry, fn, cases[0], Outcome(cases[0].sample.label, ERROR, "eager",
                                                     seen.failed[0][1]))  # fmt: skip
        return
    for k, (case, ours) in enumerate(zip(cases, left, strict=True)):
        wrong = _verdict(entry, fn, case, ours)
        road, why = _road(k, seen)
        found = Outcome(case.sample.label, WRONG if wrong else RIGHT, road, wrong or why)
        yield _upstream(entry, fn, case, found) if wrong else found


def _road(k: int, seen: Seen) -> tuple[str, str]:
    if seen.failed:
        kind, message = seen.failed[0]
        return ("fault" if kind == "fault" else "eager"), f"{kind}: {message}"
    if k in seen.externs:
        return "extern", seen.externs[k][0]
    if k in seen.breaks:
        return "eager", f"graph break: {seen.breaks[k]}"
    return ("compiled", "") if k in seen.captured else ("nothing", "")


def _upstream(entry: Entry, fn: Callable[..., Any], case: _Case, found: Outcome) -> Outcome:
    """The outcome, laid at torch's own door where `aot_eager` is as wrong."""
    s = case.sample
    try:
        with torch.set_grad_enabled(entry.mode == GRADIENTS):
            given = twin((s.args, s.kwargs), cloned)
            (theirs,), _ = compiled(fn, [given], [s], entry.mode, "aot_eager")
        wrong = _verdict(entry, fn, case, theirs)
        same = found.verdict == WRONG and wrong.partition(":")[0] == found.note.partition(":")[0]
    except Exception:
        same = found.verdict == ERROR
    return Outcome(s.label, UPSTREAM, found.road, found.note) if same else found


# ------------------------------------------------------------------ what eager rejects


def rejections(
    entry: Entry, started: Callable[[str], None], skipped: Sequence[str]
) -> Iterator[Outcome]:
    """Whether we reject what eager rejects, with the same class, arguments untouched."""
    torch.manual_seed(entry.seed)
    fn = called(entry)
    for k, bad in enumerate(operators()[entry.op].error_inputs("cpu")):
        s = bad.sample_input
        sample = Sample(f"{k} bad", (s.input, *s.args), dict(s.kwargs))
        if sample.label in skipped:
            continue
        try:
            _call(fn, sample, "", cloned)
        except Exception as error:
            started(sample.label)
            yield _rejected(fn, sample, type(error))


def _rejected(fn: Callable[..., Any], s: Sample, wanted: type[BaseException]) -> Outcome:
    found = _raised(fn, s, "onetrip")
    if isinstance(found, str):
        same = _raised(fn, s, "aot_eager") == found
        return Outcome(s.label, UPSTREAM if same else WRONG, "eager", f"{wanted.__name__}: {found}")
    if issubclass(found, wanted):
        return Outcome(s.label, RIGHT)
    same = _raised(fn, s, "aot_eager") is found
    note = f"raises {found.__name__}, eager {wanted.__name__}"
    return Outcome(s.label, UPSTREAM if same else WRONG, "eager", note)


def _raised(fn: Callable[..., Any], s: Sample, backend: str) -> type[BaseException] | str:
    """The class raised, or what is wrong instead."""
    given = twin((s.args, s.kwargs), cloned)
    try:
        compiled(fn, [given], [s], "", backend)
    except Exception as error:
        before, after = (Left("", [], tensors_of(x)) for x in ((s.args, s.kwargs), given))
        return _compared(after, before, s) or type(error)
    return "nothing is raised"
