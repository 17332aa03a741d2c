"""Who observes a tree: one that fails harms nobody, and several may listen (what they are told: test_radix_cache_model)."""

import logging
from typing import Any

import pytest

from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_observer import TreeObserver
from nanoinfer.viz.trace import record
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import make_engine, serve
from tests.helpers.trees import TreeMirror, make_cache, put, shape

METHODS = [name for name, value in vars(TreeObserver).items() if not name.startswith("_") and callable(value)]


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


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in METHODS if name != "check_key"])
def test_an_observer_that_fails_is_logged_and_no_operation_and_no_other_observer_fails(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("on purpose")

    cache, plain = make_cache(), make_cache()
    broken, before, after = TreeObserver(), TreeMirror(cache), TreeMirror(cache)
    setattr(broken, method, fail)
    for observer in (before, broken, after):
        cache.observers.add(observer)
    with caplog.at_level(logging.ERROR):
        everything(cache)
    everything(plain)
    assert [*cache.observers] == [before, after]
    before.check()
    after.check()
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
