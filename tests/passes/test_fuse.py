"""A fused nest computes what its members compute one after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onetrip.interp.nest_interp import run_nest
from onetrip.ir.nest import Nest
from onetrip.passes.anonymize import anonymize
from onetrip.passes.close import Unfusable
from onetrip.passes.collapse import collapse
from onetrip.passes.fuse import fuse
from onetrip.passes.mixed import walks

from .nests import moved, pointwise, reduced, reshaped

S = (3, 4, 8)
ROW = (3, 4, 1)

SOFTMAX = {
    "m": reduced("m", "max", "x", S, 2),
    "d": pointwise("d", "sub", S, x=S, m=ROW),
    "e": pointwise("e", "exp", S, d=S),
    "s": reduced("s", "sum", "e", S, 2),
    "y": pointwise("y", "div", S, e=S, s=ROW),
}
GROUPS = {
    "softmax, one result": (SOFTMAX, {"y"}),
    "softmax, all results": (SOFTMAX, {"m", "e", "s", "y"}),
    "chain with a broadcast": (
        {"t": pointwise("t", "add", S, x=S, b=(8,)), "y": pointwise("y", "tanh", S, t=S)},
        {"y", "t"},
    ),
    "siblings of one input": (
        {"y": pointwise("y", "exp", S, x=S), "z": pointwise("z", "tanh", S, x=S)},
        {"y", "z"},
    ),
    "sibling row reductions": (
        {"y": reduced("y", "sum", "x", S, 2), "z": reduced("z", "max", "x", S, 2)},
        {"y", "z"},
    ),
    "column reduction of a chain": (
        {"t": pointwise("t", "exp", S, x=S), "y": reduced("y", "sum", "t", S, 0, 1)},
        {"y"},
    ),
    "transposed consumer": (
        {
            "t": pointwise("t", "exp", S, x=S),
            "u": moved("u", (8, 3, 4), "t", S, 2, 0, 1),
            "y": pointwise("y", "add", (8, 3, 4), u=(8, 3, 4), c=(8, 3, 4)),
        },
        {"y", "t"},
    ),
    "groups of channels": (
        {
            "v": reshaped("v", (3, 2, 16), "x", (3, 4, 8)),
            "s": reduced("s", "sum", "v", (3, 2, 16), 2),
            "d": pointwise("d", "sub", (3, 2, 16), v=(3, 2, 16), s=(3, 2, 1)),
            "w": reshaped("w", S, "d", (3, 2, 16)),
            "y": pointwise("y", "mul", S, w=S, g=(4, 1)),
        },
        {"y"},
    ),
    "views of other shapes": (
        {
            "t": pointwise("t", "exp", S, x=S),
            "v": reshaped("v", (12, 8), "t", S),
            "y": pointwise("y", "add", (12, 8), v=(12, 8), b=(8,)),
        },
        {"y", "t"},
    ),
}


def inputs(nests: dict[str, Nest]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made: dict[str, np.ndarray] = {}
    for nest in nests.values():
        for b in nest.buffers:
            if b.name not in nests and b.name not in made:
                made[b.name] = rng.standard_normal(b.type.shape).astype(np.float32)
    return made


def one_by_one(nests: dict[str, Nest]) -> dict[str, np.ndarray]:
    known = inputs(nests)
    for name, nest in nests.items():
        reads = {b.name: known[b.name] for b in nest.buffers if b.name in known}
        known[name] = run_nest(nest, reads)[name]
    return known


CENTERED = {
    "m": reduced("m", "sum", "x", S, 2),
    "y": pointwise("y", "sub", S, x=S, m=ROW),
    "c": reduced("c", "sum", "y", S, 0, 1),
}


def has_walk(nest: Nest) -> bool:
    return bool(walks(nest))


UNLIKE = {
    "row and column sums": (
        {"y": reduced("y", "sum", "x", S, 2), "z": reduced("z", "sum", "x", S, 0, 1)},
        {"y", "z"},
    ),
    "rows, columns and all of a square": (
        {
            "y": reduced("y", "sum", "x", (5, 5), 1),
            "z": reduced("z", "max", "x", (5, 5), 0),
            "w": reduced("w", "sum", "x", (5, 5), 0, 1),
        },
        {"y", "z", "w"},
    ),
    "centered rows and their columns": (CENTERED, {"y", "c"}),
    "columns of centered rows": (CENTERED, {"c"}),
    "columns of a view": (
        {
            "v": reshaped("v", (12, 8), "x", S),
            "y": reduced("y", "sum", "v", (12, 8), 0),
            "z": reduced("z", "sum", "x", S, 2),
        },
        {"y", "z"},
    ),
    "rows and columns of each matrix": (
        {"y": reduced("y", "sum", "x", S, 2), "z": reduced("z", "sum", "x", S, 1)},
        {"y", "z"},
    ),
    "one matrix of a batch": (
        {
            "y": reduced("y", "sum", "x", (1, 6, 8), 2),
            "z": reduced("z", "sum", "x", (1, 6, 8), 0, 1),
        },
        {"y", "z"},
    ),
    "one row": (
        {"y": reduced("y", "sum", "x", (1, 8), 1), "z": reduced("z", "sum", "x", (1, 8), 0)},
        {"y", "z"},
    ),
}


@pytest.mark.parametrize("case", [*GROUPS, *UNLIKE])
def test_fused_nest_equals_its_members(case: str) -> None:
    nests, stored = (GROUPS | UNLIKE)[case]
    fused = fuse(list(nests), nests, frozenset(stored), mixed=has_walk if case in UNLIKE else None)
    assert isinstance(fused, Nest), fused
    assert {s.buffer for s in fused.stores} == stored
    expected = one_by_one(nests)
    found = run_nest(fused, inputs(nests))
    for name in stored:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("case", [*GROUPS, *UNLIKE])
def test_collapsed_and_anonymous_nest_equals_the_fused_one(case: str) -> None:
    nests, stored = (GROUPS | UNLIKE)[case]
    fused = fuse(list(nests), nests, frozenset(stored), mixed=has_walk if case in UNLIKE else None)
    assert isinstance(fused, Nest)
    flat, names = anonymize(collapse(fused))
    assert all(len(e.index) == 1 for e in flat.loads)
    known = {k: v.reshape(-1) for k, v in inputs(nests).items()}
    reads = {f"a{k}": known[n] for k, n in enumerate(names) if n in known}
    found = run_nest(flat, reads)
    for name, value in run_nest(fused, inputs(nests)).items():
        flat_name = f"a{names.index(name)}"
        np.testing.assert_array_equal(found[flat_name], value.reshape(-1))


@pytest.mark.parametrize("case", UNLIKE)
def test_unlike_reductions_walk_one_input_once(case: str) -> None:
    nests, stored = UNLIKE[case]
    fused = fuse(list(nests), nests, frozenset(stored), mixed=has_walk)
    assert isinstance(fused, Nest)
    assert walks(fused) and walks(collapse(fused))
    points = {math.prod(a.extent for a in e.free if isinstance(a.extent, int)) for e in fused.loads}
    assert len(points) == 1
    assert isinstance(fuse(list(nests), nests, frozenset(stored)), Unfusable)


def test_stages_share_expressions() -> None:
    fused = fuse(list(SOFTMAX), SOFTMAX, frozenset({"y"}))
    assert isinstance(fused, Nest)
    assert len(fused.loads) == 1
    assert sum(getattr(e, "op", "") == "exp" for e in fused.expressions) == 1


def test_contiguous_axes_become_one() -> None:
    nests = {"y": pointwise("y", "exp", S, x=S)}
    fused = fuse(["y"], nests, frozenset({"y"}))
    assert isinstance(fused, Nest)
    flat = collapse(fused)
    assert [a.extent for a in flat.space] == [96]
    broadcast = {"y": pointwise("y", "add", S, x=S, b=(8,))}
    fused = fuse(["y"], broadcast, frozenset({"y"}))
    assert isinstance(fused, Nest)
    assert [a.extent for a in collapse(fused).space] == [12, 8]


REFUSED = {
    "row and column sums": (
        {"y": reduced("y", "sum", "x", S, 2), "z": reduced("z", "sum", "x", S, 0, 1)},
        "iteration-space",
    ),
    "a sum over all read by rows": (
        {
            "s": reduced("s", "sum", "x", S, 0, 1, 2),
            "m": reduced("m", "max", "x", S, 2),
            "d": pointwise("d", "sub", S, x=S, m=ROW),
            "y": pointwise("y", "mul", S, d=S, s=(1, 1, 1)),
        },
        "iteration-space",
    ),
    "a sum of sums over as many elements": (
        {
            "s": reduced("s", "sum", "x", (3, 4, 2, 2), 2),
            "y": reduced("y", "sum", "s", (3, 4, 1, 2), 3),
        },
        "iteration-space",
    ),
    "unequal spaces": (
        {"y": pointwise("y", "exp", S, x=S), "z": pointwise("z", "exp", (5,), w=(5,))},
        "iteration-space",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_nest_says_why(case: str) -> None:
    nests, code = REFUSED[case]
    stored = frozenset(n for n in nests if n in "yz")
    found = fuse(list(nests), nests, stored)
    assert isinstance(found, Unfusable)
    assert found.code == code
    assert found.detail
    if case != "row and column sums":
        walked = fuse(list(nests), nests, stored, mixed=has_walk)
        assert isinstance(walked, Unfusable) and walked == found
