"""TreeNode: a run of tokens in the radix tree and the slots that hold their K/V."""

from collections.abc import Hashable

import numpy as np

Edge = tuple[Hashable, bytes]


class TreeNode:
    """A stretch of tokens (`key`, int64 `[k]`), the slots with their K/V (`value`, int32 `[k]`), and how requests use them.

    `edge` is the key under which the parent finds this node: the namespace and the first page of `key`. `lock_ref`
    is the number of locks on it and on nodes below: a request holds one on the node in which its cached prefix ends. A
    locked node is never evicted.
    """

    __slots__ = (
        "children",
        "creation_time",
        "edge",
        "hit_count",
        "key",
        "last_access_time",
        "lock_ref",
        "parent",
        "queued",
        "value",
    )

    def __init__(self, edge: Edge, key: np.ndarray, value: np.ndarray, parent: "TreeNode | None", time: int):
        self.edge, self.key, self.value, self.parent = edge, key, value, parent
        self.children: dict[Edge, TreeNode] = {}
        self.lock_ref = 0
        self.creation_time: int = time  # in ticks of the tree's clock: one per walk down the tree, not seconds
        self.last_access_time: int = time
        self.hit_count: int = 0
        self.queued: tuple[int, ...] | None = None  # the priority in its eviction queue entry; None without one

    def __len__(self) -> int:
        return len(self.key)
