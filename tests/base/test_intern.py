"""Equal trees are one object; numbers are told apart by type and bits; threads agree."""

from __future__ import annotations

import gc
import math
import struct
import threading
from dataclasses import dataclass

import pytest

from onetrip.base.dtype import f32, f64
from onetrip.base.intern import Interned, _table, key_of
from onetrip.base.sym import Size, Var
from onetrip.ir.expr import Const, Expr, Load, apply


@dataclass(frozen=True, eq=False)
class Pair(metaclass=Interned):
    left: object
    right: object = None


def test_equal_trees_are_one_object() -> None:
    def tree() -> Expr:
        x = Load("x", (Var("i", 4), 3), f32)
        return apply("add", apply("mul", x, x), Const(1.0, f32))

    assert tree() is tree()
    assert hash(tree()) == hash(tree())
    assert Size("s", 1) is Size(name="s", least=1)
    assert Size("s") is not Size("s", 1)


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        (0, False),
        (math.nan, OTHER_NAN),
        ((1, 2), (1, True)),
        ((0.0,), (-0.0,)),
        (1 + 0j, 1.0),
        (complex(0.0, 0.0), complex(0.0, -0.0)),
        ("f", None),
    ],
)
def test_numbers_differ_by_type_and_bits(a: object, b: object) -> None:
    assert Pair(a) is not Pair(b)
    assert Pair(a) is Pair(a)
    assert key_of(a) != key_of(b)


def test_constants_of_nan_are_one_object() -> None:
    assert Const(float("nan"), f32) is Const(math.nan, f32)
    assert Const(1.0, f32) is not Const(1.0, f64)


def test_classes_differ() -> None:
    @dataclass(frozen=True, eq=False)
    class Other(metaclass=Interned):
        left: object
        right: object = None

    assert Pair(1) is not Other(1)


def test_what_nobody_holds_is_forgotten() -> None:
    def held() -> int:
        return sum(key[0] is Pair and key[1] == "forgotten" for key in list(_table))

    kept = Pair("forgotten")
    assert held() == 1
    del kept
    gc.collect()
    assert held() == 0


def test_threads_get_the_same_objects() -> None:
    made: list[list[Pair]] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        made.append([Pair(("thread", k), Pair(k)) for k in range(300)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8
    assert all(len({id(row[k]) for row in made}) == 1 for k in range(300))


def test_fields_by_name_and_by_default_find_the_same_instance() -> None:
    assert Size("n") is Size("n", 0) is Size(least=0, name="n")
    for wrong in (lambda: Size("n", 0, 1), lambda: Size("n", most=3), lambda: Var("i")):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            wrong()
