"""The schema of a results file, and the tables that are printed from one.

Knows nothing of how a figure was measured.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from onetrip.base.files import File
from onetrip.base.text import slug

FORMAT = 1
FILE = File("the results", f"format {FORMAT}, as `onetrip bench` writes it", "measure again")


class VariantResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rival did on one row; times in microseconds, a failure with its message."""

    status: str  # "ok", "wrong" (ran, values out of the rule) or "failed"
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    rounds: int = 0
    first_call_s: float | None = None
    peak_bytes: int | None = None
    times_floor: float | None = None
    worst_ulp: float | None = None
    eager_ulp: float | None = None
    note: str = ""


class RowResult(msgspec.Struct, frozen=True):
    """One row: what was run, its floor, and every rival, failed ones too."""

    name: str
    about: str
    dtype: str
    size: list[int]
    bytes: int | None
    flops: int | None
    floor_us: float | None
    variants: dict[str, VariantResult]


class Results(msgspec.Struct, frozen=True):
    """One run of a suite on one machine."""

    suite: str
    device: str
    card: str
    threads: int
    date: str
    versions: dict[str, str]
    copy_bandwidth: float
    product_rates: dict[str, float]
    rows: list[RowResult]
    format: int = FORMAT


def encode(results: Results) -> str:
    """The file's text: JSON, one value a line, so that a diff can be read."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1).decode() + "\n"


def decode(data: bytes, where: str) -> Results:
    """Read a results file.

    Raises:
        UsageError: the file is of another format.
    """
    return FILE.decoded(data, lambda t: msgspec.json.decode(t, type=Results), where)


def file_name(results: Results) -> str:
    """One file for each suite and machine: a new run takes the place of the last."""
    return f"{results.suite}-{results.device}-{slug(results.card)}.json"


def write(results: Results, folder: Path) -> Path:
    """Write the run into a folder, which is made where needed; returns the file."""
    return FILE.write_into(folder, file_name(results), encode(results))


def markdown(results: Results) -> str:
    """The run as a heading and a table; blocks in microseconds, models in milliseconds."""
    unit, scale = ("ms", 1e3) if results.suite == "models" else ("us", 1.0)
    names = list(dict.fromkeys(name for row in results.rows for name in row.variants))
    versions = ", ".join(f"{k} {v}" for k, v in results.versions.items())
    head = ["row", "dtype", "floor", *names]
    lines = [
        f"**{results.suite} on {results.card}**, {unit}, {results.date[:10]}; {versions}; "
        f"{results.threads} threads; copy {results.copy_bandwidth / 1e9:.4g} GB/s",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in results.rows:
        cells = [cell(row.variants.get(name), scale) for name in names]
        floor = "" if row.floor_us is None else figure(row.floor_us / scale)
        lines.append("| " + " | ".join([row.name, row.dtype, floor, *cells]) + " |")
    return "\n".join(lines)


def figure(value: float) -> str:
    """Three significant digits, whole numbers above a hundred."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cell(result: VariantResult | None, scale: float) -> str:
    """What a table shows of one rival: its median over `scale` microseconds, or its status."""
    if result is None:
        return ""
    if result.median_us is None:
        return result.status
    text = figure(result.median_us / scale)
    return text if result.status == "ok" else f"{text} ({result.status})"
