"""Every sample of every operator: types, reference and meaning against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import (
    as_found,
    attributes,
    call,
    distance,
    fitting_form,
    interpret,
    node_of,
    operands,
    reference,
    same,
    torch_dtype,
    wide_call,
    widened,
)
from onetrip.ops import exactness
from onetrip.ops.schema import Form, Kind, Opaque, Sample
from onetrip.ops.table import OPS

ELSEWHERE = {
    "rms_norm_backward": "the CPU has no kernel of it",
    ("softmax", 2): "half_to_float is for GPUs",
}
"""Samples that eager cannot run here."""
OWN = {"log_sigmoid", "max_value", "min_value", "cummax_value", "cummax_place", "cummin_value",
       "cummin_place", "windows", "covering", "window_sizes", "tap_place", "sampled", "reached",
       "max_pool2d_values", "max_pool3d_values", "mantissa", "exponent"}  # fmt: skip
"""Operators of our own that only composites use."""
ROUNDED = {"dropout", "uniform", "rms_norm", "hardsigmoid_backward", "polygamma"}
"""Operators whose f32 constants, or eager's few terms of a series, show in f64."""

NAMES = sorted(OPS)


def samples(name: str) -> list[tuple[int, Form]]:
    """Numbers of the samples that eager can run, with the overload for each."""
    op, found = OPS[name], []
    for number, sample in enumerate(op.samples):
        if name in ELSEWHERE or (name, number) in ELSEWHERE:
            continue
        form = fitting_form(op, sample)
        assert form is not None or name in OWN, f"no overload of {name} can say {sample}"
        if form is not None:
            found.append((number, form))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_types(name: str) -> None:
    op = OPS[name]
    for number, form in samples(name):
        sample = op.samples[number]
        found = call(form, operands(op, sample), attributes(sample))
        expected = node_of(op, number).outputs
        assert len(found) == len(expected)
        firsts = 1 if op.kind is Kind.COMPOSITE else len(found)
        for k, (t, v) in enumerate(zip(found, expected, strict=True)):
            if t is None:
                assert v.type.shape == (0,)
                continue
            assert tuple(t.shape) == v.type.shape, sample
            # Statistics beside a composite's first output have the dtype of the device's choice.
            assert k >= firsts or t.dtype == torch_dtype(v.type.dtype), sample


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"seed"}])
def test_reference(name: str) -> None:
    op = OPS[name]
    for number, form in samples(name):
        sample = op.samples[number]
        values, attrs = operands(op, sample), attributes(sample)
        found = reference(op, values, attrs)
        for ours, theirs in zip(found, wide_call(form, values, attrs), strict=True):
            if theirs is None:
                continue
            # Integer operands are computed in f32 by eager.
            narrow = theirs.dtype != torch.float64 or name in ROUNDED
            tolerance = 1e-6 if narrow else 1e-12
            wide: Any = widened(theirs).numpy()
            np.testing.assert_allclose(
                np.broadcast_to(ours, wide.shape).astype(np.float64),
                wide.astype(np.float64),
                rtol=tolerance,
                atol=tolerance,
                err_msg=str(sample),
            )


def is_interpreted(name: str) -> bool:
    return not isinstance(OPS[name].body, Opaque)


@pytest.mark.parametrize("name", [n for n in NAMES if is_interpreted(n)])
def test_meaning(name: str) -> None:
    """What the nests compute stands at most twice as far from f64 as eager does, plus 4 ulp."""
    op = OPS[name]
    for number, form in samples(name):
        sample = op.samples[number]
        values, attrs = operands(op, sample), attributes(sample)
        eager = call(form, values, attrs)
        exact = wide_call(form, values, attrs)
        ours = interpret(as_found(node_of(op, number), eager), values)
        for mine, theirs, true in zip(ours, eager, exact, strict=True):
            if mine is None or theirs is None:
                continue
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            if not theirs.is_floating_point():
                assert same(mine, theirs), sample
                continue
            allowed = 2 * distance(theirs, true) + 4
            assert distance(mine, true) <= allowed, (sample, mine, theirs)


SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 0.3, 3e38, -1.0)


def with_special(x: torch.Tensor, number: int) -> torch.Tensor:
    """The operand with special values in front, each against each other operand's."""
    if not x.is_floating_point() or not x.dim():
        return x
    grid = torch.tensor(SPECIAL, dtype=torch.float64)
    column = grid.repeat_interleave(10) if number else grid.repeat(10)
    return torch.cat([column.to(x.dtype), x[100:]])


NUMPY_DIFFERS = {
    "fmax": "the sign of a zero",
    "fmin": "the sign of a zero",
    "multiply_add": "torch runs prims.fma unfused",
    "sqrt": "eager's vector square root is no IEEE one",
}
"""Operators whose leaf the interpreter computes in numpy's own way; the C++ prelude is measured."""


ORDINARY = {"fmod", "remainder"}
"""Eager's vector fmod is NaN where the quotient is beyond its range."""


def exact_names() -> list[str]:
    """Elementwise operators without special functions: the interpreter has eager's own bits."""
    return [
        n
        for n, op in OPS.items()
        if op.kind is Kind.ELEMENTWISE
        and op.forms
        and exactness.is_exact(op)
        and n not in NUMPY_DIFFERS
    ]


@pytest.mark.parametrize("name", sorted(exact_names()))
def test_exact_operators_are_bit_equal(name: str) -> None:
    """4096 elements, so that eager's vector kernels and not only their tails are met."""
    op = OPS[name]
    for number, form in samples(name):
        sample = op.samples[number]
        shaped = [x for x in sample.operands if isinstance(x, tuple) and x[1]]
        if not shaped or shaped[0][0] == "f64":  # numpy has no fused multiply-add of f64
            continue
        wide = Sample(
            tuple((x[0], (4096,)) if isinstance(x, tuple) and x[1] else x
                  for x in sample.operands),
            sample.attrs,
        )  # fmt: skip
        bigger = replace(op, samples=(wide,))
        values = tuple(
            with_special(x, k) if isinstance(x, torch.Tensor) and name not in ORDINARY else x
            for k, x in enumerate(operands(op, wide))
        )
        (eager,) = call(form, values, attributes(sample))
        (mine,) = interpret(node_of(bigger, 0), values)
        assert mine is not None
        assert same(mine, eager), (sample, differing(mine, eager, values))


def differing(a: torch.Tensor, b: torch.Tensor, values: tuple[Any, ...]) -> Any:
    """The first operands on which two results differ."""
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    wrong = ~(equal | (a.isnan() & b.isnan()))
    where = wrong.nonzero().flatten()[:5]
    picked = [v[where].tolist() if isinstance(v, torch.Tensor) and v.dim() else v for v in values]
    return len(wrong.nonzero()), picked, a[where].tolist(), b[where].tolist()
