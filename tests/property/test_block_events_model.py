"""The blocks that a tree reports against a dictionary of prefixes that knows nothing of nodes, after every operation."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from nanoinfer.cache.block_events import block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.trees import make_cache, put
from tests.property.test_radix_cache_model import CacheModel


class BlockModel(CacheModel):
    """A feed begins some time, and is read by two: one who reads everything, and one who loses batches."""

    block_size, keep_blocks = 4, 8192

    feed: BlockFeed | None = None

    @rule(now=st.booleans())
    def begin(self, now: bool) -> None:
        if self.feed is None and now:
            self.feed = BlockFeed(self.cache, self.block_size, keep_blocks=self.keep_blocks, clock=lambda: 0.0)
            self.careful, self.careless = FeedReader(self.feed), FeedReader(self.feed)

    @rule()
    def end_step(self) -> None:
        if self.feed is not None:
            self.feed.cut()

    @rule(lost=st.integers(0, 3), again=st.booleans())
    def follow(self, lost: int, again: bool) -> None:
        if self.feed is not None:
            self.careless.follow(lost)
            if again:
                self.careless.catch_up()
                assert self.careless.mirror.blocks.keys() == self.expected()

    @rule(key=CacheModel.KEYS)
    def evict_key(self, key: object) -> None:
        if any(other == key for (other, _) in self.protected()):
            with pytest.raises(ValueError, match="locked"):
                self.cache.evict_keys(lambda other: other == key)
        else:
            going = [prefix for prefix in self.known if prefix[0] == key]
            assert self.cache.evict_keys(lambda other: other == key) == len(going) * self.page_size
            for prefix in going:
                del self.known[prefix]

    def expected(self) -> set[int]:
        return {block for key, tokens in self.known for block in block_hashes(tokens, self.block_size, key)}

    @invariant()
    def blocks_agree(self) -> None:
        if self.feed is None:
            return
        self.careful.follow()
        assert self.careful.snapshots == 0
        assert self.careful.mirror.blocks == blocks_of_tree(self.cache, self.block_size)
        assert self.careful.mirror.blocks.keys() == self.expected()
        fresh = FeedReader(self.feed)
        fresh.take_snapshot()
        assert fresh.mirror.blocks == self.careful.mirror.blocks

    def teardown(self) -> None:
        if self.feed is not None:
            self.careless.catch_up()
            assert self.careless.mirror.blocks.keys() == self.expected()


@pytest.mark.parametrize(("page_size", "block_size"), [(1, 1), (1, 3), (2, 3), (4, 2), (4, 4), (4, 6)])
def test_events_and_the_tree_agree(page_size: int, block_size: int) -> None:
    fields = {"page_size": page_size, "size": 24 * page_size, "block_size": block_size}
    machine = type("Machine", (BlockModel,), fields)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=20, stateful_step_count=30),
    )


@pytest.mark.parametrize("seed", range(8))
def test_events_and_the_tree_agree_on_branches_of_branches(seed: int) -> None:
    """Long sequences of two tokens, so that nodes are split again and again, within blocks as well."""
    rng = np.random.default_rng(seed)
    page_size, block_size = (1, 1, 2, 4)[seed % 4], (3, 5, 3, 6)[seed % 4]
    cache = make_cache(240, page_size)
    reader, most = FeedReader(BlockFeed(cache, block_size)), 0
    for _ in range(250):
        tokens = rng.integers(0, 2, size=int(rng.integers(1, 12)) * page_size).repeat(int(rng.integers(1, 3)))
        chance = rng.random()
        if chance < 0.2:
            cache.match_prefix(tokens)
        elif chance < 0.3:
            cache.evict(int(rng.integers(1, 20)))
        elif len(tokens) <= cache.token_to_kv_pool.available_size():
            put(cache, tokens.tolist(), grow=cache.match_prefix(tokens).last_node if chance < 0.6 else None)
        reader.follow()
        assert reader.mirror.blocks == blocks_of_tree(cache, block_size)
        most = max(most, len(reader.mirror.blocks))
        fresh = FeedReader(reader.feed)
        fresh.take_snapshot()
        assert fresh.mirror.blocks == reader.mirror.blocks
    assert most > 20
