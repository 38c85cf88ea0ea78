"""How masks of units are joined and turned around while columns grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onetrip.plan.enumerate import Joined, transposed

MASKS = st.integers(1, 27).flatmap(
    lambda n: st.lists(st.integers(0, (1 << n) - 1), min_size=n, max_size=n)
)


@given(MASKS, st.data())
def test_masks_of_some_units_are_joined(masks: list[int], data: st.DataObject) -> None:
    units = data.draw(st.integers(0, (1 << len(masks)) - 1))
    wanted = 0
    for k, mask in enumerate(masks):
        if units >> k & 1:
            wanted |= mask
    assert Joined(masks)(units) == wanted


@given(MASKS)
def test_a_unit_stands_in_the_masks_that_name_it(masks: list[int]) -> None:
    turned = transposed(masks)
    for k, mask in enumerate(masks):
        for j in range(len(masks)):
            assert (turned[j] >> k & 1) == (mask >> j & 1)
