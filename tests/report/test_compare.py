"""Two plans side by side: what is matched with what, figures, reasons, text and JSON."""

from __future__ import annotations

import json

import msgspec
import pytest
from plan_documents import boundary, document, graph, group

from onetrip.report import compare, schema


def one(*groups: schema.Group, boundaries: tuple[schema.Boundary, ...] = ()) -> schema.Document:
    made = msgspec.structs.replace(graph(), groups=groups, boundaries=boundaries)
    return document(made)


def test_a_plan_and_itself_differ_in_nothing() -> None:
    found = compare.compare(document(), document())
    assert found.same
    assert compare.text(found).endswith("no difference")


def test_other_shapes_are_the_same_calls() -> None:
    """A wider model has other hashes in its keys, and other figures."""
    old = one(group("g0", 100, nodes=(":add#0@aa[1]",)))
    new = one(group("g0", 200, nodes=(":add#0@bb[1]",)))
    (change,) = compare.compare(old, new).changes
    assert (change.kind, change.bytes, change.gained, change.lost) == ("changed", 200, (), ())


def test_a_renumbered_group_is_no_change() -> None:
    old = one(group("g1_gelu", nodes=(":gelu#0@aa",)))
    new = one(group("g7_gelu", nodes=(":gelu#0@aa",)))
    assert compare.compare(old, new).changes == ()


def split() -> tuple[schema.Document, schema.Document]:
    whole = group("g0", 100, nodes=(":add#0@aa", ":gelu#0@aa", ":mul#0@aa"))
    first = group("g0", 100, nodes=(":add#0@aa", ":gelu#0@aa"))
    second = group("g1", 300, nodes=(":mul#0@aa",))
    between = msgspec.structs.replace(
        boundary("g0", "g1", 70), values=(":gelu#0@aa",), consumer_line="m.py:9"
    )
    return one(whole), one(first, second, boundaries=(between,))


def test_a_split_names_what_left_and_the_new_boundary() -> None:
    changes = compare.compare(*split()).changes
    assert [(c.kind, c.bytes) for c in changes] == [("added", 600), ("changed", 0)]
    assert changes[1].lost == (":mul",)
    for change in changes:
        (reason,) = change.reasons
        assert reason == (
            "new boundary: 70 B :gelu -> g1 (m.py:9), illegal (convexity): a path is there"
        )


def test_a_merge_names_the_boundary_that_is_gone() -> None:
    changes = compare.compare(*reversed(split())).changes
    assert [c.kind for c in changes] == ["removed", "changed"]
    assert changes[1].gained == (":mul",)
    assert all(c.reasons[0].startswith("gone: 70 B :gelu -> g1") for c in changes)


def test_a_boundary_of_both_plans_is_no_reason() -> None:
    _, new = split()
    wider = msgspec.structs.replace(new.graphs[0].groups[1], reads=999)
    grown = one(new.graphs[0].groups[0], wider, boundaries=new.graphs[0].boundaries)
    (change,) = compare.compare(new, grown).changes
    assert (change.kind, change.reasons) == ("changed", ())


def test_changes_stand_by_bytes() -> None:
    old = one(*(group(f"g{k}", 10 * k + 10, nodes=(f":op{k}#0@aa",)) for k in range(3)))
    new = one()
    assert [c.bytes for c in compare.compare(old, new).changes] == [-60, -40, -20]


def test_a_graph_that_one_plan_has_not() -> None:
    found = compare.compare(
        document(graph("forward")), document(graph("forward"), graph("backward"))
    )
    assert {(c.kind, c.graph) for c in found.changes} == {("added", "backward")}


@pytest.mark.parametrize(
    ("most", "last"), [(1, "1 more change that move fewer bytes"), (None, "    new boundary:")]
)
def test_text(most: int | None, last: str) -> None:
    text = compare.text(compare.compare(*split()), most)
    assert "+ +600 B  inference/g1: add, gelu" in text
    assert text.splitlines()[-1].startswith(last)


def test_json_holds_all_that_the_text_says() -> None:
    found = json.loads(compare.encode(compare.compare(*split())))
    assert [c["kind"] for c in found["changes"]] == ["added", "changed"]
    assert found["before"]["kernels"] == 2
