"""A fixed slice of PyTorch's own operator tests is no worse than the committed table.

`make conformance` runs all of it and writes the table anew.
"""

from __future__ import annotations

import math
import time
import zlib
from pathlib import Path

import opinfo_drive
import opinfo_run
import opinfo_table
import pytest
import torch
from opinfo_batch import Left
from opinfo_drive import Outcome
from opinfo_entries import Entry, Sample, entries
from opinfo_judge import Others, judged
from opinfo_table import Table

pytestmark = pytest.mark.slow

SHARE = 80
"""One entry in so many is in the slice, whichever its name's checksum picks."""
MOST = 2
JOBS = 2


def in_slice(entry: Entry) -> bool:
    return zlib.crc32(f"slice {entry.key}".encode()) % SHARE == 0


@pytest.mark.timeout(600)
def test_the_slice_is_no_worse_than_the_table(tmp_path: Path) -> None:
    opinfo_run.warm_up()
    state, until = tmp_path / "state.jsonl", time.monotonic() + 500
    rows = list(opinfo_run.run(filter(in_slice, entries()), MOST, JOBS, state, until))
    results = {row.entry: row.outcomes for row in rows}
    assert sum(map(len, results.values())) > 300
    assert opinfo_table.worse(opinfo_table.read(), results) == []


ENTRY = Entry("add", "float32")
RIGHT = Outcome("0 plain", "right", "compiled")
TABLE = Table({ENTRY: opinfo_table.counts([RIGHT])}, {})


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome("0 plain", "wrong", "compiled", "values"), "wrong"),
        (Outcome("0 plain", "crash"), "crash"),
        (Outcome("0 plain", "right", "fault", "a Nest breaks"), "a Nest breaks"),
        (Outcome("0 plain", "right", "extern", "no entry"), "no longer compiled"),
    ],
)
def test_what_is_worse_than_the_table_is_named(outcome: Outcome, said: str) -> None:
    found = opinfo_table.worse(TABLE, {ENTRY: [outcome]})
    assert found
    assert all(ENTRY.key in line for line in found)
    assert any(said in line for line in found)


def test_what_is_as_the_table_says_is_not_worse() -> None:
    known = Table(TABLE.counts, {(ENTRY.key, "1 plain"): "wrong: values"})
    outcomes = [RIGHT, Outcome("1 plain", "wrong", "compiled", "values")]
    assert opinfo_table.worse(known, {ENTRY: outcomes}) == []


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    runs = {"8a3f": {"date": "2026-11-30", "entries": 1, "samples": 2}}
    table = Table(TABLE.counts, {(ENTRY.key, "1 plain"): "wrong: values"}, runs)
    opinfo_table.write(table, tmp_path / "table.json")
    assert opinfo_table.read(tmp_path / "table.json") == table


def test_a_table_says_which_packages_it_is_of() -> None:
    """Each with what ran of it, and those before it beside it."""
    rows = [opinfo_run.Row("add", d, "forward", "new", 2, 0.0, [RIGHT]) for d in ("int8", "bool")]
    fresh = opinfo_table.table_of({r.entry: r.outcomes for r in rows}, opinfo_run.runs_of(rows))
    assert {k: fresh.runs["new"][k] for k in ("entries", "samples")} == {"entries": 2, "samples": 2}
    known = Table(TABLE.counts, {}, {"old": {"entries": 1}})
    assert set(opinfo_table.joined(known, fresh).runs) == {"old", "new"}


def test_new_entries_are_those_that_the_table_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinfo_table, "read", lambda: TABLE)
    asked = ["--ops", "add", "--modes", "forward", "--dtypes", "float32,int8", "--new", "--mixed"]
    found = list(opinfo_run.chosen(opinfo_run.parsed(asked), {}))
    assert found == [Entry("add", "int8")]


def test_a_crash_and_a_hang_take_one_sample_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends a process is laid to the sample that ran; the others have their verdicts."""
    monkeypatch.setattr(opinfo_run, "outcomes", _deadly)
    monkeypatch.setattr(opinfo_run, "SECONDS", 2.0)
    until = time.monotonic() + 100
    (row,) = opinfo_run.run([ENTRY], None, 1, tmp_path / "state.jsonl", until)
    found = {o.label: o.verdict for o in row.outcomes}
    assert found == {"a": "crash", "b": "hang", "c": "right"}
    assert opinfo_run.read_state(tmp_path / "state.jsonl")[ENTRY.key] == row


def _deadly(entry, most, started, skipped):  # type: ignore[no-untyped-def]
    import os

    for label, act in (("a", lambda: os._exit(7)), ("b", lambda: time.sleep(60)), ("c", int)):
        if label not in skipped:
            started(label)
            act()
            yield Outcome(label, "right")


def left(*values: float, dtype: torch.dtype = torch.float32) -> Left:
    return Left("Tensor", [torch.tensor(values, dtype=dtype)], [])


def test_what_eager_answers_inside_a_vector_is_right_where_its_last_elements_differ() -> None:
    """Sleef's cosh overflows before libm's, by which eager computes the elements left over."""
    tail, inner, ours = left(2.2e38), left(math.inf), left(math.inf)
    others = Others(exact=lambda: [torch.tensor([2.2e38])], inner=lambda: inner.leaves)
    assert judged(ours, tail, [], others, random=False) == ""
    none = Others(exact=others.exact)
    assert judged(ours, tail, [], none, random=False).startswith("values: not finite")


def test_the_truth_of_a_call_that_names_a_dtype_is_in_double_precision() -> None:
    """Also where it makes a tensor of numbers, which no dispatch mode sees."""
    sample = Sample("0 plain", ([1 / 3, 2 / 3],), {"dtype": torch.float32})
    found = opinfo_drive._exact(ENTRY, torch.tensor, sample)
    assert found is not None
    assert found[0].tolist() == [1 / 3, 2 / 3]


def test_the_truth_of_a_function_of_integers_is_in_double_precision() -> None:
    """Eager takes them as float32, and its own phase of a Bessel function is far off there."""
    x = torch.tensor([10701, (1 << 24) + 1])
    entry = Entry("special.bessel_j0", "int64")
    found = opinfo_drive._exact(entry, torch.special.bessel_j0, Sample("0 plain", (x,), {}))
    assert found is not None
    assert torch.equal(found[0], torch.special.bessel_j0(x.float().double()))
