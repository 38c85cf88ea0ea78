"""Bytes and operations of nests whose figures can be counted by hand."""

from __future__ import annotations

from onetrip.base.dtype import bf16, f32, i64
from onetrip.base.sym import Size, Var
from onetrip.cost.sizes import number, smaller
from onetrip.cost.traffic import image, stages, traffic, work
from onetrip.ir.expr import Const, Expr, Load, Reduced, Reduction, Rng, apply, cast, indirect
from onetrip.ir.nest import Access, Axis, Buffer, Combine, Nest, Store
from onetrip.ir.types import TensorType

ROWS, WIDTH = 64, 256
P, J, R = Var("i", ROWS), Var("j", WIDTH), Var("r", WIDTH)


def nest(value: Expr, out: tuple[int, ...] = (ROWS, WIDTH), **buffers: TensorType) -> Nest:
    index = (P, J)[: len(out)]
    reads = tuple(Buffer(n, t, Access.READ) for n, t in buffers.items())
    made = Buffer("y", TensorType.dense(bf16, out), Access.WRITE)
    store = Store("y", index, cast(value, bf16))
    return Nest(tuple(Axis(v) for v in index), (*reads, made), (store,))


def wide(buffer: str, *index: object) -> Expr:
    return cast(Load(buffer, index, bf16), f32)  # type: ignore[arg-type]


MATRIX = TensorType.dense(bf16, (ROWS, WIDTH))
BIAS = TensorType.dense(bf16, (WIDTH,))


def test_a_broadcast_operand_is_read_once() -> None:
    moved = traffic(nest(apply("add", wide("x", P, J), wide("b", J)), x=MATRIX, b=BIAS))
    sizes = {r.buffer: r.bytes for r in moved.reads}
    assert sizes == {"x": ROWS * WIDTH * 2, "b": WIDTH * 2}
    assert moved.bytes_written == ROWS * WIDTH * 2


def test_reading_an_element_twice_moves_it_once() -> None:
    moved = traffic(nest(apply("mul", wide("x", P, J), wide("x", P, J)), x=MATRIX))
    assert moved.bytes_read == ROWS * WIDTH * 2


def test_two_halves_are_counted_apart_and_never_beyond_the_buffer() -> None:
    half = TensorType.dense(bf16, (ROWS, 2 * WIDTH))
    two = apply("add", wide("x", P, J), wide("x", P, J + WIDTH))
    assert traffic(nest(two, x=half)).bytes_read == ROWS * 2 * WIDTH * 2
    shifted = apply("add", wide("x", P, J), wide("x", P, (J + 1) % WIDTH))
    assert traffic(nest(shifted, x=MATRIX)).bytes_read == ROWS * WIDTH * 2


def test_a_repeated_element_counts_once() -> None:
    assert image((P // 2, J)) == ROWS // 2 * WIDTH
    assert image((P, 0)) == ROWS
    assert image((J * 0 + 3,)) == 1


def test_an_indirect_row_reads_no_more_than_its_points() -> None:
    table = TensorType.dense(bf16, (50_000, WIDTH))
    ids = TensorType.dense(i64, (ROWS,))
    row = indirect(Load("ids", (P,), i64), 50_000)
    moved = traffic(nest(wide("t", row, J), t=table, ids=ids))
    assert {r.buffer: r.bytes for r in moved.reads} == {"t": ROWS * WIDTH * 2, "ids": ROWS * 8}


def test_an_accumulating_store_reads_too() -> None:
    plain = nest(wide("x", P, J), x=MATRIX)
    (store,) = plain.stores
    added = Store("y", store.index, store.value, combine=Combine.ADD)
    moved = traffic(Nest(plain.space, plain.buffers, (added,)))
    assert moved.bytes_read == 2 * traffic(plain).bytes_read


def softmax() -> Nest:
    top = Reduced(Reduction("max", (R,), (wide("x", P, R),)), 0, f32)
    total = Reduced(
        Reduction("sum", (R,), (apply("exp", apply("sub", wide("x", P, R), top)),)), 0, f32
    )
    value = apply("div", apply("exp", apply("sub", wide("x", P, R), top)), total)
    store = Store("y", (P, R), cast(value, bf16), axes=(R,))
    buffers = (Buffer("x", MATRIX, Access.READ), Buffer("y", MATRIX, Access.WRITE))
    return Nest((Axis(P),), buffers, (store,))


def test_dependent_reductions_are_passes_that_read_again() -> None:
    made = softmax()
    assert len(stages(made)) == 3
    moved = traffic(made)
    assert moved.bytes_read == ROWS * WIDTH * 2
    assert [(r.buffer, r.bytes) for r in moved.rereads] == [("x", 2 * ROWS * WIDTH * 2)]


def test_independent_reductions_share_a_pass() -> None:
    a, b = (Reduced(Reduction(m, (R,), (wide("x", P, R),)), 0, f32) for m in ("max", "sum"))
    made = nest(apply("add", a, b), out=(ROWS,), x=MATRIX)
    assert len(stages(made)) == 1
    assert traffic(made).rereads == ()


def test_operations_of_a_row_are_counted_for_rows_only() -> None:
    per_row = apply("mul", wide("s", P), Const(2.0, f32))
    row = TensorType.dense(bf16, (ROWS,))
    done = work(nest(apply("add", per_row, wide("x", P, J)), s=row, x=MATRIX))
    assert dict(done.flops) == {"f32": ROWS * WIDTH + ROWS}


def test_a_reduction_counts_its_combinations() -> None:
    made = nest(Reduced(Reduction("sum", (R,), (wide("x", P, R),)), 0, f32), out=(ROWS,), x=MATRIX)
    assert dict(work(made).flops) == {"f32": ROWS * WIDTH}


def test_special_functions_and_random_numbers_have_units_of_their_own() -> None:
    done = work(nest(apply("exp", wide("x", P, J)), x=MATRIX))
    assert done.special == ROWS * WIDTH
    drawn = work(nest(Rng(Const(1, i64), P * WIDTH + J)))
    assert drawn.integer > 10 * ROWS * WIDTH and drawn.special == 0


def test_symbolic_sizes_stay_formulas() -> None:
    n = Size("n", 2)
    rows = Var("i", n)
    kind = TensorType.dense(bf16, (n, WIDTH))
    buffers = (Buffer("x", kind, Access.READ), Buffer("y", kind, Access.WRITE))
    store = Store("y", (rows, J), Load("x", (rows, J), bf16))
    moved = traffic(Nest((Axis(rows), Axis(J)), buffers, (store,)))
    assert moved.bytes_read is n * WIDTH * 2
    assert number(moved.bytes, {n: 10}) == 2 * 10 * WIDTH * 2


def test_the_smaller_formula_is_proved_or_taken_at_the_hints() -> None:
    n, m = Size("n", 1), Size("m", 1)
    assert smaller(n, n + 1) is n
    assert smaller(n, m, {n: 5, m: 3}) is m
    assert smaller(n, m, {n: 3, m: 5}) is n
