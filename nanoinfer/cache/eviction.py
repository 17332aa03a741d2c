"""EvictionQueue: which leaf of the radix tree goes first."""

import heapq
from collections.abc import Callable

from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.registry import EVICTION_POLICIES

Priority = tuple[int, ...]
Policy = Callable[[TreeNode], Priority]

# The leaf with the smallest priority goes first. A node's priority never falls while it lives.
EVICTION_POLICIES.update(
    lru=lambda node: (node.last_access_time,),
    lfu=lambda node: (node.hit_count, node.last_access_time),
    fifo=lambda node: (node.creation_time,),
)


class EvictionQueue:
    """A heap of unlocked leaves that is put in order lazily: using a node costs nothing here.

    An entry remembers the priority its node had when it came in. Priorities only rise, so the entry on top is a lower
    bound: if its node has been used since, it goes back with its new priority; if it was locked, got a child or left
    the tree, it is dropped (and offered again when it is an unlocked leaf). A node has at most one entry.
    """

    def __init__(self, policy: str):
        if policy not in EVICTION_POLICIES:
            raise ValueError(f"policy={policy!r}: must be one of {', '.join(EVICTION_POLICIES)}")
        self._priority: Policy = EVICTION_POLICIES[policy]
        self._heap: list[tuple[Priority, int, TreeNode]] = []
        self._serial = 0  # breaks ties: first offered, first out

    def offer(self, node: TreeNode) -> None:
        """Put `node` in, if it has become an unlocked leaf and is not in already."""
        if not (node.queued or node.children or node.lock_ref):
            self._push(node)

    def pop(self) -> TreeNode | None:
        """Take out the unlocked leaf that the policy gives up first; None when there is none."""
        while self._heap:
            priority, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.children or node.lock_ref or node.parent is None:
                continue
            if self._priority(node) == priority:
                return node
            self._push(node)
        return None

    def _push(self, node: TreeNode) -> None:
        node.queued = True
        self._serial += 1
        heapq.heappush(self._heap, (self._priority(node), self._serial, node))
