"""Loops over lanes in pieces, and array functions below reductions, beside the interpreter."""

from __future__ import annotations

from dataclasses import replace

import cpp_nests as nests
import numpy as np
import pytest
from cpp_run import Case, check, text_of

from onetrip.base.dtype import DType, bf16, bool_, f32, f64, i16
from onetrip.base.sym import Var, add
from onetrip.ir.expr import Apply, Cast, Const, Expr, Load, Position, Reduced, Reduction, apply
from onetrip.ir.kernel import Scratch, statements
from onetrip.ir.monoid import number
from onetrip.ir.nest import Access, Axis, Nest, Store
from onetrip.ir.verify import verify

ROWS = 70


def joined(edge: int, width: int, op: str) -> Nest:
    """[erf(x[:edge]), x[edge:]] of each row, chosen by place as a concatenation does."""
    i, j = Var("p0", ROWS), Var("p1", width)
    at = add(i * width, j)
    below = Apply(op, (Position(j), Const(edge - (op == "le"), Position(j).dtype)), bool_)
    above = Apply("logical_not", (below,), bool_)
    left: Expr = apply("erf", Load("x", (at,), f32, below))
    value = Apply("where", (below, left, Load("x", (at,), f32, above)), f32)
    shape = (ROWS * width,)
    buffers = (nests.read("x", f32, shape), nests.written("y", f32, shape))
    return Nest((Axis(i), Axis(j)), buffers, (Store("y", (at,), value),))


def joined_twice() -> Nest:
    """Two results of one concatenation, both read before either is written."""
    nest = joined(32, 64, "lt")
    store = nest.stores[0]
    buffers = (*nest.buffers, nests.written("z", f32, nest.buffers[1].type.shape))
    other = Store("z", store.index, apply("neg", store.value))
    return Nest(nest.space, buffers, (store, other))


def doubled(half: int, op: str, shift: int) -> Nest:
    """[f(x), -f(x)] of rows of `half` numbers; the second part reads them `shift` places on."""
    i, j = Var("p0", ROWS), Var("p1", 2 * half)
    below = Apply("lt", (Position(j), Const(half, Position(j).dtype)), bool_)
    above = Apply("logical_not", (below,), bool_)
    row = i * (half + shift)
    left = Load("x", (add(row, j),), f32, below)
    right = Load("x", (add(add(row, j), shift - half),), f32, above)
    value = Apply("where", (below, apply(op, left), apply("neg", apply(op, right))), f32)
    buffers = (nests.read("x", f32, (ROWS * (half + shift),)),
               nests.written("y", f32, (ROWS * 2 * half,)))  # fmt: skip
    store = Store("y", (add(i * (2 * half), j),), value)
    return Nest((Axis(i), Axis(j)), buffers, (store,))


def curved(width: int, twice: bool) -> Nest:
    """The mean of erf(x) of each row, and erf(x) less it where asked."""
    i, j = Var("p0", ROWS), Var("r0", width)
    curve = apply("erf", Load("x", (add(i * width, j),), f32))
    total = Reduced(Reduction("sum", (j,), (curve,)), 0, f32)
    mean = apply("div", total, number(width, f32))
    buffers = [nests.read("x", f32, (ROWS * width,)), nests.written("m", f32, (ROWS,))]
    stores = [Store("m", (i,), mean)]
    if twice:
        buffers.append(nests.written("y", f32, (ROWS * width,)))
        stores.append(Store("y", (add(i * width, j),), apply("sub", curve, mean), (j,)))
    return Nest((Axis(i),), tuple(buffers), tuple(stores))


def case(nest: Nest) -> Case:
    (size,) = nest.buffer("x").type.shape
    rng = np.random.default_rng(3)
    return nest, {"x": nests.data(rng, f32, int(str(size)))}, {}


@pytest.mark.parametrize("op", ["lt", "le"])
def test_nothing_is_chosen_in_a_piece(op: str) -> None:
    kernels = check(*(case(joined(edge, width, op)) for edge, width in ((32, 64), (512, 1000))))
    for kernel in kernels:
        text = text_of(kernel)
        assert "where" not in text
        assert "iota" not in text


def test_every_piece_has_names_of_its_own() -> None:
    (kernel,) = check(case(joined_twice()))
    verify(kernel)
    assert "_from32" in text_of(kernel)


@pytest.mark.parametrize("op", ["exp", "erf"])
@pytest.mark.parametrize("half", [32, 512, 1024])
def test_pieces_that_read_the_same_are_walked_at_once(half: int, op: str) -> None:
    once, twice = check(case(doubled(half, op, 0)), case(doubled(half, op, 16)))
    verify(once)
    assert [k.body[0].body[0].stop for k in (once, twice)] == [half, half]
    assert [len(k.body[0].body) for k in (once, twice)] == [1, 2]
    called = "erf_n(" if op == "erf" else "exp("
    assert 2 * text_of(once).count(called) == text_of(twice).count(called) > 0


def softmax(dtype: DType, columns: int, results: int) -> Case:
    """The softmax of 9 rows, stored twice where asked."""
    nest = nests.softmax(dtype, 9, columns)
    (store,) = nest.stores
    if results == 2:
        other = replace(nest.buffer("y"), name="z")
        nest = replace(
            nest, buffers=(*nest.buffers, other), stores=(store, replace(store, buffer="z"))
        )
    return nest, {"a": nests.data(np.random.default_rng(3), dtype, 9, columns)}, {}


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("results", [1, 2])
def test_a_row_lies_in_the_output_that_takes_its_place(dtype: DType, results: int) -> None:
    """Of f32 exponentials; in bf16 they would be rounded, and two results both read them."""
    for kernel in check(softmax(dtype, 700, results), softmax(dtype, 5000, results)):
        verify(kernel)
        held = any(isinstance(s, Scratch) for s in statements(kernel.body))
        assert held is (dtype is bf16 or results == 2)


def test_a_piece_begins_at_a_whole_vector() -> None:
    (kernel,) = check(case(joined(20, 64, "lt")))
    assert "where" in text_of(kernel)


@pytest.mark.parametrize("twice", [False, True])
def test_one_call_serves_many_elements_of_a_row(twice: bool) -> None:
    for kernel in check(*(case(curved(width, twice)) for width in (40, 513, 1024))):
        text = text_of(kernel)
        assert "ot::vml::erf_n(" in text
        assert text.count("ot::vml::erf(") <= 1, "a single vector is called for in the rest alone"


def test_what_depends_on_the_column_alone_is_computed_once_for_all_rows() -> None:
    nest = nests.normalized(5000, 64, dim=0)
    rng = np.random.default_rng(3)
    inputs = {b.name: nests.data(rng, f32, *(int(str(d)) for d in b.type.shape))
              for b in nest.buffers if b.access is Access.READ}  # fmt: skip
    (kernel,) = check((nest, inputs, {}))
    assert kernel.family == "split"
    rows = text_of(kernel).rsplit("#pragma omp for", 1)[1]
    assert "rsqrt" not in rows
    assert " / " not in rows


@pytest.mark.parametrize("dtype", [f32, f64, bf16, bool_, i16], ids=str)
def test_a_tile_is_turned_around_in_registers(dtype: DType) -> None:
    cases = []
    for rows, columns in ((192, 256), (193, 350), (300, 177)):
        i, j = Var("p0", rows), Var("p1", columns)
        x = Load("x", (add(j * rows, i),), dtype)
        shape = (rows * columns,)
        buffers = (nests.read("x", dtype, shape), nests.written("y", dtype, shape))
        store = Store("y", (add(i * columns, j),), Cast(Cast(x, f32), dtype), ())
        nest = Nest((Axis(i), Axis(j)), buffers, (store,))
        cases.append((nest, {"x": nests.data(np.random.default_rng(1), dtype, *shape)}, {}))
    for kernel in check(*cases):
        assert kernel.family == "transpose"
        assert "ot::transpose(" in text_of(kernel)
