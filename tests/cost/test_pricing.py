"""Instructions, lines of memory, grids and phases: each against figures counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from onetrip.base.dtype import DType, bf16, f8e4m3, f32, f64, i64
from onetrip.base.sym import Dim, Var
from onetrip.cost.access import wastes
from onetrip.cost.grid import Grid, grid_of
from onetrip.cost.instructions import CPU as CPU_PRICES
from onetrip.cost.instructions import GPU, Issued, combined, computed_once, issued, shares_of
from onetrip.cost.occupancy import need
from onetrip.cost.phases import Cache, Phase, online, phases
from onetrip.cost.roofline import Cost, kernel_cost
from onetrip.cost.traffic import stages, traffic, work
from onetrip.ir.expr import (
    Apply,
    Const,
    Expr,
    Load,
    Position,
    Reduced,
    Reduction,
    apply,
    cast,
    compare,
    indirect,
)
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.types import TensorType
from onetrip.ops.scalar import SCALAR_OPS
from onetrip.target import Target, load

H200, CPU = load("h200"), load("cpu:2")
COUNT = 1 << 12


def pointwise(value: Expr, *, count: int = COUNT, dtype: DType = bf16, **reads: int) -> Nest:
    """y[i] = value; `reads` are one-dimensional bf16 inputs with their lengths."""
    axis = next(a for a in value.free if isinstance(a, Var))
    buffers = [Buffer(n, TensorType.dense(bf16, (k,)), Access.READ) for n, k in reads.items()]
    made = TensorType.dense(dtype, (count,))
    stored = cast(value, dtype)
    return Nest(
        (Axis(axis),), (*buffers, Buffer("y", made, Access.WRITE)), (Store("y", (axis,), stored),)
    )


def loaded(buffer: str, index: Dim) -> Expr:
    return cast(Load(buffer, (index,), bf16), f32)


def one(op: str, device: str = "cuda") -> Issued:
    """What `op` of one f32 operand issues, for each element."""
    axis = Var("i", COUNT)
    x = loaded("x", axis)
    made = apply(op, x) if SCALAR_OPS[op].arity == 1 else apply(op, x, Const(1.5, f32))
    found = issued([(made, COUNT, 1.0)], device)
    return Issued(found.plain / COUNT, found.special / COUNT, found.double / COUNT)


def cost(nest: Nest, target: Target = H200) -> Cost:
    return kernel_cost(nest, traffic(nest), work(nest), need(nest, target), target)


# ------------------------------------------------------------------ instructions


def test_a_special_function_is_counted_as_it_is_spelled() -> None:
    assert one("mul") == Issued(1, 0, 0)
    assert one("erf") == Issued(22, 1, 0)  # two polynomials and one exp2
    assert one("log") == Issued(25, 0, 0)  # a polynomial alone
    assert one("div").special == 1
    assert one("exp", "cpu").special == 0 < one("exp", "cpu").plain


def test_prices_name_operators_that_exist() -> None:
    assert set(GPU) <= set(SCALAR_OPS)
    assert set(CPU_PRICES) <= set(SCALAR_OPS)


def test_every_special_function_has_a_price_of_its_own_on_both_devices() -> None:
    special = {name for name, op in SCALAR_OPS.items() if op.unit.value == "special"}
    assert special <= set(GPU)
    assert special <= set(CPU_PRICES)


def test_doubles_are_counted_apart() -> None:
    axis = Var("i", COUNT)
    wide = cast(Load("x", (axis,), bf16), f64)
    found = issued([(apply("mul", wide, wide), COUNT, 1.0)], "cuda")
    assert (found.plain, found.double) == (0, COUNT)


def test_a_cast_to_eight_bits_is_an_instruction_with_limits_or_many() -> None:
    axis = Var("i", COUNT)
    narrow, short = (cast(loaded("x", axis), d) for d in (f8e4m3, bf16))
    plain = {d: [issued([(e, 1, 1.0)], d).plain for e in (narrow, short)] for d in ("cuda", "cpu")}
    assert plain == {"cuda": [3, 1], "cpu": [20, 1]}


def joined(at: int) -> Nest:
    """cat([erf(x), -z]) where the first part ends."""
    axis = Var("i", COUNT)
    first = compare("lt", Position(axis), Const(at, i64))
    left, right = apply("erf", loaded("x", axis)), apply("neg", loaded("z", axis))
    return pointwise(apply("where", first, left, right), x=COUNT, z=COUNT)


def test_parts_of_a_joined_tensor_are_each_computed_where_they_are() -> None:
    nest = joined(COUNT // 4)
    shares = {e.op: s for e, s in shares_of(nest).items() if isinstance(e, Apply)}
    assert shares == {"erf": 0.25, "neg": 0.75}
    found = issued(computed_once(nest.expressions, shares_of(nest)), "cuda")
    assert found.special == COUNT // 4


def test_a_condition_on_values_leaves_both_sides_to_be_computed() -> None:
    axis = Var("i", COUNT)
    x = loaded("x", axis)
    chosen = apply("where", compare("lt", x, Const(0.0, f32)), apply("erf", x), x)
    assert shares_of(pointwise(chosen, x=COUNT)) == {}


# ------------------------------------------------------------------ lines of memory


def test_a_step_between_neighbours_wastes_the_rest_of_the_line() -> None:
    axis = Var("i", COUNT)
    every = {k: pointwise(loaded("x", axis * k), x=COUNT * k) for k in (1, 2, 64)}
    found = {k: wastes(n, 32)["x"] for k, n in every.items()}
    assert found == {1: 1.0, 2: 2.0, 64: 16.0}  # a line of 32 bytes has sixteen elements


def test_a_transposed_read_wastes_nothing() -> None:
    i, j = Var("i", 64), Var("j", 64)
    kind = TensorType.dense(bf16, (64, 64))
    buffers = (Buffer("x", kind, Access.READ), Buffer("y", kind, Access.WRITE))
    store = Store("y", (i, j), Load("x", (j, i), bf16))
    assert wastes(Nest((Axis(i), Axis(j)), buffers, (store,)), 32) == {"x": 1.0, "y": 1.0}


def test_scattered_elements_take_a_line_each() -> None:
    axis = Var("i", COUNT)
    place = indirect(Load("k", (axis,), i64), 1 << 20)
    kinds = {"x": TensorType.dense(bf16, (1 << 20,)), "k": TensorType.dense(i64, (COUNT,))}
    nest = pointwise(loaded("x", place))
    buffers = tuple(Buffer(n, t, Access.READ) for n, t in kinds.items())
    found = wastes(dataclasses.replace(nest, buffers=(*buffers, *nest.buffers)), 32)
    assert found == {"x": 16.0, "k": 1.0, "y": 1.0}


def test_strided_reads_cost_the_bytes_that_come_along() -> None:
    axis = Var("i", 1 << 22)
    near, far = (cost(pointwise(loaded("x", axis * k), count=1 << 22, x=k << 22)) for k in (1, 16))
    assert far.bytes == near.bytes
    assert far.us > 5 * near.us


# ------------------------------------------------------------------ rows


def rows(count: int, width: int, exponentials: bool = True) -> Nest:
    """Softmax of rows, or their sums."""
    p, r = Var("p", count), Var("r", width)
    kind = TensorType.dense(bf16, (count, width))
    x = cast(Load("x", (p, r), bf16), f32)
    if not exponentials:
        made: tuple[int, ...] = (count,)
        value = Reduced(Reduction("sum", (r,), (x,)), 0, f32)
        store = Store("y", (p,), cast(value, bf16))
    else:
        top = Reduced(Reduction("max", (r,), (x,)), 0, f32)
        e = apply("exp", apply("sub", x, top))
        total = Reduced(Reduction("sum", (r,), (e,)), 0, f32)
        made = (count, width)
        store = Store("y", (p, r), cast(apply("div", e, total), bf16), axes=(r,))
    target = TensorType.dense(bf16, made)
    buffers = (Buffer("x", kind, Access.READ), Buffer("y", target, Access.WRITE))
    return Nest((Axis(p),), buffers, (store,))


def grid(nest: Nest, target: Target = H200) -> Grid:
    moved = traffic(nest).bytes
    assert isinstance(moved, int)
    return grid_of(nest, stages(nest), need(nest, target), moved, target, {})


def test_few_long_rows_are_split_over_the_chip() -> None:
    whole, few = grid(rows(4096, 65536, False)), grid(rows(1, 1 << 26, False))
    assert (whole.launches, whole.programs) == (1, 4096)
    assert few.launches == 2
    assert few.programs >= 2 * H200.multiprocessors
    assert grid(rows(1, 1 << 26)).launches == 3


def test_waves_fill_the_chip_with_what_fits_on_it() -> None:
    found = grid(rows(16384, 4096))
    assert found.resident % H200.multiprocessors == 0
    assert found.waves == -(-16384 // found.resident)


def test_a_small_kernel_on_a_cpu_is_done_by_one_core() -> None:
    assert grid(rows(8, 64), CPU).programs == 1
    assert grid(rows(1024, 4096), CPU).programs == 2


def phases_of(nest: Nest, held: bool, resident: frozenset[str] = frozenset()) -> list[Phase]:
    passes = stages(nest) if held else online(nest, stages(nest))
    cache = Cache(H200.l2_bytes, resident)
    moved, found = traffic(nest), grid(nest)
    return list(phases(nest, passes, moved, found, cache, held=held, device="cuda"))


def test_a_row_that_is_held_is_one_phase() -> None:
    (found,) = phases_of(rows(64, 4096), held=True)
    assert found.memory == 2 * 64 * 4096 * 2
    assert found.cached == 0


def test_a_row_that_is_walked_is_read_again_from_the_cache_and_computed_again() -> None:
    nest = rows(2048, 131072)
    assert len(stages(nest)) == 3
    first, second = phases_of(nest, held=False)  # maximum and sum are one walk
    size = 2048 * 131072 * 2
    assert (first.memory, first.cached) == (size, 0)
    assert second.cached + second.again == size
    assert second.issued.special == 2 * 2048 * 131072


def test_what_is_resident_comes_from_the_cache() -> None:
    (found,) = phases_of(rows(64, 4096), held=True, resident=frozenset({"x"}))
    assert found.memory == found.cached == 64 * 4096 * 2


def test_states_are_joined_once_an_element() -> None:
    nest = rows(64, 256, False)
    (sum_of,) = list(combined(nest))[-1:]
    assert sum_of[1] == 64 * 256


# ------------------------------------------------------------------ microseconds


def test_time_lies_between_the_largest_part_and_their_sum() -> None:
    axis = Var("i", 1 << 26)
    value = loaded("x", axis)
    for _ in range(3):
        value = apply("erf", value)
    found = cost(pointwise(value, count=1 << 26, x=1 << 26))
    parts = (found.memory_us, found.compute_us)
    fixed = found.launch_us
    assert max(parts) + fixed < found.us < sum(parts) + fixed


@pytest.mark.parametrize("op", ["add", "exp", "erf", "pow", "lgamma"])
def test_kinds_of_functions_take_their_own_time(op: str) -> None:
    axis = Var("i", 1 << 24)
    x = loaded("x", axis)

    def chain(name: str) -> float:
        value = x
        for _ in range(8):
            more = (value,) if SCALAR_OPS[name].arity == 1 else (value, Const(1.5, f32))
            value = apply(name, *more)
        return cost(pointwise(value, count=1 << 24, x=1 << 24)).us

    order = ["add", "exp", "erf", "pow", "lgamma"]
    later = order[order.index(op) + 1 :]
    assert all(chain(op) < chain(name) for name in later)


def test_a_faster_memory_is_worth_nothing_to_a_kernel_that_computes() -> None:
    axis = Var("i", 1 << 24)
    value = loaded("x", axis)
    for _ in range(8):
        value = apply("lgamma", value)
    nest = pointwise(value, count=1 << 24, x=1 << 24)
    faster = dataclasses.replace(H200, copy_bandwidth=2 * H200.copy_bandwidth)
    assert cost(nest, faster).us > 0.97 * cost(nest).us


def test_programs_that_all_run_at_once_do_not_hide_their_loads() -> None:
    """Half as many rows are less than half as fast once there is but one round of them."""
    per_byte = {n: cost(rows(n, 4096)).memory_us / n for n in (1 << 9, 1 << 14)}
    assert per_byte[1 << 9] > 1.05 * per_byte[1 << 14]


def test_all_cores_of_a_cpu_have_to_be_called() -> None:
    assert CPU.cores is not None
    small, large = cost(rows(8, 64), CPU), cost(rows(1024, 4096), CPU)
    assert large.launch_us - small.launch_us == pytest.approx(CPU.cores.region_us)


def test_a_cpu_computes_what_several_passes_need_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CPU_PRICES, "exp", (1000.0, 0.0))  # all else together is less
    nest = rows(1024, 4096)
    made = [
        list(phases(nest, stages(nest), traffic(nest), grid(nest, CPU), Cache(0), held=False,
                    device=device))
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    exponentials = 1024 * 4096 * CPU_PRICES["exp"][0]
    plain = [sum(p.issued.plain for p in found) for found in made]
    assert exponentials < plain[0] < 2 * exponentials
    assert sum(p.issued.special for p in made[1]) == 3 * 1024 * 4096  # exp twice, one quotient
