"""Times and on-chip needs follow their formulas and the target's figures."""

from __future__ import annotations

import pytest

from onetrip.base.dtype import bf16, f32
from onetrip.base.sym import Var
from onetrip.cost.occupancy import Assembled, need, occupancy
from onetrip.cost.pressure import live_words
from onetrip.cost.roofline import Cost, is_anchor, kernel_cost, library_cost
from onetrip.cost.traffic import traffic, work
from onetrip.ir.expr import Expr, Load, apply, cast
from onetrip.ir.graph import Node, Value, freeze
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType
from onetrip.target import Target, load

from .test_traffic import softmax

H200, CPU = load("h200"), load("cpu:2")


def chain(count: int, op: str = "exp", inputs: int = 1) -> Nest:
    """y = op(op(...)) of the sum of some inputs, over `count` elements."""
    axis = Var("i", count)
    kind = TensorType.dense(bf16, (count,))
    loads: list[Expr] = [cast(Load(f"x{k}", (axis,), bf16), f32) for k in range(inputs)]
    value = loads[0]
    for e in loads[1:]:
        value = apply("add", value, e)
    value = apply(op, value)
    buffers = [Buffer(f"x{k}", kind, Access.READ) for k in range(inputs)]
    store = Store("y", (axis,), cast(value, bf16))
    return Nest((Axis(axis),), (*buffers, Buffer("y", kind, Access.WRITE)), (store,))


def cost(nest: Nest, target: Target = H200, **more: object) -> Cost:
    needs = need(nest, target)
    return kernel_cost(nest, traffic(nest), work(nest), needs, target, **more)  # type: ignore[arg-type]


def test_a_large_pointwise_kernel_takes_the_time_of_its_bytes() -> None:
    count = 1 << 27
    found = cost(chain(count))
    assert found.bytes == 2 * count * 2
    floor = 1e6 * found.bytes / H200.copy_bandwidth + H200.replay_us
    assert floor < found.us < 1.03 * floor
    assert found.bound_by == "memory" and found.utilisation == 1.0


def test_doubling_the_tensor_doubles_the_bytes_and_the_flops() -> None:
    one, two = cost(chain(1 << 20)), cost(chain(1 << 21))
    assert (two.bytes, two.flops) == (2 * one.bytes, 2 * one.flops)


def test_a_small_kernel_is_bound_by_its_launch() -> None:
    found = cost(chain(64))
    assert found.bound_by == "launch"
    assert found.us < 1.5 * H200.replay_us


def test_few_tiles_cannot_fill_the_chip() -> None:
    small, large = cost(chain(4096)), cost(chain(1 << 27))
    assert small.utilisation < 0.25 < large.utilisation
    per_byte = [c.memory_us / c.bytes for c in (small, large)]
    assert per_byte[0] > 10 * per_byte[1]


def test_special_functions_can_be_the_limit() -> None:
    found = cost(chain(1 << 22, "lgamma"), CPU)
    assert found.bound_by == "compute"


def test_what_the_cache_still_holds_is_not_read_from_memory() -> None:
    made = chain(1 << 22)
    cold, warm = cost(made), cost(made, resident=frozenset({"x0"}))
    assert warm.bytes == cold.bytes // 2
    assert warm.l2_bytes == cold.bytes // 2
    assert warm.us < cold.us


def test_rows_that_stay_in_registers_are_read_once() -> None:
    needs = need(softmax(), H200)
    assert needs.persistent and needs.spill_bytes == 0
    assert not need(softmax(), CPU).persistent


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "mi300x", "cpu"])
def test_every_target_prices_a_kernel(name: str) -> None:
    target = load(name)
    assert cost(chain(1 << 20), target).us > 0
    assert 0 < need(softmax(), target).occupancy <= 1


def test_live_values_peak_where_most_are_needed_later() -> None:
    axis = Var("i", 8)
    a, b, c = (Load(n, (axis,), f32) for n in "abc")
    last = apply("add", apply("add", a, b), c)
    assert live_words((a, b, last.args[0], c, last), (last,)) == 2  # type: ignore[attr-defined]
    assert live_words((a, b, c, last.args[0], last), (last,)) == 3  # type: ignore[attr-defined]


def test_registers_grow_with_values_that_live_together() -> None:
    few, many = need(chain(1 << 20), H200), need(chain(1 << 20, inputs=2), H200)
    assert 0 < few.registers < many.registers


def test_occupancy_is_limited_by_the_scarcest_resource() -> None:
    assert occupancy(H200, 32, 0, 256) == 1.0
    assert occupancy(H200, 128, 0, 256) == 0.25
    assert occupancy(H200, 32, H200.shared_per_multiprocessor, 256) == 256 / 2048
    assert occupancy(H200, 255, 0, 1024) == 0.0


def test_an_assembler_is_believed() -> None:
    found = need(chain(1 << 20), H200, resources=lambda nest, target: Assembled(77, 16, 512))
    assert (found.registers, found.spill_bytes, found.shared_bytes) == (77, 16, 512)
    assert found.source == "assembled"
    silent = need(chain(1 << 20), H200, resources=lambda nest, target: None)
    assert silent.source == "estimated"


def test_spilled_registers_cost_time() -> None:
    made = chain(1 << 24)
    plain = need(made, H200)
    spilled = need(made, H200, resources=lambda nest, target: Assembled(255, 400, 0))
    times = [kernel_cost(made, traffic(made), work(made), n, H200).us for n in (plain, spilled)]
    assert times[1] > 2 * times[0]


def product(m: int, k: int, n: int) -> Node:
    a, b, y = (TensorType.dense(bf16, s) for s in ((m, k), (k, n), (m, n)))
    attrs = freeze({"target": "aten.mm.default", "args": (), "kwargs": ()})
    return Node("mm", (Value("a", a), Value("b", b)), (Value("y", y),), attrs)


def test_a_library_product_takes_the_time_of_its_flops() -> None:
    found = library_cost(product(8192, 4096, 4096), (("a", 1),), (("y", 1),), H200)
    assert found.flops == 2 * 8192 * 4096 * 4096
    assert found.us == pytest.approx(
        1e6 * found.flops / H200.reached_flops("matrix", "bf16") + H200.launch_us
    )
    assert found.bound_by == "compute"


def test_anchors_are_told_by_kind_and_by_name() -> None:
    assert is_anchor(product(8, 8, 8))
    value = Value("y", TensorType.dense(f32, (4,)))

    def extern(target: str) -> Node:
        return Node("extern", (value,), (value,), freeze({"target": target}))

    assert is_anchor(extern("aten.baddbmm.default"))
    assert is_anchor(extern("aten._scaled_dot_product_flash_attention.default"))
    assert not is_anchor(extern("aten.sort.default"))
    assert not is_anchor(extern("aten.comment.default"))
