"""Random programs compiled for the CPU beside eager and float64, and faults they must find."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import driving
import pytest
import torch
from drawing import drawn_program
from driving import TOGETHER, Failure, failures, smallest
from judging import Left, known, run, wrong
from planted import PLANTED
from programs import Leaf, Program, Ref, Step, tensors

from onetrip.ops.table import BY_TARGET

OPTIONS: tuple[dict[str, Any], ...] = ({"search": "max"}, {"search": "best"}, {"search": "eager"})
SLICE = 24
"""Programs that every run of the tests sees, always the same."""
PROGRAMS = int(os.environ.get("ONETRIP_FUZZ", "2000"))
"""Programs of the long run; `ONETRIP_FUZZ_SEED` says which."""
SEED = int(os.environ.get("ONETRIP_FUZZ_SEED", "0"))


def drawn(count: int, number: int) -> list[Program]:
    """So many programs, the same for the same number."""
    random = Random(number)
    found = (drawn_program(random) for _ in range(count))
    return [p for p in found if p.results]


def coverage(found: Sequence[Program]) -> str:
    """How many steps programs have, and how many calls of each kind of operator."""
    calls = Counter(s.target for p in found for s in p.steps)
    operators = {BY_TARGET[t][0].name for t in calls if t in BY_TARGET}
    steps = median(len(p.steps) for p in found)
    return (
        f"{len(found)} programs, median {steps} steps, {len(operators)} operators, {_kinds(calls)}"
    )


def _kinds(calls: Counter[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for target, count in calls.items():
        found[BY_TARGET[target][0].kind.value if target in BY_TARGET else "update"] += count
    return dict(found.most_common())


def wrong_ones(found: Sequence[Program], **options: Any) -> list[Failure]:
    """Every failure, cut small."""
    parts = [found[k : k + TOGETHER] for k in range(0, len(found), TOGETHER)]
    return [smallest(f, **options) for part in parts for f in failures(part, **options)]


@pytest.mark.slow
def test_a_fixed_slice_is_right() -> None:
    assert wrong_ones(drawn(SLICE, 1), search="max") == []


@pytest.mark.exhaustive
@pytest.mark.timeout(24 * 3600)
def test_many_programs_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Program] = []
    for number in range(PROGRAMS // TOGETHER):
        fresh = drawn(TOGETHER, 1000 * SEED + number)
        assert wrong_ones(fresh, **OPTIONS[number % len(OPTIONS)]) == [], number
        seen += fresh
    with capsys.disabled():
        print(f"\n{coverage(seen)}")  # noqa: T201
    assert median(len(p.steps) for p in seen) >= 10


# ------------------------------------------------------------------ planted faults

BATCHES = 8
"""Batches of programs in which a planted fault must show."""


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda f: f.__name__)
def test_a_planted_fault_is_caught(fault: Callable[[], None]) -> None:
    assert _in_a_process_of_its_own(fault) is not None


def _in_a_process_of_its_own(fault: Callable[[], None]) -> str | None:
    """The first failure that programs show once the fault is planted, or None."""
    batches = [drawn(TOGETHER, number) for number in range(BATCHES)]
    inbox, outbox = mp.Pipe(duplex=False)

    def work() -> None:
        torch.set_num_threads(1)
        fault()
        outbox.send(next((f.note for part in batches for f in failures(part)), None))

    process = mp.get_context("fork").Process(target=work, daemon=True)
    process.start()
    outbox.close()
    try:
        note: str | None = inbox.recv()
    except EOFError:
        process.join()
        assert process.exitcode is not None and process.exitcode < 0, "the test itself fails"
        note = f"signal {-process.exitcode}"
    process.join()
    return note


# ------------------------------------------------------------------ the judge


def program(target: str, *leaves: Leaf, **kwargs: Any) -> Program:
    """One call of all leaves, then a negation of its result."""
    named = tuple((f"a{k}", leaf) for k, leaf in enumerate(leaves))
    first = Step("s0", target, tuple(Ref(name) for name, _ in named), tuple(kwargs.items()))
    return Program(named, (first, Step("s1", "aten.neg.default", (Ref("s0"),))), (Ref("s1"),))


ROWS = Leaf(torch.float32, (7, 5), seed=3)
SPECIALS = Leaf(torch.bfloat16, (9, 17), "transposed", "special", 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda left: replace(left, results=()), "structure"),
        (lambda left: _with(left, lambda t: t.double()), "dtype"),
        (lambda left: _with(left, lambda t: t.t().contiguous().t()), "strides"),
        (lambda left: _with(left, lambda t: t + 1e-3), "ulp"),
        (lambda left: _with(left, lambda t: t.masked_fill(t == t.max(), torch.nan)), "NaN"),
        (lambda left: replace(left, leaves=tuple(t + 1 for t in left.leaves)), "bits"),
        (lambda left: replace(left, results=left.leaves), "aliases"),
    ],
)
def test_what_is_wrong_is_said(change: Callable[[Left], Left], said: str) -> None:
    p = program("aten.exp.default", ROWS)
    right = run(p, tensors(p))
    assert wrong(right, known(p)) == ""
    assert said in wrong(change(right), known(p))


def _with(left: Left, change: Callable[[torch.Tensor], torch.Tensor]) -> Left:
    return replace(left, results=tuple(map(change, left.results)))


def test_the_sign_of_zero_is_eagers() -> None:
    p = program("aten.tanh.default", replace(ROWS, fill="special"))
    flipped = _with(run(p, tensors(p)), lambda t: torch.where(t == 0, -t, t))
    assert "sign of zero" in wrong(flipped, known(p))


@pytest.mark.parametrize("target", ["aten.argmax.default", "aten.relu.default"])
def test_what_depends_on_exact_steps_alone_has_eagers_bits(target: str) -> None:
    p = program(target, ROWS)
    assert "other bits" in wrong(_with(run(p, tensors(p)), lambda t: t + 1), known(p))


def test_what_one_rounding_decides_is_nobodys_to_judge() -> None:
    """An exponential that may be an ulp off decides which of two equal ones is the largest."""
    equal = Leaf(torch.float32, (4,), "dense", "given", 0, (0.5, 0.5, 0.5, 0.5))
    p = program("aten.exp.default", equal)
    p = replace(p, steps=(*p.steps, Step("s2", "aten.argmax.default", (Ref("s1"),))),
                results=(Ref("s2"),))  # fmt: skip
    other = _with(run(p, tensors(p)), lambda t: t + 1)
    assert wrong(other, known(p)) == ""


def test_a_rounding_lost_behind_an_inexact_call_is_seen_by_what_that_call_left() -> None:
    """It brings the result nearer to float64, and so is right beside eager's own values."""
    p = half_chain()
    right = run(p, tensors(p))
    exp = _with(right, lambda t: torch.nextafter(t, t + 1)).results[0]
    rounded, kept = (exp + 0.3) * 0.7, ((exp.float() + 0.3) * 0.7).to(exp.dtype)
    assert not torch.equal(rounded, kept)
    assert wrong(replace(right, results=(exp, rounded)), known(p)) == ""
    assert "other bits behind ['s0']" in wrong(replace(right, results=(exp, kept)), known(p))
    unseen = replace(p, results=(Ref("s2"),))
    assert wrong(replace(right, results=(kept,)), known(unseen)) == ""


def test_what_is_written_over_says_nothing_of_what_was_read() -> None:
    p = half_chain()
    p = replace(p, steps=(*p.steps, Step("s3", "aten.zero_.default", (Ref("s0"),))))
    found = known(p)
    assert Ref("s0") not in found.free
    assert not {"s0", "s1", "s2"} & found.behind


def half_chain() -> Program:
    """An exponential and a sum and a product of it, in 16 bits; the sum is not returned."""
    steps = (
        Step("s0", "aten.exp.default", (Ref("a0"),)),
        Step("s1", "aten.add.Tensor", (Ref("s0"), 0.3)),
        Step("s2", "aten.mul.Tensor", (Ref("s1"), 0.7)),
    )
    return Program((("a0", Leaf(torch.float16, (7, 5), seed=3)),), steps, (Ref("s0"), Ref("s2")))


def test_nan_is_what_eagers_vector_loop_makes_of_it() -> None:
    """Of the elements that are left over, its `hardswish_backward` passes the gradient on."""
    data = (1.0, math.nan, 0.5)
    x = Leaf(torch.float32, (3,), "dense", "given", 0, data)
    p = program("aten.hardswish_backward.default", replace(x, data=(1.0, 1.0, 1.0)), x)
    left = run(p, tensors(p))
    lanes = _with(left, lambda t: torch.where(torch.tensor(data).isnan(), math.nan, t))
    assert not lanes.results[0].isfinite().all()
    assert wrong(lanes, known(p)) == ""
    assert wrong(left, known(p)) == ""


def test_leaves_are_the_same_each_time() -> None:
    for layout in ("dense", "transposed", "expanded", "strided", "offset"):
        leaf = replace(SPECIALS, layout=layout)
        a, b = leaf.tensor(), leaf.tensor()
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
        assert a.shape == (9, 17) and a.stride() == b.stride()


def test_a_failure_is_cut_to_the_step_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that forgets to negate is shown by a negation of a leaf, whatever stood before."""
    monkeypatch.setattr(driving, "compiled", _forgetful)
    (found,) = failures([long_program()])
    least = smallest(found)
    assert [s.target for s in least.program.steps] == ["aten.neg.default"]
    assert len(least.program.leaves) == 1


def long_program() -> Program:
    steps = [Step("s0", "aten.exp.default", (Ref("a0"),))]
    names = ("abs", "neg", "sin", "relu", "cos")
    steps += [Step(f"s{k + 1}", f"aten.{n}.default", (Ref(f"s{k}"),)) for k, n in enumerate(names)]
    return Program((("a0", ROWS),), tuple(steps), (Ref("s5"), Ref("s4")))


def _forgetful(found: Sequence[Program], backend: str = "onetrip", **options: Any) -> list[Left]:
    def changed(p: Program) -> Program:
        if backend != "onetrip":
            return p
        steps = (replace(s, target=s.target.replace(".neg.", ".clone.")) for s in p.steps)
        return replace(p, steps=tuple(steps))

    return [run(changed(p), tensors(p)) for p in found]
