"""Options and modes of the compiler: every name, its values and its default, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from types import NoneType
from typing import Any, Literal, get_args

from .errors import UsageError

Search = Literal["eager", "max", "best"]
SEARCHES: tuple[str, ...] = get_args(Search)
NUMERICS = ("bitwise", "eager", "fast")
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"autotune": True},
}
_CHOICES: Mapping[str, tuple[str, ...]] = {"search": SEARCHES, "numerics": NUMERICS}
_TRUTH, _NAME, _PATH = (bool,), (str, NoneType), (str, PathLike, NoneType)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "target": _NAME,
    "cuda_graphs": _TRUTH,
    "strict": _TRUTH,
    "autotune": _TRUTH,
    "cache_dir": _PATH,
    "dump_dir": _PATH,
}
_WORDS = {_TRUTH: "True or False", _NAME: "a name", _PATH: "a path"}


@dataclass(frozen=True)
class Options:
    """What a compilation is asked for.

    Attributes:
        target: name of a chip in `onetrip targets`; None: the device at hand.
        plan: a Plan, or the path of a saved one, to be honoured; None: the planner decides.
        search: `eager` (one kernel for each call eager makes), `max` (fuse all that is legal),
            `best` (by cost).
        numerics: `bitwise` (only calls whose kernels have eager's bits are compiled), `eager`
            (eager's rounding points) or `fast` (intermediates stay in f32).
        cuda_graphs: record the launches of a GPU's program and replay them as one CUDA graph;
            a program that cannot be recorded runs launch by launch, with a warning that says why.
        strict: a call that runs as an extern, a model that cannot be compiled, or with
            `cuda_graphs` one that cannot be recorded, is an error.
        autotune: time on the device what the cost model cannot tell apart, and take the faster.
        cache_dir: folder of compiled kernels; None: ONETRIP_CACHE_DIR or the user's cache.
        dump_dir: folder into which generated text is written; None: nowhere.
    """

    target: str | None = None
    plan: Any = None
    search: Search = "best"
    numerics: str = "eager"
    cuda_graphs: bool = False
    strict: bool = False
    autotune: bool = False
    cache_dir: str | None = None
    dump_dir: str | None = None


def parse_options(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
    """Options of a mode, then those given by name; raises UsageError for an unknown one."""
    known = tuple(f.name for f in fields(Options))
    chosen = dict(MODES.get(_known("mode", "default" if mode is None else mode, tuple(MODES)), {}))
    for name, value in (options or {}).items():
        _known("option", name, known)
        if name in _CHOICES:
            _known(f"value of {name}", value, _CHOICES[name])
        if name in _KINDS and not isinstance(value, _KINDS[name]):
            raise UsageError(
                f"option {name} has a value of the wrong type",
                expected=_WORDS[_KINDS[name]],
                found=repr(value),
                next_step=f"pass options={{'{name}': ...}} of that type or leave it out",
            )
        chosen[name] = value
    return replace(Options(), **chosen)


def _known(what: str, given: Any, known: tuple[str, ...]) -> Any:
    if given in known:
        return given
    raise UsageError(
        f"unknown {what}: {given!r}",
        expected=f"one of {', '.join(known)}",
        found=repr(given),
        next_step="see the option table in README.md",
    )
