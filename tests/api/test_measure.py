"""Two ways timed on the device at hand, by a clock that the tests set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onetrip
from onetrip.api import measure
from onetrip.api.devices import target_here
from onetrip.api.measure import WayTimer
from onetrip.base.errors import ToolchainError, UsageError
from onetrip.base.options import Options
from onetrip.ir.graph import Graph
from onetrip.ir.parser import parse
from onetrip.passes.lower import lower
from onetrip.plan.measured import ERROR_BAND
from onetrip.plan.plan import GraphPlan, Measured
from onetrip.plan.search import plan_graph
from onetrip.runtime.clock import MIN_SAMPLE_US, Call
from onetrip.runtime.cpu import CpuBackend

CPU = torch.device("cpu")
HERE = target_here("cpu")


class SetClock:
    """The first call it is given takes `first` us, every other one `other`; each is run."""

    def __init__(self, first: float, other: float) -> None:
        self.us = (first, other)
        self.calls: list[Call] = []

    def __call__(self, call: Call, count: int) -> float:
        call()
        if call not in self.calls:
            self.calls.append(call)
        return self.us[0] if call is self.calls[0] else self.us[1]


def planned(text: str) -> GraphPlan:
    graph = parse(text)
    assert isinstance(graph, Graph)
    return plan_graph(graph, lower(graph), HERE)


def sums(names: str) -> GraphPlan:
    """A plan of two sums, with values of these names."""
    x, y, z = (f"{names}{k}" for k in "xyz")
    return planned(f"""graph {{
  input {x}: f32[8,8]
  {y}: f32[8,8] = add({x}, {x}) {{alpha=1}} call 0
  {z}: f32[8,8] = add({y}, {x}) {{alpha=2}} call 1
  return {z}
}}""")


def exponential(name: str = "y") -> GraphPlan:
    return planned(f"""graph {{
  input x: f32[8,8]
  {name}: f32[8,8] = exp(x) call 0
  return {name}
}}""")


def timer(folder: Path, clock: SetClock) -> WayTimer:
    return WayTimer(CPU, HERE, Options(cache_dir=str(folder)), clock)


def test_both_ways_run_and_their_times_are_kept_under_what_they_compute(tmp_path: Path) -> None:
    clock = SetClock(MIN_SAMPLE_US, 2 * MIN_SAMPLE_US)
    found = timer(tmp_path, clock)(sums("a"), exponential(), {})
    assert len(clock.calls) == 2
    assert (found.as_is_us, found.replaced_us) == clock.us
    assert (found.failure, found.replaced_wins) == ("", False)

    other = SetClock(1.0, 1.0)
    again = timer(tmp_path, other)(sums("b"), exponential("elsewhere"), {})
    assert again == found and not other.calls

    turned = SetClock(MIN_SAMPLE_US, 3 * MIN_SAMPLE_US)
    back = timer(tmp_path, turned)(exponential(), sums("a"), {})
    assert (back.as_is_us, back.replaced_us) == turned.us


def test_a_way_that_cannot_be_built_has_no_time_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CpuBackend.build

    def rejecting(self: CpuBackend, segments: Any) -> Any:
        if any("exp" in b.kernel.name for s in segments for b in s):
            raise ToolchainError("no kernel is built", found="a full disk")
        return real(self, segments)

    monkeypatch.setattr(CpuBackend, "build", rejecting)
    failed = timer(tmp_path, SetClock(MIN_SAMPLE_US, 1.0))(sums("a"), exponential(), {})
    assert (failed.as_is_us, failed.replaced_us) == (MIN_SAMPLE_US, None)
    assert failed.replaced_wins is False
    assert failed.failure.startswith("the alternative: ToolchainError: no kernel is built")
    monkeypatch.undo()
    whole = timer(tmp_path, SetClock(MIN_SAMPLE_US, 1.0))(sums("a"), exponential(), {})
    assert whole.failure == "" and whole.replaced_wins is True


def test_timing_leaves_the_streams_of_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    timer(tmp_path, SetClock(MIN_SAMPLE_US, MIN_SAMPLE_US))(sums("a"), exponential(), {})
    assert torch.equal(torch.rand(4), expected)


# ------------------------------------------------------------------ through the public interface


class Siblings(nn.Module):
    """Three products over one input: as three calls or as one, which estimates cannot tell."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x) for part in self.parts)
        out: Tensor = torch.sin(q) * k + v
        return out


Asked = list[tuple[GraphPlan, GraphPlan]]


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Asked]:
    """Sets what the nodes as they are and what replaces them take; returns who asks."""
    torch._dynamo.reset()

    def set_to(as_is: float, replaced: float) -> Asked:
        asked: Asked = []

        def answer(self: WayTimer, old: GraphPlan, new: GraphPlan, hints: Any) -> Measured:
            asked.append((old, new))
            return Measured(as_is, replaced, "a chip")

        monkeypatch.setattr(measure.WayTimer, "__call__", answer)
        return asked

    return set_to


@pytest.fixture
def model() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Siblings().eval().requires_grad_(False), torch.randn(64, 32)


def test_a_plan_without_autotune_asks_nobody(
    model: tuple[nn.Module, Tensor], set_times: Callable[[float, float], Asked]
) -> None:
    asked = set_times(9.0, 5.0)
    plan = onetrip.plan(*model, target=HERE.name)
    (found,) = plan.alternatives
    assert not asked and found.measured is None
    assert found.as_is_us is not None and found.replaced_us is not None
    low, high = sorted((found.as_is_us, found.replaced_us))
    assert high <= low * (1 + ERROR_BAND["cpu"]), "the model tells the ways apart: take another"
    assert "nothing was run" in str(plan)


@pytest.mark.parametrize(("replaced", "taken"), [(5.0, True), (13.0, False)])
def test_the_faster_way_is_in_the_plan_its_text_and_its_file_and_is_honoured(
    model: tuple[nn.Module, Tensor],
    set_times: Callable[[float, float], Asked],
    tmp_path: Path,
    replaced: float,
    taken: bool,
) -> None:
    asked = set_times(9.0, replaced)
    plan = onetrip.plan(*model, target=HERE.name, autotune=True)
    (found,) = plan.alternatives
    assert len(asked) == 1
    assert found.taken is taken and found.measured is not None
    assert (found.measured.as_is_us, found.measured.replaced_us) == (9.0, replaced)
    words = " ".join(str(plan).split())
    assert "1 choice timed on a chip" in words and f"{replaced:.3g} us" in words

    plan.save(tmp_path / "plan.json")
    loaded = onetrip.load_plan(tmp_path / "plan.json")
    assert loaded.alternatives == plan.alternatives

    again = set_times(replaced, 9.0)  # were it asked, it would choose the other way
    calls = count_products(model[0], model[1], plan=tmp_path / "plan.json", autotune=True)
    assert not again
    assert calls == (1 if taken else 3)


def count_products(module: nn.Module, x: Tensor, **options: Any) -> int:
    """Calls of the library's product that the compiled module makes."""
    compiled = onetrip.compile(module, **options)
    torch.testing.assert_close(compiled(x), module(x))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(x)
    return sum(e.name in ("aten::addmm", "aten::mm") for e in profile.events())


@pytest.mark.parametrize(("replaced", "products"), [(5.0, 1), (13.0, 3)])
def test_a_compilation_in_the_mode_max_autotune_takes_the_faster_way(
    model: tuple[nn.Module, Tensor],
    set_times: Callable[[float, float], Asked],
    replaced: float,
    products: int,
) -> None:
    asked = set_times(9.0, replaced)
    assert count_products(*model, mode="max-autotune") == products
    assert len(asked) == 1


def test_a_compilation_builds_and_times_both_ways_where_the_kernels_run(
    model: tuple[nn.Module, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real compilation, where fake tensors are in force; a second one finds the answer."""
    torch._dynamo.reset()
    clock = SetClock(MIN_SAMPLE_US, 2 * MIN_SAMPLE_US)
    monkeypatch.setattr(measure, "CLOCKS", {"cpu": clock})
    settings = {"mode": "max-autotune", "cache_dir": str(tmp_path)}
    assert count_products(*model, **settings) == 3
    assert len(clock.calls) == 2
    torch._dynamo.reset()
    assert count_products(*model, **settings) == 3
    assert len(clock.calls) == 2


def test_another_chip_cannot_be_timed(model: tuple[nn.Module, Tensor]) -> None:
    with pytest.raises(UsageError, match="autotune times kernels on the device at hand") as raised:
        onetrip.plan(*model, target="mi300x", autotune=True)
    assert "mi300x" in str(raised.value)
