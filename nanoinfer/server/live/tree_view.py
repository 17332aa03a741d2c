"""The radix tree in a frame: the nodes that matter most, in a bounded number."""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.server.live.slot_view import runs_of

ROOT = 0  # the root's number


class TreeView:
    """Numbers the nodes that it shows. A node keeps its number while it is shown, and numbers are never used again.

    Locked nodes come first, then those that were used last: walks mark whole paths, so a node's parent is never left out.
    Keeps nodes only until the next `state` or `clear`.
    """

    def __init__(self, tree: RadixCache, most_nodes: int, most_runs: int):
        self._tree, self._most, self._most_runs = tree, most_nodes, most_runs
        self._next = count(ROOT + 1)
        self._numbers: dict[TreeNode, int] = {}

    def state(self, name_of_key: Callable[[Hashable], str | None]) -> dict[str, dict[str, Any]]:
        """Number → the node: its `parent`, how many `tokens` it has, some of its `slots` as runs, how it is used, and how
        many of its children are not shown (`hidden`)."""
        chosen = self._choose()
        shown = Counter(node.parent for node in chosen)  # children
        self._numbers = {node: self._numbers.get(node) or next(self._next) for node in chosen}
        nodes: dict[str, dict[str, Any]] = {
            str(ROOT): {"hidden": len(self._tree.root.children) - shown[self._tree.root]}
        }
        for node, number in self._numbers.items():
            fields = {
                "parent": self.number(node.parent),
                "tokens": len(node),
                "slots": runs_of(node.value, self._most_runs),
                "lock": node.lock_ref,
                "hits": node.hit_count,
                "used": node.last_access_time,
                "made": node.creation_time,
                "hidden": len(node.children) - shown[node],
            }
            if (name := name_of_key(node.edge[0])) is not None:
                fields["key"] = name
            nodes[str(number)] = fields
        return nodes

    def number(self, node: TreeNode | None) -> int:
        """A shown node's number; for another one, that of the deepest shown node above it."""
        while node is not None:
            if node in self._numbers:
                return self._numbers[node]
            node = node.parent
        return ROOT

    def find(self, number: int) -> TreeNode | None:
        """The node of this number, if it was in the last state and is still in the tree."""
        node = next((node for node, its_number in self._numbers.items() if its_number == number), None)
        return None if node is None or node.parent is None else node

    @property
    def shown(self) -> dict[TreeNode, int]:
        """The nodes of the last state and their numbers."""
        return self._numbers

    def clear(self) -> None:
        """Let go of all nodes."""
        self._numbers = {}

    def _choose(self) -> list[TreeNode]:
        order = count()  # nodes cannot be compared

        def entry(node: TreeNode) -> tuple[bool, int, int, TreeNode]:
            return node.lock_ref == 0, -node.last_access_time, next(order), node

        heap = [entry(child) for child in self._tree.root.children.values()]
        heapq.heapify(heap)
        chosen: list[TreeNode] = []
        while heap and len(chosen) < self._most:
            node = heapq.heappop(heap)[-1]
            chosen.append(node)
            for child in node.children.values():
                heapq.heappush(heap, entry(child))
        return chosen


def locked_nodes(nodes: list[TreeNode], root: TreeNode) -> list[TreeNode]:
    """`nodes` and all nodes above them, each once."""
    found: dict[TreeNode, None] = {}
    for node in nodes:
        above: TreeNode | None = node
        while above is not None and above is not root and above not in found:
            found[above] = None
            above = above.parent
    return list(found)
