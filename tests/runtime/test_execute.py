"""A program as one function: its inputs, its writes back, its frames."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from onetrip.api.backend import build_captured
from onetrip.base.dtype import f32, i32
from onetrip.base.options import Options
from onetrip.base.sym import Size
from onetrip.codegen.cpp_prelude import prelude_text
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.ir.graph import Ref, Scalar, Value
from onetrip.ir.program import Alias, Alloc, Bind, Call, Free, Program, Update
from onetrip.ir.types import TensorType
from onetrip.runtime.build_cpp import CppUnit
from onetrip.runtime.cache import Cache
from onetrip.runtime.cpu import CpuBackend
from onetrip.runtime.execute import Executable
from onetrip.runtime.frame import Frame, Native

PRELUDE = prelude_text()
BACKEND = CpuBackend(lambda segments: [], "", Cache(None))
PAIR = TensorType.dense(f32, (2,))
X, Y, Z = (Value(name, PAIR) for name in "xyz")


def ran(program: Program, *arguments: Any, constants: tuple[Any, ...] = ()) -> list[Any]:
    checked = frozenset(range(len(program.inputs)))
    given = list(arguments)
    results = Executable(program, BACKEND, checked, constants).run(given)
    assert not given, "the list of arguments is emptied"
    return results


def added(out: Value, *of: Value, into: bool = False) -> Call:
    return Call("aten.add.out" if into else "aten.add.Tensor", of, (out,), (Ref(0), Ref(1)), (),
                out=into)  # fmt: skip


def test_writes_of_one_pair_of_dtypes_are_one_call() -> None:
    whole = TensorType.dense(i32, (2,))
    inputs = [Value(f"a{k}", whole if k == 2 else PAIR) for k in range(6)]
    steps = tuple(Update(f"a{k}", f"a{k + 1}") for k in (0, 2, 4))
    program = Program(tuple(inputs), steps, ())
    tensors = [torch.full((2,), float(k)).to(torch.int32 if k == 2 else torch.float32)
               for k in range(6)]  # fmt: skip
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ran(program, *tensors)
    calls = [e for e in profile.events() if e.name == "aten::_foreach_copy_"]
    assert len(calls) == 2
    assert [t[0].item() for t in tensors] == [1, 1, 3, 3, 5, 5]


def test_constants_stand_behind_the_inputs() -> None:
    program = Program((X, Y), (added(Z, X, Y),), ("z",))
    (z,) = ran(program, torch.ones(2), constants=(torch.full((2,), 4.0),))
    assert z.tolist() == [5, 5]


def test_what_lies_in_the_arena_is_placed_once_a_frame() -> None:
    kept, turned = Value("kept", PAIR), Value("turned", TensorType.dense(f32, (1, 2)))
    steps = (Alloc(kept, 0), added(kept, X, Y, into=True), Alias(turned, "kept"),
             added(Z, turned, X), Free("kept"))  # fmt: skip
    run = Executable(Program((X, Y), steps, ("z",), arena_bytes=64), BACKEND)
    assert "as_strided" not in run.text.split("def prepare")[0]
    for y in (1.0, 2.0):
        (z,) = run([torch.ones(2), torch.full((2,), y)])
        assert z.tolist() == [[2 + y, 2 + y]]
    (frame,) = run._free[0]
    held = {t.untyped_storage().data_ptr() for t in frame.tensors if t is not None}
    assert held == {frame.base}


def test_symbolic_sizes_and_results_that_are_numbers() -> None:
    n = Size("n")
    row = Value("row", TensorType.dense(f32, (n,)))
    whole = Value("whole", TensorType.dense(f32, (n,)))
    steps = (Bind(n, "row", 0), Alloc(whole, 4 * n), added(whole, row, row, into=True),
             added(Z, whole, row))  # fmt: skip
    program = Program((row,), steps, ("z", Scalar(n * 2 + 1), None), (n,), arena_bytes=8 * n)
    run = Executable(program, BACKEND)
    for length in (3, 50, 2):
        z, number, nothing = run([torch.ones(length)])
        assert (z.tolist(), number, nothing) == ([3.0] * length, 2 * length + 1, None)


def test_a_frame_whose_call_failed_is_dropped() -> None:
    program = Program((X, Y), (added(Z, X, Y),), ("z",))
    run = Executable(program, BACKEND)
    run([torch.ones(2), torch.ones(2)])
    with pytest.raises(RuntimeError, match="size of tensor"):
        run([torch.ones(2), torch.ones(3)])
    assert run._free == {0: []}
    assert run([torch.ones(2), torch.ones(2)])[0].tolist() == [2, 2]


def test_kernels_take_pointers_by_table_or_one_by_one() -> None:
    """Both ways a program calls a run of kernels, beside each other: the same function."""
    text = """
    extern "C" __attribute__((visibility("default")))
    int segment_0(void* const* slots, const int64_t* sizes, int threads) {
      const float* x = (const float*)slots[0];
      float* y = (float*)slots[1];
      for (int i = 0; i < 2; i++) y[i] = 2 * x[i];
      return x[0] < 0 ? 2 : 0;
    }
    """
    backend = CpuBackend(lambda segments: [CppUnit("doubling", text)], PRELUDE, Cache(None))
    (native,) = backend.build([[]])
    assert isinstance(native, Native)
    assert native.each is not None
    x, y = torch.tensor([3.0, 4.0]), torch.zeros(2)
    assert native.each(x.data_ptr(), y.data_ptr(), 1) == 0
    assert y.tolist() == [6, 8]
    table = (ctypes.c_void_p * 2)(x.data_ptr(), y.zero_().data_ptr())
    frame = Frame(table, [None, None], (ctypes.c_int64 * 1)())
    native(frame)
    assert y.tolist() == [6, 8]
    x.neg_()
    with pytest.raises(IndexError):
        native(frame)


@pytest.mark.parametrize("width", [64, 100_000])
def test_a_program_of_kernels_alone_needs_no_frame(width: int) -> None:
    seen: list[Executable] = []

    def watched(captured: CapturedGraph) -> Any:
        seen.append(build_captured(captured, Options()).run)
        return seen[-1].run

    f = torch.compile(
        lambda x: torch.sigmoid(x * 2 + 1) * x, backend=make_backend(watched), dynamic=False
    )
    x = torch.randn(width)
    assert torch.equal(f(x), torch.sigmoid(x * 2 + 1) * x)
    (run,) = seen
    assert "idle" not in run.text
    turned = torch.randn(width, 2)[:, 0]
    assert torch.equal(run([turned])[0], f(turned.contiguous()))
