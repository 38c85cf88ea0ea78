"""The table of results that is committed, and what it means for a run to be no worse.

    runs        hash of the package's text -> when it ran, so many entries and samples
    operators   name -> kind, and for each mode and dtype the counts in COLUMNS
    faults      every sample that is not right, by entry and label, with what is wrong
    kinds       the same counts summed, and the share of samples without a library call

A run is worse where a sample is wrong that the table has as right, where one is lost to the library
that had kernels of ours, or where a fault of ours sends a graph to eager.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from opinfo_drive import Outcome
from opinfo_entries import MODES, Entry, operators
from opinfo_kinds import kind_of

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "checks" / "opinfo.json"
COLUMNS = ("samples", "right", "upstream", "wrong", "error", "crash", "fault", "free")
"""`upstream`: torch's own `aot_eager` is as wrong. `crash`: or hang. `fault`: right, in eager,
because of a fault of ours. `free`: no library call without an entry in the operator table."""
FREE = ("compiled", "nothing")
_VERDICTS = {"hang": "crash", "failed": "crash"}

Counts = tuple[int, ...]
Results = Mapping[Entry, list[Outcome]]


def counts(outcomes: Iterable[Outcome]) -> Counts:
    """How many samples there are of each column."""
    found: Counter[str] = Counter()
    for o in outcomes:
        found["samples"] += 1
        found[_VERDICTS.get(o.verdict, o.verdict)] += 1
        found["fault"] += o.road == "fault"
        found["free"] += o.road in FREE
    return tuple(found[c] for c in COLUMNS)


def is_bad(o: Outcome) -> bool:
    """Whether a sample is wrong by our doing, or right by luck."""
    return o.verdict not in ("right", "upstream") or o.road == "fault"


@dataclass(frozen=True)
class Table:
    """What is known of every entry.

    Attributes:
        counts: in the order of COLUMNS.
        faults: (entry key, label) -> what is wrong.
        runs: hash of a package's text -> what ran of it. An entry that ran again counts in both.
    """

    counts: Mapping[Entry, Counts]
    faults: Mapping[tuple[str, str], str]
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def table_of(results: Results, runs: Mapping[str, Mapping[str, Any]] | None = None) -> Table:
    """The table of these results."""
    faults = {
        (entry.key, o.label): f"{o.verdict}: {o.note}"[:240]
        for entry, found in results.items()
        for o in found
        if is_bad(o)
    }
    return Table({entry: counts(found) for entry, found in results.items()}, faults, runs or {})


def worse(table: Table, results: Results) -> list[str]:
    """In what a run is worse than the table, one line for each entry."""
    found: list[str] = []
    for entry, outcomes in results.items():
        known = table.counts.get(entry)
        bad = [o for o in outcomes if is_bad(o) and (entry.key, o.label) not in table.faults]
        found += [f"{entry.key}, {o.label}: {o.verdict}, {o.note}" for o in bad]
        lost = [o for o in outcomes if o.road not in FREE]
        whole = known is not None and known[0] == known[-1]
        if whole and lost:
            found.append(f"{entry.key}, {lost[0].label}: no longer compiled, {lost[0].note}")
    return found


def joined(table: Table, fresh: Table) -> Table:
    """The table with the entries of a run in place of the old ones."""
    keys = {entry.key for entry in fresh.counts}
    kept = {at: note for at, note in table.faults.items() if at[0] not in keys}
    return Table(
        {**table.counts, **fresh.counts},
        {**kept, **fresh.faults},
        {**table.runs, **fresh.runs},
    )


# ------------------------------------------------------------------ as a file


def read(path: Path = TABLE) -> Table:
    """The committed table; an empty one where there is none."""
    if not path.exists():
        return Table({}, {})
    record = json.loads(path.read_text(encoding="utf-8"))
    found = {
        Entry(name, dtype, mode): tuple(numbers)
        for name, row in record["operators"].items()
        for mode in MODES
        for dtype, numbers in row.get(mode, {}).items()
    }
    faults = {(key, label): note for key, label, note in record["faults"]}
    return Table(found, faults, record.get("runs", {}))


def write(table: Table, path: Path = TABLE) -> None:
    """The table as text, an operator a line."""
    rows: dict[str, dict[str, Any]] = {}
    for entry, numbers in table.counts.items():
        row = rows.setdefault(entry.op, {"kind": kind_of(operators()[entry.op])})
        row.setdefault(entry.mode, {})[entry.dtype] = list(numbers)
    lines = [f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows)]
    faults = [json.dumps([*at, note]) for at, note in sorted(table.faults.items())]
    head = {
        "torch": torch.__version__,
        "columns": COLUMNS,
        "runs": table.runs,
        "kinds": by_kind(table),
    }
    parts = [json.dumps(head, indent=1)[:-2], ',\n "operators": {\n', ",\n".join(lines), "\n },\n"]
    parts += [' "faults": [\n', ",\n".join(f"  {f}" for f in faults), "\n ]\n}\n"]
    path.write_text("".join(parts), encoding="utf-8")


def by_kind(table: Table) -> dict[str, dict[str, dict[str, float]]]:
    """For each mode and kind the counts, and the share of samples that need no library call."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(COLUMNS))
    for entry, numbers in table.counts.items():
        kind = kind_of(operators()[entry.op])
        sums[entry.mode, kind] = [
            a + b for a, b in zip(sums[entry.mode, kind], numbers, strict=True)
        ]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (mode, kind), numbers in sorted(sums.items()):
        row: dict[str, float] = dict(zip(COLUMNS, numbers, strict=True))
        if numbers[0]:
            row["share_free"] = round(numbers[-1] / numbers[0], 3)
        found.setdefault(mode, {})[kind] = row
    return found
