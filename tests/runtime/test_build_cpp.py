"""From C++ text to a loaded library: the compiler, the flags, the cache, the threads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onetrip.base.errors import ToolchainError
from onetrip.runtime import build_cpp
from onetrip.runtime.build_cpp import CppUnit, begin, build, unit_key
from onetrip.runtime.cache import Cache
from onetrip.runtime.toolchain import (
    UNITS,
    Toolchain,
    find_compiler,
    openmp_runtimes,
    toolchain,
    torch_library,
    vector_unit,
)

PRELUDE = '#pragma once\n#define EXPORT extern "C" __attribute__((visibility("default")))\n'


def answer(n: int) -> CppUnit:
    return CppUnit(f"answer_{n}", f"EXPORT int answer() {{ return {n}; }}\n")


def test_units_come_back_in_order_and_are_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [answer(3), answer(1), answer(2), answer(3)]
    built = build(units, PRELUDE, cache=Cache(tmp_path))
    assert [lib.answer() for lib in built] == [3, 1, 2, 3]

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build_cpp, "_run", refuse)
    again = build(units, PRELUDE, cache=Cache(tmp_path))
    assert [lib.answer() for lib in again] == [3, 1, 2, 3]


def test_a_prelude_that_was_begun_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    run = build_cpp._run

    def counted(chain: Toolchain, arguments: Sequence[str], folder: Path, name: str) -> None:
        compiled.append(name)
        run(chain, arguments, folder, name)

    monkeypatch.setattr(build_cpp, "_run", counted)
    cache = Cache(tmp_path)
    begin(PRELUDE, cache)()
    assert compiled == ["the prelude", "the import library"][not toolchain().precompiles :]
    begin(PRELUDE, cache)()
    (library,) = build([answer(4)], PRELUDE, cache=cache)
    assert library.answer() == 4
    assert compiled[-1] == "answer_4" and compiled.count("the import library") == 1


def test_what_begins_in_vain_is_told_by_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONETRIP_CXX", str(tmp_path / "no compiler"))
    cache = Cache(tmp_path)
    begin(PRELUDE, cache)()
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler"):
        build([answer(5)], PRELUDE, cache=cache)


def test_the_key_forgets_comment_lines_and_nothing_else() -> None:
    chain = toolchain()
    unit = CppUnit("a", "int f() { return 1; }\n")
    key = unit_key(unit, PRELUDE, chain)
    commented = CppUnit("b", "// model.layer, line 3\nint f() { return 1; }\n  // end\n")
    assert unit_key(commented, PRELUDE, chain) == key
    others = [
        unit_key(CppUnit("a", "int f() { return 2; }\n"), PRELUDE, chain),
        unit_key(unit, PRELUDE + " ", chain),
        unit_key(unit, PRELUDE, replace(chain, identity="another compiler")),
        unit_key(unit, PRELUDE, replace(chain, flags=(*chain.flags, "-O1"))),
    ]
    assert len({key, *others}) == 5


def test_rejected_text_is_an_error_with_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="rejects broken") as error:
        build([CppUnit("broken", "int f( {\n")], PRELUDE, cache=Cache(tmp_path))
    assert error.value.found is not None and "kernel.cpp:1" in error.value.found


def test_a_damaged_library_is_built_again(tmp_path: Path) -> None:
    key = unit_key(answer(5), PRELUDE, toolchain())
    build([answer(5)], PRELUDE, cache=Cache(tmp_path))
    library = Cache(tmp_path).folder(key) / build_cpp.LIBRARY
    start = library.read_bytes()[:100]
    library.unlink()  # another file of that name: this process has the old one mapped
    library.write_bytes(start)
    assert build([answer(5)], PRELUDE, cache=Cache(tmp_path))[0].answer() == 5
    assert library.read_bytes()[:100] == start and len(library.read_bytes()) > 100


def test_no_compiler_is_an_error_that_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONETRIP_CXX", "/nowhere/g++")
    with pytest.raises(ToolchainError) as error:
        toolchain()
    assert "ONETRIP_CXX=/nowhere/g++" in str(error.value)
    assert "apt-get install g++" in str(error.value)
    monkeypatch.delenv("ONETRIP_CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolchainError, match="none of them on PATH"):
        find_compiler()


def test_a_compiler_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, _ = find_compiler()
    for name, body in (("c++", "exit 1"), ("g++", f'exec "{real}" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_compiler()[0] == str(tmp_path / "g++")


THREADS = """
#include <omp.h>
EXPORT int team() {
  int n = 0;
  #pragma omp parallel reduction(+ : n)
  n += 1;
  return n;
}
"""


def test_kernels_share_torchs_threads(tmp_path: Path) -> None:
    """One OpenMP runtime is mapped, so torch.set_num_threads rules kernels too."""
    (library,) = build([CppUnit("threads", THREADS)], PRELUDE, cache=Cache(tmp_path))
    before = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            torch.ones(1 << 16).add_(1)
            assert library.team() == n
    finally:
        torch.set_num_threads(before)
    assert len(openmp_runtimes()) == 1


SPECIAL_FUNCTIONS = """
#include <stdint.h>
typedef float reg __attribute__((vector_size(4 * LANES)));
extern "C" reg PROBE(reg);
EXPORT void run(const float* x, float* y) {
  *(reg __attribute__((aligned(4)))*)y = PROBE(*(const reg __attribute__((aligned(4)))*)x);
}
"""


@pytest.mark.skipif("-DOT_SLEEF=1" not in toolchain().flags, reason="torch exports no Sleef here")
def test_units_are_bound_to_torchs_own_functions(tmp_path: Path) -> None:
    unit = vector_unit()
    text = SPECIAL_FUNCTIONS.replace("LANES", str(unit.lanes)).replace("PROBE", unit.probe)
    (library,) = build([CppUnit("special", text)], PRELUDE, cache=Cache(tmp_path))
    x = torch.linspace(-4, 4, unit.lanes)
    y = torch.zeros(unit.lanes)
    library.run(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
    true = x.double().exp().float()
    assert (y.view(torch.int32) - true.view(torch.int32)).abs().max() <= 1, "1 ulp of exp"
    mapped = Path("/proc/self/maps").read_text()
    libraries = {line.split()[-1] for line in mapped.splitlines() if "libtorch_cpu" in line}
    assert libraries == {str(torch_library().resolve())}


def test_flags_follow_eagers_vector_unit() -> None:
    """Eager can be told to use a narrower unit; kernels follow it, and say how many lanes."""
    code = (
        "from onetrip.runtime.toolchain import toolchain, vector_unit\n"
        "print(toolchain().lanes, vector_unit().probe)"
    )
    capability = torch.backends.cpu.get_cpu_capability()
    for name in ("AVX2", "DEFAULT"):
        if name != "DEFAULT" and capability not in ("AVX2", "AVX512"):
            continue
        env = {**os.environ, "ATEN_CPU_CAPABILITY": name.lower()}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == [str(UNITS[name].lanes), UNITS[name].probe]
