"""The C++ compiler and the machine it compiles for.

Eager picks its CPU kernels by the vector unit it finds; kernels are built for the same unit, so
that special functions come from the same code at the same width. This module knows no kernel.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from onetrip.base import knobs
from onetrip.base.errors import ToolchainError

CANDIDATES = ("c++", "g++", "clang++")

_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
_AVX512 = (
    *_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd",
    "-mprefer-vector-width=512",
)  # fmt: skip


@dataclass(frozen=True)
class VectorUnit:
    """A vector unit as eager names it.

    Attributes:
        flags: what makes the compiler use it.
        lanes: float32 values in a register.
        probe: a Sleef function that PyTorch exports when its kernels use this width.
    """

    flags: tuple[str, ...]
    lanes: int
    probe: str


UNITS: dict[str, VectorUnit] = {
    "AVX512": VectorUnit(_AVX512, 16, "Sleef_expf16_u10"),
    "AVX2": VectorUnit(_AVX2, 8, "Sleef_expf8_u10"),
    "DEFAULT": VectorUnit((), 4, "Sleef_expf4_u10"),
}

COMMON_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden",
    "-ffp-contract=off",  # a fused multiply-add rounds once where eager rounds twice
    "-fno-math-errno", "-fno-trapping-math",  # as PyTorch itself is built
    "-fwrapv",  # integers wrap
    "-w",
)  # fmt: skip


@dataclass(frozen=True)
class Toolchain:
    """A compiler that runs, with everything that decides what it makes of a text.

    Attributes:
        compiler: path of the executable.
        identity: its version and target; part of every cache key.
        flags: arguments before the source file.
        link: arguments after it: the OpenMP runtime that PyTorch has loaded, before the compiler's.
        imports: name under which PyTorch's CPU library is loaded; it has the special functions.
        lanes: float32 values in a vector register.
        precompiles: whether a header compiled once is found beside its text (GCC's way).
    """

    compiler: str
    identity: str
    flags: tuple[str, ...]
    link: tuple[str, ...]
    imports: str
    lanes: int
    precompiles: bool


def torch_library() -> Path:
    """The shared library that holds eager's CPU kernels."""
    return Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


@cache
def exports(symbol: str) -> bool:
    """Whether PyTorch's CPU library exports `symbol`."""
    try:
        return hasattr(ctypes.CDLL(str(torch_library())), symbol)
    except OSError:
        return False


def openmp_runtimes() -> tuple[str, ...]:
    """Paths of the OpenMP runtimes mapped in this process; two would mean two thread pools."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ()
    pattern = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp)\b\S*\.so\S*)$", re.MULTILINE)
    return tuple(dict.fromkeys(pattern.findall(maps)))


def _version(compiler: str) -> str | None:
    """Version and target of a compiler; None when it does not run."""
    try:
        run = [
            subprocess.run([compiler, flag], capture_output=True, text=True, timeout=60, check=True)
            for flag in ("--version", "-dumpmachine")
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{run[0].stdout.splitlines()[0]} {run[1].stdout.strip()}"


def find_compiler() -> tuple[str, str]:
    """Path and identity of the C++ compiler: ONETRIP_CXX, else the first candidate that runs.

    Raises:
        ToolchainError: there is none; the caller runs the model in eager.
    """
    asked = knobs.CXX.get()
    names = (asked,) if asked else CANDIDATES
    for name in names:
        path = shutil.which(name)
        version = _version(path) if path else None
        if path and version:
            return path, version
    raise ToolchainError(
        "no C++ compiler runs, so kernels for the CPU cannot be built",
        expected=" or ".join(names),
        found="none of them on PATH" if not asked else f"ONETRIP_CXX={asked}, which does not run",
        next_step="install one (apt-get install g++, dnf install gcc-c++, conda install "
        "gxx_linux-64) or point ONETRIP_CXX at it",
    )


def vector_unit() -> VectorUnit:
    """The vector unit that eager's kernels use in this process."""
    return UNITS.get(torch.backends.cpu.get_cpu_capability(), UNITS["DEFAULT"])


@cache
def _toolchain(asked: str) -> Toolchain:
    compiler, identity = find_compiler()
    unit = vector_unit()
    same_arch = platform.machine().lower() in identity or platform.machine() == "AMD64"
    features = (
        f"-DOT_SLEEF={int(same_arch and exports(unit.probe))}",
        f"-DOT_VML={int(same_arch and exports('vmsExp'))}",
    )
    link = ("-Wl,--as-needed", *openmp_runtimes()[:1])
    return Toolchain(
        compiler=compiler,
        identity=f"{identity}; torch {torch.__version__}",
        flags=(*COMMON_FLAGS, *unit.flags, *features),
        link=link,
        imports=torch_library().name,
        lanes=unit.lanes,
        precompiles="clang" not in identity.lower(),
    )


def toolchain() -> Toolchain:
    """The compiler for this machine, found once per value of ONETRIP_CXX.

    Raises:
        ToolchainError: no compiler runs.
    """
    return _toolchain(knobs.CXX.get())
