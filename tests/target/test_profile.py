"""A target's file from measured figures: what is read from it is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from onetrip.base.errors import OnetripError, UsageError
from onetrip.target import load, profile
from onetrip.target.load import parse


def written(folder: Path, text: str) -> str:
    path = folder / "here.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["a100", "h200", "mi300x", "cpu:3"])
def test_a_profile_without_measurements_is_the_target_itself(name: str, tmp_path: Path) -> None:
    base = load(name)
    found = load(written(tmp_path, profile(base, "here", {})))
    assert [n for n, _ in found.matrix] == [n for n, _ in base.matrix]
    assert found.peak_flops("vector", "f32") == pytest.approx(base.peak_flops("vector", "f32"))
    assert found.multiprocessors == base.multiprocessors
    for fact in ("copy_bandwidth", "l2_bandwidth", "special_rate", "latency_us", "l2_bytes"):
        assert getattr(found, fact) == pytest.approx(getattr(base, fact))


def test_measured_facts_take_the_place_of_listed_ones(tmp_path: Path) -> None:
    measured = {"copy_bandwidth": (3.5e12, 'measured: "here"'), "matrix.f8": (1e15, "measured")}
    found = load(written(tmp_path, profile(load("h200"), "here", measured)))
    assert found.copy_bandwidth == 3.5e12
    assert found.source("copy_bandwidth") == 'measured: "here"'
    assert found.peak_flops("matrix", "f8") == 1e15
    assert found.dram_bandwidth == load("h200").dram_bandwidth


def test_a_cpu_states_what_all_its_cores_did_together(tmp_path: Path) -> None:
    measured = {"copy_bandwidth": (30e9, "measured"), "cores.region_us": (5.0, "measured")}
    found = load(written(tmp_path, profile(load("cpu:3"), "here", measured)))
    assert found.multiprocessors == 3
    assert found.copy_bandwidth == pytest.approx(30e9)
    assert found.cores is not None
    assert (found.cores.region_us, found.cores.most) == (5.0, 3)


def test_a_unit_that_the_chip_lacks_stays_unsupported(tmp_path: Path) -> None:
    found = load(written(tmp_path, profile(load("a100"), "here", {})))
    assert not found.supports("matrix", "f8e4m3")


def test_a_file_is_read_at_each_call(tmp_path: Path) -> None:
    path = written(tmp_path, profile(load("h200"), "here", {}))
    assert load(path).name == path
    written(tmp_path, profile(load("h200"), "here", {"launch_us": (9.0, "measured")}))
    assert load(path).launch_us == 9.0


def test_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml"):
        load(str(tmp_path / "absent.toml"))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1.0", "0.0", '"fast"', "[1.0]"])
@pytest.mark.parametrize("name", ["copy_bandwidth", "latency_us", "vector_share"])
def test_absurd_figures_are_refused(name: str, value: str) -> None:
    lines = profile(load("h200"), "here", {}).splitlines()
    changed = [f'{name} = [{value}, "x"]' if x.startswith(f"{name} =") else x for x in lines]
    with pytest.raises(OnetripError, match=name):
        parse("\n".join(changed), "here.toml")


@pytest.mark.parametrize("name", ["matrix_share", "unaligned_share", "vector_share"])
def test_a_share_is_at_most_one(name: str) -> None:
    lines = profile(load("h200"), "here", {}).splitlines()
    changed = [f'{name} = [1.01, "x"]' if x.startswith(f"{name} =") else x for x in lines]
    with pytest.raises(OnetripError, match=name):
        parse("\n".join(changed), "here.toml")
