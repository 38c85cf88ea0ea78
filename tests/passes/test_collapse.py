"""Flat, merged nests: what is walked alike has the same axes."""

from __future__ import annotations

from onetrip.passes.close import Unfusable
from onetrip.passes.collapse import collapse
from onetrip.passes.fuse import fuse

from . import nests


def test_walks_that_merge_to_the_same_rows_share_their_axis() -> None:
    """A sum over (n, h, w) and one over rows of the same memory are one walk after merging."""
    members = {
        "rows": nests.reshaped("rows", (24, 5), "x", (2, 3, 4, 5)),
        "by_rows": nests.reduced("by_rows", "sum", "rows", (24, 5), 0),
        "by_axes": nests.reduced("by_axes", "max", "x", (2, 3, 4, 5), 0, 1, 2),
    }
    fused = fuse(tuple(members), members, frozenset({"by_rows", "by_axes"}))
    assert not isinstance(fused, Unfusable)
    first, second = collapse(fused).reductions
    assert first.axes == second.axes
    assert first.lift[0] is second.lift[0]
