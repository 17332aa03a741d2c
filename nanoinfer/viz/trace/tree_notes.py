"""TreeNotes: notes what happens to a radix tree while it happens."""

from collections.abc import Sequence
from typing import Any

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver, path_to
from nanoinfer.viz.trace.events import NodeUse, to_runs


class TreeNotes(TreeObserver):
    """Numbers the nodes of `tree` (0: the root) in the order in which it sees them, and notes operations and uses.

    It is told of them once it is among the tree's observers. A node is referenced only as long as it is in the tree.
    """

    def __init__(self, tree: RadixCache):
        self._numbers: dict[TreeNode, int] = {tree.root: 0}
        self._next = 1
        self._uses: dict[TreeNode, tuple[int, int, int] | None] = {}  # as last noted; None: never noted
        self._touched: dict[TreeNode, None] = {}  # nodes whose lock or use may have changed since `take`
        self._operations: list[list[Any]] = []
        for _, node in tree.nodes():
            self.inserted(node)

    def number(self, node: TreeNode | None) -> int:
        """A node's number. For None and for a node that is gone, it is the root's."""
        return 0 if node is None else self._numbers.get(node, 0)

    def take(self) -> tuple[list[list[Any]], list[NodeUse]]:
        """What has been noted since the last call: the operations in order, and the nodes whose lock or use has changed."""
        uses = []
        for node in self._touched:
            use = (node.lock_ref, node.last_access_time, node.hit_count)
            if node in self._uses and use != self._uses[node]:
                self._uses[node] = use
                uses.append(NodeUse(self._numbers[node], *use))
        operations, self._operations = self._operations, []
        self._touched.clear()
        return operations, uses

    def clear(self) -> None:
        """Drop all references to nodes."""
        for held in (self._numbers, self._uses, self._touched):
            held.clear()

    # --- what the tree tells -------------------------------------------------------------------------------------

    def used(self, node: TreeNode) -> None:
        self._touched.update(dict.fromkeys(reversed(path_to(node))))

    def hit(self, node: TreeNode) -> None:
        self._touched.update(dict.fromkeys(path_to(node)))

    locked = unlocked = hit

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        self._uses[upper] = None
        self._touched[upper] = None
        self._operations.append(["split", self._numbers[lower], self._new_number(upper), len(upper)])

    def inserted(self, leaf: TreeNode) -> None:
        assert leaf.parent is not None
        time, extra_key = leaf.creation_time, leaf.edge[0]
        self._uses[leaf] = (0, time, 0)
        self._touched[leaf] = None
        tokens, slots, key = leaf.key.tolist(), to_runs(leaf.value), None if extra_key is None else repr(extra_key)
        self._operations.append(["add", self._new_number(leaf), self._numbers[leaf.parent], tokens, slots, key, time])

    def grew(self, leaf: TreeNode, count: int) -> None:
        tokens, slots = leaf.key[-count:].tolist(), to_runs(leaf.value[-count:])
        self._operations.append(["grow", self._numbers[leaf], tokens, slots])

    def evicted(self, nodes: Sequence[TreeNode]) -> None:
        for node in nodes:
            self._operations.append(["remove", self._numbers.pop(node)])
            self._uses.pop(node, None)

    def reset(self, nodes: Sequence[TreeNode]) -> None:
        self.evicted(nodes[::-1])

    # --- how it works --------------------------------------------------------------------------------------------

    def _new_number(self, node: TreeNode) -> int:
        self._numbers[node] = self._next
        self._next += 1
        return self._numbers[node]
