"""Prices of rows and columns in one walk: one read, partial sums, accumulators, tiles ahead."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from onetrip.base.dtype import bf16, f32
from onetrip.base.sym import Var
from onetrip.cost.mixed import LEAST_STEPS, RESIDENT, join_launches, mixed_of, partial_bytes
from onetrip.cost.occupancy import estimate
from onetrip.cost.roofline import Cost, kernel_cost
from onetrip.cost.traffic import traffic, work
from onetrip.ir.expr import Expr, Load, Reduced, Reduction, apply, cast
from onetrip.ir.nest import Access, Buffer, Nest, Store
from onetrip.ir.types import TensorType
from onetrip.target import load

H200 = load("h200")


def total(axes: tuple[Var, ...], e: Expr) -> Expr:
    return Reduced(Reduction("sum", axes, (e,)), 0, e.dtype)


def nest(rows: int, columns: int, results: str, powers: int = 1) -> Nest:
    """Sums of rows (`r`), and of columns (`c`) of each of so many powers, of a bf16 input."""
    i, j = Var("r0", rows), Var("r1", columns)
    x: Expr = cast(Load("x", (i, j), bf16), f32)
    stores, buffers = [], [Buffer("x", TensorType.dense(bf16, (rows, columns)), Access.READ)]
    if "r" in results:
        stores.append(Store("r", (i,), total((j,), x), (i,)))
        buffers.append(Buffer("r", TensorType.dense(f32, (rows,)), Access.WRITE))
    for k in range(powers if "c" in results else 0):
        stores.append(Store(f"c{k}", (j,), total((i,), x), (j,)))
        buffers.append(Buffer(f"c{k}", TensorType.dense(f32, (columns,)), Access.WRITE))
        x = apply("mul", x, x)
    return Nest((), tuple(buffers), tuple(stores))


def price(n: Nest) -> Cost:
    return kernel_cost(n, traffic(n), work(n), estimate(n, H200), H200)


def test_both_together_cost_little_more_than_one_read() -> None:
    both = price(nest(32768, 4096, "rc"))
    read = 1e6 * 2 * 32768 * 4096 / H200.copy_bandwidth
    assert read < both.us < 1.25 * read
    assert dict(both.reads) == {"x": 2 * 32768 * 4096}


@pytest.mark.parametrize("columns", [96, 1000, 4096, 16384])
def test_more_rows_take_no_less_time(columns: int) -> None:
    times = [price(nest(rows, columns, "rc")).us for rows in (64, 512, 4096, 16384, 65536)]
    assert all(more > 0.99 * less for less, more in pairwise(times))  # another tile may fit better


def test_long_rows_of_many_values_are_held_by_fewer_threads_with_more_registers_each() -> None:
    """Loads and sums count: the row itself and one sum for each power."""
    warps = {}
    for powers in (1, 2, 3):
        tiled = mixed_of(nest(4096, 16384, "rc", powers), H200)
        assert tiled is not None
        warps[powers] = tiled.warps
    assert warps == {1: 16, 2: 16, 3: 8}
    short = mixed_of(nest(4096, 8192, "rc", 3), H200)
    assert short is not None and short.warps == 16


@pytest.mark.parametrize("rows", [1024, 32768])
def test_longer_rows_take_no_less_time(rows: int) -> None:
    times = [price(nest(rows, columns, "rc")).us for columns in (64, 256, 1024, 4096, 16384)]
    assert times == sorted(times)


def test_partial_sums_are_moved_and_joined_by_another_kernel() -> None:
    n = nest(32768, 4096, "rc")
    tiled = mixed_of(n, H200)
    assert tiled is not None and join_launches(tiled) == 1
    assert partial_bytes(n, H200, {}) == 4 * 4096 * tiled.parts
    assert price(n).again_bytes == partial_bytes(n, H200, {})
    twice = dataclasses.replace(H200, multiprocessors=2 * H200.multiprocessors)
    assert partial_bytes(n, twice, {}) == 2 * partial_bytes(n, H200, {})


def test_few_rows_are_walked_by_few_programs_and_one_joins_nothing() -> None:
    tiled = mixed_of(nest(2 * LEAST_STEPS, 4096, "rc"), H200)
    assert tiled is not None and tiled.parts == 2
    alone = mixed_of(nest(LEAST_STEPS, 4096, "rc"), H200)
    assert alone is not None and alone.parts == 1 and join_launches(alone) == 0
    assert partial_bytes(nest(LEAST_STEPS, 4096, "rc"), H200, {}) == 0


def test_each_accumulator_takes_registers_until_they_spill() -> None:
    needs = [estimate(nest(4096, 16384, "rc", powers), H200) for powers in (1, 2, 3, 6)]
    wanted = [n.registers + n.spill_bytes // 4 for n in needs]
    assert wanted == sorted(wanted) and len(set(wanted)) == len(wanted)
    assert needs[0].spill_bytes == 0 < needs[-1].spill_bytes


def test_parts_run_at_the_same_time() -> None:
    for columns in (64, 1024, 4096, 8192, 16384):
        tiled = mixed_of(nest(1 << 17, columns, "rc"), H200)
        assert tiled is not None
        warps = max(2 * RESIDENT, tiled.warps)  # one number loaded and one summed: few
        assert tiled.parts * tiled.warps <= H200.multiprocessors * warps
        assert tiled.staged <= H200.shared_per_multiprocessor * tiled.warps / warps
