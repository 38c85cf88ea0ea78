"""Registers from words that live together, in the tile that a schedule would choose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onetrip.base.dtype import DType, bf16, f32
from onetrip.base.sym import Var
from onetrip.codegen.schedule_gpu import schedule
from onetrip.cost.occupancy import (
    NEAR,
    Assembled,
    estimate,
    near_limit,
    need,
    register_limit,
)
from onetrip.cost.pressure import live_words, pressure
from onetrip.cost.tiles import HELD, MOST_HELD, WALK, thread_elements, tile_of, wider
from onetrip.cost.traffic import stages
from onetrip.ir.expr import Expr, Load, Reduced, Reduction, apply, cast
from onetrip.ir.kernel import Facts, Loop
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType
from onetrip.passes.collapse import collapse
from onetrip.target import load

H200, MI300X = load("h200"), load("mi300x")


def line(inputs: int, dtype: DType = f32, op: str = "neg", count: int = 1 << 24) -> Nest:
    """y = op(x0 + x1 + ...)."""
    axis = Var("i", count)
    kind = TensorType.dense(dtype, (count,))
    loads: list[Expr] = [cast(Load(f"x{k}", (axis,), dtype), f32) for k in range(inputs)]
    value = loads[0]
    for e in loads[1:]:
        value = apply("add", value, e)
    value = cast(apply(op, value), dtype)
    reads = [Buffer(f"x{k}", kind, Access.READ) for k in range(inputs)]
    store = Store("y", (axis,), value)
    return Nest((Axis(axis),), (*reads, Buffer("y", kind, Access.WRITE)), (store,))


def branching(count: int) -> Nest:
    """y = e0 - (e1 - (e2 - ...)), e(k+1) = exp(e(k)): every one lives until the last is known."""
    nest = line(1, bf16)
    stored = nest.stores[0]
    steps: list[Expr] = [cast(Load("x0", stored.index, bf16), f32)]
    for _ in range(count - 1):
        steps.append(apply("exp", steps[-1]))
    value = steps[-1]
    for e in reversed(steps[:-1]):
        value = apply("sub", e, value)
    return replace(nest, stores=(replace(stored, value=cast(value, bf16)),))


def centred(width: int, dtype: DType = f32, rows: int = 4096, *, busy: bool = False) -> Nest:
    """y = x - sum(x) of rows: the row lives until its sum is known; busy: tanh(exp(y))."""
    i, j = Var("i", rows), Var("j", width)
    kind = TensorType.dense(dtype, (rows, width))
    inner: Expr = cast(Load("x", (i, j), dtype), f32)
    total = Reduced(Reduction("sum", (j,), (inner,)), 0, f32)
    off = apply("sub", inner, total)
    value = cast(apply("tanh", apply("exp", off)) if busy else off, dtype)
    buffers = (Buffer("x", kind, Access.READ), Buffer("y", kind, Access.WRITE))
    return Nest((Axis(i),), buffers, (Store("y", (i, j), value, (j,)),))


@pytest.mark.parametrize(("live", "elements"), [(2, 16), (15, 16), (25, 8), (50, 4), (200, 1)])
def test_a_thread_holds_no_more_elements_than_its_registers(live: int, elements: int) -> None:
    nest = branching(live)
    assert live_words(nest.expressions, nest.roots) == live
    assert thread_elements(nest, H200) == elements
    kernels = schedule(collapse(nest), H200, name="k", facts=Facts()).kernels
    assert [k.warps for k in kernels] == [4]
    lanes = [s.tile for k in kernels for s in k.body if isinstance(s, Loop)]
    assert max(lanes) == elements * 128


def test_a_value_that_a_later_pass_reads_is_kept_narrow() -> None:
    for dtype, words in ((f32, 1.0), (bf16, 0.5)):
        nest = centred(4096, dtype)
        assert pressure(nest, stages(nest), held=True).kept == words


def test_walked_rows_need_accumulators_and_held_rows_do_not() -> None:
    nest = centred(4096)
    states = [pressure(nest, stages(nest), held=held).state for held in (True, False)]
    assert states == [0, 1]


@pytest.mark.parametrize(("width", "elements", "held"), [
    (4096, 16, True), (HELD, 32, True), (MOST_HELD, 64, True), (2 * MOST_HELD, 16, False),
])  # fmt: skip
def test_rows_are_held_as_far_as_a_schedule_holds_them(
    width: int, elements: int, held: bool
) -> None:
    nest = centred(width)
    tile = tile_of(nest, stages(nest), H200, {})
    assert (tile.family, tile.elements, tile.held) == ("row", elements, held)
    assert tile.threads * tile.elements == (width if held else WALK)


def test_the_longest_rows_are_held_where_nothing_need_hide() -> None:
    """A program of such a row is alone on its multiprocessor, so it loads and computes in turn."""
    for width, busy in ((MOST_HELD, False), (MOST_HELD, True), (HELD, True)):
        nest = centred(width, bf16, busy=busy)
        assert tile_of(nest, stages(nest), H200, {}).held is (width == HELD or not busy)


@pytest.mark.parametrize(("kib", "step"), [(32, 8), (64, 16), (128, 32), (256, 64), (1024, 64)])
def test_a_row_that_is_walked_again_takes_few_steps(kib: int, step: int) -> None:
    for width in (2, 4):
        found = WALK * width * wider(kib * 1024 // width, width, H200)
        assert found == max(step * 1024, WALK * width)
    assert wider(None, 4, H200) > 1


def test_a_wider_warp_holds_fewer_elements_in_each_thread() -> None:
    nest = centred(4096)
    one, two = (tile_of(nest, stages(nest), chip, {}) for chip in (H200, MI300X))
    assert one.threads * one.elements == two.threads * two.elements
    assert one.elements == 2 * two.elements


def test_narrow_values_share_registers_where_the_compiler_packs_them() -> None:
    wide, narrow = (estimate(line(6, dtype), H200) for dtype in (f32, bf16))
    # A bf16 thread takes twice the elements, in words of half the size.
    assert narrow.elements == 2 * wide.elements
    assert narrow.registers == wide.registers


def test_a_branch_keeps_what_lives_across_it_for_all_elements() -> None:
    plain, branching = (estimate(line(2, op=op), H200) for op in ("neg", "tanh"))
    assert plain.registers < branching.registers
    assert plain.worst < branching.worst


def test_threads_of_a_block_share_the_register_file() -> None:
    assert register_limit(H200, 512) == 65536 // 512 == 128
    assert register_limit(H200, 128) == 255
    few = replace(H200, registers_per_thread=32)
    assert register_limit(few, 512) == 32


def test_what_does_not_fit_is_spilled() -> None:
    nest = centred(HELD)
    whole = estimate(nest, H200)
    few = estimate(nest, replace(H200, registers_per_thread=24))
    assert whole.spill_bytes == 0
    assert few.registers == 24
    assert few.spill_bytes == 4 * (whole.registers - 24)


def test_near_a_limit_is_judged_by_the_worst_case() -> None:
    nest = centred(4096)
    found = estimate(nest, H200)
    most = register_limit(H200, found.threads)
    assert not near_limit(found, H200)
    assert near_limit(replace(found, worst=int(NEAR * most) + 1), H200)
    assert near_limit(replace(found, shared_bytes=H200.shared_per_block), H200)


def test_warps_exchange_states_in_shared_memory() -> None:
    assert estimate(centred(4096), H200).shared_bytes == 4 * 8
    assert estimate(line(1), H200).shared_bytes == 0


def test_of_a_group_of_kernels_the_largest_figures_count() -> None:
    made = Assembled.most([Assembled(32, 8, 0), Assembled(64, 0, 128)])
    assert made == Assembled(64, 8, 128)


def test_occupancy_follows_the_assembled_registers() -> None:
    found = need(line(1), H200, resources=lambda nest, target: Assembled(255, 0, 0))
    assert found.occupancy == 256 / 2048
