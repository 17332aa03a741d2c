"""Small radix caches, a caller that inserts into them, what there is to see of them, and a mirror that is told of them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver


def make_cache(size: int = 64, page_size: int = 1, **options: Any) -> RadixCache:
    pool = TokenToKVPool(size, torch.float32, head_num=1, head_dim=1, layer_num=1, page_size=page_size)
    return RadixCache(ReqToTokenPool(4, size), pool, page_size, **options)


def put(
    cache: RadixCache, tokens: Sequence[int], extra_key: Hashable = None, grow: TreeNode | None = None
) -> tuple[int, list[int]]:
    """Insert as a caller does: with new slots, giving duplicates and an incomplete page back.

    Returns how many tokens were known and the slots that were offered.
    """
    pool, page_size = cache.token_to_kv_pool, cache.page_size
    slots = pool.alloc(-(-len(tokens) // page_size) * page_size)
    assert slots is not None
    known = cache.insert(tokens, slots[: len(tokens)], extra_key, grow)
    whole = 0 if cache.disable else len(tokens) - len(tokens) % page_size
    pool.free(torch.cat((slots[:known], slots[whole:])))
    return known, slots.tolist()


def shape(cache: RadixCache) -> list[tuple[int, list[int]]]:
    """The tree as (depth, tokens) lines."""
    return [(depth, node.key.tolist()) for depth, node in cache.nodes()]


def snapshot(cache: RadixCache) -> list[object]:
    """Everything that an operation could change."""
    fields = [name for name in TreeNode.__slots__ if name not in ("children", "key", "value", "parent")]
    lines: list[object] = [cache.insertions, cache.evictable_size(), cache.protected_size()]
    for depth, node in cache.nodes():
        values = [getattr(node, name) for name in fields]
        lines.append((depth, id(node), id(node.parent), node.key.tolist(), node.value.tolist(), values))
    return [*lines, cache.token_to_kv_pool.free_slots().tolist()]


@dataclass(eq=False)
class Copy:
    """A node: plain lists, and copies for children."""

    key: list[int]
    value: list[int]
    space: Hashable
    use: tuple[int, int, int]  # lock_ref, last_access_time, hit_count
    children: list["Copy"] = field(default_factory=list)


class TreeMirror(TreeObserver):
    """A copy of a radix tree that is made only from what the tree tells its observers. Joins an empty one.

    `check` compares the tree with what has been told.
    """

    def __init__(self, tree: RadixCache):
        self._tree = tree
        self._copies = {tree.root: Copy([], [], None, (0, 0, 0))}
        self._above: dict[Copy, Copy] = {}
        self._going: list[TreeNode] = []  # told to `evicting`

    def check(self) -> None:
        """AssertionError unless the tree is what has been told."""
        told = [self._copies[self._tree.root]]
        for copy in told:
            told += copy.children
        assert len(told) == len(self._copies)
        for node, copy in self._copies.items():
            assert (copy.key, copy.value, copy.use) == (node.key.tolist(), node.value.tolist(), _use(node))
            assert copy.children == [self._copies[child] for child in node.children.values()]
            assert copy.space == node.edge[0]
        assert self._copies.keys() == {self._tree.root, *(node for _, node in self._tree.nodes())}

    def used(self, node: TreeNode) -> None:
        self._change(node, lambda locks, _, hits: (locks, self._tree._clock, hits))

    def hit(self, node: TreeNode) -> None:
        self._change(node, lambda locks, time, hits: (locks, time, hits + 1))

    def locked(self, node: TreeNode) -> None:
        self._change(node, lambda locks, time, hits: (locks + 1, time, hits))

    def unlocked(self, node: TreeNode) -> None:
        self._change(node, lambda locks, time, hits: (locks - 1, time, hits))

    def _change(self, node: TreeNode, change: Callable[[int, int, int], tuple[int, int, int]]) -> None:
        copy, top = self._copies[node], self._copies[self._tree.root]
        while copy is not top:
            copy.use = change(*copy.use)
            copy = self._above[copy]

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        below, length = self._copies[lower], len(upper)
        above = Copy(below.key[:length], below.value[:length], below.space, _use(upper), [below])
        siblings = self._above[below].children
        siblings[siblings.index(below)] = above
        self._above[above], self._above[below] = self._above[below], above
        below.key, below.value = below.key[length:], below.value[length:]
        self._copies[upper] = above

    def inserted(self, leaf: TreeNode) -> None:
        assert leaf.parent is not None
        parent = self._copies[leaf.parent]
        copy = Copy(leaf.key.tolist(), leaf.value.tolist(), leaf.edge[0], _use(leaf))
        parent.children.append(copy)
        self._above[copy], self._copies[leaf] = parent, copy

    def grew(self, leaf: TreeNode, count: int) -> None:
        copy = self._copies[leaf]
        copy.key += leaf.key[-count:].tolist()
        copy.value += leaf.value[-count:].tolist()

    def evicting(self, leaf: TreeNode) -> None:
        copy = self._copies[leaf]
        assert not [child for child in copy.children if all(self._copies[gone] is not child for gone in self._going)]
        self._going.append(leaf)

    def evicted(self, nodes: Sequence[TreeNode]) -> None:
        assert not self._going or self._going[: len(nodes)] == [*nodes]
        self._going.clear()
        for node in nodes:
            copy = self._copies.pop(node)
            assert not copy.children
            assert (copy.key, copy.value) == (node.key.tolist(), node.value.tolist())
            self._above.pop(copy).children.remove(copy)

    def reset(self, nodes: Sequence[TreeNode]) -> None:
        assert {self._tree.root, *nodes} == self._copies.keys()
        self.evicted(nodes[::-1])


def _use(node: TreeNode) -> tuple[int, int, int]:
    return node.lock_ref, node.last_access_time, node.hit_count
