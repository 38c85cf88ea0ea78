"""Every row of cpp_exactness.toml, measured against eager on this machine."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from prelude_rows import CTYPES, INTS, NAMES, ROWS, Row, Tensor, pointer, run_row, samples, ulps

from onetrip.codegen.cpp_prelude import exactness, prelude_text
from onetrip.runtime.build_cpp import CppUnit, build
from onetrip.runtime.cache import Cache
from onetrip.runtime.toolchain import toolchain, vector_unit

pytestmark = pytest.mark.skipif(
    not {"-DOT_SLEEF=1", "-DOT_VML=1"} <= set(toolchain().flags),
    reason="the table was measured where eager uses Sleef and MKL",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("kernels"))


def eager_of(row: Row, x: Tensor, y: Tensor) -> Tensor:
    # One thread: every chunk of a parallel loop has a tail, in which eager leaves its vector code.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return row.eager(x, y) if row.binary else row.eager(x)
    finally:
        torch.set_num_threads(threads)


def error_in_ulps(result: Tensor, true: Tensor) -> Tensor:
    """Distance from the float64 value, in units of the last place of the result's type."""
    info = torch.finfo(result.dtype)
    unit = torch.ldexp(torch.full_like(true, info.eps), torch.frexp(true)[1] - 1)
    return (result.double() - true).abs() / unit.clamp_min(info.smallest_normal * info.eps)


def assert_bounded(result: Tensor, eager: Tensor, true: Tensor, x: Tensor) -> None:
    """In every binade of x the result errs at most twice as far as eager, plus 4 ulp."""
    largest = torch.finfo(result.dtype).max
    fine = true.abs().le(largest) & x.isfinite()
    binade = torch.frexp(x.double())[1][fine]
    ours, theirs = error_in_ulps(result, true)[fine], error_in_ulps(eager, true)[fine]
    for b in binade.unique():
        inside = binade == b
        assert ours[inside].max() <= 2 * theirs[inside].max() + 4, f"binade {int(b)}"


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", CTYPES, ids=NAMES.get)
def test_row(name: str, dtype: torch.dtype, root: str) -> None:
    x, y = samples(dtype)
    claim = exactness()[name][NAMES[dtype]]
    if claim == "unfit":
        return
    row = ROWS[name]
    result, eager = run_row(root, name, x, y), eager_of(row, x, y)
    if claim == "bounded":
        assert_bounded(result, eager, eager_of(row, x.double(), y.double()), x)
    else:
        found = re.fullmatch(r"matched|ulp\((\d+)\)", claim)
        assert found, claim
        assert ulps(result, eager) <= int(found[1] or 0)


SLEEF_EXP = """
extern "C" ot::reg_f32 SLEEF(ot::reg_f32);
extern "C" __attribute__((visibility("default")))
void differing(uint32_t step, int64_t* count) {
  *count = 0;
  for (uint64_t first = 0; first < 1ull << 32; first += ot::W * step) {
    ot::vec<int32_t> bits = ot::iota<int32_t>(0) * ot::vec<int32_t>(step);
    ot::vec<float> x = ot::bitcast<float>(bits + ot::vec<int32_t>((int32_t)first)), theirs;
    ot::vec<float> ours = ot::exp(x);
    theirs.r[0] = SLEEF(x.r[0]);
    auto same = ot::bitcast<int32_t>(ours) == ot::bitcast<int32_t>(theirs);
    *count += !ot::all(same | (ot::isnan(ours) & ot::isnan(theirs)));
  }
}
"""


def test_exp_in_line_has_the_bits_of_the_library(root: str) -> None:
    """Every 251st of all floats: 17 million, in which every exponent has its share."""
    unit = CppUnit("exp", SLEEF_EXP.replace("SLEEF", vector_unit().probe))
    (library,) = build([unit], prelude_text(), cache=Cache(root))
    different = torch.ones(1, dtype=torch.int64)
    library.differing(ctypes.c_uint32(251), pointer(different))
    assert int(different) == 0


def test_the_table_names_the_rows() -> None:
    assert list(exactness()) == list(ROWS)
    assert all(list(row) == list(NAMES.values()) for row in exactness().values())


def test_a_claim_can_fail() -> None:
    one = torch.ones(1)
    above = torch.nextafter(one, one * 2)
    assert ulps(one, above) == 1
    assert ulps(torch.zeros(1), -torch.zeros(1)) == 1
    assert ulps(one, one * torch.nan) > 2**32
    assert ulps(-one, one) > 2**29


def test_samples_hold_every_kind_of_value() -> None:
    for dtype, ints in INTS.items():
        x, y = samples(dtype)
        for v in (x, y):
            assert v.isnan().any() and v.isinf().any() and (v == 0).any()
            assert ((v != 0) & (v.abs() < torch.finfo(dtype).smallest_normal)).any()
            assert (v.view(ints) == torch.iinfo(ints).min).any(), "negative zero"
        assert x.numel() % 4096 == 0


def test_every_function_of_the_prelude_has_a_row() -> None:
    """What math.hpp spells by Sleef or libm is measured here."""
    folder = Path(__file__).parents[2] / "src" / "onetrip" / "codegen" / "prelude"
    text = (folder / "math.hpp").read_text()
    named = re.findall(r"^OT_(?:LIBM_)?(?:UNARY|BINARY)\((\w+),", text, re.MULTILINE)
    spelled = " ".join(row.spelling for row in ROWS.values())
    missing = [n for n in named if f"ot::{n}(" not in spelled and n != "fmod_exact"]
    assert named and not missing
