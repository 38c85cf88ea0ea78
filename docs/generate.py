"""Writes the generated parts of the documents: the operator table, targets, reasons, commands.

python docs/generate.py            write them
python docs/generate.py --check    exit 1 where one is not as it would be written
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from onetrip import target as chips
from onetrip.cli.main import COMMANDS, main
from onetrip.cli.targets import SUMMARY
from onetrip.ops.schema import Composite, Op
from onetrip.ops.table import ALL
from onetrip.plan.decision import REASONS

HERE = Path(__file__).parent
LARGE = 16 << 20
"""Bytes above which a kernel is judged by what memory allows; caches and launches rule below."""
CLIFF = 1.5
MARKS = "<!-- generated:{name} (docs/generate.py) -->", "<!-- end -->"


def operators() -> Iterator[str]:
    """Every entry of the operator table."""
    yield f"{len(ALL)} entries."
    yield ""
    yield "| operator | kind | computed as | ATen calls | exactness stated |"
    yield "|---|---|---|---|---|"
    for op in sorted(ALL, key=lambda op: op.name):
        calls = ", ".join(f"`{f.target.removeprefix('aten.')}`" for f in op.forms) or "–"
        body = "its parts" if isinstance(op.body, Composite) else type(op.body).__name__.lower()
        yield f"| `{op.name}` | {op.kind.value} | {body} | {calls} | {_exactness(op)} |"


def _exactness(op: Op) -> str:
    stated = (f"{name} {e.ulp:g} ulp" for name, e in sorted(op.exactness.items()))
    return ", ".join(stated) or "–"


def targets() -> Iterator[str]:
    """The chips, with the figures that `onetrip targets` shows."""
    yield "| " + " | ".join(SUMMARY) + " |"
    yield "|" + "---|" * len(SUMMARY)
    for name in chips.names():
        target = chips.load(name)
        yield "| " + " | ".join(show(target) for show in SUMMARY.values()) + " |"


def reasons() -> Iterator[str]:
    """Every reason that a boundary can have."""
    yield "| code | class | the sentence, with figures in it | what changes it |"
    yield "|---|---|---|---|"
    for code, reason in REASONS.items():
        cls = " or ".join(filter(None, (reason.cls, reason.milder)))
        yield f"| `{code}` | {cls} | {reason.sentence} | {reason.remedy} |"


def commands() -> Iterator[str]:
    """Every command with its options."""
    context = click.Context(main, info_name="onetrip")
    for name, (_, about) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        usage = command.get_usage(click.Context(command, info_name=name, parent=context))
        yield f"### `onetrip {name}`"
        yield ""
        yield about
        yield ""
        yield f"    {' '.join(usage.removeprefix('Usage: ').split())}"
        yield ""
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.help:
                yield f"- `{', '.join(parameter.opts)}`: {parameter.help}"
        yield ""


def sizes() -> Iterator[str]:
    """Times of the floor over dtypes, widths and rows, of each record at hand."""
    for path in sorted((HERE.parent / "benchmarks" / "results" / "checks").glob("sizes-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        points = {(p["program"], p["dtype"], p["width"], p["rows"]): p for p in record["points"]}
        rows = sorted({p["rows"] for p in record["points"]})
        yield f"{record['card']}, {record['date']}, torch {record['versions']['torch']}."
        yield ""
        yield "| program | dtype | width | " + " | ".join(f"{n} rows" for n in rows) + " |"
        yield "|" + "---|" * (3 + len(rows))
        for key in dict.fromkeys(k[:3] for k in points):
            cells = (_cell(points.get((*key, n))) for n in rows)
            yield f"| {' | '.join(map(str, key))} | {' | '.join(cells)} |"
        yield ""


def _cell(point: dict[str, Any] | None) -> str:
    """Times of the floor where that is what bounds a kernel; else the time."""
    if point is None or point["status"] != "ok":
        return "–" if point is None else point["status"]
    if point["bytes"] <= LARGE:
        return f"{point['us']:.1f} us"
    times = f"{point['us'] / point['floor_us']:.2f}"
    return times if float(times) <= CLIFF else f"**{times}**"


PARTS: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "operators": ("operators.md", operators),
    "targets": ("targets.md", targets),
    "reasons": ("reading-a-plan.md", reasons),
    "commands": ("commands.md", commands),
    "sizes": ("sizes.md", sizes),
}


def written(name: str, text: str, lines: Iterator[str]) -> str:
    """A document with one of its parts as it is now."""
    begin, end = MARKS[0].format(name=name), MARKS[1]
    part = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    assert part.search(text), f"the document has no part {name}"
    body = "\n".join(lines).rstrip()
    return part.sub(lambda _: f"{begin}\n\n{body}\n\n{end}", text, count=1)


def stale(*, write: bool) -> list[str]:
    """Documents with a part that is not as it would be written now; they are written if asked."""
    found: list[str] = []
    for name, (file, lines) in PARTS.items():
        path = HERE / file
        old = path.read_text(encoding="utf-8")
        new = written(name, old, lines())
        if new != old:
            found.append(file)
            if write:
                path.write_text(new, encoding="utf-8")
    return found


if __name__ == "__main__":
    checking = "--check" in sys.argv[1:]
    names = stale(write=not checking)
    click.echo(f"{'stale' if checking else 'written'}: {', '.join(names) or 'none'}")
    sys.exit(1 if checking and names else 0)
