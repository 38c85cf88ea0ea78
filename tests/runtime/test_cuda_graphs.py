"""When calls are recorded and replayed: values, memory that is held, and what is never recorded."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from taped import TapedGraphs
from torch import Tensor

from onetrip.base.errors import Unsupported
from onetrip.runtime import replay
from onetrip.runtime.blame import PROGRAM, step_of
from onetrip.runtime.lending import Memory, lent
from onetrip.runtime.recording import Fixed
from onetrip.runtime.replay import LENDERS, PLACES, Replayed
from onetrip.runtime.settling import ADDRESSES
from onetrip.runtime.steps import _results

WEIGHT = torch.linspace(-1, 1, 9).reshape(3, 3)


class Program:
    """A program that counts its plain runs."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.runs = 0

    def run(self, arguments: list[Any]) -> list[Any]:
        self.runs += 1
        results = self.fn(*arguments)
        arguments.clear()
        return list(results) if isinstance(results, tuple) else [results]

    def step_of(self, error: BaseException) -> str | None:
        return "aten.some.call"

    def rest(self) -> None:
        pass


class Case:
    """A program that is replayed on a taped device."""

    def __init__(self, fn: Callable[..., Any], **facts: Any) -> None:
        self.program = Program(fn)
        self.graphs = TapedGraphs()
        self.replayed = Replayed(self.program, self.graphs, "a program", **facts)

    def __call__(self, *arguments: Any) -> list[Any]:
        given = list(arguments)
        results = self.replayed(given)
        assert not given, "the list of arguments is emptied"
        return results

    def plain_runs(self, call: Callable[[], Any]) -> int:
        before = self.program.runs
        call()
        return self.program.runs - before


def product(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    y = x @ w
    return y, y.relu().sum(0)


def agrees(results: list[Tensor], expected: tuple[Tensor, ...]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.fixture(autouse=True)
def _from_scratch() -> None:
    replay.forget()


# ---------------------------------------------------------------- values


def test_changing_inputs_are_replayed() -> None:
    case = Case(product, lasting=[0])
    for _ in range(4):
        x = torch.randn(4, 3)
        agrees(case(WEIGHT, x), product(WEIGHT, x))
    inputs = torch.randn(10, 4, 3).unbind()

    def calls() -> None:
        for x in inputs:
            agrees(case(WEIGHT, x), product(WEIGHT, x))

    assert case.plain_runs(calls) == 0
    assert case.replayed.recorded == 1


def test_weights_that_change_in_place_are_seen_and_moved_ones_are_another_place() -> None:
    case = Case(product, lasting=[0])
    first, second = WEIGHT.clone(), WEIGHT.clone()
    x = torch.randn(4, 3)
    for w in (first, second) * 3:
        agrees(case(w, x), product(w, x))
    assert case.replayed.recorded == 2

    def calls() -> None:
        for w in (first, second) * 3:
            w.add_(1)
            agrees(case(w, x), product(w, x))

    assert case.plain_runs(calls) == 0


def test_each_symbolic_shape_and_number_has_its_recording() -> None:
    case = Case(lambda n, x: (x * n, x.sum(0) + n), sized=[1])
    for _ in range(5):
        for rows, n in ((2, 1), (5, 1), (5, 2), (0, 1)):
            x = torch.randn(rows, 3)
            agrees(case(n, x), (x * n, x.sum(0) + n))
    assert case.replayed.recorded == 4


def test_numbers_that_are_equal_and_not_the_same_are_told_apart() -> None:
    case = Case(lambda n, x: (x * n).copysign(torch.tensor(n)))
    x = torch.ones(2)
    for _ in range(4):
        for n in (0.0, -0.0, float("nan")):
            (y,) = case(n, x)
            expected = (x * n).copysign(torch.tensor(n))
            assert torch.equal(y.view(torch.int32), expected.view(torch.int32))
            del y
    assert case.replayed.recorded == 3


def test_layouts_of_moving_inputs_are_told_apart() -> None:
    case = Case(product, lasting=[0])
    for _ in range(4):
        wide = torch.randn(3, 4)
        for x in (
            wide.t(),
            wide.t().contiguous(),
            torch.randn(3).expand(4, 3),
            torch.randn(8, 3)[::2],
        ):
            agrees(case(WEIGHT, x), product(WEIGHT, x))


def test_random_numbers_are_new_at_each_replay_and_those_of_plain_calls() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    case, drawn, expected = Case(noisy), [], []
    x = torch.zeros(8)
    torch.manual_seed(3)
    for _ in range(6):
        drawn.append(case(x)[0].clone())
    torch.manual_seed(3)
    for _ in range(6):
        expected.append(noisy(x))
    agrees(drawn, tuple(expected))
    assert len({t.sum().item() for t in drawn}) == 6


# ---------------------------------------------------------------- inputs


def test_written_inputs_are_written_where_the_caller_has_them() -> None:
    def count(total: Tensor, x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    case = Case(count, written=[0])
    kept = torch.zeros(3)
    expected = torch.zeros(3)
    for _ in range(8):
        x = torch.randn(3)
        expected = expected + x
        (doubled,) = case(kept, x)
        assert torch.equal(kept, expected)
        assert torch.equal(doubled, expected * 2)
    for _ in range(8):
        total, x = torch.randn(3), torch.randn(3)
        after = total + x
        (doubled,) = case(total, x)
        assert torch.equal(total, after)
        assert torch.equal(doubled, after * 2)
    assert case.plain_runs(lambda: case(torch.randn(3), torch.randn(3))) == 0


def test_an_input_that_stays_is_not_copied_and_one_that_moved_is_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: copies.append(len(a)) or copy(a, b))
    case = Case(product, lasting=[0])
    x = torch.randn(4, 3)
    for _ in range(5):
        agrees(case(WEIGHT, x), product(WEIGHT, x))
    assert copies == []
    assert case.replayed.recorded == 1
    for _ in range(4):
        other = torch.randn(4, 3)
        agrees(case(WEIGHT, other), product(WEIGHT, other))
        del other
    assert copies
    gc.collect()
    keys = list(case.replayed._shelves._values)
    assert [copied for _, (copied, _) in keys] == [{1}], (
        "the recording that nobody finds is dropped"
    )


def test_inputs_of_several_dtypes_are_copied_in_one_call_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mixed(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return (a + b) * c.float() + d.float()

    def some() -> list[Tensor]:
        return [torch.randn(4), torch.randn(4), torch.randint(9, (4,)), torch.randint(9, (4,))]

    case = Case(mixed)
    for _ in range(3):
        given = some()
        agrees(case(*given), (mixed(*given),))
    copies = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: copies.append(len(a)) or copy(a, b))
    given = some()
    agrees(case(*given), (mixed(*given),))
    assert copies == [2, 2]


def test_a_recording_keeps_nothing_alive_that_it_was_given() -> None:
    case = Case(product, lasting=[0])
    w, x = WEIGHT.clone(), torch.randn(4, 3)
    for _ in range(4):
        case(w, x)
    assert case.replayed.recorded == 1
    for t in (w, x):
        storage = t.untyped_storage()
        assert torch._C._storage_Use_Count(storage._cdata) == 2, "the tensor and this storage"


# ---------------------------------------------------------------- results


def test_results_that_are_held_are_never_overwritten() -> None:
    case = Case(product, lasting=[0])
    held = []
    for _ in range(12):
        x = torch.randn(4, 3)
        held.append((case(WEIGHT, x), product(WEIGHT, x)))
    for results, expected in held:
        agrees(results, expected)
    assert case.replayed.recorded == LENDERS + 1
    assert case.plain_runs(lambda: held.append((case(WEIGHT, torch.randn(4, 3)), ()))) == 0


@pytest.mark.parametrize(
    "part",
    [
        lambda y: y.untyped_storage(),
        lambda y: y[1:2].t(),
        lambda y: y.requires_grad_().square(),
        lambda y: torch.utils.dlpack.to_dlpack(y),
        lambda y: y.numpy(),
    ],
    ids=["storage", "view", "gradient formula", "capsule", "array"],
)
def test_memory_is_held_by_whatever_refers_to_it(part: Callable[[Tensor], Any]) -> None:
    memory = Memory([torch.ones(3, 3)])
    assert memory.is_free()
    (y,) = memory.lend()
    assert not memory.is_free()
    kept = part(y)
    del y
    assert not memory.is_free()
    del kept
    assert memory.is_free()


def test_a_loop_that_holds_its_last_result_needs_two_recordings() -> None:
    case = Case(product, lasting=[0])
    results: list[Tensor] = []
    for _ in range(12):
        x = torch.randn(4, 3)
        results = case(WEIGHT, x)
        agrees(results, product(WEIGHT, x))
    assert case.replayed.recorded == 2


def test_copied_results_share_memory_as_lent_ones_do() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y[1:], y, (x > 0)

    case = Case(views)
    held = []
    for _ in range(10):
        held.append(case(torch.randn(5)))
        whole, tail, again, flags = held[-1]
        assert again is whole
        assert tail.data_ptr() == whole.data_ptr() + 4
        assert flags.dtype == torch.bool
        whole.fill_(7)
        assert tail.tolist() == [7.0] * 4
    assert all(r[0].tolist() == [7.0] * 5 for r in held)
    assert len({r[0].data_ptr() for r in held}) == 10


def test_results_in_an_argument_lie_in_that_of_the_call() -> None:
    def passes(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return w, x, x.t(), x[1:], x.view(torch.int32)[:, 1:], x * 2

    case = Case(passes, lasting=[0])
    held = []
    for _ in range(8):
        base = torch.randn(5, 3)
        x = base[1:]
        w, same, turned, tail, bits, doubled = case(WEIGHT, x)
        assert w is WEIGHT
        assert same is x
        held.append((x.clone(), same, turned, tail, bits, doubled))
        assert {t.untyped_storage()._cdata for t in (turned, tail, bits)} == {
            base.untyped_storage()._cdata
        }
    for x, same, turned, tail, bits, doubled in held:
        agrees([same, turned, tail, doubled], (x, x.t(), x[1:], x * 2))
        assert torch.equal(bits, x.view(torch.int32)[:, 1:])


def test_results_outlive_the_program() -> None:
    case = Case(product, lasting=[0])
    x = torch.randn(4, 3)
    for _ in range(3):
        results = case(WEIGHT, x)
    del case
    replay.forget()
    gc.collect()
    filler = [torch.full((4, 3), 9.0) for _ in range(50)]
    agrees(results, product(WEIGHT, x))
    assert filler


def test_numbers_and_nothing_are_results_too() -> None:
    case = Case(lambda n, x: (n + 1, None, x * n))
    for n in (3, 4) * 4:
        number, nothing, y = case(n, torch.ones(2))
        assert (number, nothing, y.tolist()) == (n + 1, None, [n, n])


# ---------------------------------------------------------------- several programs


def test_a_second_program_reads_what_the_first_lends_where_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forward and a backward pass, shared by layers with weights of their own."""
    forward = Case(lambda w, x: ((x @ w).sigmoid(), x @ w, x), lasting=[0])
    backward = Case(lambda w, g, y, x: (x.t() @ (g * y * (1 - y)), g @ w.t()), lasting=[0])
    layers = [WEIGHT + k for k in range(2 * ADDRESSES[True])]

    def step() -> None:
        for w in layers:
            x, g = torch.randn(4, 3), torch.randn(4, 3)
            y, _, same = forward(w, x)
            results = backward(w, g, y, same)
            expected = (x @ w).sigmoid()
            agrees(results, (x.t() @ (g * expected * (1 - expected)), g @ w.t()))

    for _ in range(10):
        step()
    copied = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: copied.append(len(a)) or copy(a, b))
    assert forward.plain_runs(step) == 0
    assert backward.plain_runs(step) == 0
    # x for the first; x and g for the second, which finds y where it was
    assert copied == [1, 2] * len(layers) * 2


def test_results_fed_back_need_no_recordings_without_end() -> None:
    case = Case(lambda w, x: (x @ w).tanh(), lasting=[0])
    state = expected = torch.randn(4, 3)
    for _ in range(40):
        (state,) = case(WEIGHT, state)
        expected = (expected @ WEIGHT).tanh()
        assert torch.equal(state, expected)
    assert case.replayed.recorded <= (ADDRESSES[True] + 1) * (LENDERS + 1)
    made = case.replayed.recorded

    def calls() -> None:
        nonlocal state
        for _ in range(20):
            (state,) = case(WEIGHT, state)

    assert case.plain_runs(calls) == 0
    assert case.replayed.recorded == made


def test_programs_that_feed_each_other_settle() -> None:
    first = Case(lambda x: (x + 1).sin())
    second = Case(lambda x: (x * 2).cos())
    state = expected = torch.randn(6)
    for _ in range(60):
        (state,) = second(first(state)[0])
        expected = ((expected + 1).sin() * 2).cos()
        assert torch.equal(state, expected)
    runs = first.program.runs, second.program.runs
    for _ in range(20):
        (state,) = second(first(state)[0])
    assert (first.program.runs, second.program.runs) == runs


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)), max_size=40))
def test_any_order_of_calls_is_right(calls: list[tuple[int, int, int]]) -> None:
    """Programs that share weights and results, called in any order, results held or let go."""
    replay.forget()

    def accumulate(w: Tensor, total: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        total.add_(x @ w)
        return (x @ w).relu(), x, total * 2

    case = Case(accumulate, lasting=[0], sized=[1, 2], written=[1])
    weights = [WEIGHT, WEIGHT + 1]
    totals = [torch.zeros(n, 3) for n in (2, 3, 4)]
    truth = [t.clone() for t in totals]
    held: list[tuple[list[Tensor], tuple[Tensor, ...]]] = []
    for which, size, keep in calls:
        w = weights[which % 2]
        reuse = [r[0][0] for r in held if r[0][0].shape[0] == size + 2 and which > 1]
        x = reuse[-1] if reuse else torch.randn(size + 2, 3)
        copy = x.clone()
        truth[size] += copy @ w
        results = case(w, totals[size], x)
        held.append((results, ((copy @ w).relu(), copy, truth[size] * 2)))
        agrees([*totals], tuple(truth))
        del held[:keep]
        for got, expected in held:
            agrees(got, expected)


# ---------------------------------------------------------------- bounds and refusals


def test_past_the_bound_recordings_are_few_and_that_is_said_once() -> None:
    case = Case(lambda x: x * 2, sized=[0])
    rounds, sizes = 5, 2 * PLACES
    given = [[torch.ones(n) for n in range(1, sizes)] for _ in range(rounds)]
    with pytest.warns(RuntimeWarning, match="more than 64 sets") as said:
        for inputs in given:
            for x in inputs:
                assert case(x)[0].tolist() == [2.0] * x.numel()
    assert len(said) == 1
    assert len(case.replayed._shelves._values) == PLACES
    calls = rounds * (sizes - 1)
    assert PLACES < case.replayed.recorded <= PLACES + calls // replay.PAYBACK


def test_what_cannot_be_recorded_runs_plainly_and_says_why_once() -> None:
    case = Case(lambda x: (x[x > 0].sum(), x * 2))
    with pytest.warns(RuntimeWarning) as said:
        for _ in range(6):
            x = torch.randn(5)
            agrees(case(x), (x[x > 0].sum(), x * 2))
    assert [str(w.message) for w in said] == [
        "onetrip runs a program launch by launch: aten.some.call cannot be recorded: "
        "RuntimeError: operation not permitted when stream is capturing"
    ]
    assert case.graphs.captures == 1
    assert [r.program for r in replay.refused] == ["a program"]
    assert case.replayed.reason == replay.refused[0].reason


def test_strictly_that_is_an_error() -> None:
    case = Case(lambda x: x[x > 0].sum(), strict=True)
    x = torch.ones(5)
    case(x)
    with pytest.raises(Unsupported, match=r"(?s)strict=True.*aten\.some\.call.*leave out"):
        case(x)


def test_what_was_written_before_a_failed_recording_is_written_once() -> None:
    def count(total: Tensor, x: Tensor) -> Tensor:
        total.add_(1)
        return x[x > 0].sum()

    case = Case(count, written=[0])
    total = torch.zeros(2)
    with pytest.warns(RuntimeWarning):
        for _ in range(4):
            case(total, torch.ones(2))
    assert total.tolist() == [4.0, 4.0]


def test_an_error_of_the_program_itself_is_the_callers() -> None:
    case = Case(lambda x, y: x @ y)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            case(torch.ones(2, 3), torch.ones(2, 3))
    assert case.replayed.reason is None


def test_within_a_recording_of_the_caller_nothing_is_recorded_or_replayed() -> None:
    case = Case(product, lasting=[0])
    x = torch.randn(4, 3)
    for _ in range(3):
        case(WEIGHT, x)
    case.graphs.outside = True
    assert case.plain_runs(lambda: case(WEIGHT, x)) == 1
    case.graphs.outside = False
    assert case.plain_runs(lambda: case(WEIGHT, x)) == 0


def test_each_queue_has_recordings_of_its_own() -> None:
    case = Case(product, lasting=[0])
    x = torch.randn(4, 3)
    for stream in (1, 2) * 4:
        case.graphs.stream = stream
        agrees(case(WEIGHT, x), product(WEIGHT, x))
    assert case.replayed.recorded == 2
    queues = {signature[0] for signature in case.replayed._forms._values}
    assert queues == {1, 2}


def test_inference_mode_has_recordings_of_its_own() -> None:
    case = Case(product, lasting=[0])
    for _ in range(4):
        with torch.inference_mode():
            agrees(case(WEIGHT, torch.ones(4, 3)), product(WEIGHT, torch.ones(4, 3)))
        y, _ = case(WEIGHT, torch.ones(4, 3))
        assert not y.is_inference()
        (y * torch.ones(3, requires_grad=True)).sum().backward()


def test_forgetting_drops_recordings_and_calls_go_on() -> None:
    case = Case(product, lasting=[0])
    x = torch.randn(4, 3)
    for _ in range(3):
        results = case(WEIGHT, x)
    assert results[0] in lent
    replay.forget()
    gc.collect()
    assert results[0] not in lent
    assert case.plain_runs(lambda: agrees(case(WEIGHT, x), product(WEIGHT, x))) == 1
    agrees(results, product(WEIGHT, x))


def test_threads_share_a_program() -> None:
    case = Case(product, lasting=[0])
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            for _ in range(20):
                x = torch.randn(4, 3, generator=generator)
                agrees(case(WEIGHT, x), product(WEIGHT, x))
        except BaseException as error:
            faults.append(error)

    for _ in range(4):
        case(WEIGHT, torch.randn(4, 3))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_memory_is_flat_over_many_calls() -> None:
    case = Case(product, lasting=[0], sized=[1])

    def calls() -> int:
        for n in (4, 5, 6) * 8:
            x = torch.randn(n, 3)
            agrees(case(WEIGHT, x), product(WEIGHT, x))
        gc.collect()
        return sum(type(o) is Tensor for o in gc.get_objects())

    calls()
    assert calls() == calls()


# ---------------------------------------------------------------- parts


def test_copies_of_arguments_have_their_layout() -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    given = [whole.permute(2, 0, 1), torch.arange(3.0).expand(5, 3), whole[:, :0], whole[0, 0, 0]]
    fixed = Fixed(given, range(4), ())
    for t, copy in zip(given, fixed.tensors, strict=True):
        assert copy.shape == t.shape
        assert copy.stride() == t.stride()
        assert copy.numel() == 0 or copy.data_ptr() != t.data_ptr()
    copies = list(fixed.tensors)
    fixed.load([t * 2 for t in given[:1]] + given[1:])
    agrees(copies, (given[0] * 2, *given[1:]))


def test_windows_that_overlap_are_copied_with_what_they_share() -> None:
    """No element of theirs has a place of its own that could be written."""
    whole = torch.randn(40)
    windows = {
        "rows that share": whole.as_strided((5, 4), (2, 1), 3),
        "backwards": whole.as_strided((4, 5), (1, 2), 3),
        "and are repeated": whole.as_strided((2, 5, 4), (0, 3, 1), 1),
        "across": whole.as_strided((3, 3, 2), (4, 3, 1)),
    }
    for name, t in windows.items():
        fixed = Fixed([t], [0], ())
        (kept,) = fixed.tensors
        fixed.load([t])
        assert kept.stride() == t.stride(), name
        assert torch.equal(kept, t), name
        assert kept.data_ptr() != t.data_ptr(), name


def test_an_error_names_the_step_that_raised_it() -> None:
    text = "def run(f):\n    t0 = c0(c2(f, ))\n    c1(f)"

    def fault(*_: Any) -> None:
        raise ValueError

    def raised(**names: Any) -> str | None:
        known: dict[str, Any] = {"c0": _results, "c1": len, "c2": len, **names}
        exec(compile(text, PROGRAM, "exec"), known)
        with pytest.raises(ValueError) as caught:
            known["run"]([])
        return step_of(caught.value, text)

    assert raised(c2=fault) == "fault"
    assert raised(c1=fault, c0=lambda _: None) == "a run of kernels"
    assert step_of(ValueError(), text) is None
