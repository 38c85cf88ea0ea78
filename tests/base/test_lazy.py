"""Properties that are computed once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from onetrip.base.lazy import cached_property


class Node:
    """Each side asks the other one for its value, one step less deep."""

    def __init__(self, depth: int, meet: threading.Barrier | None = None) -> None:
        self.depth = depth
        self.meet = meet
        self.made = 0

    @cached_property
    def left(self) -> int:
        """Depth, by way of the right."""
        self.made += 1
        if self.meet is not None:
            self.meet.wait()
        return 0 if self.depth == 0 else 1 + Node(self.depth - 1).right

    @cached_property
    def right(self) -> int:
        """Depth, by way of the left."""
        if self.meet is not None:
            self.meet.wait()
        return 0 if self.depth == 0 else 1 + Node(self.depth - 1).left


def test_a_value_is_computed_once_and_stays_the_object_s_own() -> None:
    one, two = Node(0), Node(3)
    assert [one.left, one.left, two.left, two.left] == [0, 0, 3, 3]
    assert one.made == two.made == 1
    assert Node.left.__doc__ == "Depth, by way of the right."


def test_two_threads_that_need_each_other_s_properties_both_end() -> None:
    """A lock for all objects of a class, as Python 3.11 has it, would have each wait for both."""
    meet = threading.Barrier(2, timeout=20)
    one, two = Node(1, meet), Node(1, meet)
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(partial(getattr, n, side)) for n, side in ((one, "left"), (two, "right"))
        ]
        assert [f.result(timeout=20) for f in found] == [1, 1]
