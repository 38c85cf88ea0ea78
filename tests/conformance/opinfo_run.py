"""The ring as a command: entries in processes of their own, a state file, the table.

    python tests/conformance/opinfo_run.py --dtypes float32 --modes forward --most 3 --jobs 2

Each entry runs in a fork of a process that has loaded everything: a crash or a hang takes the
entry's process alone, is laid to the sample that ran, and the rest of the entry is run again
without it. The state file has a line for each entry, keyed by the package's own text too: a run
that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing as mp
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import opinfo_table
import torch
from opinfo_drive import Outcome, outcomes
from opinfo_entries import DTYPES, MODES, Entry, entries, operators
from opinfo_kinds import kind_of

import onetrip

ROOT = Path(__file__).parents[2]
STATE = ROOT / "build" / "conformance" / "state.jsonl"
SECONDS = 120.0
"""That an entry may take between two messages."""
SUFFIXES = {".py", ".toml", ".hpp", ".h"}


@dataclass
class Row:
    """What became of an entry.

    Attributes:
        package: hash of the text of the package that ran.
        seconds: wall time.
    """

    op: str
    dtype: str
    mode: str
    package: str
    most: int | None
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def entry(self) -> Entry:
        """Which it is about."""
        return Entry(self.op, self.dtype, self.mode)


def package_hash() -> str:
    """Of every text that what runs is made of, and torch's version."""
    folder = Path(onetrip.__file__).parent
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# ------------------------------------------------------------------ state


def read_state(path: Path) -> dict[str, Row]:
    """The last row of each entry."""
    found: dict[str, Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        fields: dict[str, Any] = json.loads(line)
        fields["outcomes"] = [Outcome(*o) for o in fields["outcomes"]]
        row = Row(**fields)
        found[row.entry.key] = row
    return found


def write_row(path: Path, row: Row) -> None:
    """Adds the row to a state file."""
    fields = asdict(row) | {"outcomes": [tuple(asdict(o).values()) for o in row.outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(fields) + "\n")


# ------------------------------------------------------------------ processes


def _child(entry: Entry, most: int | None, skipped: tuple[str, ...], out: Connection) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        for outcome in outcomes(entry, most, lambda label: out.send(("start", label)), skipped):
            out.send(("done", outcome))
        out.send(("end", None))
    except BaseException as error:
        out.send(("failed", f"{type(error).__name__}: {error}"[:300]))
    out.close()
    os._exit(0)


@dataclass
class _Running:
    """An entry whose process is alive."""

    entry: Entry
    row: Row
    process: Any
    inbox: Connection
    began: float
    heard: float
    label: str = ""
    lost: list[Outcome] = field(default_factory=list)
    fresh: list[Outcome] = field(default_factory=list)
    ended: bool = False


def _start(entry: Entry, row: Row, lost: list[Outcome], began: float) -> _Running:
    inbox, outbox = mp.Pipe(duplex=False)
    skipped = tuple(o.label for o in lost)
    process = mp.get_context("fork").Process(
        target=_child, args=(entry, row.most, skipped, outbox), daemon=True
    )
    process.start()
    outbox.close()
    return _Running(entry, row, process, inbox, began, time.monotonic(), "", lost)


def _listen(r: _Running) -> None:
    """Takes what a process has said; a closed end says that it is gone."""
    try:
        while r.inbox.poll():
            kind, content = r.inbox.recv()
            r.heard = time.monotonic()
            if kind == "start":
                r.label = content
            elif kind == "done":
                r.fresh.append(content)
            else:
                r.ended = True
                if kind == "failed":
                    r.fresh.append(Outcome("all", "failed", "eager", content))
    except EOFError:
        r.process.join()


def _over(r: _Running) -> bool:
    if r.ended or not r.process.is_alive():
        return True
    if time.monotonic() - r.heard < SECONDS:
        return False
    r.process.kill()
    return True


def run(
    todo: Iterable[Entry], most: int | None, jobs: int, state: Path, until: float
) -> Iterator[Row]:
    """Runs entries, and yields each one's row as it is written to the state file."""
    package = package_hash()
    waiting, alive = iter(todo), list[_Running]()
    while True:
        while len(alive) < jobs and time.monotonic() < until:
            entry = next(waiting, None)
            if entry is None:
                break
            row = Row(entry.op, entry.dtype, entry.mode, package, most)
            alive.append(_start(entry, row, [], time.monotonic()))
        if not alive:
            return
        wait([r.inbox for r in alive], timeout=1.0)
        for r in list(alive):
            _listen(r)
            if _over(r):
                alive.remove(r)
                again = _finish(r)
                if again is not None:
                    alive.append(again)
                    continue
                write_row(state, r.row)
                yield r.row


def _finish(r: _Running) -> _Running | None:
    """The entry's row is complete; or what died is laid to a sample, and the rest runs again."""
    _listen(r)
    r.process.join(5)
    r.row.seconds = round(time.monotonic() - r.began, 2)
    r.row.outcomes = [*r.lost, *r.fresh]
    if r.ended:
        return None
    how = "hang" if r.process.exitcode == -9 else "crash"
    blamed = Outcome(r.label or "first try", how, "eager", f"exit status {r.process.exitcode}")
    r.row.outcomes.append(blamed)
    if len(r.lost) >= 8:
        return None
    return _start(r.entry, r.row, [*r.lost, blamed], r.began)


# ------------------------------------------------------------------ command


def warm_up() -> None:
    """Everything that a compilation loads, before the first fork."""
    operators()
    torch._logging.set_logs(all=logging.CRITICAL)
    x = torch.ones(3)
    torch.compile(lambda x: x + 1, backend="onetrip", dynamic=False)(x)
    torch.compile(lambda x: x + 1, backend="aot_eager", dynamic=False)(x)


def summary(row: Row) -> str:
    """One line on an entry, and one for each kind of fault."""
    counts: dict[str, int] = {}
    for o in row.outcomes:
        counts[o.verdict] = counts.get(o.verdict, 0) + 1
    made = sum(o.road == "compiled" for o in row.outcomes)
    lines = [f"{row.entry.key} {row.seconds}s {counts} compiled {made}/{len(row.outcomes)}"]
    notes = {o.note: o.label for o in row.outcomes if opinfo_table.is_bad(o)}
    return "\n".join([*lines, *(f"    {label}: {note}" for note, label in notes.items())])


def chosen(arguments: argparse.Namespace, state: Mapping[str, Row]) -> Iterator[Entry]:
    """The entries asked for that the state file does not answer."""
    package, known = package_hash(), opinfo_table.read().counts if arguments.new else {}
    found = entries(arguments.dtypes.split(","), arguments.modes.split(","))
    for entry in sorted(found, key=lambda e: e.seed) if arguments.mixed else found:
        if entry in known:
            continue
        row = state.get(entry.key)
        if arguments.ops and entry.op not in arguments.ops.split(","):
            continue
        if arguments.kinds and kind_of(operators()[entry.op]) not in arguments.kinds.split(","):
            continue
        if row and row.most == arguments.most and (arguments.stale or row.package == package):
            continue
        yield entry


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--ops", default="", help="only these, by full name")
    parser.add_argument("--kinds", default="", help="only operators of these kinds")
    parser.add_argument("--new", action="store_true", help="only entries not in the table")
    parser.add_argument("--mixed", action="store_true", help="dtypes, modes, operators in turns")
    parser.add_argument("--most", type=int, default=None, help="samples of each kind an entry")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no entry after so many")
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--stale", action="store_true", help="keep rows of other package versions")
    parser.add_argument("--write", action="store_true", help="write the results into the table")
    return parser.parse_args(words)


def main() -> int:
    """The command; exit status 1 where the run is worse than the committed table."""
    arguments = parsed()
    warm_up()
    todo = list(chosen(arguments, read_state(arguments.state)))
    until = time.monotonic() + arguments.minutes * 60
    for row in run(todo, arguments.most, arguments.jobs, arguments.state, until):
        sys.stdout.write(summary(row) + "\n")
        sys.stdout.flush()
    return _close(arguments)


def _close(arguments: argparse.Namespace) -> int:
    """Compares all that the state file holds with the table, and writes it there if asked to.

    What the table does not know yet is written as it is: entries, and samples beside those of
    entries that were run with fewer. What it knows may only become better.
    """
    rows = list(read_state(arguments.state).values())
    results = {row.entry: row.outcomes for row in rows}
    known = opinfo_table.read()
    worse = opinfo_table.worse(known, results)
    sys.stdout.write("\n".join(["", *worse, f"{len(worse)} worse than the table", ""]))
    known_before = {
        entry: found
        for entry, found in results.items()
        if entry in known.counts and known.counts[entry][0] >= len(found)
    }
    if arguments.write and not opinfo_table.worse(known, known_before):
        fresh = opinfo_table.table_of(results, runs_of(rows))
        opinfo_table.write(opinfo_table.joined(known, fresh))
    return 1 if worse else 0


def runs_of(rows: Iterable[Row]) -> dict[str, dict[str, str | int]]:
    """How much ran of each package, and the day on which it is written down."""
    found: dict[str, dict[str, str | int]] = {}
    today = date.today().isoformat()
    for package in sorted({row.package for row in rows}):
        own = [len(row.outcomes) for row in rows if row.package == package]
        found[package] = {"date": today, "entries": len(own), "samples": sum(own)}
    return found


if __name__ == "__main__":
    sys.exit(main())
