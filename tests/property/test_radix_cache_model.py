"""The radix cache, and the blocks that it reports, against a dictionary of prefixes that knows nothing of nodes."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nanoinfer.cache.block_events import block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.indices import common_prefix_len
from nanoinfer.cache.radix_cache import MatchResult
from nanoinfer.cache.tree_node import TreeNode
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.trees import TreeMirror, make_cache, put

Prefix = tuple[Hashable, tuple[int, ...]]  # namespace, tokens of whole pages


@dataclass
class Known:
    """What the model knows of the last page of one cached prefix."""

    slots: list[int]
    used: int
    created: int
    hits: int = 0


PRIORITIES: dict[str, Callable[[Known], tuple[int, ...]]] = {
    "lru": lambda known: (known.used,),
    "lfu": lambda known: (known.hits, known.used),
    "fifo": lambda known: (known.created,),
}


class CacheModel(RuleBasedStateMachine):
    """Drives a RadixCache beside a dict {every cached prefix: Known}.

    The dict has no nodes. Only where a leaf is asked for, in eviction, the cut of the sequences into nodes is read off
    the tree; which leaf goes is decided from the dict. A mirror knows the tree only from what observers are told.
    """

    page_size, policy, size = 1, "lru", 48

    @initialize()
    def start(self) -> None:
        self.cache = make_cache(self.size, self.page_size, policy=self.policy)
        self.mirror = TreeMirror(self.cache)
        self.cache.observers.add(self.mirror)
        self.pool = self.cache.token_to_kv_pool
        self.known: dict[Prefix, Known] = {}
        self.locks: list[tuple[Prefix, TreeNode]] = []
        self.clock = 0

    # How tokens are drawn: pages that differ in their last token only, and a tail that is no whole page.
    PAGES = st.lists(st.integers(0, 2), max_size=6)
    KEYS = st.sampled_from([None, None, None, "lora", 0])

    def tokens(self, pages: list[int], tail: int) -> list[int]:
        whole = [token for page in pages for token in [7] * (self.page_size - 1) + [page]]
        return whole + [7] * (tail % self.page_size)

    def all_prefixes(self, tokens: Sequence[int], key: Hashable) -> list[Prefix]:
        """The prefixes of `tokens` that end with a page, shortest first."""
        return [(key, tuple(tokens[:end])) for end in range(self.page_size, len(tokens) + 1, self.page_size)]

    def prefixes(self, tokens: Sequence[int], key: Hashable) -> list[Prefix]:
        """Those of them that are cached."""
        return [prefix for prefix in self.all_prefixes(tokens, key) if prefix in self.known]

    def match(self, tokens: Sequence[int], key: Hashable) -> tuple[list[Prefix], MatchResult]:
        expected = self.prefixes(tokens, key)
        match = self.cache.match_prefix(tokens, key)
        assert match.indices.tolist() == [slot for prefix in expected for slot in self.known[prefix].slots]
        self.clock += 1
        for prefix in expected:
            self.known[prefix].used = self.clock
            self.known[prefix].hits += 1
        return expected, match

    @rule(pages=PAGES, tail=st.integers(0, 15), key=KEYS)
    def peek(self, pages: list[int], tail: int, key: Hashable) -> None:
        tokens = self.tokens(pages, tail)
        assert self.cache.peek_prefix(tokens, key)[0] == len(self.prefixes(tokens, key)) * self.page_size

    @rule(pages=PAGES, tail=st.integers(0, 15), key=KEYS)
    def look_up(self, pages: list[int], tail: int, key: Hashable) -> None:
        self.match(self.tokens(pages, tail), key)

    @rule(pages=PAGES, tail=st.integers(0, 15), key=KEYS, grow=st.booleans())
    def insert(self, pages: list[int], tail: int, key: Hashable, grow: bool) -> None:
        tokens = self.tokens(pages, tail)
        assume(-(-len(tokens) // self.page_size) * self.page_size <= self.pool.available_size())
        grown: TreeNode | None = None
        if grow:
            grown = self.match(tokens, key)[1].last_node
        in_place = grown is not None and not (grown is self.cache.root or grown.children or grown.lock_ref)
        expected = self.prefixes(tokens, key)
        known, slots = put(self.cache, tokens, key, grown)
        assert known == len(expected) * self.page_size
        self.clock += 1
        for prefix in expected:
            self.known[prefix].used = self.clock
        created, hits = self.clock, 0
        if in_place:
            created, hits = self.known[expected[-1]].created, self.known[expected[-1]].hits
        for prefix in self.all_prefixes(tokens, key)[len(expected) :]:
            page = slots[len(prefix[1]) - self.page_size : len(prefix[1])]
            self.known[prefix] = Known(page, self.clock, created, hits)

    @rule(pages=PAGES, key=KEYS)
    def lock(self, pages: list[int], key: Hashable) -> None:
        matched, match = self.match(self.tokens(pages, 0), key)
        self.cache.inc_lock_ref(match.last_node)
        self.locks.append((matched[-1] if matched else (key, ()), match.last_node))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        _, node = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.cache.dec_lock_ref(node)

    @rule(num_pages=st.integers(0, 12), more=st.integers(0, 15))
    def evict(self, num_pages: int, more: int) -> None:
        num_tokens = num_pages * self.page_size + more % self.page_size
        expected = self.expected_victims(num_tokens)
        before = self.pool.available_size()
        freed = self.cache.evict(num_tokens)
        assert freed == len(expected) * self.page_size == self.pool.available_size() - before
        slots = {slot for prefix in expected for slot in self.known.pop(prefix).slots}
        assert slots <= set(self.pool.free_slots().tolist())

    def expected_victims(self, num_tokens: int) -> list[Prefix]:
        """The prefixes that go, leaf by leaf, each time the first of the unlocked leaves by the policy."""
        protected = self.protected()
        nodes = [tokens for tokens in self.prefixes_by_node() if tokens[-1] not in protected]
        victims: list[Prefix] = []
        while len(victims) * self.page_size < num_tokens and nodes:
            leaves = [tokens for tokens in nodes if not self.has_continuation(tokens[-1], set(victims))]
            leaf = min(leaves, key=lambda tokens: PRIORITIES[self.policy](self.known[tokens[-1]]))
            assert len({PRIORITIES[self.policy](self.known[prefix]) for prefix in leaf}) == 1
            nodes.remove(leaf)
            victims += leaf
        return victims

    def prefixes_by_node(self) -> list[list[Prefix]]:
        """The cached prefixes, grouped by the node of the tree that they end in."""
        grouped = []
        for _, node in self.cache.nodes():
            tokens, above = node.key.tolist(), node.parent
            while above is not None:
                tokens, above = above.key.tolist() + tokens, above.parent
            grouped.append(self.all_prefixes(tokens, node.edge[0])[-(len(node) // self.page_size) :])
        assert sorted(map(repr, (prefix for tokens in grouped for prefix in tokens))) == sorted(map(repr, self.known))
        return grouped

    def has_continuation(self, prefix: Prefix, gone: set[Prefix]) -> bool:
        key, tokens = prefix
        longer = (other for other in self.known if other not in gone and other[0] == key)
        return any(len(other) > len(tokens) and other[: len(tokens)] == tokens for _, other in longer)

    def protected(self) -> set[Prefix]:
        return {prefix for (key, tokens), _ in self.locks for prefix in self.all_prefixes(tokens, key)}

    @rule()
    def reset(self) -> None:
        if self.protected():
            with pytest.raises(ValueError, match="locked"):
                self.cache.reset()
        else:
            self.cache.reset()
            self.known.clear()

    @invariant()
    def observers_know_the_tree(self) -> None:
        self.mirror.check()
        assert self.mirror in self.cache.observers  # it has not failed

    @invariant()
    def sizes_and_slots_agree(self) -> None:
        cache, protected = self.cache, self.protected()
        cache.check_integrity()
        assert cache.num_nodes == sum(1 for _ in cache.nodes())
        self.pool.check_integrity()
        assert cache.protected_size() == len(protected) * self.page_size
        assert cache.evictable_size() == (len(self.known) - len(protected)) * self.page_size
        assert cache.total_size() == len(self.known) * self.page_size
        assert sorted(cache.slots().tolist()) == sorted(slot for known in self.known.values() for slot in known.slots)
        assert self.pool.available_size() + cache.total_size() == self.size


@pytest.mark.parametrize(
    ("page_size", "policy"), [(1, "lru"), (1, "lfu"), (1, "fifo"), (4, "lru"), (4, "lfu"), (16, "lru")]
)
def test_cache_agrees_with_a_dictionary_of_prefixes(page_size: int, policy: str) -> None:
    fields = {"page_size": page_size, "policy": policy, "size": 24 * page_size}
    machine = type("Machine", (CacheModel,), fields)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=40, stateful_step_count=30),
    )


@given(st.integers(0, 600), st.integers(0, 600), st.integers(0, 600))
@settings(max_examples=100)
def test_common_prefix_length_is_right_at_every_length(a_len: int, b_len: int, differ_at: int) -> None:
    a, b = np.arange(a_len), np.arange(b_len)
    b[differ_at:] = -1
    assert common_prefix_len(a, b) == common_prefix_len(b, a) == min(a_len, b_len, differ_at)


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
