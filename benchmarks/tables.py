"""Writes the measured tables into README.md from benchmarks/results/*.json.

python benchmarks/tables.py            rewrite what stands between the markers
python benchmarks/tables.py --check    say whether it is up to date; exit status 1 where it is not
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onetrip.bench import record

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
BEGIN = "<!-- results:begin (written by benchmarks/tables.py) -->"
END = "<!-- results:end -->"
NOTHING = "No run has been committed yet."


def tables(folder: Path) -> str:
    """All runs of a folder as Markdown, in the order of their file names."""
    runs = [record.decode(path.read_bytes(), path.name) for path in sorted(folder.glob("*.json"))]
    return "\n\n".join(record.markdown(run) for run in runs) or NOTHING


def with_tables(document: str, text: str) -> str:
    """The document with `text` between the markers; ValueError where it has no markers."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no place for tables: expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    document = README.read_text(encoding="utf-8")
    wanted = with_tables(document, tables(RESULTS))
    if check:
        return 0 if document == wanted else 1
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
