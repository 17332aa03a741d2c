"""The tiers below a tree and the blocks that they report, against dictionaries of prefixes: what they hold, what leaves
first, and every bit of K/V."""

from contextlib import nullcontext
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from nanoinfer import SamplingParams
from nanoinfer.cache.block_events import CPU, DISK, GPU, block_hashes, key_bytes
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tiers.disk import DiskTier
from nanoinfer.cache.tiers.host import HostTier, block_size
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver, path_to
from nanoinfer.requests.req import Req
from tests.helpers.block_mirror import Blocks, FeedReader, blocks_of_tree
from tests.helpers.tiers import AtOnce, DictOfFiles, NaiveTier, Prefix, all_held

SLOTS = 128
STEMS = np.random.default_rng(0).integers(0, 9, (3, 16)).tolist()  # what sequences are made of
STEMS.append([*STEMS[0][:8], *STEMS[1][8:]])  # blocks of a tier may begin alike
SEQUENCES = st.tuples(st.lists(st.sampled_from([0, 0, 1, 2, 3]), min_size=1, max_size=4), st.integers(0, 15))
KEYS = st.sampled_from([None, "x"])


def key_of(namespace: bytes) -> Any:
    return {key_bytes(key): key for key in (None, "x")}[namespace]


def kv(tokens: np.ndarray, extra_key: Any, buffers: int) -> np.ndarray:
    """Made-up K/V, uint8 [k, buffers * 8]: a token's follows from all tokens up to it."""
    parts = [
        blake2b(repr((extra_key, tokens[: i + 1].tolist(), buffer)).encode(), digest_size=8).digest()
        for i in range(len(tokens))
        for buffer in range(buffers)
    ]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(tokens), -1)


class TellsNaive(TreeObserver):
    def __init__(self, naive: NaiveTier):
        self.naive = naive

    def evicting(self, leaf: TreeNode) -> None:
        tokens = np.concatenate([node.key for node in reversed(path_to(leaf))]).tolist()
        self.naive.evict(tokens, leaf.edge[0], len(tokens) - len(leaf))


class TierModel(RuleBasedStateMachine):
    """Serves sequences with little room in the pool and in the tier, as requests that end at once."""

    page_size = 1

    @initialize(blocks=st.sampled_from([1, 2, 5, 40]), policy=st.sampled_from(["lru", "lfu", "fifo"]))
    def start(self, blocks: int, policy: str) -> None:
        pool = TokenToKVPool(SLOTS, torch.float32, head_num=1, head_dim=2, layer_num=2, page_size=self.page_size)
        tree = RadixCache(ReqToTokenPool(2, SLOTS), pool, self.page_size, policy)
        self.cache = CacheManager(tree.req_to_token_pool, pool, tree)
        self.buffers = [*pool.kv_storage.slot_buffers(), torch.zeros(SLOTS, dtype=torch.int64)]
        size = blocks * block_size(self.page_size)
        self.next_tier = self.cache.next_tier = HostTier(self.cache, self.buffers, size)
        self.naive = NaiveTier(size, self.next_tier.block_size)
        tree.observers.add(TellsNaive(self.naive))

    @rule(sequence=SEQUENCES, extra_key=KEYS)
    def serve(self, sequence: tuple[list[int], int], extra_key: Any) -> None:
        stems, left_out = sequence
        tokens = [token for stem in stems for token in STEMS[stem]][: 16 * len(stems) - left_out]
        req = Req(0, np.array(tokens), SamplingParams(max_new_tokens=1), extra_key=extra_key)
        cache, naive, reusable = self.cache, self.naive, tokens[:-1]
        self.bring(req, reusable)
        cache.lock_prefix(req)
        start = req.prefix_len
        wanted = naive.reach(reusable, extra_key, start)
        self.next_tier.fetch(req)
        wanted = min(wanted, naive.reach(reusable, extra_key, start))  # less if making room has made some leave
        assert req.prefix_len == max(wanted, start)
        if wanted > start:
            naive.use(reusable, extra_key)
            assert self.total(req.fetched) == wanted - start
        right = kv(np.array(tokens), extra_key, len(self.buffers))
        assert np.array_equal(self.read(req.prefix_indices.numpy()), right[: req.prefix_len])
        row = cache.req_to_token_pool.alloc(1)
        assert row is not None
        req.req_pool_idx, req.kv_len = int(row[0]), len(tokens)
        req.allocated_len = req.prefix_len
        cache.rows[req.req_pool_idx, : req.prefix_len] = req.prefix_indices.numpy()
        cache.alloc_up_to([req], [len(tokens)])
        slots = cache.rows[req.req_pool_idx, req.prefix_len : len(tokens)]
        for i, buffer in enumerate(self.buffers):
            buffer.view(SLOTS, -1).view(torch.uint8).numpy()[slots] = right[req.prefix_len :, 8 * i : 8 * i + 8]
        cache.release(req)

    def bring(self, req: Req, tokens: list[int]) -> None:
        """Before the request is looked at."""

    def total(self, fetched: dict[str, tuple[int, int]]) -> int:
        return sum(end - start for start, end in fetched.values())

    @rule(count=st.sampled_from([1, 1, 1, 20, SLOTS]))
    def evict(self, count: int) -> None:
        self.cache.radix_cache.evict(count)

    @rule(extra_key=KEYS)
    def forget(self, extra_key: Any) -> None:
        for tier in (self.cache.radix_cache, self.next_tier):
            tier.evict_keys(lambda key: key == extra_key)
        self.naive.forget(extra_key)

    @rule()
    def flush(self) -> None:
        left = set(self.naive.left)
        with self.next_tier.emptied():
            self.cache.radix_cache.evict(SLOTS)
        self.naive.held.clear()
        self.naive.left = left

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "naive"):
            return
        self.cache.check_integrity([])
        self.next_tier.check_integrity()
        held = all_held(self.next_tier)
        assert [prefix for prefix, _ in held] == [*self.naive.held]
        for (extra_key, tokens), data in held:
            right = kv(np.array(tokens), extra_key, len(self.buffers))
            assert np.array_equal(data, right[-self.next_tier.block_size :])
        assert len(self.next_tier.index) == len(held) * self.next_tier.block_size <= self.next_tier.index.size

    def read(self, slots: np.ndarray) -> np.ndarray:
        columns = [buffer.view(SLOTS, -1).view(torch.uint8).numpy()[slots] for buffer in self.buffers]
        return np.concatenate(columns, axis=1)


class ThreeTiers(TierModel):
    """With files below, which a dictionary stands for."""

    @initialize(blocks=st.sampled_from([1, 2, 5]), policy=st.sampled_from(["lru", "lfu", "fifo"]))
    def start(self, blocks: int, policy: str) -> None:
        super().start(blocks, policy)
        self.files: Any = DictOfFiles(self.next_tier.block_size)
        self.disk = DiskTier(self.cache, self.next_tier, self.files, key_bytes)
        self.disk._reader = self.disk._writer = AtOnce()  # type: ignore[assignment]

    def bring(self, req: Req, tokens: list[int]) -> None:
        size, key = self.naive.block_size, req.extra_key
        in_pool, _ = self.cache.radix_cache.peek_prefix(tokens, key)
        above = self.naive.reach(tokens, key, in_pool)
        start = end = above // size * size
        while (key_bytes(key), tuple(tokens[: end + size])) in self.files.kv and end + size <= len(tokens):
            end += size
        assert self.disk.is_ready(req) == (end <= above)
        self.disk.complete_reads()
        assert self.disk.is_ready(req)
        if end > above:
            self.naive.evict(tokens[:end], key, start)
            assert self.disk.fetched_from[req] == above

    @rule()
    def save(self) -> None:
        assert self.disk.save(nullcontext) == 0
        held = [*self.naive.held]
        for _, node in self.cache.radix_cache.nodes():
            path = np.concatenate([each.key for each in reversed(path_to(node))]).tolist()
            held += self.naive.prefixes(path, node.edge[0])
        for extra_key, tokens in held:
            assert (key_bytes(extra_key), tokens) in self.files.kv

    @invariant()
    def files_are_right(self) -> None:
        if hasattr(self, "files"):
            for left in self.naive.left:
                assert (key_bytes(left[0]), left[1]) in self.files.kv, "what has left host memory is in files"
            while self.files.new:
                namespace, tokens = self.files.new.pop()
                right = kv(np.array(tokens), key_of(namespace), len(self.buffers))[-self.naive.block_size :]
                assert np.array_equal(self.files.kv[namespace, tokens], right)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("model", [TierModel, ThreeTiers])
def test_the_tiers_hold_what_dictionaries_of_prefixes_would(model: type[TierModel], page_size: int) -> None:
    machine = type("Machine", (model,), {"page_size": page_size})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=25))


class ReportedTiers(ThreeTiers):
    """A feed begins some time. One reader reads everything, one loses batches."""

    events_per_block = 1

    feed: BlockFeed | None = None

    @initialize(blocks=st.sampled_from([1, 2, 5]), policy=st.sampled_from(["lru", "lfu", "fifo"]))
    def start(self, blocks: int, policy: str) -> None:
        super().start(blocks, policy)
        self.size = self.next_tier.block_size // self.events_per_block

    @rule(now=st.booleans())
    def begin(self, now: bool) -> None:
        if self.feed is None and now:
            self.feed = BlockFeed(
                self.cache.radix_cache, self.size, below=self.next_tier.event_sinks, clock=lambda: 0.0
            )
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
        """The last tier's block of all these tokens, as events have it."""
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
        in_files = [(key, tokens) for key in (None, "x") for space, tokens in self.files.kv if space == key_bytes(key)]
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
def test_events_the_tree_and_its_tiers_agree(page_size: int, events_per_block: int) -> None:
    fields: dict[str, Any] = {"page_size": page_size, "events_per_block": events_per_block}
    machine = type("Machine", (ReportedTiers,), fields)
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=25))


def test_a_model_has_blocks_in_all_three_media() -> None:
    """Or else the test above would prove little."""
    machine = ReportedTiers()
    machine.start(2, "lru")
    machine.begin(True)
    for stem in (0, 1, 2):
        machine.serve(([stem] * 4, 0), None)
    machine.save()
    machine.evict(30)
    machine.blocks_agree()
    assert all(machine.careful.mirror.media[medium] for medium in (GPU, CPU, DISK))
