"""Registers, spills and shared memory of a generated kernel on any chip, without owning it.

Triton cross-compiles; NVIDIA's figures come from the tools in Triton's wheel, AMD's from the
metadata in its assembly. Figures are kept in the cache: a kernel is assembled once per chip.
A target that states fewer registers than its architecture has is assembled within them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import triton
from triton.backends.compiler import GPUTarget

from ..base.errors import CacheError, ToolchainError
from ..base.knobs import JOBS
from ..cost.occupancy import Assembled
from .cache import Cache, content_key
from .triton_build import TritonModule, body_of, compiled, imported, source_of, with_room


class Chip(Protocol):
    """The part of a target that assembly depends on."""

    @property
    def arch(self) -> str:
        """`sm_90`, `gfx942`."""
        ...

    @property
    def warp_size(self) -> int:
        """Threads of a warp."""
        ...

    @property
    def registers_per_thread(self) -> int:
        """Most registers of a thread."""
        ...

    @property
    def registers_per_multiprocessor(self) -> int:
        """Those of its register file."""
        ...


OWN_REGISTERS = {"sm_": 255, "gfx": 512}
"""Most registers of a thread, by the beginning of the architecture's name."""


def assemble(module: TritonModule, target: Chip, cache: Cache | None = None) -> Assembled:
    """Cross-compiles for a chip, with aligned pointers and sizes that are multiples of 16.

    Raises:
        ToolchainError: the chip is unknown to Triton, or it rejects the kernel.
    """
    store = cache or Cache()
    version = str(triton.__version__)
    launch = f"{module.warps} {module.stages} {module.resident}"
    chip = f"{target.arch} {register_cap(target)} {target.registers_per_multiprocessor}"
    key = content_key(["triton-resources", version, launch, chip, body_of(module.text)])
    known = store.get_json(key, Assembled)
    if known is None:
        known = _assembled(module, target, store)
        store.put_json(key, known)
    return known


def assemble_all(
    modules: Sequence[TritonModule], target: Chip, cache: Cache | None = None
) -> list[Assembled]:
    """`assemble` for many kernels, several at a time; the compiler works outside Python's lock."""
    store = cache or Cache()
    with ThreadPoolExecutor(JOBS.get() or None) as pool:
        return list(pool.map(lambda m: assemble(m, target, store), modules))


def try_assemble_all(
    modules: Sequence[TritonModule], target: Chip, cache: Cache | None = None
) -> list[Assembled | None]:
    """`assemble_all` with None for what cannot be assembled: the caller has an estimate."""
    store = cache or Cache()

    def attempt(module: TritonModule) -> Assembled | None:
        try:
            return assemble(module, target, store)
        except (ToolchainError, CacheError):
            return None

    with ThreadPoolExecutor(JOBS.get() or None) as pool:
        return list(pool.map(attempt, modules))


def gpu_target(target: Chip) -> Any:
    """Triton's name of a chip.

    Raises:
        ToolchainError: neither `sm_NN` nor `gfxNNN`.
    """
    if target.arch.startswith("sm_"):
        return GPUTarget("cuda", int(target.arch[3:].rstrip("a")), 32)
    if target.arch.startswith("gfx"):
        return GPUTarget("hip", target.arch, target.warp_size)
    raise ToolchainError(
        "Triton cannot compile for this chip", expected="sm_NN or gfxNNN", found=target.arch
    )


def register_cap(target: Chip) -> int | None:
    """The registers that the compiler is held to; None where the architecture's own number holds.

    Raises:
        ToolchainError: the target states fewer than its chip has, and that chip's compiler can
            not be held to a number.
    """
    own = next((n for k, n in OWN_REGISTERS.items() if target.arch.startswith(k)), 0)
    if target.registers_per_thread >= own:
        return None
    if target.arch.startswith("sm_"):
        return target.registers_per_thread
    raise ToolchainError(
        "Triton cannot compile for fewer registers than this chip has",
        expected=f"registers_per_thread = {own}",
        found=str(target.registers_per_thread),
        where=target.arch,
    )


def _assembled(module: TritonModule, target: Chip, cache: Cache) -> Assembled:
    function = imported(module, cache)
    whole = [True] * len(module.sizes)
    source = source_of(function, module, aligned=True, whole=whole, wide=False)
    cap = register_cap(target)

    def made(most: int | None) -> tuple[Assembled, int, int]:
        kernel = compiled(source, module, gpu_target(target), cap if most is None else most)
        shared = int(kernel.metadata.shared)
        if target.arch.startswith("gfx"):
            found = _amd(str(kernel.asm["amdgcn"]), shared)
        else:
            found = _nvidia(kernel.asm["cubin"], str(kernel.asm["ptx"]), target.arch, shared)
        return found, found.registers, found.spill_bytes

    return with_room(module, made, lambda: target.registers_per_multiprocessor)


def _amd(assembly: str, shared: int) -> Assembled:
    def count(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        return int(found.group(1)) if found else 0

    # The accumulation registers of a wave are further vector registers.
    registers = max(count("vgpr_count"), count("agpr_count"))
    return Assembled(registers, 4 * count("vgpr_spill_count"), shared)


def _nvidia(cubin: bytes, ptx: str, arch: str, shared: int) -> Assembled:
    with tempfile.TemporaryDirectory(prefix="onetrip-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = str(triton.knobs.nvidia.cuobjdump.path)
        usage = _run([tool, "--dump-resource-usage", str(path)])
        registers = _number(r"REG:(\d+)", usage)
        if not _number(r"STACK:(\d+)", usage):
            return Assembled(registers, 0, shared)
        text = Path(folder) / "kernel.ptx"
        text.write_text(ptx, encoding="utf-8")
        found = re.search(r"\.target\s+(sm_\w+)", ptx)
        name = found.group(1) if found else arch
        knobs: Any = triton.knobs.nvidia
        ptxas = knobs.ptxas_blackwell.path if "sm_10" in name else knobs.ptxas.path
        said = _run(
            [ptxas, "-v", "--fmad=false", f"--gpu-name={name}", str(text), "-o", "/dev/null"]
        )
        return Assembled(registers, _number(r"(\d+) bytes spill stores", said), shared)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(
            "a tool of Triton's wheel cannot be run", found=str(error), where=command[0]
        ) from error
    if done.returncode:
        raise ToolchainError(
            "a tool of Triton's wheel failed", found=done.stderr.strip(), where=command[0]
        )
    return done.stdout + done.stderr
