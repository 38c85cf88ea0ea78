"""What is printed can be read back, differs where the IR differs, and is the same in every run."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from dataclasses import replace

import golden_kernels
import pytest
from generated import graphs, nests
from hypothesis import given, settings

from onetrip.base.dtype import f32, i64
from onetrip.base.errors import UsageError
from onetrip.base.sym import Poly, Quotient, Size, Var
from onetrip.ir.expr import Const, Load, Position, apply
from onetrip.ir.graph import Graph, Node, Value
from onetrip.ir.kernel import Kernel, Loop
from onetrip.ir.nest import Access, Axis, Buffer, Nest, Store
from onetrip.ir.parser import parse
from onetrip.ir.printer import listing, text
from onetrip.ir.types import TensorType

QUICK = settings(max_examples=150, deadline=None, derandomize=True)


@QUICK
@given(nests())
def test_nests_are_read_back(nest: Nest) -> None:
    found = parse(text(nest))
    assert found == nest
    assert isinstance(found, Nest)
    assert all(a.value is b.value for a, b in zip(found.stores, nest.stores, strict=True))


@QUICK
@given(graphs())
def test_graphs_are_read_back(graph: Graph) -> None:
    found = parse(text(graph))
    assert text(found) == text(graph)
    assert repr(found) == repr(graph)  # compares NaN and signed zeros by their text


@QUICK
@given(nests(), nests())
def test_different_nests_have_different_texts(a: Nest, b: Nest) -> None:
    assert (text(a) == text(b)) == (a == b)


@pytest.mark.parametrize("value", [0.0, -0.0, math.inf, -math.inf, 1e-45, 0.1, 2.0**70])
def test_every_float_comes_back(value: float) -> None:
    assert constant_of(parse(text(storing(Const(value, f32))))) is Const(value, f32)


def test_a_nan_keeps_its_bits() -> None:
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    for value in (math.nan, other):
        assert constant_of(parse(text(storing(Const(value, f32))))) is Const(value, f32)


def storing(value: Const) -> Nest:
    return Nest(
        (), (Buffer("y", TensorType.dense(f32, ()), Access.WRITE),), (Store("y", (), value),)
    )


def constant_of(nest: object) -> object:
    assert isinstance(nest, Nest)
    return nest.stores[0].value


def test_unsimplified_indices_come_back_as_they_are() -> None:
    i = Var("i", 4)
    odd = Poly(((2, (Quotient(i, 9),)), (1, (i,)), (5, ())))
    y = Buffer("y", TensorType.dense(i64, (99,)), Access.WRITE)
    nest = Nest((Axis(i),), (y,), (Store("y", (odd,), Position(i)),))
    found = parse(text(nest))
    assert isinstance(found, Nest)
    assert found.stores[0].index[0] is odd


def test_axes_of_one_name_are_told_apart() -> None:
    a, b = Var("i", 4), Var("i", 5)
    y = Buffer("y", TensorType.dense(i64, (4, 5)), Access.WRITE)

    def nest(value: Var) -> Nest:
        return Nest((Axis(a), Axis(b)), (y,), (Store("y", (a, b), Position(value)),))

    assert text(nest(a)) != text(nest(b))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[i] = %0", "y[j] = %0"),
        ("f32[4]", "f31[4]"),
        ("%0 = load x[i]: f32", "%0 = load x[i]"),
        ("y[i] = %0", "y[i] = %1"),
        ("space i: 4", "space i"),
        ("nest {", "kernel {"),
    ],
)
def test_what_cannot_be_read_says_where(old: str, new: str) -> None:
    i = Var("i", 4)
    form = TensorType.dense(f32, (4,))
    buffers = (Buffer("x", form, Access.READ), Buffer("y", form, Access.WRITE))
    good = text(Nest((Axis(i),), buffers, (Store("y", (i,), Load("x", (i,), f32)),)))
    assert old in good
    with pytest.raises(UsageError, match=r"cannot be read|no such level"):
        parse(good.replace(old, new))


def test_comments_are_no_part_of_the_text() -> None:
    kernel = golden_kernels.scatter_add(5, 3)
    other = replace(kernel, facts=replace(kernel.facts, ops=("index_put",), flops=9))
    assert text(kernel) == text(other)
    assert text(kernel, comments=True) != text(other, comments=True)
    assert "#" not in text(kernel)


def test_kernels_that_differ_in_a_loop_differ_in_text() -> None:
    kernel = golden_kernels.running_sum(3, 4)
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    changed = [replace(loop, tile=4), replace(loop, stop=2), replace(loop, start=1)]
    kernels: list[Kernel] = [replace(kernel, body=(s,)) for s in (loop, *changed)]
    assert len({text(k) for k in kernels}) == 4


def test_the_line_of_an_object_is_marked() -> None:
    form = TensorType.dense(f32, (4,))
    x, y = Value("x", form), Value("y", form)
    node = Node("neg", (x,), (y,))
    lines = listing(Graph((x,), (node,), (y,)))
    assert lines.around(node, reach=1).splitlines()[1] == "-->    3 |   y: f32[4] = neg(x) call -1"
    assert "-->" not in lines.around(object())


def test_texts_are_the_same_in_another_process() -> None:
    """Hash seeds differ between processes; texts must not."""
    code = (
        "from onetrip.base.sym import *; from onetrip.ir.expr import *;"
        "from onetrip.base.dtype import *;"
        "i, j, s = Var('i', 4), Var('j', 5), Size('s');"
        "read = indirect(Load('n', (i,), i64), 7);"
        "print(j*s + i*s + read*3 + read*j, apply('add', Rng(Load('n', (i,), i64), j)).digest)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_sizes_with_other_least_values_differ() -> None:
    def nest(size: Size) -> Nest:
        i = Var("i", size)
        y = Buffer("y", TensorType.dense(f32, (size,)), Access.WRITE)
        value = apply("neg", Const(1.0, f32))
        return Nest((Axis(i),), (y,), (Store("y", (i,), value),))

    one, two = nest(Size("s", 1)), nest(Size("s", 2))
    assert text(one) != text(two)
    assert parse(text(two)) == two
