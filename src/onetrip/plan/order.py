"""An order in which groups run. Must not know what a group is made of."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any


def near_graph_order(
    places: Mapping[int, Any], sources: Mapping[int, Collection[int]]
) -> list[int]:
    """Keys of groups with each after its sources: of those that may come next, the first one.

    Args:
        places: of each group by its key, where it stands in the graph; compared with each other.
        sources: of each, the keys of the groups that it waits for.

    Returns: fewer than there are where some wait for each other in a circle.
    """
    followers: defaultdict[int, list[int]] = defaultdict(list)
    waiting: dict[int, int] = {}
    ready: list[tuple[Any, int]] = []
    for key, above in sources.items():
        waiting[key] = len(above)
        for source in above:
            followers[source].append(key)
        if not above:
            ready.append((places[key], key))
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, key = heapq.heappop(ready)
        order.append(key)
        for follower in followers.get(key, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (places[follower], follower))
    return order
