"""TreeNotes: notes what happens to a radix tree while it happens."""

from collections.abc import Callable, Iterator
from typing import Any

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.trace.events import NodeUse, to_runs

Call = Callable[..., Any]


class TreeNotes:
    """Numbers the nodes of `tree` (0: the root) in the order in which it sees them, and notes operations and uses.

    `watchers`: method of RadixCache → the function that wraps it while the tree is watched. A node is referenced only as
    long as it is in the tree.
    """

    def __init__(self, tree: RadixCache):
        self.watchers: dict[str, Call] = {
            "_walk": self._on_walk,
            "_up_to_root": self._on_up_to_root,
            "_split": self._on_split,
            "_append": self._on_append,
            "_remove_leaf": self._on_remove_leaf,
            "reset": self._on_reset,
        }
        self._tree = tree
        self._numbers: dict[TreeNode, int] = {tree.root: 0}
        self._next = 1
        self._uses: dict[TreeNode, tuple[int, int, int] | None] = {}  # as last noted; None: never noted
        self._touched: dict[TreeNode, None] = {}  # nodes whose lock or use may have changed since `take`
        self._operations: list[list[Any]] = []
        for _, node in tree.nodes():
            assert node.parent is not None
            self._added(node, node.parent)

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

    # --- functions that wrap the tree's methods -------------------------------------------------------------------

    def _on_walk(self, walk: Call, *args: Any) -> list[TreeNode]:
        path = walk(*args)
        self._touched.update(dict.fromkeys(path))
        return path

    def _on_up_to_root(self, up_to_root: Call, node: TreeNode) -> Iterator[TreeNode]:
        for ancestor in up_to_root(node):
            self._touched[ancestor] = None
            yield ancestor

    def _on_split(self, split: Call, node: TreeNode, length: int) -> TreeNode:
        upper = split(node, length)
        self._uses[upper] = None
        self._touched[upper] = None
        self._operations.append(["split", self._numbers[node], self._new_number(upper), length])
        return upper

    def _on_append(self, append: Call, parent: TreeNode, *args: Any) -> TreeNode:
        length, children = len(parent), len(parent.children)
        node: TreeNode = append(parent, *args)
        if len(parent.children) > children:
            self._added(node, parent)
        else:
            tokens, slots = parent.key[length:].tolist(), to_runs(parent.value[length:])
            self._operations.append(["grow", self._numbers[parent], tokens, slots])
        return node

    def _on_remove_leaf(self, remove_leaf: Call, leaf: TreeNode) -> None:
        remove_leaf(leaf)
        self._removed(leaf)

    def _on_reset(self, reset: Call) -> None:
        nodes = [node for _, node in self._tree.nodes()]
        reset()
        for node in reversed(nodes):
            self._removed(node)

    # --- notes ---------------------------------------------------------------------------------------------------

    def _added(self, node: TreeNode, parent: TreeNode) -> None:
        time, extra_key = node.creation_time, node.edge[0]
        self._uses[node] = (0, time, 0)
        self._touched[node] = None
        tokens, slots, key = node.key.tolist(), to_runs(node.value), None if extra_key is None else repr(extra_key)
        self._operations.append(["add", self._new_number(node), self._numbers[parent], tokens, slots, key, time])

    def _removed(self, node: TreeNode) -> None:
        self._operations.append(["remove", self._numbers.pop(node)])
        self._uses.pop(node, None)

    def _new_number(self, node: TreeNode) -> int:
        self._numbers[node] = self._next
        self._next += 1
        return self._numbers[node]
