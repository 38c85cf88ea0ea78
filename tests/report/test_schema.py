"""The plan file: a round trip, and clear errors for anything that is no plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onetrip.base.errors import OnetripError, UsageError
from onetrip.report import schema, text
from onetrip.report.record import totals


def group(name: str, bytes_each: int = 1000, **changed: object) -> schema.Group:
    fields: dict[str, object] = {
        "name": name, "kind": "pointwise", "generated": True, "anchor": False,
        "nodes": (f":{name}#0@00",), "ops": ("add", "gelu"), "modules": (), "lines": ("m.py:3",),
        "reads": bytes_each, "writes": bytes_each, "registers": 36, "spill_bytes": 0,
        "shared_bytes": 0, "occupancy": 1.0, "source": "estimated", "flops": 10,
        "intensity": 0.005, "estimated_us": 2.5, "bound_by": "memory",
    }  # fmt: skip
    return schema.Group(**{**fields, **changed})  # type: ignore[arg-type]


def boundary(producer: str, consumer: str, size: int) -> schema.Boundary:
    return schema.Boundary(
        producer, consumer, (":x#0@00",), size, "stored", "illegal", "convexity", "a path is there",
        (schema.Evidence("operators on the path", 2, "operators", 0),),
        schema.IfFused(1, 4000, 40, 16, 3.0), "fuse it as well",
    )  # fmt: skip


def graph(name: str = "inference", peak: int = 500, kept: int = 100) -> schema.Graph:
    return schema.Graph(
        name=name, role=name, key="k", kernels=2, traffic_bytes=4000, peak_bytes=peak,
        output_bytes=kept, estimated_us=5.0, bound_us=4.0, bound_kind="exact",
        eligible_bytes=4000, generated_bytes=3000, arena_bytes="64*n",
        groups=(group("g0_add"), group("g1_add")),
        boundaries=(boundary("g0_add", "g1_add", 10), boundary("g0_add", "g1_add", 2000)),
        memory=(schema.Buffer(":x#0@00", 1000, "64*n", 0, 1, "arena"),),
        lines=(schema.Line("cut", (":a#0@00", ":b#0@00")),),
    )  # fmt: skip


def document(*graphs: schema.Graph) -> schema.Document:
    found = graphs or (graph(),)
    return schema.Document(
        schema.KIND, schema.FORMAT, "h200", "best", "eager", False, totals(found), found
    )


def test_round_trip(tmp_path: Path) -> None:
    written = document(graph("forward"), graph("backward"))
    schema.write(written, tmp_path / "p.json")
    assert schema.read(tmp_path / "p.json") == written


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(schema.encode(document())), **fields})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("cannot be read",)),
        ("[1]", ("cannot be read",)),
        ('{"a": 1}', ("not a plan", "onetrip.plan")),
        (changed(format=99), ("format 99", "format 1")),
        (changed(graphs=[{"name": 3}]), ("cannot be read", "graphs[0].name")),
        (changed(kind="other"), ("not a plan", "other")),
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


def test_totals_are_sums_and_the_peak_counts_what_earlier_graphs_left() -> None:
    both = totals((graph("forward", peak=500, kept=300), graph("backward", peak=400, kept=50)))
    assert (both.kernels, both.traffic_bytes, both.bound_us) == (4, 8000, 8.0)
    assert both.peak_bytes == 700
    assert both.generated_share == 0.75
    assert both.bound_kind == "exact"


def test_plain_tables_have_every_figure() -> None:
    shown = text.plain(document())
    for word in ("g0_add", "pointwise", "add, gelu", "1 kB", "36", "memory", "2.5", "convexity",
                 "a path is there", "40 registers, 16 B spilled", "cut(:a#0@00, :b#0@00)",
                 "2 kernels", "75.0%", "(exact)", "500 B"):  # fmt: skip
        assert word in shown, word
    assert "\x1b" not in shown


def test_the_boundary_that_moves_most_comes_first_and_the_rest_is_counted() -> None:
    grid = text.boundaries_grid(graph(), 1)
    assert [r[1] for r in grid.rows] == ["2 kB"]
    assert "1 that move fewer bytes" in grid.title
    assert [r[1] for r in text.boundaries_grid(graph(), None).rows] == ["2 kB", "10 B"]


def test_like_groups_share_a_row() -> None:
    (row,) = text.groups_grid(graph()).rows
    assert row[0] == "2"
