"""The command line: its table, its exit statuses, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from onetrip.cli import main
from onetrip.cli.main import COMMANDS
from onetrip.cli.targets import scaled, shown
from onetrip.target import load, profile

FAST = ("--size", "tiny", "--rounds", "3", "--seconds", "0.01", "--against", "eager,onetrip")


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_row_of_the_table_is_a_command(name: str) -> None:
    module, about = COMMANDS[name]
    assert isinstance(import_module(module).command, click.Command)
    assert about.endswith(".")
    assert run(name, "--help").exit_code == 0


def test_help_lists_the_table() -> None:
    text = run("--help").output
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize(
    "args",
    [("nothing",), ("targets", "h201"), ("bench", "blocks", "--only", "nothing"), ("bench", "all")],
)
def test_wrong_use_is_status_2(args: tuple[str, ...]) -> None:
    found = run(*args)
    assert found.exit_code == 2
    assert "Traceback" not in found.output


def test_targets_lists_every_chip_and_one_in_full() -> None:
    text = run("targets").output
    assert all(name in text for name in ("a100", "h100", "h200", "b200", "mi300x", "cpu"))
    assert "copy_bandwidth" in run("targets", "h200").output


def test_targets_json_has_every_source() -> None:
    (found,) = json.loads(run("targets", "cpu:2", "--json").output)
    assert found["name"] == "cpu:2"
    by_fact = {row["fact"]: row for row in found["figures"]}
    assert by_fact["matrix.f8"]["value"] is None
    assert by_fact["multiprocessors"]["value"] == 2
    assert all(row["source"] and row["unit"] for row in found["figures"])


def test_figures_are_shown_with_prefixes() -> None:
    assert scaled(4.25e12, "B/s") == "4.25 TB/s"
    assert shown(None, "FLOP/s") == "unsupported"
    assert shown(32, "threads") == "32 threads"
    assert shown(48 * 1024, "bytes") == "49.15 kB"


def test_targets_does_not_load_torch() -> None:
    script = (
        "import sys; from onetrip.cli import main; "
        "main(['targets'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bench_prints_json_and_writes_it(tmp_path: Path) -> None:
    args = ("bench", "blocks", "--only", "tiny", "--backend", "eager", *FAST)
    found = run(*args, "--json", "--out", str(tmp_path))
    assert found.exit_code == 0, found.output
    (path,) = tmp_path.glob("blocks-cpu-*.json")
    printed = json.loads(found.stdout)
    assert printed == json.loads(path.read_text())
    assert set(printed["rows"][0]["variants"]) == {"eager", "onetrip"}


def test_bench_is_status_1_where_onetrip_fails() -> None:
    found = run("bench", "blocks", "--only", "tiny", "--backend", "no_such_backend", *FAST)
    assert found.exit_code == 1
    assert "tiny, onetrip: failed" in found.output


def test_bench_model_measures_a_record_and_predicts_it_again(tmp_path: Path) -> None:
    args = ("bench", "model", "--only", "full_reduce", "--size", "tiny")
    found = run(*args, "--out", str(tmp_path))
    assert found.exit_code == 0, found.output
    assert "error of the cost model of cpu" in found.output
    (path,) = tmp_path.glob("costs-cpu-*.json")
    again = run("bench", "model", "--record", str(path), "--json")
    assert again.exit_code == 0
    measured, predicted = json.loads(path.read_text()), json.loads(again.stdout)
    assert predicted["kernels"] == measured["kernels"]
    assert predicted["kernels"][0]["nest"].startswith("nest {")


def test_a_profile_stands_wherever_a_target_is_named(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(profile(load("h200"), "here", {"launch_us": (7.5, "measured: by a test")}))
    found = run("targets", str(path))
    assert found.exit_code == 0
    assert "7.5 us" in found.output and "by a test" in found.output
    path.write_text("name = ")
    assert run("targets", str(path)).exit_code != 0
