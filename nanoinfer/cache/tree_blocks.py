"""TreeBlocks: cuts what a radix tree holds into blocks of equal size, and reports which come and go."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nanoinfer.cache.block_events import (
    AllBlocksCleared,
    BlockEvent,
    BlockRemoved,
    BlockStored,
    chained_hashes,
    check_block_size,
    namespace_hash,
)
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver
from nanoinfer.requests.request import AdapterKey

Nodes = Callable[[], Iterable[tuple[int, TreeNode]]]


class NodeBlocks(NamedTuple):
    """`hashes`: of the blocks that end in a node, which begins after `start` tokens. `parent`: the hash of the block before
    the first of them, or of the namespace."""

    start: int
    parent: int
    hashes: list[int]

    @property
    def last(self) -> int:
        """The hash of the last block that ends in the node or above it."""
        return self.hashes[-1] if self.hashes else self.parent


class TreeBlocks(TreeObserver):
    """The blocks of a RadixCache, which it observes; `nodes` as in the tree.

    A node is any run of pages, so a block may begin in one node and end in another. It belongs to the node in which it
    ends. Splitting a node changes no blocks, and one that grows stores those that are complete now. If a block ends within
    a page, several nodes may hold it; it is stored with the first and removed with the last.

    `events` gets one list per operation that has changed the blocks, when the tree is complete again. If it raises, it is
    not called any more (see TreeObserver). A tree that holds something already reports it first.
    """

    def __init__(self, nodes: Nodes, events: Callable[[list[BlockEvent]], object], block_size: int):
        check_block_size(block_size, "event_block_size")
        self.block_size, self._nodes = block_size, nodes
        self._events = events
        self._of: dict[TreeNode, NodeBlocks] = {}
        self._copies: dict[int, int] = {}  # block hash → how many nodes hold it
        self._tell([event for _, node in nodes() for event in self._add(node)])

    def __len__(self) -> int:
        """How many different blocks the tree holds."""
        return len(self._copies)

    # --- what the tree reports -------------------------------------------------------------------------------------

    def check_key(self, extra_key: Hashable) -> None:
        """ValueError for an `extra_key` that has no hash."""
        namespace_of(extra_key)

    def inserted(self, leaf: TreeNode) -> None:
        self._tell(self._add(leaf))

    def grew(self, leaf: TreeNode, count: int) -> None:
        self._tell(self._add(leaf, len(leaf) - count))

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        start, parent, hashes = self._of[lower]
        middle = start + len(upper)
        count = middle // self.block_size - start // self.block_size
        self._of[upper] = above = NodeBlocks(start, parent, hashes[:count])
        self._of[lower] = NodeBlocks(middle, above.last, hashes[count:])

    def evicted(self, nodes: Sequence[TreeNode]) -> None:
        removed = []
        for node in nodes:
            for block in self._of.pop(node).hashes:
                self._copies[block] -= 1
                if not self._copies[block]:
                    del self._copies[block]
                    removed.append(block)
        self._tell([BlockRemoved(removed)] if removed else [])

    def reset(self, nodes: Sequence[TreeNode]) -> None:
        held = bool(self._copies)
        self._of.clear()
        self._copies.clear()
        self._tell([AllBlocksCleared()] if held else [])

    # --- looking at it ---------------------------------------------------------------------------------------------

    def stored(self) -> Iterator[BlockStored]:
        """All blocks, parents before children. It visits the whole tree, which must not change meanwhile."""
        seen = set[int]()
        for _, node in self._nodes():
            blocks = self._of[node]
            new = next((i for i, block in enumerate(blocks.hashes) if block not in seen), len(blocks.hashes))
            seen.update(blocks.hashes)
            if new < len(blocks.hashes):
                yield self._event(node, blocks, self._from_block_start(node, blocks.start), new)

    # --- how it works ----------------------------------------------------------------------------------------------

    def _add(self, node: TreeNode, known: int = 0) -> list[BlockEvent]:
        """Note the blocks that end in `node`, which is new, or else had its first `known` tokens before."""
        before = self._of.get(node)
        if before is None:
            above = None if node.parent is None else self._of.get(node.parent)
            if above is None or node.parent is None:  # below the root
                before = NodeBlocks(0, namespace_of(node.edge[0]), [])
            else:
                before = NodeBlocks(above.start + len(node.parent), above.last, [])
        tokens = self._from_block_start(node, before.start, known)
        added = NodeBlocks(before.start + known, before.last, chained_hashes(tokens, self.block_size, before.last))
        self._of[node] = before._replace(hashes=before.hashes + added.hashes)
        new = len(added.hashes)
        for i, block in reversed([*enumerate(added.hashes)]):
            self._copies[block] = self._copies.get(block, 0) + 1
            if self._copies[block] == 1:
                new = i  # what comes before a block is there whenever the block is, so the new ones are the last ones
        return [self._event(node, added, tokens, new)] if new < len(added.hashes) else []

    def _event(self, node: TreeNode, blocks: NodeBlocks, tokens: np.ndarray, first: int) -> BlockStored:
        """The event of `blocks` from number `first` on. `tokens`: from the start of the first one of all on."""
        size, key = self.block_size, node.edge[0]
        begins = not first and blocks.start < size
        parent = None if begins else blocks.hashes[first - 1] if first else blocks.parent
        ids = tokens[first * size : len(blocks.hashes) * size].tolist()
        return BlockStored(blocks.hashes[first:], parent, ids, size, *adapter_of(key))

    def _from_block_start(self, node: TreeNode, start: int, known: int = 0) -> np.ndarray:
        """The tokens of `node`, which begins after `start` others, from number `known` on, and before them those in the
        same block, some of which may be in its ancestors."""
        missing, above = (start + known) % self.block_size, node.parent
        parts = [node.key[max(known - missing, 0) :]]
        missing -= min(known, missing)
        while missing:
            assert above is not None
            parts.append(above.key[-missing:])
            missing -= len(parts[-1])
            above = above.parent
        return np.concatenate(parts[::-1])

    def _tell(self, events: list[BlockEvent]) -> None:
        if events:
            self._events(events)


def adapter_of(extra_key: Hashable) -> tuple[int | None, str | None]:
    """The id and the name of the adapter in a tree's key, if there is one."""
    return (extra_key.id, extra_key.name) if isinstance(extra_key, AdapterKey) else (None, None)


def namespace_of(extra_key: Hashable) -> int:
    """The hash of a tree's key. An adapter counts by its name, because ids differ from process to process."""
    if isinstance(extra_key, AdapterKey):
        return namespace_hash(extra_key.extra_key, extra_key.name)
    return namespace_hash(extra_key, None)
