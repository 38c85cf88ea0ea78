"""GPU schedules and their Triton text, against the interpreters of nests and kernels.

No device: the text runs in Triton's interpreter and is cross-compiled for four chips. The sizes at
which a schedule changes its family are made small, so that small arrays reach every family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gpu_cases as cases
import numpy as np
import pytest

from onetrip.base.errors import Unsupported
from onetrip.base.sym import Var
from onetrip.codegen import schedule_gpu
from onetrip.codegen.gpu_divide import divided, roughly_divided
from onetrip.codegen.prelude_triton import dialect_of
from onetrip.codegen.triton import emit
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.expr import Apply, Cast, Fold, apply, compare, walk
from onetrip.ir.kernel import Assign, Carry, Kernel, Loop, statements
from onetrip.ir.nest import Access
from onetrip.runtime.cache import Cache
from onetrip.runtime.triton_assemble import assemble, gpu_target
from onetrip.runtime.triton_build import TritonLaunch, compiled, imported, needs_wide, source_of
from onetrip.target import load

Array = Any
CHIPS = ("a100", "h100", "b200", "mi300x")
FORMS = ("held", "walked", "split")


@pytest.fixture
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How reductions are scheduled: in registers, walked, or split over programs."""
    if request.param != "held":
        monkeypatch.setattr(schedule_gpu, "holds", lambda nest, row, whole, target: whole <= 16)
        monkeypatch.setattr(schedule_gpu, "WALK", 256)
    return str(request.param)


def scheduled(case: cases.Case, form: str) -> cases.Scheduled:
    chip = cases.SMALL
    if form != "split":
        chip = dataclasses.replace(chip, multiprocessors=1, launch_us=1e9)
    return cases.plan(case, chip)


def expected(case: cases.Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return run_nest(case.nest, {n: a.copy() for n, a in arrays.items()}, case.sizes)


def exact(case: cases.Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The nest on the same numbers with every f32 replaced by f64."""
    return run_nest(cases.widened(case.nest), {n: cases.wide(a) for n, a in arrays.items()},
                    case.sizes)  # fmt: skip


def stands(case: cases.Case, found: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """No farther from the exact result than twice the plain evaluation + 4 ulp of the largest."""
    plain, truth = expected(case, arrays), exact(case, arrays)
    for b in case.nest.buffers:
        if b.access is Access.READ:
            continue
        if not b.type.dtype.is_float:
            np.testing.assert_array_equal(found[b.name], plain[b.name], b.name)
            continue
        wide = truth[b.name].astype(np.float64)
        step = 2.0**-7 if b.type.dtype.bits == 16 else 2.0**-23
        allowed = 2 * np.abs(plain[b.name] - wide).max() + 4 * step * np.abs(wide).max()
        assert np.abs(found[b.name] - wide).max() <= allowed, b.name


@pytest.mark.parametrize("name", cases.POINTWISE)
def test_pointwise_is_bit_equal(name: str) -> None:
    case = cases.POINTWISE[name]()
    arrays = case.inputs()
    want = expected(case, arrays)
    made = cases.plan(case)
    for found in (cases.interpret(made, arrays, case.sizes),
                  cases.run_triton(made, arrays, case.sizes)):  # fmt: skip
        for n, value in want.items():
            np.testing.assert_array_equal(found[n], value, n)


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("name", cases.REDUCTIONS)
def test_reductions_stand(name: str, form: str) -> None:
    case = cases.REDUCTIONS[name]()
    arrays = case.inputs()
    made = scheduled(case, form)
    stands(case, cases.interpret(made, arrays, case.sizes), arrays)
    stands(case, cases.run_triton(made, arrays, case.sizes), arrays)


@pytest.mark.parametrize("form", ["walked"], indirect=True)
def test_only_sums_of_16_bit_numbers_take_the_near_exponential(form: str) -> None:
    texts = [emit(scheduled(case, form).kernels[0], "nvidia").text
             for case in (cases.softmax(), cases.half_softmax())]  # fmt: skip
    assert ["ot_near_exp(" in text for text in texts] == [False, True]


@pytest.mark.parametrize("form", ["walked", "split"], indirect=True)
def test_a_mean_and_the_squares_around_it_are_one_walk_of_columns(form: str) -> None:
    """And as near as eager's own, which is one walk too, where the mean is many deviations."""
    case = cases.centred_columns(shift=300.0)
    made, arrays = scheduled(case, form), case.inputs()
    text = emit(made.kernels[0], "nvidia").text
    assert "welford" in text
    assert text.count("tl.load") == (2 if len(made.kernels) == 1 else 1)
    found, truth = cases.run_triton(made, arrays), exact(case, arrays)
    mean, variance = running(arrays["x"].reshape(-1, 24) + np.float32(300.0))
    for name, eager in (("mean", mean), ("variance", variance)):
        allowed = 2 * np.abs(eager - truth[name]).max() + 4 * 2.0**-23 * np.abs(truth[name]).max()
        assert np.abs(found[name] - truth[name]).max() <= allowed, name


def running(rows: Array) -> tuple[Array, Array]:
    """Mean and variance of each column as Welford (1962) finds them, row after row, in f32."""
    mean, squares = np.zeros_like(rows[0]), np.zeros_like(rows[0])
    for n, row in enumerate(rows, 1):
        off = row - mean
        mean = mean + off / np.float32(n)
        squares = squares + off * (row - mean)
    return mean, squares / np.float32(len(rows))


@pytest.mark.parametrize("form", ["split"], indirect=True)
def test_what_follows_a_join_computes_nothing_of_a_column_again(form: str) -> None:
    """A column's mean and scale come from the kernel that joins its parts."""
    made = scheduled(cases.centred_columns(), form)
    texts = [emit(k, "nvidia").text.split(f"def {k.name}(")[1] for k in made.kernels]
    assert ["rsqrt" in t for t in texts] == [False, True, False]
    assert "div" not in texts[-1]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_random_nests_stand(seed: int, form: str) -> None:
    case = cases.random_case(seed)
    arrays = case.inputs(seed)
    stands(case, cases.run_triton(scheduled(case, form), arrays), arrays)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_argmax_takes_the_first_nan_and_the_first_of_equals(form: str) -> None:
    case = cases.argmax(3, 40)
    x = np.zeros((3, 40), np.float32)
    x[1, [7, 30]] = 2.0
    x[2, [9, 33]] = np.nan
    x[2, 3] = 5.0
    found = cases.run_triton(scheduled(case, form), {"x": x.ravel()})
    assert found["index"].tolist() == [0, 7, 9]


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_nan_reaches_maximum_and_softmax(form: str) -> None:
    case = cases.softmax(2, 40)
    x = np.zeros((2, 40), np.float32)
    x[1, 5] = np.nan
    found = cases.run_triton(scheduled(case, form), {"x": x.ravel()})["y"].reshape(2, 40)
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[0], 1 / 40, rtol=2**-21)


@pytest.mark.parametrize(("way", "ulp"), [(divided, 0), (roughly_divided, 2)])
def test_division_by_one_value_of_many(way: Callable[..., Any], ulp: int) -> None:
    """Rounded as a division, or near it; infinities, zeros and NaN as in a division."""
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0, 1e-30, 3e38, 1e-37],
                        np.float32)  # fmt: skip
    rng = np.random.default_rng(3)
    drawn = (rng.standard_normal((2, 4000)) * 10.0 ** rng.uniform(-12, 12, (2, 4000))).astype("f4")
    a = np.concatenate([np.repeat(specials, specials.size), drawn[0]])
    b = np.concatenate([np.tile(specials, specials.size), drawn[1]])
    count, p0 = a.size, Var("p0", a.size)
    x, y = (cases.Load(n, (p0,), cases.dt.f32) for n in "ab")
    buffers = (*(cases.buffer(n, cases.dt.f32, count) for n in "ab"),
               cases.written("q", cases.dt.f32, count))  # fmt: skip
    store = cases.Store("q", (p0,), way(x, y))
    case = cases.Case(cases.Nest((cases.Axis(p0),), buffers, (store,)))
    with np.errstate(all="ignore"):
        found = cases.run_triton(cases.plan(case), {"a": a, "b": b})["q"]
        want = a / b
    normal = np.isfinite(want) & (np.abs(want) >= 2.0**-100)
    np.testing.assert_array_equal(found[~np.isfinite(want)], want[~np.isfinite(want)])
    np.testing.assert_array_equal(np.signbit(found[want == 0]), np.signbit(want[want == 0]))
    np.testing.assert_array_max_ulp(found[normal], want[normal], maxulp=ulp)


def quantized(rows: int, columns: int, least: float | None, kind: cases.dt.DType) -> cases.Case:
    """x / (the largest |x| of a row, `least` at least, / 448) as 8-bit floats."""
    p0, r0 = Var("p0", rows), Var("r0", columns)
    x = cases.Load("x", (p0 * columns + r0,), cases.dt.f32)
    largest = cases.reduced("max", (r0,), apply("abs", x))
    if least is not None:
        below = compare("lt", largest, cases.f32(least))
        largest = Apply("where", (below, cases.f32(least), largest), cases.dt.f32)
    scale = apply("mul", largest, cases.f32(float(np.float32(1 / 448))))
    value = Cast(apply("div", x, scale), kind)
    buffers = (cases.buffer("x", cases.dt.f32, rows * columns),
               cases.written("y", kind, rows * columns))  # fmt: skip
    store = cases.Store("y", (p0 * columns + r0,), value, (r0,))
    return cases.Case(cases.Nest((cases.Axis(p0),), buffers, (store,)))


@pytest.mark.parametrize(("least", "kind", "tests"), [
    (1e-12, cases.dt.f8e4m3, (1, 2)), (None, cases.dt.f8e4m3, (2, 3)),
    (1e-12, cases.dt.f8e5m2, (2, 2)),
])  # fmt: skip
def test_a_row_quantized_by_its_largest_number_has_the_bits_of_a_division(
    least: float | None, kind: cases.dt.DType, tests: tuple[int, int]
) -> None:
    """Ties, zeros of both signs, rows of zeros, of tiny and of huge numbers, infinities and NaN."""
    rows, columns = 24, 64
    case = quantized(rows, columns, least, kind)
    rng = np.random.default_rng(5)
    x = rng.integers(-256, 257, (rows, columns)).astype(np.float32)
    x[:, 0], x[0], x[1] = -0.0, 0.0, -0.0
    x[2] *= np.float32(1e-39)
    x[3] *= np.float32(1e-14)
    x[4] *= np.float32(1.3e36)
    x[5, 7], x[6, 7], x[7, [7, 9]] = np.inf, np.nan, (-np.inf, np.nan)
    x[8:16] *= rng.standard_normal((8, 1)).astype(np.float32)
    made = cases.plan(case)
    with np.errstate(all="ignore"):
        found = cases.run_triton(made, {"x": x.ravel()})["y"]
        want = expected(case, {"x": x.ravel()})["y"]
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[want == 0]), np.signbit(want[want == 0]))
    body = emit(made.kernels[0], "nvidia89").text.split(f"def {made.kernels[0].name}(")[1]
    assert (body.count("ot_abs("), body.count("tl.where(")) == tests


@pytest.mark.parametrize("monoid", ["max", "sum"])
def test_a_row_divides_by_one_value_with_one_reciprocal(monoid: str) -> None:
    p0, r0 = Var("p0", 4), Var("r0", 100)
    x = cases.Load("x", (p0 * 100 + r0,), cases.dt.f32)
    value = Apply("div", (x, cases.reduced(monoid, (r0,), x)), cases.dt.f32)
    buffers = (cases.buffer("x", cases.dt.f32, 400), cases.written("y", cases.dt.f32, 400))
    store = cases.Store("y", (p0 * 100 + r0,), value, (r0,))
    case = cases.Case(cases.Nest((cases.Axis(p0),), buffers, (store,)))
    made, arrays = cases.plan(case), case.inputs()
    text = emit(made.kernels[0], "nvidia").text
    assert text.count("ot_div(tl.full") == text.count("ot_div(") - text.count("def ot_div(") == 1
    rows = arrays["x"].reshape(4, 100)
    if monoid == "max":  # no order of summation touches it: the quotients are eager's
        found = cases.run_triton(made, arrays)["y"].reshape(4, 100)
        np.testing.assert_array_equal(found, rows / rows.max(1, keepdims=True))


@pytest.mark.parametrize("form", ["held", "walked"], indirect=True)
@pytest.mark.parametrize(("monoid", "kind", "rough"), [
    ("sum", cases.dt.bf16, True), ("sum", cases.dt.f16, True), ("sum", cases.dt.f32, False),
    ("max", cases.dt.bf16, False),
])  # fmt: skip
def test_a_quotient_is_not_corrected_where_it_has_a_sum_below_and_16_bits_are_kept(
    monoid: str, kind: cases.dt.DType, rough: bool, form: str
) -> None:
    p0, r0 = Var("p0", 4), Var("r0", 600)
    at = p0 * 600 + r0
    x = Apply("exp", (cases.Load("x", (at,), cases.dt.f32),), cases.dt.f32)
    value = Cast(Apply("div", (x, cases.reduced(monoid, (r0,), x)), cases.dt.f32), kind)
    buffers = (cases.buffer("x", cases.dt.f32, 2400), cases.written("y", kind, 2400))
    store = cases.Store("y", (at,), value, (r0,))
    case = cases.Case(cases.Nest((cases.Axis(p0),), buffers, (store,)))
    made, arrays = scheduled(case, form), case.inputs()
    text = emit(made.kernels[0], "nvidia").text
    assert ("ot_fma(ot_fma(" not in text) == rough
    assert ("ot_exp2(" in text) == (rough and form == "walked")
    stands(case, cases.run_triton(made, arrays, case.sizes), arrays)


def test_split_partials_are_the_same_every_time() -> None:
    case = cases.full_reduce(40_000)
    made = cases.plan(case)
    assert len(made.kernels) == 2
    assert made.scratch
    arrays = case.inputs()
    first, second = (cases.run_triton(made, arrays)["total"] for _ in range(2))
    assert first.tobytes() == second.tobytes()


def families(name: str = "h200") -> dict[str, list[Kernel]]:
    """A chip's kernels at sizes that real models have, by case."""
    chip = load(name)
    made = {
        "broadcast": cases.broadcast(4096, 4096),
        "transpose": cases.transpose_add(8192, 8192),
        "dropout": cases.dropout(4096, 4096),
        "softmax": cases.softmax(8192, 4096),
        "softmax_long": cases.softmax(2048, 131072),
        "layer_norm": cases.layer_norm(8192, 8192),
        "column_sum": cases.column_sum(131072, 1024),
        "column_sum_and_product": cases.column_sum_and_product(16384, 768),
        "full_reduce": cases.full_reduce(1 << 27),
        "channel_norm": cases.channel_norm(16, 320, 4096),
        "group_norm": cases.group_norm(512, 10, 4096),
        "argmax": cases.argmax(8192, 32000),
        "joined": cases.joined(16384, 4096),
    }
    return {n: list(cases.plan(c, chip, n).kernels) for n, c in made.items()}


@pytest.mark.parametrize("chip", CHIPS)
def test_no_kernel_spills(chip: str) -> None:
    target = load(chip)
    dialect = dialect_of(target)
    for name, kernels in families(chip).items():
        for kernel in kernels:
            found = assemble(emit(kernel, dialect), target)
            assert found.spill_bytes == 0, f"{name}: {found}"
            assert 0 < found.registers <= 255
            assert found.shared_bytes <= target.shared_per_block


@pytest.mark.parametrize("name", ["dropout", "softmax_long", "transpose"])
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"triton_{name}", emit(families()[name][0], "nvidia").text)


DRAWN: dict[str, tuple[Callable[[], cases.Case], int]] = {
    "line": (lambda: cases.dropout(4096, 4096), 8),
    "rows": (lambda: cases.dropped_rows(8192, 5120), 40),
    "columns": (lambda: cases.dropped_columns(8192, 1024), 16),
}
"""Nests that draw a random number for each element, and the elements of a thread."""


@pytest.mark.parametrize("name", DRAWN)
def test_four_neighbours_draw_from_one_counter(name: str) -> None:
    """A counter takes 20 products; each lane spells its own, and the compiler merges four."""
    case, elements = DRAWN[name]
    chip = load("h200")
    kernel = cases.plan(case(), chip).kernels[0]
    module = emit(kernel, dialect_of(chip))
    whole = [True] * len(module.sizes)
    source = source_of(imported(module, Cache()), module, aligned=True, whole=whole, wide=False)
    ptx = str(compiled(source, module, gpu_target(chip)).asm["ptx"])
    assert 0 < ptx.count("mul.wide.u32") < 8 * elements


@pytest.mark.parametrize("columns", [5, 16, 64])
def test_what_reads_again_begins_where_the_parts_ended(columns: int) -> None:
    """Parts take tiles in turn, so all of them end at the end; the last kernel begins there."""
    case = cases.centred_columns(4096, columns)
    made = cases.plan(case, dataclasses.replace(load("h200"), launch_us=0.0))
    assert [k.backwards for k in made.kernels] == [False, False, True]
    first, _, last = (emit(k, "nvidia").text for k in made.kernels)
    assert "num_programs" not in first and "num_programs(0) - 1 - tl.program_id(0)" in last
    arrays = case.inputs()
    stands(case, cases.run_triton(made, arrays), arrays)
    assert not any(k.backwards for k in cases.plan(cases.column_sum(131072, 64)).kernels)


def test_the_parts_of_a_column_are_joined_by_as_many_programs_as_fit() -> None:
    """512 rows of partial sums: 64 columns a program would leave most of the chip without one."""
    chip = load("h200")
    (kernel,) = cases.plan(cases.column_sum(512, 768), chip).kernels
    assert emit(kernel, "nvidia").grid == (48,)
    (kernel,) = cases.plan(cases.column_sum(512, 64 * 768), chip).kernels
    assert emit(kernel, "nvidia").grid == (768,)


def test_what_all_rows_of_a_tile_read_is_read_once() -> None:
    """Three vectors of 64 for one matrix: a flat line would read them for each of its elements."""
    case = cases.scaled(4096, 64)
    (kernel,) = cases.plan(case, load("h200")).kernels
    lanes = [s.tile for s in statements(kernel.body) if isinstance(s, Loop)]
    assert sorted(lanes) == [32, 64]
    (flat,) = cases.plan(cases.scaled(4096, 60), load("h200")).kernels
    assert len([s for s in statements(flat.body) if isinstance(s, Loop)]) == 1
    for columns in (60, 64):
        small = cases.scaled(37, columns)
        arrays = small.inputs()
        stands(small, cases.run_triton(cases.plan(small), arrays), arrays)


def test_split_families_have_work_for_the_chip() -> None:
    chip = load("h200")
    for name in ("column_sum", "full_reduce"):
        kernels = families()[name]
        assert len(kernels) == 2
        (programs,) = emit(kernels[0], "nvidia").grid
        assert isinstance(programs, int)
        assert programs >= 2 * chip.multiprocessors


def test_what_needs_no_sum_is_stored_by_the_parts_of_a_split_one() -> None:
    """One trip: x is read by the partial sums alone."""
    first, second = families()["column_sum_and_product"]
    assert {"x", "scaled"} <= {b.name for b in first.buffers}
    assert not {"x", "scaled"} & {b.name for b in second.buffers}


def test_offsets_are_wide_only_where_they_must_be() -> None:
    small = emit(cases.plan(cases.broadcast(4096, 4096)).kernels[0], "nvidia")
    large = emit(cases.plan(cases.broadcast(70_000, 70_000)).kernels[0], "nvidia")
    assert "int64" not in small.text
    assert "tl.program_id(0).to(tl.int64)" in large.text
    case = cases.symbolic_broadcast()
    open_ = emit(cases.plan(case).kernels[0], "nvidia")
    assert open_.constants == ("INDEX",)
    (n,) = open_.sizes
    assert not needs_wide(open_, {n: 9})
    assert needs_wide(open_, {n: 1 << 27})


def test_an_empty_grid_launches_nothing() -> None:
    case = cases.symbolic_broadcast()
    module = emit(cases.plan(case).kernels[0], "interpreter")
    TritonLaunch(module)([None] * len(module.arguments), [0])


def test_text_mentions_no_value_twice() -> None:
    """Common subexpressions and loop invariants: each load stands once, outside where it can."""
    kernel = families()["softmax"][0]
    text = emit(kernel, "nvidia").text
    assert text.count("tl.load(x") == 1
    assert text.count("ot_exp(") == 2  # its definition and one call


def test_a_walked_softmax_scales_its_sum_once_for_neighbours() -> None:
    """A step folds the elements that one thread holds before it touches the accumulators."""
    (kernel,) = families()["softmax_long"]
    carries = [s for s in statements(kernel.body) if isinstance(s, Carry)]
    (step,) = [s for s in statements(kernel.body) if isinstance(s, Assign)]
    (lane,) = carries[0].over
    near = {a for e in walk(step.values) if isinstance(e, Fold) for a in e.axes}
    assert len(carries) == 2
    assert [a.extent for a in near] == [4]
    assert lane.extent == 4096


def test_a_group_is_walked_along_the_axes_of_its_store() -> None:
    """Both passes take tiles of whole lanes; none goes element by element."""
    (kernel,) = families()["group_norm"]
    steps = [s for s in statements(kernel.body) if isinstance(s, Loop) and s.tile == 1]
    serial = [s.end for s in steps if s.mapping.value == "serial"]
    assert serial == [5, 5]


def test_equal_parts_of_an_axis_are_computed_side_by_side() -> None:
    (kernel,) = cases.plan(cases.joined(4096, 4096)).kernels
    text = emit(kernel, "nvidia").text
    assert text.count("tl.load(") == 2
    assert text.count("tl.store(") == 2
    assert "mask" not in text
    assert "where" not in text


def test_a_walked_reduction_inside_another_is_refused() -> None:
    p0, r0, r1 = Var("p0", 4), Var("r0", 1 << 15), Var("r1", 1 << 15)
    x = cases.Load("x", (r0 * (1 << 15) + r1 + p0,), cases.dt.f32)
    inside = cases.reduced("max", (r1,), x)
    value = cases.reduced("sum", (r0,), inside)
    nest = cases.Nest(
        (cases.Axis(p0),),
        (cases.buffer("x", cases.dt.f32, 1 << 31), cases.written("y", cases.dt.f32, 4)),
        (cases.Store("y", (p0,), value),),
    )
    with pytest.raises(Unsupported, match="long reduction inside another"):
        cases.plan(cases.Case(nest), load("h200"))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["symbolic_broadcast", "symbolic_softmax"])
def test_symbolic_sizes_compile_with_both_index_types(name: str, wide: bool) -> None:
    case = (cases.POINTWISE | cases.REDUCTIONS)[name]()
    module = emit(cases.plan(case, load("h200")).kernels[0], "nvidia")
    function = imported(module, Cache())
    source = source_of(function, module, aligned=True, whole=[False], wide=wide)
    text = compiled(source, module, gpu_target(load("h200"))).asm["ttir"]
    assert ("i64" in text.split("@")[1].split("\n")[0]) is wide


def test_large_static_sizes_compile() -> None:
    target = load("h200")
    for case in (cases.broadcast(70_000, 70_000), cases.softmax(1 << 17, 1 << 16)):
        for kernel in cases.plan(case, target).kernels:
            assert assemble(emit(kernel, "nvidia"), target).spill_bytes == 0
