"""numerics="bitwise": what is compiled has eager's bits, what has not is left to the library.

Operands have whole vectors: eager computes the elements that are left over by other functions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import onetrip
from conformance import attributes, bound, fitting_form, operands, overload
from onetrip.ops.build import sample_node
from onetrip.ops.exactness import of_node
from onetrip.ops.schema import Elementwise, Form, Sample
from onetrip.ops.table import OPS

SHAPE = (64, 128)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 1e-30, 88.6, -104.0, 3e4)


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    chosen = {"numerics": "bitwise", "search": "max", **options}
    return torch.compile(fn, backend="onetrip", dynamic=False, options=chosen)


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point() or a.dtype.itemsize == 1:
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    equal = (a == b) & (a.signbit() == b.signbit())
    return bool((equal | (a.isnan() & b.isnan())).all())


# ---------------------------------------------------------------- every operator


ELSEWHERE = {
    "softshrink": "torch takes it apart before a backend sees it",
    "multiply_add": "eager's prims.fma rounds the product; norms use it where eager fuses",
    "masked_fill": "its value has no dimensions",
}


def whole(sample: Sample) -> Sample:
    """The sample with every tensor of one shape, a whole number of vectors."""
    grown = [(x[0], SHAPE) if isinstance(x, tuple) else x for x in sample.operands]
    return Sample(tuple(grown), sample.attrs)


def matched(backend: str = "cpp") -> Iterator[tuple[str, Form, Sample]]:
    """The samples of elementwise operators that are said to have eager's bits."""
    for name, op in OPS.items():
        if not isinstance(op.body, Elementwise) or name in ELSEWHERE:
            continue
        for number, sample in enumerate(op.samples):
            form = fitting_form(op, sample)
            if form is not None and of_node(sample_node(op, number), backend).matched:
                yield name, form, whole(sample)


MATCHED = list(matched())
STEP = 32


def program(count: int) -> Callable[..., list[Any]]:
    """A function that makes so many calls, without a loop for Dynamo to look into."""
    lines = [f"    made.append(fns[{k}](*given[{k}][0], **given[{k}][1]))" for k in range(count)]
    text = "\n".join(["def run(fns, given):", "    made = []", *lines, "    return made", ""])
    space: dict[str, Any] = {}
    exec(compile(text, "<calls>", "exec"), space)
    made: Callable[..., list[Any]] = space["run"]
    return made


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(MATCHED), STEP))
def test_a_matched_operator_has_eagers_bits(first: int) -> None:
    chosen = MATCHED[first : first + STEP]
    fns = [overload(form) for _, form, _ in chosen]
    given = [bound(f, operands(OPS[name], s), attributes(s)) for name, f, s in chosen]
    run = program(len(chosen))
    pairs = zip(compiled(run, strict=True)(fns, given), run(fns, given), strict=True)
    wrong = [
        (name, sample)
        for (name, _, sample), (ours, eager) in zip(chosen, pairs, strict=True)
        if not same_bits(ours, eager)
    ]
    assert wrong == []


# ---------------------------------------------------------------- chains

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "relu": torch.relu, "sigmoid": torch.sigmoid,
    "silu": functional.silu, "expm1": torch.expm1, "log1p": torch.log1p, "square": torch.square,
    "floor": torch.floor, "reciprocal": torch.reciprocal, "softplus": functional.softplus,
    "leaky_relu": functional.leaky_relu, "half": lambda x: x * 0.3,
    "clamp": lambda x: x.clamp(-2, 2),
    "exp": torch.exp, "tanh": torch.tanh, "sin": torch.sin, "erf": torch.erf,
}  # fmt: skip
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum,
    "div": torch.div, "where": lambda a, b: torch.where(a > b, a, b), "hypot": torch.hypot,
}  # fmt: skip


def chain(seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Twelve operators, each of the last value and sometimes of the other input."""
    draw = random.Random(seed)
    names = [draw.choice([*UNARY, *BINARY]) for _ in range(12)]

    def run(x: Tensor, y: Tensor) -> Tensor:
        for name in names:
            x = UNARY[name](x) if name in UNARY else BINARY[name](x, y)
        return x

    return run


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(3)
    x, y = (torch.randn(SHAPE, generator=made).to(dtype) for _ in range(2))
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL).to(dtype)
    y.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL[::-1]).to(dtype)
    return x, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_chains_of_twelve_have_eagers_bits(dtype: torch.dtype) -> None:
    chains = [chain(seed) for seed in range(6)]
    given = inputs(dtype)

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        return [c(x, y) for c in chains]

    for seed, (a, b) in enumerate(zip(compiled(run)(*given), run(*given), strict=True)):
        assert same_bits(a, b), f"chain {seed}"


def test_what_has_not_eagers_bits_is_left_to_the_library_with_the_reason() -> None:
    def run(x: Tensor) -> Tensor:
        return torch.logsumexp(x.neg() * 2, -1)

    plan = onetrip.plan(run, torch.randn(64, 128), target="cpu", numerics="bitwise")
    assert "numerics=bitwise" in str(plan.boundaries)
    assert "numerics=bitwise" not in str(
        onetrip.plan(run, torch.randn(64, 128), target="cpu").boundaries
    )
    x = torch.randn(64, 128)
    assert same_bits(compiled(run)(x), run(x))
    with pytest.raises(Exception, match="logsumexp"):
        compiled(run, strict=True)(x)
