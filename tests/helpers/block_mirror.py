"""A plain listener of a tree's events, and what the tree's paths say that it should have heard."""

from collections.abc import Iterable

import numpy as np

from nanoinfer.cache.block_events import GPU, AllBlocksCleared, BlockEvent, BlockRemoved, block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cluster.block_index import BlockIndex
from nanoinfer.requests.request import AdapterKey

Block = tuple[int | None, tuple[int, ...], str | None]  # the block before it, its tokens, its adapter
Blocks = dict[int, Block]  # by hash


def blocks_of_tree(tree: RadixCache, block_size: int) -> Blocks:
    """The blocks of every path from the root, computed anew from the tokens."""
    found: Blocks = {}
    for _, node in tree.nodes():
        parts, above = [node.key], node.parent
        while above is not None:
            parts.append(above.key)
            above = above.parent
        key, adapter = node.edge[0], None
        if isinstance(key, AdapterKey):
            key, adapter = key.extra_key, key.name
        tokens = np.concatenate(parts[::-1])
        hashes = block_hashes(tokens, block_size, key, adapter)
        for i, block in enumerate(hashes):
            own = tuple(tokens[i * block_size : (i + 1) * block_size].tolist())
            found[block] = (hashes[i - 1] if i else None, own, adapter)
    return found


class BlockMirror:
    """Does what events say, and refuses what no honest tree says."""

    def __init__(self) -> None:
        self.blocks: Blocks = {}  # of the tree
        self.media: dict[str, Blocks] = {GPU: self.blocks}
        self.calls: list[list[BlockEvent]] = []

    def note(self, events: list[BlockEvent]) -> None:
        """One operation of the tree."""
        assert events
        self.calls.append(events)
        self.apply(events)

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            assert event.__class__ is not AllBlocksCleared or self.blocks
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                assert event.block_hashes
                for block in event.block_hashes:
                    del self.media[event.medium][block]
            else:
                parent, size = event.parent_block_hash, event.block_size
                assert event.block_hashes
                assert len(event.token_ids) == len(event.block_hashes) * size
                blocks = self.media.setdefault(event.medium, {})
                for i, block in enumerate(event.block_hashes):
                    assert block not in blocks
                    assert parent is None or parent in blocks or event.medium != GPU
                    blocks[block] = (parent, tuple(event.token_ids[i * size : (i + 1) * size]), event.lora_name)
                    parent = block


class FeedReader:
    """Follows a feed; batches that are lost on the way are noticed at the next one, and mended by a snapshot.

    The mirror and a BlockIndex do the same, and must come to the same blocks.
    """

    def __init__(self, feed: BlockFeed):
        self.feed, self.mirror, self.index = feed, BlockMirror(), BlockIndex(feed.event_block_size)
        self.index.add("it", 1)
        self.seq = 0  # of the batch that comes next
        self.sent = 0  # how many batches the feed has sent
        self.snapshots = 0

    def follow(self, lost: int = 0) -> None:
        """Read what is new; the first `lost` batches of it do not arrive."""
        batches = self.feed.since(self.sent)
        if batches is None:
            self.take_snapshot()
            return
        self.sent += len(batches)
        for batch in batches[lost:]:
            assert batch.source == self.feed.source
            is_next = batch.seq == self.seq
            assert self.index.note_events("it", batch) is is_next
            if not is_next:
                self.take_snapshot()
                return
            self.mirror.apply(batch.events)
            self.seq += 1
        self._compare()

    def catch_up(self) -> None:
        """Read what is new, and again what did not arrive."""
        self.sent = self.seq
        self.follow()

    def take_snapshot(self) -> None:
        """Forget everything, and begin with what the tree holds now."""
        snapshot = self.feed.snapshot()
        self.mirror = BlockMirror()
        self.mirror.apply(snapshot.blocks)
        self.index.note_snapshot("it", snapshot)
        self.seq = self.sent = snapshot.seq
        self.snapshots += 1
        self._compare()

    def _compare(self) -> None:
        assert self.index.sets.masks.keys() == self.mirror.blocks.keys()
        below = {block for name, blocks in self.mirror.media.items() if name != GPU for block in blocks}
        assert self.index.below.masks.keys() == below
        for name, blocks in self.mirror.media.items():
            assert self.index.num_blocks("it", name) == len(blocks)
