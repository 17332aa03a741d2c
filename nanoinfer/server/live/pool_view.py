"""The pools in a frame: the owner of each slot, in a bounded number of cells, and the tree's nodes that matter most."""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode

ROOT = 0  # the root's number
FREE, TREE, LOCKED, OTHER, FIRST_REQUEST = range(5)  # what a cell shows; a request: FIRST_REQUEST + its number
LINE = 64  # cells that travel together when one of them changes
LEAST_SHOWN = 512  # slots of a pool that is hardly used


class SlotView:
    """Shows the lowest slots of a pool, as many as have ever been in use, rounded up to a power of two.

    If these are more than `most_cells`, a cell stands for several slots and shows the owner that most of them have.
    """

    def __init__(self, pool: TokenToKVPool, most_cells: int):
        self._pool, self._most = pool, most_cells
        self._used = 0

    def state(self, locked: Iterable[TreeNode], owned: Mapping[int, np.ndarray], others: Iterable[np.ndarray]) -> dict:
        """`shown` slots in cells of `group` slots, and `lines`: for each LINE cells [length, code, length, code, ...].

        `locked`: the locked nodes of the tree. `owned`: number of a request → the slots that it owns. `others`: those of
        requests that are not in the frame.
        """
        is_taken = np.ones(self._pool.size, dtype=bool)
        is_taken[self._pool.free_slots().numpy()] = False
        taken = np.flatnonzero(is_taken)
        self._used = max(self._used, int(taken[-1]) + 1 if taken.size else 0)
        shown = min(max(LEAST_SHOWN, 1 << max(self._used - 1, 0).bit_length()), self._pool.size)
        numbers = list(owned)
        codes = np.where(is_taken, TREE, FREE)
        for node in locked:
            codes[node.value] = LOCKED
        for slots in others:
            codes[slots] = OTHER
        for place, slots in enumerate(owned.values()):
            codes[slots] = FIRST_REQUEST + place
        group = -(-shown // self._most)
        cells = _most_frequent(codes[:shown], group, FIRST_REQUEST + len(numbers))
        names = np.array([*range(FIRST_REQUEST), *(FIRST_REQUEST + number for number in numbers)])
        cells = names[cells]
        lines = {str(i): _lengths(cells[start : start + LINE]) for i, start in enumerate(range(0, len(cells), LINE))}
        return {"shown": shown, "group": group, "lines": lines}


def runs_of(slots: np.ndarray, most: int) -> list[int]:
    """Slots in order as [start, length, start, length, ...], at most `most` runs of neighbours."""
    runs = consecutive_runs(slots)[:most]
    return [number for start, end in runs for number in (start, end - start)]


def _most_frequent(codes: np.ndarray, group: int, num_codes: int) -> np.ndarray:
    """The most frequent of every `group` codes, the lowest such code."""
    if group == 1:
        return codes
    padded = np.pad(codes, (0, -len(codes) % group), mode="edge")
    cells = len(padded) // group
    places = padded + np.repeat(np.arange(cells), group) * num_codes
    return np.bincount(places, minlength=cells * num_codes).reshape(cells, num_codes).argmax(axis=1)


def _lengths(cells: np.ndarray) -> list[int]:
    starts = np.concatenate(([0], np.flatnonzero(np.diff(cells)) + 1))
    lengths = np.diff(np.concatenate((starts, [len(cells)])))
    return np.stack((lengths, cells[starts]), axis=1).ravel().tolist()


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
