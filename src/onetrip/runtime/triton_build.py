"""Generated Triton modules to launches: import, compile for the device at hand, run.

A launch goes straight to the compiled kernel's own launcher: what Triton's jit would look up at
each call (types, alignment, divisibility) is one small key here. Knows no IR: a module says all
that a launch needs (`TritonModule`), and sizes come as numbers.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import triton
import triton.language as tl

from ..base.errors import ToolchainError
from ..base.sym import Dim, Size, Sym, evaluate
from .cache import Cache, content_key
from .triton_interpreted import whole_blocks

INDEX_LIMIT = (1 << 31) - (1 << 20)
ALIGNED = 16
PARSE_ATTEMPTS = 4
LANES = 32
"""Threads of a warp."""
STEP = 8
"""Registers of a thread are given out in as many."""
NEAR = 1.4
"""Times the registers that there is room for, which an assembler can do without."""
T = TypeVar("T")
_lock = threading.RLock()
_modules: dict[str, Any] = {}


class TritonModule(Protocol):
    """What `codegen.triton.emit` returns."""

    @property
    def text(self) -> str:
        """The whole module."""
        ...

    @property
    def name(self) -> str:
        """The kernel function in it."""
        ...

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """(name, Triton type) of buffers, then sizes."""
        ...

    @property
    def grid(self) -> tuple[Dim, ...]:
        """Programs."""
        ...

    @property
    def warps(self) -> int:
        """Warps of a program."""
        ...

    @property
    def stages(self) -> int:
        """Software-pipelining depth."""
        ...

    @property
    def constants(self) -> tuple[str, ...]:
        """Compile-time arguments: INDEX is an index type, ALIGNED whether all addresses are."""
        ...

    @property
    def limits(self) -> tuple[Dim, ...]:
        """What index arithmetic must hold, where that depends on sizes."""
        ...

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The symbols passed after the buffers."""
        ...

    @property
    def dialect(self) -> str:
        """`nvidia`, `nvidia89`, `amd` or `interpreter`."""
        ...

    @property
    def resident(self) -> int:
        """Programs that one multiprocessor shall hold, where the registers come near."""
        ...


def body_of(text: str) -> str:
    """The text without the comments at its head, which say where a kernel came from."""
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(lines[first:])


def imported(module: TritonModule, cache: Cache) -> Any:
    """The kernel function of a module, from a file in the cache (Triton reads the source).

    Raises:
        ToolchainError: the text is not a valid module.
    """
    body = body_of(module.text)
    key = content_key(["triton-module", module.dialect, body])
    with _lock:
        if key not in _modules:
            folder = cache.put(key, lambda f: _write(f / f"{module.name}.py", body))
            _modules[key] = _import(folder / f"{module.name}.py", key, module)
        return getattr(_modules[key], module.name)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _import(path: Path, key: str, module: TritonModule) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"onetrip_triton_{key[:16]}", path)
    if spec is None or spec.loader is None:
        raise ToolchainError("a generated module cannot be imported", where=str(path))
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    with _interpreting(module.dialect == "interpreter"):
        try:
            spec.loader.exec_module(made)
        except SyntaxError as error:
            raise ToolchainError(
                f"the generated kernel {module.name} is not valid Python",
                found=str(error),
                where=str(path),
                next_step="report it with the kernel's text",
            ) from error
    return made


@contextmanager
def _interpreting(wanted: bool) -> Iterator[None]:
    """Whether `triton.jit` makes interpreted functions, whatever the environment says."""
    runtime: Any = triton.knobs.runtime
    with runtime.scope():
        runtime.interpret = wanted
        yield


def compile_options(warps: int, stages: int) -> dict[str, Any]:
    """Options of every compilation: no contraction of a * b + c, denormals kept."""
    return {
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": False,
        "enable_reflect_ftz": False,
    }


def source_of(
    function: Any, module: TritonModule, *, aligned: bool, whole: Sequence[bool], wide: bool
) -> Any:
    """Triton's compilation unit.

    Args:
        function: the imported kernel.
        module: where it came from.
        aligned: all pointers are multiples of 16 bytes.
        whole: for each size, whether it is a multiple of 16.
        wide: index arithmetic is 64-bit where the module leaves that open.
    """
    signature: dict[str, str] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    pointers = len(module.arguments) - len(module.sizes)
    divisible = [*([aligned] * pointers), *whole]
    for position, (name, kind) in enumerate(module.arguments):
        signature[name] = ("i64" if wide else "i32") if kind == "index" else kind
        if divisible[position]:
            attributes[(position,)] = [["tt.divisibility", ALIGNED]]
    constants = constants_of(module, aligned=aligned, wide=wide)
    signature.update(dict.fromkeys(constants, "constexpr"))
    return triton.compiler.ASTSource(function, signature, constants, attributes)


def constants_of(module: TritonModule, *, aligned: bool, wide: bool) -> dict[str, Any]:
    """The compile-time arguments of a variant."""
    known = {"INDEX": tl.int64 if wide else tl.int32, "ALIGNED": aligned}
    return {name: known[name] for name in module.constants}


def needs_wide(module: TritonModule, sizes: Mapping[Sym, int]) -> bool:
    """Whether 32-bit index arithmetic could overflow at these sizes."""
    return any(evaluate(d, lambda s: sizes[s]) >= INDEX_LIMIT for d in module.limits)


@dataclass(frozen=True)
class _At:
    """What of a launch follows from its sizes alone."""

    sizes: tuple[int, ...]
    programs: int
    whole: tuple[bool, ...]
    wide: bool


class TritonLaunch:
    """A kernel that can be launched on tensors of one device.

    Args:
        module: the generated module.
        cache: where its text is kept.
    """

    def __init__(self, module: TritonModule, cache: Cache | None = None) -> None:
        self.module = module
        self._function = imported(module, cache or Cache())
        self._interpreted = module.dialect == "interpreter"
        self._grid = module.grid[0]
        self._variants: dict[tuple[Any, ...], Any] = {}
        self._entries: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._last: _At | None = None

    def _at(self, sizes: tuple[int, ...]) -> _At:
        """The figures of these sizes; those of the last call are kept."""
        last = self._last
        if last is not None and last.sizes == sizes:
            return last
        named: dict[Sym, int] = dict(zip(self.module.sizes, sizes, strict=True))
        programs = int(evaluate(self._grid, lambda s: named[s]))
        wide = bool(self.module.limits) and needs_wide(self.module, named)
        made = self._last = _At(sizes, programs, tuple(s % ALIGNED == 0 for s in sizes), wide)
        return made

    def __call__(self, buffers: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        """Launches on the current stream of the current device.

        Args:
            buffers: tensors, in the order of the kernel's buffers.
            sizes: values of the kernel's symbolic sizes, in order.
        """
        at = self._at(tuple(sizes))
        if at.programs <= 0:
            return
        if self._interpreted:
            constants = constants_of(self.module, aligned=False, wide=False)
            with whole_blocks():
                self._function[(at.programs,)](*buffers, *sizes, **constants)
            return
        import torch

        device = torch.cuda.current_device()
        self.start([t.data_ptr() for t in buffers], at.sizes, device, current_stream(device))

    def start(
        self, addresses: Sequence[int], sizes: tuple[int, ...], device: int, stream: int
    ) -> None:
        """Launches on a stream; the first launch of a variant compiles it.

        Args:
            addresses: of the buffers, in order.
            sizes: values of the symbolic sizes, in order.
        """
        at = self._at(sizes)
        programs = at.programs
        if programs <= 0:
            return
        together = 0
        for address in addresses:
            together |= address
        key = (device, together % ALIGNED == 0, at.whole, at.wide)
        entry = self._entries.get(key) or self._enter(key)
        run, function, packed, constants = entry
        run(programs, 1, 1, stream, function, packed, None, None, None, *addresses, *sizes,
            *constants)  # fmt: skip

    def compile_aligned(self, device: int) -> None:
        """Compiles what a launch of a kernel without sizes on aligned buffers runs."""
        at = self._at(())
        self._enter((device, True, at.whole, at.wide))

    def _enter(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """(launcher, function, metadata, last arguments) of a variant."""
        _, aligned, whole, wide = key
        kernel = self._variants.get(key)
        if kernel is None:
            kernel = self._variants[key] = self._compile(aligned, whole, wide)
        constants = constants_of(self.module, aligned=aligned, wide=wide).values()
        entry = (kernel.run, kernel.function, kernel.packed_metadata, constants)
        self._entries[key] = entry
        return entry

    def _compile(self, aligned: bool, whole: Sequence[bool], wide: bool) -> Any:
        source = source_of(self._function, self.module, aligned=aligned, whole=whole, wide=wide)

        def made(most: int | None) -> tuple[Any, int, int]:
            kernel = compiled(source, self.module, None, most)
            kernel._init_handles()
            return kernel, kernel.n_regs, kernel.n_spills

        return with_room(self.module, made, _register_file)

    def resources(self, device: int = 0) -> tuple[int, int, int] | None:
        """(registers, spilled bytes, shared bytes) of the first variant that was loaded."""
        for kernel in self._variants.values():
            return kernel.n_regs, kernel.n_spills, kernel.metadata.shared
        return None


def _register_file() -> int:
    """Registers of one multiprocessor of the current device, which one program may have all."""
    active = triton.runtime.driver.active
    return int(active.utils.get_device_properties(active.get_current_device())["max_num_regs"])


def with_room(
    module: TritonModule, made: Callable[[int | None], tuple[T, int, int]], file: Callable[[], int]
) -> T:
    """A kernel of which as many programs fit a multiprocessor as its module wants: where they lack
    a few registers it is made again within them, and kept if it does not spill.

    Args:
        made: the kernel within so many registers of a thread, those that it has, what it spills.
        file: registers of a multiprocessor.
    """
    kernel, registers, _ = made(None)
    if module.resident == 1 or not module.dialect.startswith("nvidia"):
        return kernel
    room = file() // (module.resident * module.warps * LANES) // STEP * STEP
    if room < registers <= NEAR * room:
        narrow, _, spilled = made(room)
        return kernel if spilled else narrow
    return kernel


def current_stream(device: int) -> int:
    """The handle of a device's current stream, without an object around it."""
    return int(triton.runtime.driver.active.get_current_stream(device))


def _once_more(attempt: Callable[[], Any]) -> Any:
    """CPython counts the depth of `ast.parse` once for all threads, and gives a SystemError where
    another thread's parsing changed the count; the text is fine, and a later attempt succeeds."""
    for _ in range(PARSE_ATTEMPTS - 1):
        with suppress(SystemError):
            return attempt()
    return attempt()


def compiled(source: Any, module: TritonModule, target: Any, registers: int | None = None) -> Any:
    """Triton's compiled kernel.

    Args:
        target: Triton's name of a chip; None means the device at hand.
        registers: most of a thread, where that is fewer than the chip has (NVIDIA alone).

    Raises:
        ToolchainError: Triton or the assembler rejects the text.
    """
    options = compile_options(module.warps, module.stages)
    if registers is not None:
        options["maxnreg"] = registers
    try:
        return _once_more(lambda: triton.compile(source, target=target, options=options))
    except Exception as error:
        raise ToolchainError(
            f"Triton rejects the generated kernel {module.name}",
            found=f"{type(error).__name__}: {error}",
            next_step="report it with the kernel's text",
        ) from error
