"""Warps of a program that holds whole rows: what is computed for nothing, and what pays."""

from __future__ import annotations

import pytest

from onetrip.base.dtype import bf16, f32
from onetrip.base.sym import Var
from onetrip.codegen.schedule_gpu import schedule
from onetrip.cost.held import MOST_EACH, Rows, held_warps, rows_of
from onetrip.cost.tiles import tile_of
from onetrip.cost.traffic import stages
from onetrip.ir.expr import Expr, Load, Reduced, Reduction, apply, cast
from onetrip.ir.kernel import Facts
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType
from onetrip.passes.collapse import collapse
from onetrip.target import load

H200 = load("h200")


def powers(width: int, exponentials: int, rows: int = 16384) -> Nest:
    """y = f(x) - sum(f(x)) of bf16 rows, f that many exponentials: instructions at will."""
    i, j = Var("i", rows), Var("j", width)
    kind = TensorType.dense(bf16, (rows, width))
    value: Expr = cast(Load("x", (i, j), bf16), f32)
    for _ in range(exponentials):
        value = apply("exp", value)
    total = Reduced(Reduction("sum", (j,), (value,)), 0, f32)
    made = cast(apply("sub", value, total), bf16)
    buffers = (Buffer("x", kind, Access.READ), Buffer("y", kind, Access.WRITE))
    return Nest((Axis(i),), buffers, (Store("y", (i, j), made, (j,)),))


@pytest.mark.parametrize(("width", "rows", "lanes", "threads", "elements"), [
    (5120, 1, 8192, 512, 16), (5120, 1, 8192, 256, 24), (5120, 1, 8192, 128, 40),
    (4096, 1, 4096, 128, 32), (768, 2, 2048, 32, 48), (100, 4, 512, 32, 16),
])  # fmt: skip
def test_a_thread_computes_the_repetitions_that_a_row_reaches(
    width: int, rows: int, lanes: int, threads: int, elements: int
) -> None:
    assert Rows(width, rows, lanes, 1, 8).elements(threads) == elements


def test_no_number_of_warps_computes_less_where_instructions_weigh() -> None:
    """Beyond a thread's most elements none may be chosen."""
    for width in range(520, 16384, 264):
        nest = powers(width, 6)
        found = rows_of(nest, width, 1, 1 << (width - 1).bit_length())
        chosen = held_warps(nest, found, H200)
        each = {w: found.elements(32 * w) for w in (1, 2, 4, 8, 16)}
        assert each[chosen] <= MOST_EACH
        computed = {w: e * w for w, e in each.items() if e <= MOST_EACH}
        assert computed[chosen] <= 1.15 * min(computed.values())


def test_what_waits_for_memory_keeps_its_warps() -> None:
    for width in (1024, 4096, 8192):
        nest = powers(width, 0)
        found = rows_of(nest, width, 1, width)
        assert held_warps(nest, found, H200) == width // 512


@pytest.mark.parametrize("width", [768, 1600, 2560, 5120, 8192, 14336])
def test_prices_suppose_the_warps_of_the_schedule(width: int) -> None:
    nest = powers(width, 3)
    tile = tile_of(nest, stages(nest), H200, {})
    (kernel,) = schedule(collapse(nest), H200, name="k", facts=Facts()).kernels
    assert tile.threads == 32 * kernel.warps
