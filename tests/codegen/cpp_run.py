"""Compiles a nest for this machine, runs it, and judges it beside the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from onetrip.base.dtype import bf16, f16, f32, f64
from onetrip.base.float8 import LAYOUTS
from onetrip.base.sym import Sym
from onetrip.codegen.cpp import Segment, emit_unit
from onetrip.codegen.cpp_prelude import prelude_text
from onetrip.codegen.schedule_cpu import schedule
from onetrip.interp.arrays import carrier, convert
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.expr import Cast, Const, Expr, Load, Rewriter
from onetrip.ir.kernel import Facts, Kernel
from onetrip.ir.nest import Access, Buffer, Nest, Store
from onetrip.ir.types import TensorType, concrete
from onetrip.passes.collapse import collapse
from onetrip.runtime.build_cpp import CppUnit, build
from onetrip.runtime.cache import Cache
from onetrip.target.load import load

Array = np.ndarray[Any, Any]
POISON = 0xA5


@cache
def cache_() -> Cache:
    return Cache()


def kernel_of(nest: Nest, name: str = "kernel") -> Kernel:
    """The one kernel of a nest."""
    (made,) = schedule(collapse(nest), load("cpu"), name=name, facts=Facts()).kernels
    return made


def segment_of(kernel: Kernel) -> Segment:
    slots = tuple(range(len(kernel.buffers)))
    sizes = tuple(range(len(kernel.sizes)))
    return Segment(f"run_{kernel.name}", ((kernel.name, slots, sizes),))


def text_of(*kernels: Kernel) -> str:
    return emit_unit(kernels, [segment_of(k) for k in kernels])


def built(kernels: Sequence[Kernel]) -> list[Any]:
    """One function for each kernel, from one unit."""
    (library,) = build([CppUnit("unit", text_of(*kernels))], prelude_text(), cache=cache_())
    return [library[segment_of(k).name] for k in kernels]


def call(
    function: Any,
    kernel: Kernel,
    memory: Mapping[str, Array],
    sizes: Mapping[Sym, int],
    threads: int,
) -> int:
    """Runs a built kernel on arrays of the interpreter's carrier types, in place."""
    raw = {b.name: _raw(memory[b.name], b) for b in kernel.buffers}
    pointers = (ctypes.c_void_p * max(1, len(raw)))(
        *(raw[b.name].ctypes.data for b in kernel.buffers)
    )
    numbers = (ctypes.c_int64 * max(1, len(kernel.sizes)))(*(sizes[s] for s in kernel.sizes))
    code = int(function(pointers, numbers, threads))
    for b in kernel.buffers:
        if b.access is not Access.READ:
            memory[b.name][...] = _back(raw[b.name], b).reshape(memory[b.name].shape)
    return code


def _raw(x: Array, b: Buffer) -> Array:
    if b.type.dtype is bf16:
        bits = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(x).reshape(-1).copy()


def _back(x: Array, b: Buffer) -> Array:
    if b.type.dtype is bf16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x


def run(
    nest: Nest,
    inputs: Mapping[str, Array],
    sizes: Mapping[Sym, int] | None = None,
    threads: int = 2,
) -> dict[str, Array]:
    """The written buffers of a nest, flat; raises when the kernel reports an error."""
    kernel = kernel_of(nest)
    (function,) = built([kernel])
    known = dict(sizes or {})
    memory = memory_of(kernel, inputs, known)
    code = call(function, kernel, memory, known, threads)
    if code:
        raise ArithmeticError(code)
    return {b.name: memory[b.name] for b in kernel.buffers if b.access is not Access.READ}


def memory_of(
    kernel: Kernel, inputs: Mapping[str, Array], sizes: Mapping[Sym, int]
) -> dict[str, Array]:
    out = {}
    for b in kernel.buffers:
        count = concrete(b.type.numel, dict(sizes))
        if b.name in inputs:
            out[b.name] = np.array(inputs[b.name]).reshape(-1).copy()
        else:
            kind = carrier(b.type.dtype)
            out[b.name] = np.full(count * kind.itemsize, POISON % 2, np.uint8).view(kind)
    return out


def wide(nest: Nest) -> Nest:
    """The same nest with every floating-point value in f64: the reference."""

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Cast) and e.arg.dtype is f64 and e.dtype in (bf16, f16, f32):
            return e.arg
        return None

    def double(e: Expr) -> Expr | None:
        if isinstance(e, Const) and e.dtype in (f32, bf16, f16):
            return Const(e.value, f64)
        if isinstance(e, Load) and e.dtype in (f32, bf16, f16):
            other = None if e.other is None else Const(e.other.value, f64)
            return Load(e.buffer, e.index, f64, e.guard, other)
        return node(_retyped(e))

    rewrite = Rewriter(node=double)
    stores = tuple(
        Store(s.buffer, tuple(map(rewrite.dim, s.index)), rewrite(s.value), s.axes, s.combine,
              None if s.guard is None else rewrite(s.guard))
        for s in nest.stores
    )  # fmt: skip
    return Nest(nest.space, tuple(map(_wide_buffer, nest.buffers)), stores)


def _retyped(e: Expr) -> Expr:
    import dataclasses

    from onetrip.ir.expr import Apply, Reduced, Scanned

    if e.dtype in (f32, bf16, f16):
        if isinstance(e, Apply):
            first = e.args[-1]
            return Apply(e.op, e.args, first.dtype)
        if isinstance(e, Cast):
            return Cast(e.arg, f64)
        if isinstance(e, Reduced):
            return Reduced(e.reduction, e.component, e.reduction.lift[e.component].dtype)
        if isinstance(e, Scanned):
            return dataclasses.replace(e, dtype=e.lift[e.component].dtype)
    return e


def _wide_buffer(b: Buffer) -> Buffer:
    if b.type.dtype in (f32, bf16, f16):
        return Buffer(b.name, TensorType(f64, b.type.shape, b.type.strides), b.access)
    return b


def reference(
    nest: Nest, inputs: Mapping[str, Array], sizes: Mapping[Sym, int] | None = None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(what the interpreter computes, what it computes in f64)."""
    near = run_nest(nest, {k: v.copy() for k, v in inputs.items()}, sizes)
    doubles = {
        k: v.astype(np.float64) if v.dtype.kind == "f" else v.copy() for k, v in inputs.items()
    }
    far = run_nest(wide(nest), doubles, sizes)
    return near, far


_DIGITS = {bf16: 8, f16: 11, f32: 24, f64: 53}
_TINY = {bf16: 2.0**-126, f16: 2.0**-14, f32: 2.0**-126, f64: 2.0**-1022}


def assert_close(
    nest: Nest, found: Mapping[str, Array], near: Mapping[str, Array], far: Mapping[str, Array]
) -> None:
    """At most 2x the interpreter's own distance from f64, plus 4 ulp of the largest value."""
    for name, x in found.items():
        dtype = nest.buffer(name).type.dtype
        mine, its, true = x.reshape(-1), near[name].reshape(-1), far[name].reshape(-1)
        if dtype in LAYOUTS:
            mine, its = (convert(v, dtype, f32) for v in (mine, its))
        if not dtype.is_float or dtype in LAYOUTS:
            np.testing.assert_array_equal(mine, its, err_msg=name)
            continue
        with np.errstate(all="ignore"):
            mine64, its64 = mine.astype(np.float64), its.astype(np.float64)
            finite = np.isfinite(true) & np.isfinite(its64)
            np.testing.assert_array_equal(mine64[~finite], its64[~finite], err_msg=name)
            largest = float(np.max(np.abs(true[finite]), initial=0.0))
            ulp = max(largest, _TINY[dtype]) * 2.0 ** (1 - _DIGITS[dtype])
            allowed = 2 * np.max((np.abs(its64 - true) / ulp)[finite], initial=0.0) + 4
            off = finite & ~(np.abs(mine64 - true) / ulp <= allowed)
        assert not off.any(), (
            f"{name}: {mine64[off][:4]} but {true[off][:4]}, interpreter {its64[off][:4]}"
        )


Case = tuple[Nest, Mapping[str, Array], Mapping[Sym, int]]


def check(*cases: Case, threads: int = 2) -> list[Kernel]:
    """Runs nests, all from one unit, and holds each against the interpreter."""
    kernels = [kernel_of(nest, f"kernel{k}") for k, (nest, _, _) in enumerate(cases)]
    for function, kernel, (nest, inputs, sizes) in zip(built(kernels), kernels, cases, strict=True):
        memory = memory_of(kernel, inputs, sizes)
        code = call(function, kernel, memory, sizes, threads)
        assert code == 0, f"{kernel.name}: error {code}"
        near, far = reference(nest, inputs, sizes)
        found = {b.name: memory[b.name] for b in kernel.buffers if b.access is not Access.READ}
        assert_close(nest, found, near, far)
    return kernels
