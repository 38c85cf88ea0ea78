"""Where kernels run: for each device type, who schedules, spells, builds and launches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..base.dtype import bf16, f16
from ..base.options import Options
from ..codegen import cpp, schedule_cpu, schedule_gpu
from ..codegen.cpp_prelude import prelude_text
from ..codegen.prelude_triton import dialect_of
from ..codegen.scheduled import Scheduled
from ..codegen.triton import TritonText
from ..codegen.triton_packed import emit_launched
from ..frontend.library_ops import has_instructions
from ..ir.kernel import Facts, Launched, parts, spans
from ..ir.nest import Nest
from ..runtime.build_cpp import CppUnit, begin
from ..runtime.cache import Cache
from ..runtime.cpu import CpuBackend
from ..runtime.frame import Backend, BoundLaunch
from ..target import Target, load, names
from .arguments import dump_folder, unwritable
from .passed import show


class Schedule(Protocol):
    """nest, target -> kernels."""

    def __call__(self, nest: Nest, target: Target, *, name: str, facts: Facts) -> Scheduled:
        """The kernels of one group."""
        ...


@dataclass(frozen=True)
class Device:
    """How one device's kernels are made and run."""

    schedule: Schedule
    backend: Callable[[Options], Backend]

    def begun(self, options: Options) -> Device:
        """This device with the backend of its next program, which begins what needs no kernels."""
        backend = self.backend(options)
        return Device(self.schedule, lambda _: backend)


def device_for(device: torch.device, target: Target) -> Device:
    """The way of a torch device; a target with another device type runs in no way at all."""
    if device.type == "cpu":
        return Device(schedule_cpu.schedule, _cpu_backend)
    dialect = dialect_of(target)
    return Device(schedule_gpu.schedule, lambda options: _gpu_backend(options, device, dialect))


def interpreted() -> Device:
    """Generated Triton on CPU tensors, in Triton's interpreter: slow, for tests."""
    cpu = torch.device("cpu")
    return Device(schedule_gpu.schedule, lambda options: _gpu_backend(options, cpu, "interpreter"))


def target_at_hand(device: torch.device) -> Target:
    """The target that a torch device is; an unlisted GPU counts as the nearest listed one."""
    if device.type != "cuda":
        looped = (d.name for d in (bf16, f16) if not has_instructions(getattr(torch, d.torch_name)))
        return load("-".join((f"cpu:{max(2, torch.get_num_threads())}", *looped)))
    name = torch.cuda.get_device_name(device).lower()
    listed = (t for t in names() if load(t).device == "cuda")
    return load(next((t for t in listed if t in name), _nearest(device)))


def target_here(device: str) -> Target:
    """The target that `cpu` or `cuda` is on this machine."""
    return target_at_hand(torch.device(device))


def _nearest(device: torch.device) -> str:
    if torch.version.hip:
        return "mi300x"
    major, _ = torch.cuda.get_device_capability(device)
    return {8: "a100", 9: "h100"}.get(major, "b200" if major > 9 else "a100")


def _cpu_backend(options: Options) -> Backend:
    def emit(segments: Sequence[Sequence[BoundLaunch]]) -> list[CppUnit]:
        text = _cpp_text(segments)
        show(4, "program.cpp", text)
        _dump(options, "program.cpp", text)
        return [CppUnit("the program's kernels", text)]

    prelude, cache = prelude_text(), Cache(options.cache_dir)
    return CpuBackend(emit, prelude, cache, begin(prelude, cache))


def _cpp_text(segments: Sequence[Sequence[BoundLaunch]]) -> str:
    kernels = list({id(k): k for s in segments for b in s for k in parts(b.kernel)}.values())
    calls = [
        cpp.Segment(
            f"segment_{k}",
            tuple(
                (kernel.name, b.slots[span], b.sizes) for b in s for kernel, span in spans(b.kernel)
            ),
        )
        for k, s in enumerate(segments)
    ]
    return cpp.emit_unit(kernels, calls)


def _gpu_backend(options: Options, device: torch.device, dialect: str) -> Backend:
    from ..runtime.gpu import GpuBackend

    def emit(kernel: Launched) -> TritonText:
        made = emit_launched(kernel, dialect)
        show(4, f"{kernel.name}.py", made.text)
        _dump(options, f"{kernel.name}.py", made.text)
        return made

    return GpuBackend(emit, Cache(options.cache_dir), device)


def _dump(options: Options, name: str, text: str) -> None:
    """Writes a generated text beside those already dumped, never over another one."""
    if options.dump_dir is None:
        return
    folder = dump_folder(options.dump_dir)
    path, count = folder / name, 1
    try:
        while path.exists() and path.read_text() != text:
            count += 1
            path = folder / f"{Path(name).stem}_{count}{Path(name).suffix}"
        path.write_text(text)
    except OSError as error:
        raise unwritable(folder, error) from error
