"""Several kernels in one launch: their values, their programs, what a chip's assembler says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import gpu_cases as cases
import numpy as np
import pytest

from onetrip.base.errors import Unsupported
from onetrip.base.sym import Size
from onetrip.codegen.prelude_triton import dialect_of
from onetrip.codegen.triton import emit
from onetrip.codegen.triton_packed import emit_launched
from onetrip.ir.kernel import Kernel, Packed
from onetrip.runtime.cache import Cache
from onetrip.runtime.triton_assemble import assemble
from onetrip.runtime.triton_build import TritonLaunch
from onetrip.target import load

CHIPS = ("a100", "h100", "b200", "mi300x")
NAMES = (*cases.POINTWISE, *cases.REDUCTIONS)


def kernels(names: Sequence[str]) -> tuple[list[cases.Case], list[Kernel]]:
    """Cases of fixed sizes that are one kernel each."""
    chip = dataclasses.replace(cases.SMALL, launch_us=1e9)
    made = [(n, {**cases.POINTWISE, **cases.REDUCTIONS}[n]()) for n in names]
    fixed = [(c, cases.plan(c, chip, name=n).kernels) for n, c in made if not c.sizes]
    alone = [(c, k[0]) for c, k in fixed if len(k) == 1]
    return [c for c, _ in alone], [k for _, k in alone]


def test_each_kernel_stores_what_it_stores_alone() -> None:
    own, parts = kernels(NAMES)
    assert len(parts) > 8
    arrays = [case.inputs(seed) for seed, case in enumerate(own)]
    wanted = [
        cases.run_triton(cases.Scheduled((k,)), a) for k, a in zip(parts, arrays, strict=True)
    ]
    memory = [
        {b.name: cases.tensor(b, a.get(b.name), {}) for b in k.buffers}
        for k, a in zip(parts, arrays, strict=True)
    ]
    module = emit_launched(Packed("packed", tuple(parts)), "interpreter")
    TritonLaunch(module, Cache())([t for own in memory for t in own.values()])
    for want, found in zip(wanted, memory, strict=True):
        for name, tensor in found.items():
            np.testing.assert_array_equal(tensor.float().numpy(), want[name].astype("f"), name)


def test_equal_kernels_are_one_function() -> None:
    _, (kernel, *_) = kernels(NAMES)
    module = emit_launched(Packed("packed", (kernel,) * 5), "nvidia")
    assert module.text.count("noinline") == 1
    assert module.grid == (5 * int(str(emit(kernel, "nvidia").grid[0])),)
    assert len(module.arguments) == 5 * len(kernel.buffers)


def test_symbolic_sizes_are_refused() -> None:
    _, (kernel, *_) = kernels(NAMES)
    symbolic = next(
        k for n in NAMES for c in [{**cases.POINTWISE, **cases.REDUCTIONS}[n]()] if c.sizes
        for k in cases.plan(c).kernels
    )  # fmt: skip
    assert any(isinstance(s, Size) for s in symbolic.sizes)
    with pytest.raises(Unsupported, match="symbolic sizes"):
        emit_launched(Packed("packed", (kernel, symbolic)), "nvidia")


@pytest.mark.parametrize("chip", CHIPS)
def test_chips_take_packed_kernels_without_spills(chip: str) -> None:
    """Reductions among them: a called function has shared memory too."""
    _, parts = kernels([*NAMES[:6], *list(cases.REDUCTIONS)[:4]])
    packed = Packed("packed", tuple(parts) * 4)
    target = load(chip)
    dialect = dialect_of(target)
    found = assemble(emit_launched(packed, dialect), target)
    alone = [assemble(emit(k, dialect), target) for k in parts]
    assert found.spill_bytes == 0
    assert found.shared_bytes <= 2 * max(a.shared_bytes for a in alone)
