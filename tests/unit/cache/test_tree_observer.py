"""What a tree tells its observers: when, in which order, and what is there at that moment."""

import logging
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver, path_to
from nanoinfer.trace import record
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import make_engine, serve
from tests.helpers.tree_mirror import TreeMirror
from tests.helpers.trees import make_cache, put, shape

METHODS = [name for name in vars(TreeObserver) if not name.startswith("_")]


class Diary(TreeObserver):
    """Writes down what it is told, in tokens, and checks each time that the tree is in order."""

    def __init__(self, cache: RadixCache):
        self.cache, self.lines = cache, list[tuple[Any, ...]]()

    def note(self, *line: Any) -> None:
        counted = {True: 0, False: 0}
        for _, node in self.cache.nodes():
            counted[node.lock_ref > 0] += len(node)
            assert node.parent is not None
            assert node.parent.children[node.edge] is node
        assert (self.cache.protected_size(), self.cache.evictable_size()) == (counted[True], counted[False])
        assert self.cache.num_nodes == len([*self.cache.nodes()])
        self.lines.append(line)

    def take(self) -> list[tuple[Any, ...]]:
        lines, self.lines = self.lines, []
        return lines

    def check_key(self, extra_key: Hashable) -> None:
        self.note("check_key", extra_key)

    def used(self, node: TreeNode) -> None:
        assert all(each.last_access_time == self.cache._clock for each in path_to(node))
        self.note("used", *(each.key.tolist() for each in path_to(node)))

    def hit(self, node: TreeNode) -> None:
        self.note("hit", *((each.key.tolist(), each.hit_count) for each in path_to(node)))

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        assert lower.parent is upper
        assert [*upper.children.values()] == [lower]
        self.note("split", upper.key.tolist(), lower.key.tolist())

    def inserted(self, leaf: TreeNode) -> None:
        assert leaf.parent is not None
        self.note("inserted", leaf.parent.key.tolist(), leaf.key.tolist(), leaf.value.tolist())

    def grew(self, leaf: TreeNode, count: int) -> None:
        self.note("grew", leaf.key[:-count].tolist(), leaf.key[-count:].tolist())

    def locked(self, node: TreeNode) -> None:
        self.note("locked", *((each.key.tolist(), each.lock_ref) for each in path_to(node)))

    def unlocked(self, node: TreeNode) -> None:
        self.note("unlocked", *((each.key.tolist(), each.lock_ref) for each in path_to(node)))

    def evicting(self, leaf: TreeNode) -> None:
        free = set(self.cache.token_to_kv_pool.free_slots().tolist())
        assert not free & set(leaf.value.tolist()), "the slots are the tree's, and so is the K/V in them"
        chain, above = list[int](), leaf
        while above.parent is not None:
            chain, above = above.key.tolist() + chain, above.parent
        assert above is self.cache.root
        self.note("evicting", chain)

    def evicted(self, nodes: Sequence[TreeNode]) -> None:
        free = set(self.cache.token_to_kv_pool.free_slots().tolist())
        for node in nodes:
            assert free.issuperset(node.value.tolist())
            assert node.parent is None
        self.cache.check_integrity()
        self.note("evicted", *(node.key.tolist() for node in nodes))

    def reset(self, nodes: Sequence[TreeNode]) -> None:
        assert self.cache.total_size() == 0
        assert self.cache.token_to_kv_pool.available_size() == self.cache.token_to_kv_pool.size
        assert all(node.parent is None for node in nodes)
        self.note("reset", *(node.key.tolist() for node in nodes))


def observed(**options: Any) -> tuple[RadixCache, Diary]:
    cache = make_cache(**options)
    diary = Diary(cache)
    cache.observers.add(diary)
    return cache, diary


# --- operations ------------------------------------------------------------------------------------------------------


def test_an_insert_asks_walks_and_adds() -> None:
    cache, diary = observed()
    _, slots = put(cache, [1, 2, 3], "key")
    assert diary.take() == [("check_key", "key"), ("inserted", [], [1, 2, 3], slots)]
    _, slots = put(cache, [1, 2, 4, 5], "key")
    assert diary.take() == [
        ("check_key", "key"),
        ("split", [1, 2], [3]),
        ("used", [1, 2]),
        ("inserted", [1, 2], [4, 5], slots[2:]),
    ]
    put(cache, [1, 2, 3], "key")
    assert diary.take() == [("check_key", "key"), ("used", [3], [1, 2])]


def test_a_leaf_that_is_lengthened_grew() -> None:
    cache, diary = observed()
    put(cache, [1, 2])
    leaf = cache.match_prefix([1, 2]).last_node
    diary.take()
    put(cache, [1, 2, 3, 4], grow=leaf)
    assert diary.take() == [("check_key", None), ("used", [1, 2]), ("grew", [1, 2], [3, 4])]


def test_a_match_splits_walks_and_counts_a_hit() -> None:
    cache, diary = observed()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    diary.take()
    cache.match_prefix([1, 2, 3])
    assert diary.take() == [("used", [3], [1, 2]), ("hit", ([3], 1), ([1, 2], 1))]
    node = cache.match_prefix([1, 9], count_hit=False).last_node
    assert diary.take() == [("split", [1], [2]), ("used", [1])]
    cache.count_hit(node)
    assert diary.take() == [("hit", ([1], 2))]
    cache.match_prefix([9])
    assert diary.take() == []


def test_locks_are_told_for_the_whole_path() -> None:
    cache, diary = observed()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    node = cache.match_prefix([1, 2, 4]).last_node
    diary.take()
    cache.inc_lock_ref(node)
    cache.inc_lock_ref(cache.root)
    cache.dec_lock_ref(node)
    assert diary.take() == [("locked", ([4], 1), ([1, 2], 1)), ("locked",), ("unlocked", ([4], 0), ([1, 2], 0))]
    with pytest.raises(ValueError, match="not locked"):
        cache.dec_lock_ref(node)
    cache.evict(1)
    cache.evict(1)
    diary.take()
    with pytest.raises(ValueError, match="no longer in the tree"):
        cache.inc_lock_ref(node)
    assert diary.take() == []


def test_an_eviction_is_told_before_each_leaf_and_at_its_end() -> None:
    cache, diary = observed()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    put(cache, [7])
    diary.take()
    assert cache.evict(4) == 4
    assert diary.take() == [
        ("evicting", [1, 2, 3]),
        ("evicting", [1, 2, 4]),
        ("evicting", [1, 2]),
        ("evicted", [3], [4], [1, 2]),
    ]
    assert cache.evict(0) == 0
    assert diary.take() == [("evicted",)]


# --- what goes wrong -------------------------------------------------------------------------------------------------


def everything(cache: RadixCache) -> None:
    """Operations that call each method."""
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    leaf = cache.match_prefix([1, 2, 4]).last_node
    put(cache, [1, 2, 4, 5], grow=leaf)
    cache.inc_lock_ref(leaf)
    assert cache.evict(10) == 1
    cache.dec_lock_ref(leaf)
    cache.reset()
    put(cache, [1, 2, 3])


@pytest.mark.parametrize("method", [name for name in METHODS if name != "check_key"])
def test_an_observer_that_fails_is_logged_and_no_operation_and_no_other_observer_fails(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("on purpose")

    cache, plain = make_cache(), make_cache()
    broken, before, after = TreeObserver(), Diary(cache), Diary(cache)
    setattr(broken, method, fail)
    for observer in (before, broken, after):
        cache.observers.add(observer)
    with caplog.at_level(logging.ERROR):
        everything(cache)
    everything(plain)
    assert [*cache.observers] == [before, after]
    assert before.lines == after.lines
    assert "on purpose" in caplog.text
    cache.check_integrity()
    assert shape(cache) == shape(plain)
    assert cache.token_to_kv_pool.free_slots().tolist() == plain.token_to_kv_pool.free_slots().tolist()


# --- who listens -----------------------------------------------------------------------------------------------------


def test_a_trace_events_and_a_third_observer_share_one_tree() -> None:
    engine = make_engine()
    tree = engine.radix_cache
    reader = FeedReader(BlockFeed(tree, 4))
    mirror = TreeMirror(tree)
    tree.observers.add(mirror)
    with record(engine) as trace:
        serve(engine, [1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 9, 9])
        engine.flush_cache()
        serve(engine, [1, 2, 3, 4, 5, 6])
    reader.follow()
    mirror.check()
    assert reader.mirror.blocks == blocks_of_tree(tree, 4)
    nodes = [(node.key, node.value) for _, node in trace.state().walk()]
    assert nodes == [(node.key.tolist(), node.value.tolist()) for _, node in tree.nodes()]
    assert len([*tree.observers]) == 2, "the trace has left"
