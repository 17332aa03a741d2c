"""EvictionQueue: which leaf of the radix tree goes first."""

import heapq
from collections.abc import Callable

from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.registry import EVICTION_POLICIES

Priority = tuple[int, ...]
Policy = Callable[[TreeNode], Priority]

# The leaf with the smallest priority goes first. It depends on the node alone.
EVICTION_POLICIES.update(
    lru=lambda node: (node.last_access_time,),
    lfu=lambda node: (node.hit_count, node.last_access_time),
    fifo=lambda node: (node.creation_time,),
)


class EvictionQueue:
    """A heap of unlocked leaves that is put in order lazily: using a node moves nothing here.

    An entry remembers the priority its node had when it came in (`node.queued`). While priorities only rise, the entry
    on top is a lower bound: if its node has been used since, it goes back with its new priority; if it was locked, got a
    child or left the tree, it is dropped (and offered again when it is an unlocked leaf). A node has at most one entry.
    Where a policy lets a priority fall, the heap is built again before the next leaf is taken.
    """

    def __init__(self, policy: str):
        EVICTION_POLICIES.check(policy)
        self._priority: Policy = EVICTION_POLICIES[policy]
        self._heap: list[tuple[Priority, int, TreeNode]] = []
        self._serial = 0  # breaks ties: first offered, first out
        self._fallen = False  # some entry's priority is lower now than the one it remembers

    def offer(self, node: TreeNode) -> None:
        """Put `node` in, if it has become an unlocked leaf and is not in already."""
        if node.queued is None and not node.children and not node.lock_ref:
            self._push(node)

    def note_change(self, node: TreeNode) -> None:
        """`node` was used, split or lengthened; a rise of its priority needs no note."""
        if node.queued is not None and self._priority(node) < node.queued:
            self._fallen = True

    def pop(self) -> TreeNode | None:
        """Take out the unlocked leaf that the policy gives up first; None when there is none."""
        if self._fallen:
            entries, self._heap, self._fallen = self._heap, [], False
            for _, _, node in sorted(entries, key=lambda entry: entry[1]):  # ties stay in order
                self._push(node)
        again = set[TreeNode]()  # a policy whose value changes whenever it is asked must not go on for ever
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
