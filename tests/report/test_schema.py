"""The plan file: a round trip, and clear errors for anything that is no plan."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from plan_documents import document, graph

from onetrip.base.errors import OnetripError, UsageError
from onetrip.report import schema
from onetrip.report.record import totals


def test_round_trip(tmp_path: Path) -> None:
    written = document(graph("forward"), graph("backward"))
    schema.write(written, tmp_path / "p.json")
    assert schema.read(tmp_path / "p.json") == written


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(schema.encode(document())), **fields})


def changed_graph(**fields: object) -> str:
    (first,) = json.loads(schema.encode(document()))["graphs"]
    return changed(graphs=[{**first, **fields}])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("cannot be read",)),
        ("[1]", ("cannot be read",)),
        ('{"a": 1}', ("not a plan", "onetrip.plan")),
        (changed(format=99), ("format 99", "format 1")),
        (changed(graphs=[{"name": 3}]), ("cannot be read", "graphs[0].name")),
        (changed(kind="other"), ("not a plan", "other")),
        ("", ("cannot be read",)),
        (changed()[:-40], ("cannot be read", "truncated")),
        ("[" * 100_000, ("cannot be read",)),
        (changed(lines=[]), ("cannot be read", "unknown field `lines`")),
        (changed(format="1"), ("cannot be read", "$.format")),
        (changed_graph(kernels=-3), ("cannot be read", "$.graphs[0].kernels", ">= 0")),
        (changed_graph(estimated_us=-1.0), ("cannot be read", "estimated_us")),
        (changed_graph(bound_kind="guess"), ("cannot be read", "bound_kind", "guess")),
        (changed_graph(lines=[{"kind": "join", "calls": []}]), ("cannot be read", "join")),
        (changed_graph(lines=[{"kind": "cut", "calls": ["a"]}]), ("too few calls", "cut(a)")),
        (changed_graph(lines=[{"kind": "pin", "calls": []}]), ("too few calls", "pin()")),
    ],
)
def test_what_is_no_plan_says_so(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(OnetripError) as caught:
        schema.read(path)
    assert all(word in str(caught.value) for word in (*words, str(path)))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b'{"kind": "\xff\xfe"}')
    with pytest.raises(OnetripError, match="cannot be read"):
        schema.read(path)


def test_a_missing_file_and_a_missing_folder_are_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.json"):
        schema.read(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot be written"):
        schema.write(document(), tmp_path / "no" / "p.json")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [folder, lambda p: p.symlink_to(p)], ids=["folder", "loop"])
def test_what_is_no_file_can_be_neither_read_nor_written(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "p.json"
    make(path)
    for attempt in (schema.read, lambda p: schema.write(document(), p)):
        with pytest.raises(UsageError) as caught:
            attempt(path)
        assert str(path) in str(caught.value) and "next step" in str(caught.value)


def test_a_full_disk_leaves_the_old_plan_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    schema.write(document(), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="cannot be written") as caught:
        schema.write(document(graph("forward"), graph("backward")), path)
    assert "No space left" in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
def test_a_device_is_written_to_and_not_replaced() -> None:
    with pytest.raises(UsageError, match="No space left"):
        schema.write(document(), "/dev/full")
    schema.write(document(), os.devnull)
    assert not Path(os.devnull).is_file()


def test_a_link_stays_a_link_and_a_mode_a_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "p.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    schema.write(document(), link)
    assert link.is_symlink() and schema.read(path) == document()
    assert path.stat().st_mode & 0o777 == 0o640


def test_totals_are_sums_and_the_peak_counts_what_earlier_graphs_left() -> None:
    both = totals((graph("forward", peak=500, kept=300), graph("backward", peak=400, kept=50)))
    assert (both.kernels, both.traffic_bytes, both.bound_us) == (4, 8000, 8.0)
    assert both.peak_bytes == 700
    assert both.generated_share == 0.75
    assert both.bound_kind == "exact"
