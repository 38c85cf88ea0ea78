"""What a plan looks like: figures, dearest boundaries, groups, at every width and size."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plan_documents import boundary, document, graph, group
from rich.console import Console

from onetrip.report import schema, text
from onetrip.report.layout import LEAST_WIDTH, shortened, shortened_list, wrapped
from onetrip.report.view import Plan

BLOCK = schema.read(Path(__file__).parent / "block.json")
"""A small transformer block in training: attention, a multi-layer perceptron, two norms."""


@pytest.mark.parametrize("width", [80, 160])
def test_a_transformer_block(width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"report/block_{width}", text.plain(BLOCK, width=width))


@pytest.mark.parametrize("width", [LEAST_WIDTH, 60, 80, 100, 160, 400])
@pytest.mark.parametrize("all_boundaries", [False, True])
def test_no_line_is_wider_than_asked_for(width: int, all_boundaries: bool) -> None:
    lines = text.plain(BLOCK, width=width, all_boundaries=all_boundaries).splitlines()
    # What must stay of a table of groups needs some room; all other lines keep to any width.
    assert max(map(len, lines)) <= max(width, 80)


def test_every_figure_is_shown() -> None:
    shown = text.plain(document(), width=160)
    for word in ("Plan for h200", "estimates", "2 kernels", "4 kB moved", "500 B at the peak",
                 "5 us estimated", "4 us lower bound (exact)", "gap 25.0%", "75.0%", "pointwise",
                 "add, gelu", "1.00 kB", "2.00 kB", "36", "memory 100%", "2.50", "5.00",
                 "illegal (convexity): a path is there", "as one kernel: 4 kB, 3 us",
                 "40 registers, 16 B spilled", "to change it: fuse it as well",
                 "cut(:a, :b)"):  # fmt: skip
        assert word in shown, word
    assert "\x1b" not in shown


def test_the_figures_come_before_everything_else() -> None:
    first = text.plain(BLOCK).split("\n\n")[0]
    for word in (BLOCK.target, "kernels", "moved", "estimated", "lower bound", "gap", "estimates"):
        assert word in first


def test_the_boundary_that_moves_most_comes_first_and_the_rest_is_counted() -> None:
    notes = text.boundaries_notes(graph(), 1)
    assert [item.head.split("  ")[0] for item in notes.items] == ["2 kB"]
    assert notes.below == "1 more that move fewer bytes: plan.boundaries"
    every = text.boundaries_notes(graph(), None)
    assert [item.head.split("  ")[0] for item in every.items] == ["2 kB", "10 B"]
    assert not every.below


def test_like_things_share_a_row() -> None:
    (row,) = text.groups_grid(graph()).rows
    assert row[0] == "2"
    same = [boundary(f"g{k}_add", f"g{k + 1}_add", 10) for k in range(3)]
    (item,) = text.boundaries_notes(msgspec.structs.replace(graph(), boundaries=tuple(same))).items
    assert item.head.startswith("3 x 10 B  g0_add -> g1_add")


def test_numbers_are_aligned_at_their_points() -> None:
    groups = (group("g0_a", estimated_us=2.5), group("g1_b", 3000, estimated_us=120.25))
    grid = text.groups_grid(msgspec.structs.replace(graph(), groups=groups))
    each = [c.title for c in grid.columns].index("us each")
    assert [row[each] for row in grid.rows] == ["2.50", "120.25"]


def test_views_are_not_named_beside_what_computes() -> None:
    def operators(*ops: str) -> str:
        one = msgspec.structs.replace(graph(), groups=(group("g0", ops=ops),))
        grid = text.groups_grid(one)
        return grid.rows[0][[c.title for c in grid.columns].index("operators")]

    assert operators("view", "add", "t", "gelu 2/3") == "add, gelu 2/3"
    assert operators("view", "t") == "view, t"


def many(count: int) -> schema.Document:
    """Groups and boundaries of which no two are alike."""
    ops = [f"op{k}" for k in range(count)]
    groups = tuple(group(f"g{k}_x", 1000 + k, ops=(op,)) for k, op in enumerate(ops))
    edges = tuple(boundary(f"g{k}_x", f"g{k + 1}_x{k}", 10 + k) for k in range(count - 1))
    lines = tuple(schema.Line("cut", (f":a#{k}@0", f":b#{k}@0")) for k in range(count))
    big = msgspec.structs.replace(graph(), groups=groups, boundaries=edges, lines=lines)
    return document(big)


def test_a_large_plan_is_as_short_as_a_small_one_and_says_what_is_left_out() -> None:
    small, large = (text.plain(many(n)).count("\n") for n in (100, 20_000))
    assert small == large
    shown = text.plain(many(20_000))
    assert "19980 more groups" in shown and "19994 more that move fewer bytes" in shown
    assert "19994 more lines" in shown


def test_work_on_a_large_plan_grows_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    real = text._group_form

    def counted(g: schema.Group) -> Any:
        nonlocal calls
        calls += 1
        return real(g)

    monkeypatch.setattr(text, "_group_form", counted)
    text.plain(many(2_000))
    assert calls == 2_000


def test_no_groups_at_all() -> None:
    empty = msgspec.structs.replace(
        graph(), groups=(), boundaries=(), lines=(), estimated_us=0.0, bound_us=0.0, kernels=0
    )
    assert "0 kernels" in text.plain(document(empty))


@pytest.mark.parametrize(
    ("whole", "width", "cut"),
    [
        ("encoder.layer", 13, "encoder.layer"),
        ("encoder.layer", 9, "enc...yer"),
        ("abcdef", 3, "abc"),
    ],
)
def test_names_are_shortened_in_the_middle(whole: str, width: int, cut: str) -> None:
    assert shortened(whole, width) == cut


def test_lists_are_shortened_at_their_end() -> None:
    assert shortened_list("add, gelu, mul", 14) == "add, gelu, mul"
    assert shortened_list("add, gelu, mul", 13) == "add, gelu, +1"
    assert shortened_list("add, gelu, mul", 8) == "add, +2"
    assert len(shortened_list("attention_backward, mul", 12)) <= 12


def test_a_long_word_is_shortened_and_not_broken() -> None:
    assert wrapped("a " + "x" * 50, 20, "  ") == ["  a", "  " + "x" * 8 + "..." + "x" * 7]


# ------------------------------------------------------------------ terminals and notebooks


def test_a_terminal_gets_the_same_lines_in_colour() -> None:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=100, color_system="standard").print(Plan(BLOCK))
    shown = out.getvalue()
    assert "\x1b[" in shown
    bare = io.StringIO()
    Console(file=bare, width=100, color_system=None).print(Plan(BLOCK))
    found = [line.rstrip() for line in bare.getvalue().splitlines()]
    assert found == text.plain(BLOCK, width=100).splitlines()


class _Reader(HTMLParser):
    """Open tags must close in order; collects texts, tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        assert all(name == "class" for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def test_a_notebook_gets_one_fragment_with_every_text_escaped() -> None:
    evil = "</td><script>alert('1')</script>&"
    edge = msgspec.structs.replace(boundary("g0", "g1", 10), reason=evil, remedy=evil)
    odd = msgspec.structs.replace(
        graph(evil), groups=(group(evil, ops=(evil,), modules=(evil,)),), boundaries=(edge,),
        lines=(schema.Line("cut", (evil, evil)),),
    )  # fmt: skip
    shown = Plan(document(odd))._repr_html_()
    reader = _Reader()
    reader.feed(shown)
    reader.close()
    assert not reader.open
    assert "script" not in reader.tags and {"table", "dl", "style"} <= reader.tags
    assert evil in "".join(reader.texts)
    assert shown.startswith('<div class="onetrip-plan">') and shown.count("<style>") == 1
    assert "prefers-color-scheme: dark" in shown
    assert "http" not in shown


def test_a_notebook_shows_what_the_text_shows() -> None:
    reader = _Reader()
    reader.feed(Plan(BLOCK)._repr_html_())
    found = " ".join(reader.texts)
    for block in text.blocks(BLOCK):
        assert block.title in found
