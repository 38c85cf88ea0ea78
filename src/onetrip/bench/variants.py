"""The rivals: how each makes a callable of a program. A table and the few steps that it names.

Knows nothing of which programs are measured or of the clock's results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from onetrip.base.errors import UsageError
from onetrip.bench import timing
from onetrip.bench.table import Work, tensors_of

OURS = "onetrip"


@dataclass(frozen=True)
class Variant:
    """One rival.

    Attributes:
        name: as it stands in the results.
        devices: where it is measured.
        backend: of torch.compile; None for eager.
        mode: of torch.compile; None for its default.
        graph: replayed in a CUDA graph.
    """

    name: str
    devices: tuple[str, ...]
    backend: str | None
    mode: str | None = None
    graph: bool = False


EAGER = Variant("eager", ("cpu", "cuda"), None)
VARIANTS: tuple[Variant, ...] = (
    EAGER,
    Variant("default", ("cpu", "cuda"), "inductor"),
    Variant("max", ("cuda",), "inductor", mode="max-autotune-no-cudagraphs"),
    Variant("default+graph", ("cuda",), "inductor", graph=True),
    Variant("max+graph", ("cuda",), "inductor", mode="max-autotune-no-cudagraphs", graph=True),
    Variant(OURS, ("cpu", "cuda"), OURS),
    Variant(f"{OURS}+graph", ("cuda",), OURS, graph=True),
)


def on_device(device: str, backend: str = OURS, only: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """The rivals on a device, eager first.

    Args:
        device: `cpu` or `cuda`.
        backend: stands in for our own where it is not.
        only: names to keep; empty keeps all.

    Raises:
        UsageError: `only` has a name that is no rival on this device.
    """
    here = tuple(v for v in VARIANTS if device in v.devices)
    known = {v.name for v in here}
    if not set(only) <= known:
        raise UsageError(
            f"unknown variant on {device}",
            expected=", ".join(v.name for v in here),
            found=", ".join(sorted(set(only) - known)),
        )
    return tuple(
        replace(v, backend=backend) if v.backend == OURS else v
        for v in here
        if not only or v.name in only
    )


def compiled(variant: Variant, work: Work) -> Work:
    """The work with its program compiled as the variant says; nothing is run yet."""
    if variant.backend is None:
        return work
    fn = torch.compile(work.fn, backend=variant.backend, mode=variant.mode, dynamic=False)
    return Work(fn, work.args, work.sources, work.writes, work.reads)


def call_of(work: Work) -> timing.Call:
    """One call of the program: forward, and for a training row backward from fixed gradients.

    The gradients vary: those of ones would cancel in a program that ends in a normalization, and
    leave rounding noise to be judged.
    """
    if not work.sources:

        def inference() -> Any:
            with torch.no_grad():
                return work.fn(*work.args)

        return inference

    given: list[torch.Tensor] = []

    def training() -> Any:
        outputs = tensors_of(work.fn(*work.args))
        if not given:
            given.extend(map(_gradient, outputs))
        grads = torch.autograd.grad(outputs, work.sources, given, allow_unused=True)
        return [o.detach() for o in outputs], grads

    return training


def _gradient(output: torch.Tensor) -> torch.Tensor:
    """Eighths between -1 and 1 that depend on the shape alone: exact in every dtype."""
    generator = torch.Generator(output.device).manual_seed(output.numel())
    eighths = torch.randint(
        -8, 9, tuple(output.shape), generator=generator, device=output.device, dtype=torch.int8
    )
    return torch.empty_like(output).copy_(eighths / 8)


def results_of(work: Work, returned: Any) -> tuple[torch.Tensor, ...]:
    """All that one call computed: outputs, gradients, and the inputs that it changed."""
    return (*tensors_of(returned), *(work.args[i] for i in work.writes))
