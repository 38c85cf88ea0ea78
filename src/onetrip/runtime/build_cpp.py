"""C++ text to loaded libraries: in parallel, through the cache.

It knows neither the IR nor the prelude's content; both arrive as text.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from onetrip.base import knobs
from onetrip.base.errors import ToolchainError

from .cache import Cache, content_key
from .toolchain import Toolchain, toolchain

LIBRARY = "kernel.so"
SOURCE = "kernel.cpp"
HEADER = "prelude.hpp"
IMPORTS = "imports.so"

_COMMENT_LINE = re.compile(r"^[ \t]*//[^\n]*\n?", re.MULTILINE)
_EXCERPT_LINES = 20


@dataclass(frozen=True)
class CppUnit:
    """One translation unit.

    Attributes:
        name: what errors call it.
        text: C++ that may use everything in the prelude, which is included before it.
    """

    name: str
    text: str


def _run(chain: Toolchain, arguments: Sequence[str], folder: Path, name: str) -> None:
    """Run the compiler in `folder`; raises ToolchainError with its first lines, OSError if full."""
    run = subprocess.run(
        [chain.compiler, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if run.returncode == 0:
        return
    if "No space left on device" in run.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    lines = run.stderr.strip().splitlines()
    raise ToolchainError(
        f"the C++ compiler rejects {name}",
        expected="generated code compiles",
        found="\n".join(lines[:_EXCERPT_LINES]),
        where=f"{chain.compiler} ({chain.identity})",
        next_step="report this with the kernel's text, which dump_dir writes; "
        "the model runs in eager meanwhile",
    )


def _prelude(prelude: str, chain: Toolchain, cache: Cache) -> Path:
    """Path of the prelude's header; GCC finds its compiled form beside it.

    Beside them stands an empty library that bears the name of PyTorch's own. Units link to it, and
    the loader binds them to the real one, which is loaded under that name already: reading
    the real one's symbols would double the time of every build.
    """

    def produce(folder: Path) -> None:
        (folder / HEADER).write_text(prelude, encoding="utf-8")
        if chain.precompiles:
            flags = [flag for flag in chain.flags if flag != "-shared"]
            arguments = [*flags, "-x", "c++-header", HEADER, "-o", f"{HEADER}.gch"]
            _run(chain, arguments, folder, "the prelude")
        arguments = ["-shared", "-nostdlib", f"-Wl,-soname,{chain.imports}", "-x", "c++"]
        _run(chain, [*arguments, os.devnull, "-o", IMPORTS], folder, "the import library")

    return cache.put(_prelude_key(prelude, chain), produce) / HEADER


def _prelude_key(prelude: str, chain: Toolchain) -> str:
    return content_key(("prelude", prelude, chain.identity, chain.imports, *chain.flags))


def begin(prelude: str, cache: Cache) -> Callable[[], None]:
    """Starts to compile the prelude where the cache lacks it, which takes as long as planning.

    Returns:
        What waits for the end. It raises nothing: `build` meets the same error, and tells it.
    """

    def attempt() -> None:
        with suppress(Exception):
            chain = toolchain()
            if not cache.folder(_prelude_key(prelude, chain)).is_dir():
                _prelude(prelude, chain, cache)

    thread = Thread(target=attempt, name="onetrip prelude")
    thread.start()
    return thread.join


def unit_key(unit: CppUnit, prelude: str, chain: Toolchain) -> str:
    """Cache key of a unit: its text without comment lines, and all that shapes its binary."""
    bare = _COMMENT_LINE.sub("", unit.text)
    return content_key(("unit", bare, prelude, chain.identity, *chain.flags, *chain.link))


def _library(unit: CppUnit, header: Path, key: str, chain: Toolchain, cache: Cache) -> Path:
    """Path of the unit's shared library."""

    def produce(folder: Path) -> None:
        (folder / SOURCE).write_text(unit.text, encoding="utf-8")
        arguments = ["-include", str(header), *chain.flags, SOURCE, "-o", LIBRARY]
        imports = ["-Wl,--no-as-needed", str(header.with_name(IMPORTS))]
        _run(chain, [*arguments, *chain.link, *imports], folder, unit.name)

    return cache.put(key, produce) / LIBRARY


def build(
    units: Sequence[CppUnit],
    prelude: str,
    *,
    cache: Cache,
    chain: Toolchain | None = None,
) -> list[ctypes.CDLL]:
    """Compile every unit that the cache lacks, ONETRIP_JOBS at a time, and load them all.

    Returns:
        One library per unit, in order. Foreign calls through it release the interpreter lock.

    Raises:
        ToolchainError: no compiler runs, or it rejects a unit.
        CacheError: no folder can hold the result.
    """
    chain = chain or toolchain()
    keys = [unit_key(unit, prelude, chain) for unit in units]
    found = [cache.get(key) for key in keys]
    missing = {k: u for k, u, f in zip(keys, units, found, strict=True) if f is None}
    if missing:
        header = _prelude(prelude, chain, cache).resolve()
        jobs = min(len(missing), knobs.JOBS.get() or os.cpu_count() or 1)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda k: _library(missing[k], header, k, chain, cache), missing))
    libraries = []
    for key, unit in zip(keys, units, strict=True):
        entry = cache.get(key)
        if entry is None:  # another process removed it between then and now
            header = _prelude(prelude, chain, cache).resolve()
            entry = _library(unit, header, key, chain, cache).parent
        libraries.append(ctypes.CDLL(str(entry / LIBRARY)))
    return libraries
