"""Every operator's samples as kernels for both kinds of machine, interpreted beside their nests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cpp_run import assert_close, reference

from onetrip.base.dtype import bool_, f64
from onetrip.codegen import schedule_cpu, schedule_gpu
from onetrip.codegen.scheduled import Scheduled
from onetrip.interp.arrays import carrier, convert, storage
from onetrip.interp.kernel_interp import run_kernel
from onetrip.ir.graph import Graph, Value
from onetrip.ir.kernel import Facts
from onetrip.ir.nest import Access, Buffer, Nest
from onetrip.ir.parser import parse
from onetrip.ir.printer import text
from onetrip.ir.verify import verify
from onetrip.ops.build import sample_node
from onetrip.ops.table import OPS
from onetrip.passes.collapse import collapse
from onetrip.passes.expand import expand
from onetrip.passes.fuse import fuse
from onetrip.passes.lower import lower
from onetrip.target import load

Array = Any
SCHEDULES: dict[str, tuple[Callable[..., Scheduled], str]] = {
    "cpu": (schedule_cpu.schedule, "cpu"),
    "gpu": (schedule_gpu.schedule, "h200"),
}


def graphs(name: str) -> Iterator[Graph]:
    """The operator on each of its samples, expanded into primitives."""
    for number in range(len(OPS[name].samples)):
        node = sample_node(OPS[name], number)
        inputs = tuple(dict.fromkeys(v for v in node.inputs if isinstance(v, Value)))
        yield expand(Graph(inputs, (node,), node.outputs))


def nests(graph: Graph) -> Iterator[Nest]:
    """The nest of each primitive, and the one of all of them where there is one."""
    single = lower(graph)
    yield from single.values()
    stored = frozenset(v.name for v in graph.outputs if isinstance(v, Value)) & set(single)
    if 1 < len(single) == len(graph.nodes):
        fused = fuse(list(single), single, stored)
        if isinstance(fused, Nest):
            yield fused


def fill(b: Buffer, number: int) -> Array:
    """Reproducible contents; integers are small, since they may be indices."""
    count = b.type.storage_elements
    assert isinstance(count, int)
    rng = np.random.default_rng(number)
    if b.type.dtype is bool_:
        return rng.integers(0, 2, count).astype(bool)
    if b.type.dtype.is_float:
        return convert(rng.standard_normal(count), f64, b.type.dtype)
    return rng.integers(0, 3, count).astype(carrier(b.type.dtype))


def run(scheduled: Scheduled, nest: Nest, given: dict[str, Array]) -> dict[str, Array]:
    memory = {k: v.copy() for k, v in given.items()}
    for b in (*nest.buffers, *scheduled.scratch):
        memory.setdefault(b.name, storage(b.type))
    for kernel in scheduled.kernels:
        verify(kernel)
        names = dict(scheduled.values)
        run_kernel(kernel, {b.name: memory[names.get(b.name, b.name)] for b in kernel.buffers})
    return {b.name: memory[b.name] for b in nest.buffers if b.access is not Access.READ}


@pytest.mark.parametrize("name", OPS)
def test_texts_and_invariants(name: str) -> None:
    for graph in graphs(name):
        verify(graph)
        assert text(parse(text(graph))) == text(graph)
        for nest in nests(graph):
            for one in (nest, collapse(nest)):
                verify(one)
                assert parse(text(one)) == one


@pytest.mark.parametrize("machine", SCHEDULES)
@pytest.mark.parametrize("name", OPS)
def test_kernels_compute_what_the_nest_says(name: str, machine: str) -> None:
    schedule, chip = SCHEDULES[machine]
    for nest in (collapse(n) for g in graphs(name) for n in nests(g)):
        read = [b for b in nest.buffers if b.access is not Access.WRITE]
        given = {b.name: fill(b, number) for number, b in enumerate(read)}
        near, far = reference(nest, given)
        scheduled = schedule(nest, load(chip), name="kernel", facts=Facts())
        assert_close(nest, run(scheduled, nest, given), near, far)
