"""Every chip's file states every fact with its source, and a faulty file is refused."""

from __future__ import annotations

from importlib.resources import files

import pytest

from onetrip.base.errors import OnetripError, UsageError
from onetrip.target import RATE_UNIT, Cores, Target, facts_of, load, names
from onetrip.target.load import RANGES, parse

CHIPS = ("a100", "b200", "cpu", "h100", "h200", "mi300x")
GPUS = tuple(name for name in CHIPS if name != "cpu")
H200 = files("onetrip.target").joinpath("data", "h200.toml").read_text(encoding="utf-8")

CPU = files("onetrip.target").joinpath("data", "cpu.toml").read_text(encoding="utf-8")
RATES = H200[H200.index("[matrix]") :]


def without(line_start: str) -> str:
    lines = H200.splitlines()
    left = [line for line in lines if not line.startswith(line_start)]
    assert len(left) == len(lines) - 1
    return "\n".join(left)


def changed(line_start: str, new: str) -> str:
    return without(line_start).replace("[facts]", f"[facts]\n{new}")


def test_the_chips_are_there() -> None:
    assert names() == CHIPS


@pytest.mark.parametrize("name", CHIPS)
def test_every_fact_has_a_value_and_a_source(name: str) -> None:
    target = load(name)
    for fact in facts_of(Target):
        assert getattr(target, fact) > 0
        assert target.source(fact)
    assert target.peak_flops("vector", "f32") > 0
    assert len(dict(target.sources)) == len(target.sources)


@pytest.mark.parametrize("name", GPUS)
def test_figures_of_a_gpu_agree_with_each_other(name: str) -> None:
    target = load(name)
    assert target.device == "cuda"
    assert 0.5 < target.copy_bandwidth / target.dram_bandwidth < 1
    assert target.l2_bandwidth > target.copy_bandwidth
    assert target.warps_per_multiprocessor * target.warp_size == target.threads_per_multiprocessor
    assert target.shared_per_block <= target.shared_per_multiprocessor
    assert target.replay_us < target.launch_us
    assert 1 < target.peak_flops("vector", "f32") / target.peak_flops("vector", "f64") < 3
    # One multiply-add is two FLOPs, and there are at least as many f32 lanes as integer ones.
    assert target.peak_flops("vector", "f32") >= 2 * target.integer_rate * 0.95


def test_an_h200_is_what_was_measured() -> None:
    target = load("h200")
    assert target.copy_bandwidth == 4.25e12
    assert 680e12 <= target.reached_flops("matrix", "bf16") <= 790e12
    assert target.peak_flops("matrix", "bf16") > target.reached_flops("matrix", "bf16")


def test_a_rate_is_found_under_its_own_or_its_units_dtype() -> None:
    target = load("h100")
    assert target.peak_flops("matrix", "f8e5m2") == target.peak_flops("matrix", "f8")
    assert target.peak_flops("vector", "bf16") == target.peak_flops("vector", "f32")


def test_a_unit_that_a_chip_lacks_is_an_error_that_names_the_others() -> None:
    target = load("a100")
    assert not target.supports("matrix", "f8e4m3")
    assert target.supports("matrix", "bf16")
    with pytest.raises(UsageError, match=r"a100 has no matrix rate for f8e4m3") as error:
        target.peak_flops("matrix", "f8e4m3")
    assert "bf16, f16, tf32" in str(error.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown target 'h201'") as error:
        load("h201")
    for name in CHIPS:
        assert name in str(error.value)


def test_cores_add_up_until_the_memory_saturates() -> None:
    one, two, most = load("cpu:1"), load("cpu:2"), load("cpu:64")
    assert two.name == "cpu:2"
    assert two.multiprocessors == 2
    assert two.copy_bandwidth == 2 * one.copy_bandwidth
    assert two.peak_flops("vector", "f32") == 2 * one.peak_flops("vector", "f32")
    assert two.special_rate == 2 * one.special_rate
    assert two.launch_us == one.launch_us
    assert most.cores is not None
    assert most.copy_bandwidth == most.cores.socket_copy_bandwidth < 64 * one.copy_bandwidth
    assert load("cpu").multiprocessors == most.cores.standard


def test_a_library_may_have_plain_loops_for_a_dtype() -> None:
    plain, looped = load("cpu:4"), load("cpu:4-bf16")
    assert looped.name == "cpu:4-bf16"
    assert looped.cores is not None
    assert looped.peak_flops("matrix", "bf16") == 4 * looped.cores.looped_flops
    assert looped.source("matrix.bf16") == looped.source("cores.looped_flops")
    for dtype in ("f16", "f32", "f64"):
        assert looped.peak_flops("matrix", dtype) == plain.peak_flops("matrix", dtype)
    assert load("cpu-bf16-f16").multiprocessors == load("cpu").multiprocessors


@pytest.mark.parametrize(
    "name",
    ["cpu:0", "cpu:65", "cpu:many", "cpu:-1", "h200:4", "h200-bf16", "cpu-f8", "cpu-", "cpu:2-f7"],
)
def test_cores_or_dtypes_without_figures_are_an_error(name: str) -> None:
    with pytest.raises(UsageError):
        load(name)


def test_targets_can_be_keys() -> None:
    assert {load("h200"): 1}[load("h200")] == 1
    assert load("h100") != load("h200")


FAULTS = {
    "a missing fact": (without("copy_bandwidth"), "copy_bandwidth"),
    "a missing rate": (without("tf32"), "tf32"),
    "a missing header": (without("arch"), "arch"),
    "a fact that nothing reads": (H200.replace("[facts]", '[facts]\nwarps = [4, "x"]'), "warps"),
    "a table that nothing reads": (H200 + "\n[extra]\n", "extra"),
    "no source": (changed("warp_size", "warp_size = 32"), "warp_size"),
    "an empty source": (changed("warp_size", 'warp_size = [32, " "]'), "warp_size"),
    "zero": (changed("warp_size", 'warp_size = [0, "x"]'), "warp_size"),
    "a fraction of a count": (changed("warp_size", 'warp_size = [32.5, "x"]'), "warp_size"),
    "a word": (changed("launch_us", 'launch_us = ["3", "x"]'), "launch_us"),
    "unsupported outside rates": (
        changed("launch_us", 'launch_us = ["unsupported", "x"]'),
        "launch_us",
    ),
    "a truth value": (changed("launch_us", 'launch_us = [true, "x"]'), "launch_us"),
    "an unknown vendor": (H200.replace('"nvidia"', '"banana"'), "vendor"),
    "an unknown device": (H200.replace('device = "cuda"', "device = 3"), "device"),
    "an unknown architecture": (H200.replace('"sm_90"', '"banana"'), "arch"),
    "a figure for a table": ("facts = 3\n" + H200[: H200.index("[facts]")] + RATES, "table"),
    "not TOML": ("name = ", "TOML"),
}


FIGURES: dict[str, tuple[str, str]] = {
    **{f"{name} =": (H200, fact.unit) for name, fact in facts_of(Target).items()},
    **{f"{name} = ": (CPU, fact.unit) for name, fact in facts_of(Cores).items()},
    "bf16 =": (H200, RATE_UNIT),
}
"""How the line of each figure begins, the file it stands in, and its unit."""
OUTSIDE = ("-1", "0", "nan", "inf", "-inf", "1e300", "-1e300", "1e-300", "true", '"1"')


@pytest.mark.parametrize("start", FIGURES)
def test_a_figure_that_no_chip_can_have_is_refused_with_its_unit(start: str) -> None:
    text, unit = FIGURES[start]
    lines = text.splitlines()
    at = max(k for k, line in enumerate(lines) if line.startswith(start))
    for figure in OUTSIDE:
        lines[at] = f'{start} [{figure}, "x"]'
        with pytest.raises(OnetripError, match=start.strip(" =")) as error:
            parse("\n".join(lines), "data/chip.toml")
        assert f"in {unit}" in str(error.value.expected)
        assert "data/chip.toml" in str(error.value)


def test_every_unit_has_a_range() -> None:
    units = {f.unit for kind in (Target, Cores) for f in facts_of(kind).values()}
    assert units | {RATE_UNIT} == set(RANGES)
    assert all(0 < least < most < float("inf") for least, most in RANGES.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_is_refused(fault: str) -> None:
    text, named = FAULTS[fault]
    with pytest.raises(OnetripError, match=named) as error:
        parse(text, "data/h200.toml")
    assert "data/h200.toml" in str(error.value)
