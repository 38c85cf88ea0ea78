"""The order in which the groups of a pool run. Must not know what a group is made of."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from .pool import Part


def near_graph_order(
    parts: Mapping[int, Part], sources: Mapping[int, Collection[int]]
) -> list[Part]:
    """Groups with each after its sources: of those that may come next, that of the first atoms.

    Args:
        parts: groups by their key.
        sources: of each, the keys of the groups that it waits for.

    Returns: fewer than there are where some wait for each other in a circle.
    """
    followers: dict[int, list[int]] = {}
    waiting: dict[int, int] = {}
    ready: list[tuple[tuple[int, ...], int]] = []
    for key, above in sources.items():
        waiting[key] = len(above)
        for source in above:
            followers.setdefault(source, []).append(key)
        if not above:
            ready.append((parts[key].atoms, key))
    heapq.heapify(ready)
    order: list[Part] = []
    while ready:
        _, key = heapq.heappop(ready)
        order.append(parts[key])
        for follower in followers.get(key, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (parts[follower].atoms, follower))
    return order
