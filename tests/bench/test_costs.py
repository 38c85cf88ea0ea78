"""The record of a cost model's error: its figures, and a run on tiny kernels."""

from __future__ import annotations

import msgspec
import pytest

from onetrip import api
from onetrip.api.kernels import priced
from onetrip.base.errors import OnetripError, UsageError
from onetrip.bench import calibrate, cost_record, costs
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.cost_record import Costs, Kernel, Plan, Time
from onetrip.bench.cost_rows import OTHER, programs
from onetrip.cli.calibrate import facts
from onetrip.target import load


def kernel(part: str, predicted: float, measured: float, warm: Time | None = None) -> Kernel:
    return Kernel("k", "p", part, [], 1, 1, 0, "memory", [], Time(predicted, measured), warm, "")


def test_an_error_is_the_distance_of_predicted_over_measured_from_one() -> None:
    assert Time(50.0, 100.0).error == 0.5
    assert Time(150.0, 100.0).error == 0.5


def test_spreads_are_of_each_part_and_regime() -> None:
    measured = [kernel("calibration", 100 + k, 100) for k in range(11)]
    measured.append(kernel("held out", 80, 100, warm=Time(3.0, 2.0)))
    found = {(s.part, s.regime): s for s in cost_record.spreads(measured)}
    assert set(found) == {("calibration", "cold"), ("held out", "cold"), ("held out", "warm")}
    cold = found["calibration", "cold"]
    assert (cold.kernels, cold.median, cold.p90) == (11, pytest.approx(0.05), pytest.approx(0.09))
    assert found["held out", "warm"].median == 0.5


def test_the_worst_are_those_off_by_the_largest_factor() -> None:
    measured = [kernel("held out", p, 100) for p in (110, 25, 300)]
    assert [t.predicted_us for _, _, t in cost_record.worst(measured, 2)] == [25, 300]


def plan(program: str, predicted: float, measured: float) -> Plan:
    return Plan(program, "", 1, predicted, measured)


def test_plans_are_ranked_where_their_estimates_differ_tellingly() -> None:
    same = [plan("a", 100, 7), plan("a", 105, 5)]
    right, wrong = plan("a", 200, 9), plan("a", 50, 11)
    assert cost_record.ranking(same).pairs == 0
    assert cost_record.ranking([*same, right]) == cost_record.Ranking(2, 2)
    assert cost_record.ranking([*same, wrong]) == cost_record.Ranking(2, 0)
    assert cost_record.ranking([plan("a", 1, 1), plan("b", 2, 2)]).pairs == 0


def test_held_out_blocks_and_sizes_are_not_those_of_the_fit() -> None:
    every = programs("cuda")
    parts = {p.row.name: p.part for p in every}
    assert all(parts[p.row.name] == p.part for p in every)
    assert set(parts.values()) == {"calibration", "held out"}
    assert all(p.part == "held out" for p in every if p.row not in BLOCKS)
    sizes = {r.name: r.sizes["cuda"] for r in BLOCKS}
    assert all(OTHER[name]["cuda"] != sizes[name] for name in OTHER)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_programs_are_forms_without_memory(device: str) -> None:
    for program in programs(device):
        if program.row in BLOCKS:
            work = program.work()
            assert {a.device.type for a in work.args} == {"meta"}
            assert bool(work.sources) == program.training


@pytest.fixture(scope="module")
def run() -> Costs:
    return costs.run(api, costs.Options("cpu", "cpu:2", size="tiny", only="add_rmsnorm"))


def price(nest: str) -> tuple[float, float]:
    cold, warm = priced(nest, load("cpu:2"))
    return cold.us, warm.us


def test_every_kernel_is_measured_beside_its_estimate(run: Costs) -> None:
    (found,) = run.kernels
    assert not run.left_out
    assert found.program.startswith("add_rmsnorm 5x40")
    assert "mean" in found.ops and found.launches[0].programs >= 1
    assert found.bytes == 4 * (4 * 5 * 40 + 40)
    assert found.cold.measured_us > 0 and found.cold.predicted_us > 0
    assert found.warm is not None and found.warm.measured_us > 0
    assert run.spreads == cost_record.spreads(run.kernels)


def test_plans_of_one_program_differ_and_are_timed(run: Costs) -> None:
    kernels = {p.plan: p.kernels for p in run.plans}
    assert kernels["eager"] > min(kernels.values()) == 1
    assert all(p.measured_us > 0 and p.predicted_us > 0 for p in run.plans)


def test_a_record_is_read_as_it_was_written(run: Costs) -> None:
    assert cost_record.decode(cost_record.encode(run), "") == run
    with pytest.raises(OnetripError, match="cannot be read"):
        cost_record.decode(b"{}", "costs.json")


def test_a_record_is_predicted_again_without_measuring(run: Costs) -> None:
    assert cost_record.repriced(run, "cpu:2", price) == run
    doubled = cost_record.repriced(run, "x", lambda nest: (2 * price(nest)[0], 1.0))
    assert doubled.kernels[0].cold.predicted_us == 2 * run.kernels[0].cold.predicted_us
    assert doubled.kernels[0].cold.measured_us == run.kernels[0].cold.measured_us


def test_a_kernel_that_can_be_read_no_more_is_named(run: Costs) -> None:
    broken = [msgspec.structs.replace(k, nest="nest {\n  nonsense\n}") for k in run.kernels]
    found = cost_record.repriced(cost_record.with_kernels(run, broken), "cpu:2", price)
    assert not found.kernels
    assert [name for name in found.left_out if "add_rmsnorm" in name]


def test_no_such_program_is_an_error() -> None:
    with pytest.raises(UsageError, match="no program"):
        costs.run(api, costs.Options("cpu", "cpu:2", only="absent"))


# ------------------------------------------------------------------ calibration


def figure(name: str, value: float) -> calibrate.Figure:
    return calibrate.Figure(name, value, "somehow")


def test_facts_follow_from_figures() -> None:
    target = load("h200")
    made = {n: figure(n, v) for n, v in {"replay_us": 1.0, "product_rate": 5e14}.items()}
    found = facts(made, target)
    assert found["replay_us"] == (1.0, "measured: somehow")
    assert found["matrix_share"][0] == pytest.approx(5e14 / target.peak_flops("matrix", "bf16"))
    assert "matrix.bf16" not in found


def test_a_product_faster_than_the_listed_peak_moves_the_peak() -> None:
    target = load("cpu:2")
    made = {n: figure(n, v) for n, v in {"product_rate": 9e12, "rate.mul": 2e11}.items()}
    found = facts(made, target)
    assert found["matrix.f32"][0] == 9e12
    assert found["matrix_share"][0] == 1.0
    assert found["vector.f32"][0] == 4e11


def test_launches_are_measured_through_a_generated_kernel() -> None:
    machine = calibrate.Machine(api, "cpu", "cpu:2", load("cpu:2").l2_bytes)
    found = {f.name: f.value for f in calibrate.launches(machine)}
    assert set(found) == {"replay_us", "launch_us"}
    assert all(0 < us < 1e5 for us in found.values())


def test_an_absent_device_is_an_error() -> None:
    machine = calibrate.Machine(api, "tpu", "cpu:2", 1)
    with pytest.raises(UsageError):
        list(calibrate.measured(machine))
