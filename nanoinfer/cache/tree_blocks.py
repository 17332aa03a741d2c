"""TreeBlocks: cuts what a radix tree holds into blocks of equal size, and reports which come and go."""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
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
from nanoinfer.requests.req import AdapterKey

logger = logging.getLogger(__name__)
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


class TreeBlocks:
    """The blocks of a RadixCache, which tells it of every change; `nodes` as in the tree.

    A node is any run of pages, so a block may begin in one node and end in another. It belongs to the node in which it
    ends. Splitting a node changes no blocks, and one that grows stores those that are complete now. If a block ends within
    a page, several nodes may hold it; it is stored with the first and removed with the last.

    `events` gets one list per operation that has changed the blocks, when the tree is complete again. If it raises an
    Exception, that is logged, and it is not called any more: the tree and its caller must not fail over who listens.
    A tree that holds something already reports it first.
    """

    def __init__(self, nodes: Nodes, events: Callable[[list[BlockEvent]], object], block_size: int):
        check_block_size(block_size, "event_block_size")
        self.block_size, self._nodes = block_size, nodes
        self._events: Callable[[list[BlockEvent]], object] | None = events
        self._of: dict[TreeNode, NodeBlocks] = {}
        self._copies: dict[int, int] = {}  # block hash → how many nodes hold it
        self._removed: list[int] = []  # not reported yet
        held: list[BlockEvent] = []
        for _, node in nodes():
            above = self._of.get(node.parent) if node.parent is not None else None
            start = 0 if above is None or node.parent is None else above.start + len(node.parent)
            held += self._add(node, start, self._from_block_start(node, start, node.key))
        self._tell(held)

    def __len__(self) -> int:
        """How many different blocks the tree holds."""
        return len(self._copies)

    # --- what the tree calls ---------------------------------------------------------------------------------------

    def check_key(self, extra_key: Hashable) -> None:
        """ValueError for an `extra_key` that has no hash. The tree calls this before it changes anything."""
        _namespace(extra_key)

    def inserted(self, node: TreeNode, tokens: np.ndarray, known: int) -> None:
        """A sequence now ends in `node`, which is new or has grown: `tokens` from the root on, all new from `known` on."""
        first = known - known % self.block_size
        self._tell(self._add(node, known, tokens[first:]))

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """The node `lower` has given its first tokens to `upper`, a new node above it."""
        start, parent, hashes = self._of[lower]
        middle = start + len(upper)
        count = middle // self.block_size - start // self.block_size
        self._of[upper] = above = NodeBlocks(start, parent, hashes[:count])
        self._of[lower] = NodeBlocks(middle, above.last, hashes[count:])

    def removed(self, leaf: TreeNode) -> None:
        """A leaf has left the tree. `report` says so."""
        for block in self._of.pop(leaf).hashes:
            self._copies[block] -= 1
            if not self._copies[block]:
                del self._copies[block]
                self._removed.append(block)

    def report(self) -> None:
        """The operation that has removed leaves is over."""
        removed, self._removed = self._removed, []
        self._tell([BlockRemoved(removed)] if removed else [])

    def cleared(self) -> None:
        """All nodes have left the tree."""
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
                yield self._event(node, blocks, self._from_block_start(node, blocks.start, node.key), new)

    # --- how it works ----------------------------------------------------------------------------------------------

    def _add(self, node: TreeNode, start: int, tokens: np.ndarray) -> list[BlockEvent]:
        """Note the blocks that end after `start` in `node`. `tokens`: from the start of the first of them on."""
        before = self._of.get(node)  # if it has grown
        if before is None:
            above = None if node.parent is None else self._of.get(node.parent)
            before = NodeBlocks(start, _namespace(node.edge[0]) if above is None else above.last, [])
        added = NodeBlocks(start, before.last, chained_hashes(tokens, self.block_size, before.last))
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
        adapter = (key.id, key.name) if isinstance(key, AdapterKey) else (None, None)
        return BlockStored(blocks.hashes[first:], parent, ids, size, *adapter)

    def _from_block_start(self, node: TreeNode, start: int, tokens: np.ndarray) -> np.ndarray:
        """`tokens`, which begin after `start`, and those before them in `node`'s ancestors that are in the same block."""
        parts, missing, above = [tokens], start % self.block_size, node.parent
        while missing:
            assert above is not None
            parts.append(above.key[-missing:])
            missing -= len(parts[-1])
            above = above.parent
        return np.concatenate(parts[::-1])

    def _tell(self, events: list[BlockEvent]) -> None:
        if events and self._events is not None:
            try:
                self._events(events)
            except Exception:
                logger.exception("the callback for block events failed, and is not called any more")
                self._events = None


def _namespace(extra_key: Hashable) -> int:
    """The hash of a tree's key. An adapter counts by its name, because ids differ from process to process."""
    if isinstance(extra_key, AdapterKey):
        return namespace_hash(extra_key.extra_key, extra_key.name)
    return namespace_hash(extra_key, None)
