"""Budgets: the file, what is over one, what caused it, and the four forms of the answer."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from plan_documents import boundary, document, graph, group

from onetrip.base.errors import UsageError
from onetrip.report import budget, schema, verdict


def plan(
    *groups: schema.Group, boundaries: tuple[schema.Boundary, ...] = (), kernels: int = 2
) -> schema.Document:
    made = msgspec.structs.replace(graph(), groups=groups, boundaries=boundaries, kernels=kernels)
    return document(made)


def between(value: str, consumer: str, line: str) -> schema.Boundary:
    return msgspec.structs.replace(
        boundary("g0", consumer, 70), values=(value,), consumer_line=line
    )


FUSED = group("g0", nodes=(":add#0@aa", ":gelu#0@aa[0]", ":gelu#0@aa[1]"))
WHOLE = budget.Group("both", (":add", ":gelu"), (":gelu",))


def test_a_plan_keeps_the_budget_that_it_makes() -> None:
    made = plan(FUSED)
    limits = budget.limits_of(made)
    assert limits.group == (budget.Group("g0", (":add", ":gelu"), (), "inference"),)
    assert budget.judge(made, limits).violations == ()


def test_the_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(budget.limits_of(plan(FUSED)), externs=('a"b', "ü"))
    made = budget.Budget(1, {"h200": limits, "cpu:16": budget.Limits(kernels=3)}, training=True)
    path = tmp_path / "b.toml"
    path.write_text(budget.encode(made), encoding="utf-8")
    assert budget.read(path) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format = 1\n[target.h200]\nkernel = 3\n", r"in \[target.h200\]: .*field `kernel`"),
        ("format = 1\n[target.h200]\nkernels = -3\n", r"in \[target.h200\], kernels: .* >= 0"),
        ('format = 1\n[target."cpu:4"]\nkernels = "x"\n', r'in \[target."cpu:4"\], kernels: '),
        (
            "format = 1\n[target.a100]\n[target.h200]\n[[target.h200.group]]\n"
            "name = 'a'\ncalls = [1]\n",
            r"in \[target.h200\], group\[0\].calls\[0\]: Expected `str`",
        ),
        ("format = 'a'\ntarget = {}\n", "in the file, format: Expected `int`"),
        ("format = 1\ntarget = 3\n", "in the file, target: "),
        ("format = 2\n[target.h200]\n", "another format"),
        ("format = \n", "Invalid value"),
        ("format = 1\n", "target"),
    ],
)
def test_what_is_no_budget_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        budget.read(path)


def test_totals() -> None:
    made = plan(FUSED, kernels=3)
    exact = budget.Limits(kernels=3, traffic_bytes=4000, peak_bytes=500)
    assert budget.judge(made, exact).violations == ()
    tight = budget.Limits(kernels=2, traffic_bytes=3999, peak_bytes=499)
    found = budget.judge(made, tight).violations
    assert [(x.rule, x.limit, x.found) for x in found] == [
        ("kernels", 2, 3), ("traffic_bytes", 3999, 4000), ("peak_bytes", 499, 500),
    ]  # fmt: skip
    assert "1 bytes too many" in found[1].message


def test_a_split_group_names_the_boundary_inside() -> None:
    halves = group("g0", nodes=(":add#0@aa",)), group("g1", nodes=(":gelu#0@aa",))
    elsewhere = between(":other#0@aa", "g0", "m.py:1")
    made = plan(*halves, boundaries=(elsewhere, between(":add#0@aa", "g1", "m.py:9")))
    (found,) = budget.judge(made, budget.Limits(group=(WHOLE,))).violations
    assert found.line == "m.py:9"
    assert "has become 2 kernels" in found.message
    assert [c.code for c in found.causes] == ["convexity"]


def test_a_call_that_is_gone_is_no_silent_pass() -> None:
    made = plan(group("g0", nodes=(":add#0@aa",)))
    (found,) = budget.judge(made, budget.Limits(group=(WHOLE,))).violations
    assert "no longer has: :gelu" in found.message


def test_a_group_of_a_graph_that_is_gone() -> None:
    backward = msgspec.structs.replace(WHOLE, graph="backward")
    assert budget.judge(plan(FUSED), budget.Limits(group=(backward,))).violations


def test_a_group_whole_in_one_kernel_and_computed_again_in_another_is_whole() -> None:
    again = group("g1", nodes=(":add#0@aa", ":mul#0@aa"))
    assert budget.judge(plan(FUSED, again), budget.Limits(group=(WHOLE,))).violations == ()


def test_a_new_reader_of_a_fused_value_is_the_cause() -> None:
    """Not the dearest boundary, which the plan had before."""
    old = msgspec.structs.replace(between(":gelu#0@aa", "g1", "m.py:5"), bytes=9999)
    new = between(":add#0@aa", "g2", "m.py:12")
    made = plan(FUSED, group("g1", nodes=(":mm#0@aa",)), group("g2", nodes=(":sum#0@aa",)),
                boundaries=(old, new), kernels=3)  # fmt: skip
    (found,) = budget.judge(made, budget.Limits(kernels=2, group=(WHOLE,))).violations
    assert [c.line for c in found.causes] == ["m.py:12"]


def test_a_call_that_the_budget_does_not_know_comes_first_and_more_layers_are_none() -> None:
    layers = [group(f"g{k}", nodes=(f"layers.{k}:add#0@aa",)) for k in range(2)]
    limits = budget.limits_of(plan(layers[0]))
    assert limits.calls == ("layers.*:add",)
    (deeper,) = budget.judge(plan(*layers, kernels=9), limits).violations
    assert "no call of the model" not in str(deeper.causes)
    new = group("g1", nodes=(":sum#0@aa[0]", ":sum#0@aa[1]"))
    made = plan(layers[0], new, boundaries=(boundary("g0", "g1", 10),), kernels=9)
    graph = msgspec.structs.replace(made.graphs[0], call_lines={":sum#0@aa": "m.py:7"})
    (found,) = budget.judge(msgspec.structs.replace(made, graphs=(graph,)), limits).violations
    assert [(c.code, c.line) for c in found.causes] == [("new-call", "m.py:7")]
    assert found.line == "m.py:7" and ":sum is no call" in found.causes[0].text


def test_without_groups_the_dearest_boundaries_are_named() -> None:
    made = plan(FUSED, boundaries=(boundary("g0", "a", 10), boundary("g0", "b", 20)), kernels=3)
    (found,) = budget.judge(made, budget.Limits(kernels=2)).violations
    assert [c.text.split()[0] for c in found.causes] == ["20", "10"]


def test_externs() -> None:
    made = plan(group("g0", kind="extern", ops=("fft",), lines=("m.py:7",)))
    assert budget.judge(made, budget.Limits(externs=("fft",))).violations == ()
    assert budget.judge(made, budget.Limits()).violations == ()
    (found,) = budget.judge(made, budget.Limits(externs=())).violations
    assert (found.rule, found.line) == ("externs", "m.py:7")


# ------------------------------------------------------------------ forms


def verdicts() -> list[budget.Verdict]:
    halves = group("g0", nodes=(":add#0@aa",)), group("g1", nodes=(":gelu#0@aa",))
    made = plan(*halves, boundaries=(between(":add#0@aa", "g1", "m.py:9"),), kernels=3)
    return [budget.judge(made, budget.Limits(kernels=3, traffic_bytes=1, group=(WHOLE,)))]


def located(name: str) -> str:
    return f"src/{name}"


def test_text_names_boundary_reason_line_and_remedy() -> None:
    text = verdict.text(verdicts(), located)
    for words in ("h200: over budget", "ok    kernels: 3 of 3", "at src/m.py:9", "(convexity)",
                  "to change it: fuse it as well", "OVER  groups: 0 of 1 whole"):  # fmt: skip
        assert words in text


def test_annotations_stand_at_the_line_and_escape() -> None:
    first, second = verdict.github(verdicts(), located).splitlines()
    assert first.startswith("::error file=src/m.py,line=9,title=onetrip h200 traffic_bytes::")
    assert "%0A" in second and "\n" not in second
    odd = budget.Violation("a:b,c", "kernels", "5% more\nthan")
    (line,) = verdict.github([budget.Verdict("t", (), (odd,))], located).splitlines()
    assert line == "::error title=onetrip a%3Ab%2Cc kernels::5%25 more%0Athan"


def test_junit_has_a_case_for_each_line() -> None:
    root = ElementTree.fromstring(verdict.junit(verdicts(), located))
    cases = {c.get("name"): len(c) for c in root.iter("testcase")}
    assert cases == {"kernels": 0, "traffic_bytes": 1, "group both": 1}
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")


def test_json_is_complete() -> None:
    found = msgspec.json.decode(verdict.as_json(verdicts(), located), type=list[budget.Verdict])
    assert found == verdicts()
