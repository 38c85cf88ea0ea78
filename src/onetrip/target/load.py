"""Data files to `Target`: one TOML file per chip, every fact required, every fact with its source.

Knows the files' form and nothing of what the figures are used for.

A fact is written `name = [value, "source"]`; a rate of a unit that the chip lacks has the value
"unsupported". A CPU's file gives the figures of one core; `load("cpu:16")` scales them, and
`load("cpu:16-bf16-f16")` is one whose library has only plain loops for products of these dtypes.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from onetrip.base.errors import OnetripError, UsageError
from onetrip.base.files import File
from onetrip.target.model import MATRIX_DTYPES, VECTOR_DTYPES, Cores, Fact, Rates, Target

FILE = File(
    "the target's file",
    "TOML, as `onetrip calibrate` writes it",
    "check the path, or write it again: onetrip calibrate --output FILE",
)
UNSUPPORTED = "unsupported"
HEADER = ("name", "vendor", "arch", "device")
HEADERS = {
    "vendor": ("nvidia|amd|generic", "nvidia, amd or generic"),
    "arch": (r"sm_\d+|gfx\w+|host", "as in sm_90, gfx942 or host"),
    "device": ("cuda|cpu", "cuda or cpu"),
    "name": (r"\S.*", "a name"),
}
"""What each line of the header may be: a pattern, and the same in words."""
RATE_UNIT = "FLOP/s"
RATE_TABLES = {"matrix": MATRIX_DTYPES, "vector": VECTOR_DTYPES}
# Figures that every further core adds to.
PER_CORE = ("l2_bandwidth", "special_rate", "integer_rate", "spill_bandwidth")


def facts_of(kind: type[Target] | type[Cores]) -> dict[str, Fact]:
    """The facts that a data file must state, by name, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated
    }


def _whole_facts(kind: type[Target] | type[Cores]) -> set[str]:
    """The facts that are counts and so must be whole numbers."""
    return {name for name, hint in get_type_hints(kind).items() if hint is int}


def names() -> tuple[str, ...]:
    """The targets that have a data file, sorted."""
    data = files("onetrip.target").joinpath("data")
    return tuple(sorted(p.name.removesuffix(".toml") for p in data.iterdir() if _is_toml(p.name)))


def load(name: str) -> Target:
    """The target of this name, or of this data file; `cpu:16` is the CPU with 16 cores.

    Args:
        name: one of `names()`, for a CPU with a number of cores and the dtypes that its products
            have no instructions for (`cpu:16-bf16`), or the path of a `.toml` file such as
            `onetrip calibrate` writes.

    Raises:
        UsageError: unknown name, no such file, or a number of cores or a dtype that the target has
            no figures for.
        OnetripError: the data file lacks a fact, has one too many, or has one of the wrong form.
    """
    if not isinstance(name, str):
        raise UsageError(
            "a target is named by a text",
            expected=f"one of {', '.join(names())}, cpu:CORES, or a file.toml",
            found=f"{name!r} ({type(name).__name__})",
            next_step="`onetrip targets` lists their figures",
        )
    return _read_file(Path(name)) if _is_toml(name) else _listed(name)


def told(name: str) -> str:
    """A target's name, with what its parts say where it has parts: `cpu:2-bf16 (2 cores, ...)`."""
    chip, *looped = ("" if _is_toml(name) else name).split("-")
    _, _, count = chip.partition(":")
    parts = [f"{count} cores"] if count else []
    parts += [f"without instructions for products of {' and '.join(looped)}"] if looped else []
    return f"{name} ({', '.join(parts)})" if parts else name


def _read_file(path: Path) -> Target:
    """Read at each call: a profile may be measured again."""
    target = parse(FILE.read(path), str(path))
    found = target if target.cores is None else _with_cores(target, "")
    return dataclasses.replace(found, name=str(path))


@cache
def _listed(name: str) -> Target:
    chip, *looped = name.split("-")
    base, _, count = chip.partition(":")
    if base not in names():
        raise UsageError(
            f"unknown target {name!r}",
            expected=f"one of {', '.join(names())}, cpu:CORES, or a file.toml",
            found=name,
            next_step="`onetrip targets` lists their figures",
        )
    text = files("onetrip.target").joinpath("data", f"{base}.toml").read_text(encoding="utf-8")
    target = parse(text, f"target/data/{base}.toml")
    if target.cores is None and not count and not looped:
        return target
    return _with_loops(_with_cores(target, count), looped)


def parse(text: str | bytes, where: str) -> Target:
    """The target that a data file states.

    Args:
        text: the file's TOML.
        where: the file's name, for errors.

    Raises:
        OnetripError: not TOML, or a fact is missing, unknown, without source or of the wrong form.
    """
    data = FILE.decoded(text, tomllib.loads, where)
    tables = ("facts", *RATE_TABLES)
    _expect(data, {*HEADER, *tables}, {"cores"}, where)
    _check_header(data, where)
    sources: dict[str, str] = {}
    values = _read(data["facts"], Target, "", where, sources)
    rates = {table: _read_rates(data[table], table, where, sources) for table in RATE_TABLES}
    cores = None
    if "cores" in data:
        cores = Cores(**_read(data["cores"], Cores, "cores.", where, sources))
    stated: dict[str, Any] = {key: data[key] for key in HEADER} | values | rates
    return Target(**stated, cores=cores, sources=tuple(sources.items()))


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def _check_header(data: Mapping[str, Any], where: str) -> None:
    for key, (pattern, words) in HEADERS.items():
        if not (isinstance(data[key], str) and re.fullmatch(pattern, data[key])):
            raise OnetripError(
                f"a target's file has no such {key}",
                expected=words,
                found=repr(data[key]),
                where=where,
            )


def _expect(table: Any, required: set[str], optional: set[str], where: str) -> None:
    """Every required key, and no key that nothing reads."""
    if not isinstance(table, Mapping):
        raise OnetripError(
            "a target's file has a figure where a table belongs",
            expected=f"a table of {', '.join(sorted(required))}",
            found=repr(table),
            where=where,
        )
    missing, unknown = required - set(table), set(table) - required - optional
    if missing or unknown:
        raise OnetripError(
            "a target's file must state every fact and nothing else",
            expected=", ".join(sorted(missing)) or None,
            found=", ".join(sorted(unknown)) or None,
            where=where,
            next_step="add what is expected, remove what was found; unknown figures need a source "
            "that says so",
        )


def _read(
    table: Mapping[str, Any],
    kind: type[Target] | type[Cores],
    prefix: str,
    where: str,
    sources: dict[str, str],
) -> dict[str, Any]:
    facts, whole = facts_of(kind), _whole_facts(kind)
    _expect(table, set(facts), set(), where)
    values: dict[str, Any] = {}
    for name, fact in facts.items():
        value, sources[prefix + name] = _pair(table[name], prefix + name, where)
        values[name] = _number(value, prefix + name, where, fact.unit, name in whole)
    return values


def _read_rates(table: Mapping[str, Any], name: str, where: str, sources: dict[str, str]) -> Rates:
    _expect(table, set(RATE_TABLES[name]), set(), where)
    rates: list[tuple[str, float | None]] = []
    for dtype in RATE_TABLES[name]:
        key = f"{name}.{dtype}"
        value, sources[key] = _pair(table[dtype], key, where)
        rates.append(
            (dtype, None if value == UNSUPPORTED else _number(value, key, where, RATE_UNIT))
        )
    return tuple(rates)


def _pair(entry: Any, name: str, where: str) -> tuple[Any, str]:
    match entry:
        case [value, str(source)] if source.strip():
            return value, source
    raise OnetripError(
        f"the fact {name} has no source",
        expected=f'{name} = [value, "where the value comes from"]',
        found=repr(entry),
        where=where,
    )


# Unit: (least, most) that a figure of it can be on any chip of today or the next decades. Wide
# enough for a microcontroller and a rack; a figure in another unit (GB/s, ns, MiB) falls out.
RANGES: dict[str, tuple[float, float]] = {
    "count": (1, 1_000_000),
    "threads": (1, 1_000_000),
    "warps": (1, 100_000),
    "blocks": (1, 100_000),
    "bits": (8, 65_536),
    "32-bit registers": (1, 100_000_000),
    "bytes": (1, 1e15),
    "bytes/s": (1e6, 1e17),
    "operations/s": (1e6, 1e18),
    "FLOP/s": (1e6, 1e19),
    "us": (1e-4, 1e5),
    "share": (1e-4, 1.0),
}


def _number(value: Any, name: str, where: str, unit: str, whole: bool = False) -> Any:
    """A figure as its type says; a whole one is a count, any other one is in float64."""
    least, most = RANGES[unit]
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise OnetripError(
            f"the fact {name} is not a figure that a chip can have",
            expected=f"{kind} from {least:g} to {most:g}, in {unit}",
            found=repr(value),
            where=where,
            next_step=f"state {name} in {unit}",
        )
    return value if whole else float(value)


def _with_cores(one: Target, text: str) -> Target:
    """A CPU of several cores from the figures of one: rates add up, memory saturates."""
    cores = one.cores
    if cores is None:
        raise UsageError(
            f"the multiprocessors of target {one.name} cannot be chosen",
            found=f"{one.name}:{text}",
            next_step=f"write {one.name}; only cpu takes a number of cores",
        )
    count = int(text or cores.standard) if (text or "1").isdecimal() else 0
    if not 1 <= count <= cores.most:
        raise UsageError(
            f"target {one.name} has no figures for {text} cores",
            expected=f"1 to {cores.most}",
            found=text,
        )
    scaled: dict[str, Any] = {name: getattr(one, name) * count for name in PER_CORE}
    scaled |= {table: _times(getattr(one, table), count) for table in RATE_TABLES}
    return dataclasses.replace(
        one,
        name=f"{one.name}:{text}" if text else one.name,
        multiprocessors=count,
        dram_bandwidth=min(one.dram_bandwidth * count, cores.socket_dram_bandwidth),
        copy_bandwidth=min(one.copy_bandwidth * count, cores.socket_copy_bandwidth),
        **scaled,
    )


def _with_loops(target: Target, dtypes: Sequence[str]) -> Target:
    """A CPU without instructions for products of these dtypes."""
    rates, cores = dict(target.matrix), target.cores
    unknown = [d for d in dtypes if rates.get(d) is None]
    if unknown or cores is None:
        raise UsageError(
            f"target {target.name} has no products of {', '.join(unknown)} to do without",
            expected=", ".join(d for d, rate in rates.items() if rate is not None),
            found="-".join(unknown),
        )
    each = cores.looped_flops * target.multiprocessors
    source = dict(target.sources)["cores.looped_flops"]
    sources = {f"matrix.{d}": source for d in dtypes}
    return dataclasses.replace(
        target,
        name="-".join((target.name, *dtypes)),
        matrix=tuple((d, each if d in dtypes else rate) for d, rate in target.matrix),
        sources=tuple((dict(target.sources) | sources).items()),
    )


def _times(rates: Rates, factor: int) -> Rates:
    return tuple((name, None if rate is None else rate * factor) for name, rate in rates)
