"""What a launch hands to the compiled kernel, and how little Python stands before it."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onetrip.base.errors import ToolchainError
from onetrip.base.sym import Size, ceildiv
from onetrip.codegen.triton import TritonText
from onetrip.runtime import triton_build
from onetrip.runtime.triton_build import TritonLaunch, TritonModule

TEXT = """import triton
import triton.language as tl


@triton.jit
def kernel(a, b, n):
    pass
"""
N = Size("n")
FIXED = TritonText(TEXT.replace(", n", ""), "kernel", (("a", "*fp32"), ("b", "*fp32")), (7,), 4, 1)
SIZED = replace(
    FIXED,
    text=TEXT,
    arguments=(*FIXED.arguments, ("n", "index")),
    grid=(ceildiv(N, 64),),
    limits=(N,),
    sizes=(N,),
)


class Compiled:
    """A kernel that keeps what it is launched with."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, log: list[tuple[Any, ...]], variant: tuple[Any, ...]) -> None:
        self.log, self.variant = log, variant

    def run(self, *arguments: Any) -> None:
        self.log.append((self.variant, *arguments))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every launch, after the variant that it ran."""
    launches: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        TritonLaunch,
        "_compile",
        lambda self, aligned, whole, wide: Compiled(launches, (aligned, whole, wide)),
    )
    return launches


def test_arguments_and_variants(log: list[tuple[Any, ...]]) -> None:
    launch = TritonLaunch(FIXED)
    launch.start([32, 64], (), 0, 5)
    launch.start([32, 72], (), 0, 6)
    head = (7, 1, 1)
    tail = ("function", "metadata", None, None, None)
    assert log[0] == ((True, (), False), *head, 5, *tail, 32, 64)
    assert log[1] == ((False, (), False), *head, 6, *tail, 32, 72)


def test_sizes_decide_programs_and_index_width(log: list[tuple[Any, ...]]) -> None:
    launch = TritonLaunch(SIZED)
    for n in (128, 129, 0, 1 << 31):
        launch.start([0, 0], (n,), 0, 0)
    assert [row[1] for row in log] == [2, 3, 1 << 25]
    assert [row[0] for row in log] == [
        (True, (True,), False), (True, (False,), False), (True, (True,), True)
    ]  # fmt: skip


def test_a_repeated_launch_makes_few_python_calls(log: list[tuple[Any, ...]]) -> None:
    launch = TritonLaunch(SIZED)
    launch.start([16, 32], (64,), 0, 0)
    calls = []

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        launch.start([16, 48], (64,), 0, 0)
    finally:
        sys.setprofile(None)
    assert len(log) == 2
    assert [c for c in calls if c not in ("run", "__eq__")] == ["start", "_at"]


def test_a_parse_disturbed_by_another_thread_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As CPython 3.11 may do; an error that stays is reported."""
    calls: list[int] = []

    def compile_(*_: Any, **__: Any) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=45, after=101)")
        return "kernel"

    monkeypatch.setattr(triton_build.triton, "compile", compile_)
    module = cast(TritonModule, SimpleNamespace(name="k", warps=4, stages=2))
    assert triton_build.compiled(None, module, None) == "kernel"
    calls.clear()
    monkeypatch.setattr(triton_build, "PARSE_ATTEMPTS", 2)
    with pytest.raises(ToolchainError, match="recursion depth"):
        triton_build.compiled(None, module, None)


class Built:
    """What Triton made: so many registers, so many spilled."""

    def __init__(self, n_regs: int, n_spills: int) -> None:
        self.n_regs, self.n_spills = n_regs, n_spills

    def _init_handles(self) -> None:
        pass


@pytest.mark.parametrize(
    ("resident", "registers", "spills", "expected"),
    [
        (1, 172, 0, 172),  # one program is enough
        (2, 128, 0, 128),  # two fit
        (2, 172, 0, 128),  # two fit with fewer, without a spill
        (2, 172, 2, 172),  # with fewer it would spill
        (2, 240, 0, 240),  # too far to try
    ],
)
def test_a_kernel_is_built_with_fewer_registers_where_a_second_program_then_fits(
    monkeypatch: pytest.MonkeyPatch, resident: int, registers: int, spills: int, expected: int
) -> None:
    def compiled(_: Any, module: Any, target: Any, fewer: int | None = None) -> Built:
        del module, target
        return Built(registers, 0) if fewer is None else Built(fewer, spills)

    monkeypatch.setattr(triton_build, "compiled", compiled)
    monkeypatch.setattr(triton_build, "source_of", lambda *_, **__: None)
    monkeypatch.setattr(triton_build, "_register_file", lambda: 1 << 16)
    launch = TritonLaunch(replace(FIXED, warps=8, resident=resident))
    assert launch._compile(True, (), False).n_regs == expected
