"""What a closed value remembers, and when it gives up."""

from __future__ import annotations

from itertools import pairwise

from onetrip.ir.nest import Nest
from onetrip.passes.close import MAX_EXPRESSIONS, Closing, Unfusable
from onetrip.passes.fuse import fuse

from .nests import pointwise

S = (4, 8)


def chain(length: int) -> dict[str, Nest]:
    names = ["x", *(f"t{k}" for k in range(length))]
    return {new: pointwise(new, "exp", S, **{old: S}) for old, new in pairwise(names)}


def test_members_that_a_value_is_not_made_from_resolve_nothing_again() -> None:
    nests = chain(8)
    names = list(nests)
    closing = Closing(nests)
    (small,) = closing.close([names[5]], names[2:6]).values()
    known = len(closing._sites)
    (same,) = closing.close([names[5]], names[2:]).values()
    assert same.value is small.value and len(closing._sites) == known
    (more,) = closing.close([names[5]], names).values()
    assert more.value is not small.value and len(closing._sites) > known


def test_what_was_remembered_changes_no_nest() -> None:
    nests = chain(6)
    names = list(nests)
    closing = Closing(nests)
    for first in range(6):
        for last in range(first + 1, 7):
            members, stored = names[first:last], frozenset(names[last - 1 : last])
            assert fuse(members, nests, stored, closing) == fuse(members, nests, stored)


def test_more_expressions_than_a_kernel_may_have_are_refused() -> None:
    nests = chain(MAX_EXPRESSIONS + 1)
    names = list(nests)
    assert isinstance(fuse(names[:200], nests, frozenset(names[199:200])), Nest)
    refused = fuse(names, nests, frozenset(names[-1:]))
    assert isinstance(refused, Unfusable) and refused.code == "size"
