"""The storeys below the pool in a frame: how full they are, and how much of each node of the tree they keep as well."""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from nanoinfer.cache.tiers.block_index import Block, block_digests
from nanoinfer.cache.tiers.host import HostTier
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.engine.stats import EngineStats

COUNTS = (
    *("host_slots", "host_held_tokens", "host_stored_tokens", "host_fetched_tokens"),
    *("disk_held_tokens", "disk_fetched_tokens"),
)


class Blocks(NamedTuple):
    """The whole blocks of a sequence that end in one node of the tree, which has `length` tokens from position `start` on.

    `keys`, `file_keys`: of each block, in host memory and in files. `rest`: the tokens behind the last whole block, which
    may have begun above. `last_key`: of that block, in files; None without files.
    """

    start: int
    length: int
    keys: list[bytes]
    file_keys: list[bytes]
    rest: np.ndarray
    last_key: bytes | None

    @property
    def end(self) -> int:
        return self.start + self.length


class StoreyView:
    """Looks at the storeys of one engine. What a node's blocks are called is worked out once, for nodes that are shown."""

    def __init__(self, host: HostTier):
        self._host = host
        self._blocks: dict[TreeNode, Blocks] = {}

    def state(self, stats: EngineStats) -> dict[str, int]:
        """How full they are, and what has been copied since the start: fields of EngineStats, and the bytes of files."""
        fields = {name: stats[name] for name in COUNTS}
        if self._host.below is None:
            return fields
        return fields | {"disk_bytes": sum(list(self._host.below.files.sizes.values()))}

    def kept(self, nodes: Iterable[TreeNode]) -> dict[TreeNode, dict[str, int]]:
        """Storey → how many tokens of a node it keeps as well, for nodes of the tree, parents before children. Storeys that
        keep none are left out. What counts is whole blocks: one that would end below the node does not."""
        known, self._blocks = self._blocks, {}
        cursors: dict[TreeNode, Block | None] = {}
        kept: dict[TreeNode, dict[str, int]] = {}
        for node in nodes:
            assert node.parent is not None
            blocks = self._blocks[node] = self._blocks_of(node, known.get(node))
            above = node.parent
            block = cursors[above] if above in cursors else self._host.index.root(node.edge[0])
            in_host = []
            for key in blocks.keys:
                block = None if block is None else block.children.get(key)
                in_host.append(block is not None and block.start is not None)
            cursors[node] = block
            in_files = self._host.below.has(blocks.file_keys) if blocks.file_keys else []
            counts = {"host": self._tokens(blocks, in_host), "disk": self._tokens(blocks, in_files)}
            kept[node] = {storey: tokens for storey, tokens in counts.items() if tokens}
        return kept

    def clear(self) -> None:
        """Let go of all nodes."""
        self._blocks = {}

    def _blocks_of(self, node: TreeNode, known: Blocks | None) -> Blocks:
        assert node.parent is not None
        above = self._blocks.get(node.parent)
        start = 0 if above is None else above.end
        if known is not None and (known.start, known.length) == (start, len(node)):
            return known  # what is before a node stays; it only grows, or loses its first tokens to a new one above it
        size, extra_key = self._host.block_size, node.edge[0]
        tokens = node.key if above is None else np.concatenate((above.rest, node.key))
        whole = len(tokens) - len(tokens) % size
        keys = [tokens[at : at + size].tobytes() for at in range(0, whole, size)]
        key = self._first_key(extra_key) if above is None else above.last_key
        file_keys = [] if key is None else block_digests(key, tokens[:whole], size)
        return Blocks(start, len(node), keys, file_keys, tokens[whole:], file_keys[-1] if file_keys else key)

    def _first_key(self, extra_key: Hashable) -> bytes | None:
        return None if self._host.below is None else self._host.below.first_digest(extra_key)

    def _tokens(self, blocks: Blocks, are_kept: list[bool]) -> int:
        """How many tokens of the node are in those of its blocks that are kept."""
        size = self._host.block_size
        first = blocks.start - blocks.start % size
        starts = [first + i * size for i, is_kept in enumerate(are_kept) if is_kept]
        return sum(start + size - max(start, blocks.start) for start in starts)


def waiting_for(storey: HostTier | None, req: Any) -> int:
    """How many tokens' K/V is on its way from files for a request that waits for it."""
    return 0 if storey is None or storey.below is None else storey.below.tokens_coming(req)
