"""A target's data file as text: the facts of one target, some replaced by measured ones.

Knows the files' form; `load.parse` reads what this writes.
"""

from __future__ import annotations

from collections.abc import Mapping

from onetrip.target.load import PER_CORE, RATE_TABLES, UNSUPPORTED, facts_of
from onetrip.target.model import Cores, Target

Measured = Mapping[str, tuple[float, str]]
"""Fact (`copy_bandwidth`, `vector.f32`, `cores.fresh_bandwidth`) to (value, source)."""


def profile(target: Target, name: str, measured: Measured) -> str:
    """The TOML of a target called `name`: measured facts, and those of `target` for the rest.

    Args:
        measured: of the whole machine. A CPU's file states one core's share of them, and stands
            for as many cores as `target` has.
    """
    lines = [f"# {name}: {target.name}, with figures measured on this machine", ""]
    header = {"name": name, "vendor": target.vendor, "arch": target.arch, "device": target.device}
    lines += [f"{key} = {_text(value)}" for key, value in header.items()]
    lines += ["", "[facts]"]
    lines += [_fact(target, f, f, getattr(target, f), measured) for f in facts_of(Target)]
    for table in RATE_TABLES:
        lines += ["", f"[{table}]"]
        rates = getattr(target, table)
        lines += [_fact(target, dtype, f"{table}.{dtype}", r, measured) for dtype, r in rates]
    if target.cores is not None:
        lines += ["", "[cores]", *_cores(target, target.cores, measured)]
    return "\n".join(lines) + "\n"


def _cores(target: Target, cores: Cores, measured: Measured) -> list[str]:
    count = target.multiprocessors
    asked = (count, "as many cores as were measured")
    known: dict[str, tuple[float, str]] = {"cores.standard": asked, "cores.most": asked}
    for name in ("dram_bandwidth", "copy_bandwidth"):
        known[f"cores.socket_{name}"] = measured.get(
            name, (getattr(target, name), target.source(name))
        )
    known |= measured
    return [_fact(target, f, f"cores.{f}", getattr(cores, f), known) for f in facts_of(Cores)]


def _fact(
    target: Target, key: str, name: str, value: int | float | None, measured: Measured
) -> str:
    if name in measured:
        found, words = measured[name]
    elif value is not None:
        found, words = value, target.source(name)
    else:
        return f'{key} = ["{UNSUPPORTED}", {_text(target.source(name))}]'
    if target.cores is not None and _adds_up(name):
        found = found / target.multiprocessors
    shown = round(found) if isinstance(value, int) else float(found)
    return f"{key} = [{_text(shown)}, {_text(words)}]"


def _adds_up(name: str) -> bool:
    """Whether a CPU's file states one core's share."""
    shared = (*PER_CORE, "multiprocessors", "dram_bandwidth", "copy_bandwidth")
    return name in shared or name.partition(".")[0] in RATE_TABLES


def _text(value: str | int | float) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value) if isinstance(value, int) else f"{value:.6g}"
