"""The bench's parts on their own: floors, the accuracy rule, rounds, the README's tables."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from onetrip.bench import record, timing
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.models import MODELS
from onetrip.bench.table import SIZE_NAMES, Row, Work, floor_bytes
from onetrip.runtime import accuracy

ROOT = Path(__file__).parents[2]


def row(**changed: int) -> Row:
    return Row("r", "", BLOCKS[0].make, {}, **changed)


def test_rows_have_unlike_names_and_every_size() -> None:
    for suite in (BLOCKS, MODELS):
        names = [r.name for r in suite]
        assert len(set(names)) == len(names)
        assert all(set(r.sizes) == set(SIZE_NAMES) for r in suite)


def test_floor_of_inference_training_statistics_and_updates() -> None:
    x = torch.ones(10, 10)  # 400 bytes
    y = torch.ones(10)
    assert floor_bytes(row(), Work(lambda: None, (x,)), (y,)) == 400 + 40
    assert floor_bytes(row(rereads=1), Work(lambda: None, (x,)), (y,)) == 800 + 40
    assert floor_bytes(row(), Work(lambda: None, (x, y), writes=(0,)), ()) == 440 + 400
    # x and then y's gradient are read again, and the gradient of x is written.
    trained = floor_bytes(row(), Work(lambda: None, (x,), sources=(x,)), (y,))
    assert trained == (400 + 40) + (400 + 40 + 400)
    assert floor_bytes(row(), Work(lambda: None, (y.expand(9, 10),)), ()) == 40


def test_flops_of_a_product_and_of_a_convolution() -> None:
    by_name = {r.name: r for r in BLOCKS}
    linear = by_name["linear_cross_entropy"]
    assert linear.flops is not None and linear.flops(2, 3, 5) == 2 * 2 * 3 * 5
    conv = by_name["conv_bn_relu"]
    assert conv.flops is not None and conv.flops(2, 4, 6) == 2 * (2 * 4 * 6 * 6) * (4 * 9)


def judge(ours: list[float], eager: list[float], exact: list[float]) -> accuracy.Verdict:
    def made(values: list[float], dtype: torch.dtype) -> tuple[torch.Tensor]:
        return (torch.tensor(values, dtype=dtype),)

    wide = made(exact, torch.float64)
    return accuracy.judge(made(ours, torch.float32), made(eager, torch.float32), wide)


def test_the_rule_is_twice_eagers_distance_and_four_ulp() -> None:
    ulp = torch.finfo(torch.float32).eps
    assert judge([1 + 4 * ulp], [1.0], [1.0]).ok
    assert not judge([1 + 5 * ulp], [1.0], [1.0]).ok
    assert judge([1 + 24 * ulp], [1 + 10 * ulp], [1.0]).ok
    assert not judge([1 + 25 * ulp], [1 + 10 * ulp], [1.0]).ok
    assert judge([1 + 25 * ulp], [1 + 10 * ulp], [1.0]).eager_ulp == 10


def test_special_values_must_be_eagers() -> None:
    inf, nan = float("inf"), float("nan")
    assert judge([inf, nan, 1.0], [inf, nan, 1.0], [inf, nan, 1.0]).ok
    assert not judge([-inf, 1.0], [inf, 1.0], [inf, 1.0]).ok
    assert not judge([nan, 1.0], [inf, 1.0], [inf, 1.0]).ok
    assert not judge([nan, 1.0], [1.0, 1.0], [1.0, 1.0]).ok
    assert not judge([inf, 1.0], [1.0, 1.0], [1.0, 1.0]).ok


def test_form_and_integers_must_be_eagers() -> None:
    ints = torch.arange(3)
    assert accuracy.judge((ints,), (ints,), (ints,)).ok
    assert not accuracy.judge((ints + 1,), (ints,), (ints,)).ok
    assert not accuracy.judge((ints.float(),), (ints,), (ints,)).ok
    assert not accuracy.judge((ints, ints), (ints,), (ints,)).ok


def test_of_several_results_the_wrong_one_is_named() -> None:
    ones, exact = torch.ones(3), torch.ones(3, dtype=torch.float64)
    verdict = accuracy.judge((ones, ones * 1.01), (ones, ones), (exact, exact))
    assert not verdict.ok
    assert verdict.note.startswith("result 1:")


def test_random_results_are_judged_by_form() -> None:
    ones = torch.ones(3)
    assert accuracy.judge((ones * 2,), (ones,), None, random=True).ok
    assert not accuracy.judge((ones / 0,), (ones,), None, random=True).ok
    assert not accuracy.judge((ones[:2],), (ones,), None, random=True).ok


def test_rounds_are_interleaved_and_in_another_order_each() -> None:
    order: list[str] = []

    def clock(call: timing.Call, count: int) -> float:
        call()
        return timing.MIN_SAMPLE_US  # so that one call is a sample

    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = timing.interleaved(calls, clock, rounds=3, seconds=1e9)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert found["a"].us == (timing.MIN_SAMPLE_US,) * 3
    assert timing.interleaved({}, clock, 3, 1.0) == {}


def test_a_short_call_is_repeated_and_a_short_budget_keeps_three_rounds() -> None:
    counts: list[int] = []

    def clock(call: timing.Call, count: int) -> float:
        counts.append(count)
        return 100.0

    found = timing.interleaved({"a": lambda: None}, clock, rounds=9, seconds=0.0)
    assert counts == [1, 20, 20, 20]
    assert found["a"].calls == 20


def test_median_and_quartiles() -> None:
    samples = timing.Samples((5.0, 1.0, 2.0, 3.0, 4.0), 1)
    assert samples.median == 3.0
    assert samples.quartiles == (2.0, 3.0, 4.0)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_shows_the_committed_results() -> None:
    tables = script()
    document = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = tables.with_tables(document, tables.tables(ROOT / "benchmarks" / "results"))
    assert document == wanted, "run: make docs"


def test_tables_replace_only_what_stands_between_the_markers() -> None:
    tables = script()
    document = f"a\n{tables.BEGIN}\nold\n{tables.END}\nb"
    assert tables.with_tables(document, "new") == f"a\n{tables.BEGIN}\nnew\n{tables.END}\nb"
    with pytest.raises(ValueError, match="no place for tables"):
        tables.with_tables("a document", "new")


def test_a_failure_stands_in_the_table() -> None:
    failed = record.VariantResult(status="failed", note="x")
    wrong = record.VariantResult(status="wrong", median_us=1234.0)
    assert record.cell(failed, 1.0) == "failed"
    assert record.cell(wrong, 1.0) == "1234 (wrong)"
    assert record.cell(None, 1.0) == ""
