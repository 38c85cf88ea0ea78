"""Interpreted reductions and scans: the order of operands, every axis, both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from onetrip.codegen.triton import TritonText
from onetrip.runtime.cache import Cache
from onetrip.runtime.triton_build import TritonLaunch

TEXT = """import triton
import triton.language as tl


@triton.jit
def affine(a, b, c, d):
    return a * c, c * b + d


@triton.jit
def kernel(x, y, products, states, product, state):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    a, b = tl.load(x + at), tl.load(y + at)
    p, s = tl.associative_scan((a, b), AXIS, affine, reverse=REVERSE)
    tl.store(products + at, p)
    tl.store(states + at, s)
    q, t = tl.reduce((a, b), AXIS, affine, keep_dims=True)
    tl.store(product + at, tl.broadcast_to(q, [4, 8]))
    q, t = tl.reduce((a, b), AXIS, affine)
    tl.store(state + at, tl.broadcast_to(tl.expand_dims(t, AXIS), [4, 8]))
"""
NAMES = ("x", "y", "products", "states", "product", "state")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_affine_maps_are_composed_in_their_order(axis: int, reverse: bool, tmp_path: Path) -> None:
    text = TEXT.replace("AXIS", str(axis)).replace("REVERSE", str(reverse))
    module = TritonText(
        text, "kernel", tuple((n, "*i64") for n in NAMES), (1,), 1, 1, dialect="interpreter"
    )
    x, y = torch.randint(-3, 4, (2, 4, 8))
    products, states, product, state = found = [torch.zeros_like(x) for _ in range(4)]
    TritonLaunch(module, Cache(tmp_path))([x, y, *found])

    pairs = list(zip(x.unbind(axis), y.unbind(axis), strict=True))
    expected: list[tuple[torch.Tensor, torch.Tensor]] = []
    for c, d in pairs[::-1] if reverse else pairs:
        a, b = expected[-1] if expected else (torch.ones_like(c), torch.zeros_like(d))
        expected.append((a * c, c * b + d))
    for k, made in enumerate((products, states)):
        parts = [e[k] for e in expected]
        assert torch.equal(made, torch.stack(parts[::-1] if reverse else parts, axis))
    total = torch.zeros_like(pairs[0][1])
    for c, d in pairs:
        total = c * total + d
    assert torch.equal(product, x.prod(axis, keepdim=True).expand(4, 8))
    assert torch.equal(state, total.unsqueeze(axis).expand(4, 8))
