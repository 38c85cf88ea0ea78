"""Functions of bf16 numbers in their short spelling: every argument, every error of a chip."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from onetrip.base.dtype import bf16, f32
from onetrip.codegen.prelude_triton import collect
from onetrip.ir.expr import Apply, Cast, Const, Expr, Load, walk
from onetrip.passes.narrow import FUNCTIONS, merged, narrow

TRUE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
# What the manual of PTX allows of ex2.approx and rcp.approx: 2 ulp and 1 ulp.
ERRORS = [(a * 2.0**-22, b * 2.0**-23) for a in (-1, 0, 1) for b in (-1, 0, 1)]
X = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def spelled(name: str, power: float, reciprocal: float, x: np.ndarray = X) -> np.ndarray:
    """A function of the prelude, where the chip's approximations are off by so much."""

    def fma(a: Any, b: Any, c: Any) -> Any:
        wide = np.float64(np.float32(a)) * np.float64(np.float32(b)) + np.float64(np.float32(c))
        return np.float32(wide)

    def flushed(x: Any) -> Any:
        return np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)

    def approximate(fn: Callable[[Any], Any], error: float) -> Callable[[Any], Any]:
        def made(x: Any) -> Any:
            y = fn(np.float64(flushed(x)))
            exact = np.frexp(y)[0] == 0.5  # powers of two are
            return np.float32(flushed(np.where(exact, y, y * (1 + error))))

        return made

    tl = SimpleNamespace(
        fma=fma, abs=np.abs, where=np.where, float32=np.float32,
        full=lambda shape, value, dtype: dtype(value),
    )  # fmt: skip
    space: dict[str, Any] = {"triton": SimpleNamespace(jit=lambda f: f), "tl": tl}
    exec(collect(f"ot_{name}(", "nvidia"), space)
    space["ot_exp2_normal"] = approximate(np.exp2, power)
    space["ot_near_reciprocal"] = approximate(lambda x: 1 / x, reciprocal)
    with np.errstate(all="ignore"):
        return np.asarray(space[f"ot_{name}"](x), np.float32)


def rounded(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(x)).bfloat16()


def differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    same = (a.view(torch.int16) == b.view(torch.int16)) | (a.isnan() & b.isnan())
    return torch.from_numpy(X)[~same]


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "silu"])
def test_every_bf16_has_the_bits_of_the_long_spelling(name: str) -> None:
    eager = TRUE[name](torch.from_numpy(X)).bfloat16()
    assert not len(differ(rounded(spelled(f"narrow_{name}", 0.0, 0.0)), eager))


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "silu"])
@pytest.mark.parametrize("error", ERRORS)
def test_no_chip_is_far_from_it(name: str, error: tuple[float, float]) -> None:
    """Two arguments may round to the neighbour; those of tanh never."""
    found, eager = (
        rounded(spelled(f"narrow_{name}", *error)),
        TRUE[name](torch.from_numpy(X)).bfloat16(),
    )
    off = differ(found, eager)
    assert len(off) <= (0 if name == "tanh" else 2)
    apart = found.view(torch.int16).int() - eager.view(torch.int16).int()
    assert (apart[~eager.isnan()].abs() <= 1).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("error", ERRORS)
def test_no_chip_is_farther_from_the_truth_than_eager(
    name: str, error: tuple[float, float]
) -> None:
    """By more than one rounding to bf16."""
    x = torch.from_numpy(X)
    found, eager = rounded(spelled(f"narrow_{name}", *error)), TRUE[name](x).bfloat16()
    true = TRUE[name](x.double())
    assert torch.equal(found.isnan(), eager.isnan())
    ordinary = x.isfinite()
    assert torch.equal(torch.signbit(found)[ordinary], torch.signbit(x)[ordinary])
    ulp = 2.0 ** (torch.frexp(true)[1].clamp(min=-125) - 8)
    far = ((found.double() - true).abs() - 2 * (eager.double() - true).abs()) / ulp
    assert far[ordinary].max() <= 1


@pytest.mark.parametrize("error", ERRORS)
def test_terms_of_a_sum_are_within_units_of_the_largest(error: tuple[float, float]) -> None:
    """The largest term of a softmax is 1, and 2^-21 of it are four units in its last place."""
    x = -np.linspace(0, 110, 1 << 16, dtype=np.float32)
    found = spelled("near_exp", *error, x)
    assert np.abs(found - np.exp(x.astype(np.float64))).max() <= 2.0**-21
    assert spelled("near_exp", *error, np.float32([0.0, -np.inf])).tolist() == [1.0, 0.0]


def argument(name: str = "a") -> Expr:
    return Cast(Load(name, (0,), bf16), f32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_known_by_its_steps(name: str) -> None:
    x = argument()
    whole = Cast(FUNCTIONS[name](x), bf16)
    assert narrow(whole) == (name, x)
    assert narrow(Cast(FUNCTIONS[name](Load("a", (0,), f32)), bf16)) is None
    assert narrow(FUNCTIONS[name](x)) is None


def test_steps_that_something_else_needs_are_priced_for_themselves() -> None:
    x = argument()
    silu = FUNCTIONS["silu"](x)
    whole = Cast(silu, bf16)
    steps = set(walk((silu,))) - set(walk((x,)))
    alone = merged(tuple(walk((whole,))))
    assert alone == {whole: "silu"} | dict.fromkeys(steps, "")
    assert isinstance(silu, Apply)
    sum_ = silu.args[1]
    shared = merged(tuple(walk((whole, Apply("neg", (sum_,), f32)))))
    assert shared == {whole: "silu", silu: ""}


def test_two_arguments_are_no_such_function() -> None:
    gate = Apply("mul", (FUNCTIONS["sigmoid"](argument("a")), argument("b")), f32)
    assert narrow(Cast(gate, bf16)) is None
    assert narrow(Cast(Apply("mul", (Const(2.0, f32), argument()), f32), bf16)) is None
