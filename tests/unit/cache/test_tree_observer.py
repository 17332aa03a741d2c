"""What a tree tells its observers: when, in which order, and what is there at that moment."""

import logging
from functools import partial
from typing import Any

import pytest

from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_observer import TreeObserver
from nanoinfer.trace import record
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import make_engine, serve
from tests.helpers.tree_mirror import TreeMirror
from tests.helpers.trees import make_cache, put, shape

METHODS = [name for name in vars(TreeObserver) if not name.startswith("_")]


class Diary(TreeObserver):
    """Writes down which of its methods are called, and checks each time that the tree is in order. What they are told is
    compared with the tree in tests/property/test_radix_cache_model.py."""

    def __init__(self, cache: RadixCache):
        self.cache, self.lines = cache, list[str]()
        for name in METHODS:
            setattr(self, name, partial(self._note, name))

    def _note(self, name: str, told: Any, *more: Any) -> None:
        counted, free = {True: 0, False: 0}, set(self.cache.token_to_kv_pool.free_slots().tolist())
        for _, node in self.cache.nodes():
            counted[node.lock_ref > 0] += len(node)
            assert node.parent is not None
            assert node.parent.children[node.edge] is node
        assert (self.cache.protected_size(), self.cache.evictable_size()) == (counted[True], counted[False])
        assert self.cache.num_nodes == len([*self.cache.nodes()])
        if name == "evicting":
            assert not free & set(told.value.tolist()), "the slots are the tree's, and so is the K/V in them"
        elif name in ("evicted", "reset"):
            assert all(node.parent is None and free.issuperset(node.value.tolist()) for node in told)
            self.cache.check_integrity()
        self.lines.append(name)


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


def test_operations_are_told_in_their_order_and_refused_ones_are_not() -> None:
    cache = make_cache()
    diary = Diary(cache)
    cache.observers.add(diary)
    everything(cache)
    assert diary.lines == [
        *(
            "check_key",
            "inserted",
            "check_key",
            "split",
            "used",
            "inserted",
            "used",
            "hit",
            "check_key",
            "used",
            "grew",
        ),
        *("locked", "evicting", "evicted", "unlocked", "reset", "check_key", "inserted"),
    ]
    diary.lines.clear()
    with pytest.raises(ValueError, match="not locked"):
        cache.dec_lock_ref(next(node for _, node in cache.nodes()))
    cache.match_prefix([9])
    assert diary.lines == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


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
