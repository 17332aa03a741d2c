"""EvictionQueue: decides which leaf of the radix tree is evicted first."""

import heapq
from collections.abc import Callable

from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.registry import EVICTION_POLICIES

Priority = tuple[int, ...]
Policy = Callable[[TreeNode], Priority]

# The leaf with the smallest priority is evicted first. A priority depends on the node alone.
EVICTION_POLICIES.update(
    lru=lambda node: (node.last_access_time,),
    lfu=lambda node: (node.hit_count, node.last_access_time),
    fifo=lambda node: (node.creation_time,),
)


class EvictionQueue:
    """A heap of unlocked leaves that is kept in order lazily: using a node does not touch the heap.

    An entry remembers the priority that its node had when it was pushed (`node.queued`). As long as priorities only
    rise, the top entry is a lower bound. If its node has been used since, it is pushed again with its new priority. If
    its node was locked, got a child or left the tree, the entry is dropped (the node is offered again once it is an
    unlocked leaf). A node has at most one entry. If a policy lowers a priority, the heap is rebuilt before the next pop.
    """

    def __init__(self, policy: str):
        EVICTION_POLICIES.check(policy)
        self._priority: Policy = EVICTION_POLICIES[policy]
        self._heap: list[tuple[Priority, int, TreeNode]] = []
        self._serial = 0  # breaks ties: the node offered first comes out first
        self._fallen = False  # True when some node's priority is now lower than the one its entry remembers

    def offer(self, node: TreeNode) -> None:
        """Push `node` if it is an unlocked leaf and has no entry yet."""
        if node.queued is None and not node.children and not node.lock_ref:
            self._push(node)

    def note_change(self, node: TreeNode) -> None:
        """Tell the queue that `node` was used, split or lengthened. Only a lower priority makes a difference."""
        if node.queued is not None and self._priority(node) < node.queued:
            self._fallen = True

    def forget_removed(self) -> None:
        """Drop the entries of nodes that have left the tree other than by `pop`. It looks at all entries."""
        self._heap = [entry for entry in self._heap if entry[2].parent is not None]
        heapq.heapify(self._heap)

    def pop(self) -> TreeNode | None:
        """Take out the unlocked leaf that the policy evicts first; None when there is none."""
        if self._fallen:
            entries, self._heap, self._fallen = self._heap, [], False
            for _, _, node in sorted(entries, key=lambda entry: entry[1]):  # ties stay in order
                self._push(node)
        again = set[TreeNode]()  # pushed again once: stops a policy that returns a new value on every call from looping
        while self._heap:
            priority, _, node = heapq.heappop(self._heap)
            node.queued = None
            if node.children or node.lock_ref or node.parent is None:
                continue
            if node in again or self._priority(node) == priority:
                return node
            again.add(node)
            self._push(node)
        return None

    def _push(self, node: TreeNode) -> None:
        node.queued = self._priority(node)
        self._serial += 1
        heapq.heappush(self._heap, (node.queued, self._serial, node))
