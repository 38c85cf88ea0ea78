"""The operators that only composites use: what their nests compute beside their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance import attributes, distance, interpret, node_of, operands, reference
from onetrip.ops.rows import sample
from onetrip.ops.table import OPS

OURS = ("windows", "covering", "window_sizes", "tap_place", "sampled", "reached",
        "max_pool2d_values",
        "max_pool3d_values")  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_nests_compute_the_reference(name: str) -> None:
    op = OPS[name]
    for number, one in enumerate(op.samples):
        values = operands(op, one)
        if name == "tap_place":
            values = tuple(v.remainder(6) for v in values)
        (mine,) = interpret(node_of(op, number), values)
        (wanted,) = reference(op, values, attributes(one))
        assert mine is not None
        assert distance(mine, torch.from_numpy(wanted)) <= 4


@pytest.mark.parametrize("fill", [float("-inf"), -1.0, 0.0])
def test_windows_of_equal_elements_choose_as_eager_does(fill: float) -> None:
    x = torch.full((1, 1, 5, 6), fill)
    attrs = {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 1), "dilation": (1, 2)}
    values, places = torch.ops.aten.max_pool2d_with_indices(x, **attrs)
    op = replace(OPS["max_pool2d"], samples=(sample(("f32", (1, 1, 5, 6)), **attrs),))
    mine, own = interpret(node_of(op, 0), (x,))
    assert mine is not None and torch.equal(mine, values)
    assert own is not None and torch.equal(own, places)
