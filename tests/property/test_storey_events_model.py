"""The blocks that a tree and the storeys below it report, against dictionaries of prefixes, after every operation."""

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from nanoinfer.cache.block_events import CPU, DISK, GPU, block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from tests.helpers.block_mirror import Blocks, FeedReader, blocks_of_tree
from tests.helpers.storeys import Prefix
from tests.property.test_host_storey_model import ThreeStoreys, namespace_of


class ToldStoreys(ThreeStoreys):
    """A feed begins some time. One reader reads everything, one loses batches."""

    events_per_block = 1

    feed: BlockFeed | None = None

    @initialize(blocks=st.sampled_from([1, 2, 5]), policy=st.sampled_from(["lru", "lfu", "fifo"]))
    def start(self, blocks: int, policy: str) -> None:
        super().start(blocks, policy)
        self.size = self.storey.block_size // self.events_per_block

    @rule(now=st.booleans())
    def begin(self, now: bool) -> None:
        if self.feed is None and now:
            self.feed = BlockFeed(self.cache.radix_cache, self.size, below=self.storey.tell, clock=lambda: 0.0)
            self.careful, self.careless = FeedReader(self.feed), FeedReader(self.feed)

    @rule(lost=st.integers(0, 3))
    def follow(self, lost: int) -> None:
        if self.feed is not None:
            self.careless.follow(lost)

    @rule()
    def save(self) -> None:
        self.disk.save(nullcontext)

    @invariant()
    def files_are_right(self) -> None:
        """They may have gone meanwhile."""

    @rule(data=st.data())
    def lose_a_file(self, data: st.DataObject) -> None:
        """As when another process makes room."""
        if self.files.kv:
            self.files.lose(data.draw(st.sampled_from([*self.files.kv])))

    def of(self, prefix: Prefix) -> Blocks:
        """The last storey's block of all these tokens, as events have it."""
        key, tokens = prefix
        hashes, count = block_hashes(tokens, self.size, key), len(tokens) // self.size
        first = count - self.events_per_block
        return {
            hashes[i]: (hashes[i - 1] if i else None, tokens[i * self.size : (i + 1) * self.size], None)
            for i in range(first, count)
        }

    @invariant()
    def blocks_agree(self) -> None:
        if self.feed is None:
            return
        self.careful.follow()
        assert self.careful.snapshots == 0
        expected: dict[str, Blocks] = {GPU: blocks_of_tree(self.cache.radix_cache, self.size)}
        expected[CPU] = {block: each for prefix in self.naive.held for block, each in self.of(prefix).items()}
        in_files = [
            (key, tokens) for key in (None, "x") for space, tokens in self.files.kv if space == namespace_of(key)
        ]
        expected[DISK] = {block: each for prefix in in_files for block, each in self.of(prefix).items()}
        fresh = FeedReader(self.feed)
        fresh.take_snapshot()
        for reader in (self.careful, fresh):
            assert {medium: blocks for medium, blocks in reader.mirror.media.items() if blocks} == {
                medium: blocks for medium, blocks in expected.items() if blocks
            }

    def teardown(self) -> None:
        if self.feed is not None:
            self.careless.sent = self.careless.seq
            self.careless.follow()
            assert {k: v for k, v in self.careless.mirror.media.items() if v} == {
                k: v for k, v in self.careful.mirror.media.items() if v
            }


@pytest.mark.parametrize(("page_size", "events_per_block"), [(1, 1), (4, 4), (32, 2)])
def test_events_the_tree_and_its_storeys_agree(page_size: int, events_per_block: int) -> None:
    fields: dict[str, Any] = {"page_size": page_size, "events_per_block": events_per_block}
    machine = type("Machine", (ToldStoreys,), fields)
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=25))


def test_a_model_has_blocks_in_all_three_media() -> None:
    """Or else the test above would prove little."""
    machine = ToldStoreys()
    machine.start(2, "lru")
    machine.begin(True)
    for stem in (0, 1, 2):
        machine.serve(([stem] * 4, 0), None)
    machine.save()
    machine.evict(30)
    machine.blocks_agree()
    assert all(machine.careful.mirror.media[medium] for medium in (GPU, CPU, DISK))
