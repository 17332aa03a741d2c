"""The eviction queue alone: which leaf it gives up next, and that using a node costs it nothing."""

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache import RadixCache, ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.eviction import EVICTION_POLICIES, EvictionQueue, Policy
from nanoinfer.cache.tree_node import TreeNode
from tests.helpers.engines import assert_all_free, greedy, make_engine, serve, step

ROOT = TreeNode((None, b""), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), None, 0)


def leaf(time: int, hits: int = 0) -> TreeNode:
    """A leaf below the root, made and last used at `time`."""
    key = np.array([time])
    node = TreeNode((None, key.tobytes()), key, key.astype(np.int32), ROOT, time)
    node.hit_count = hits
    return node


def queue_of(policy: str, *nodes: TreeNode) -> EvictionQueue:
    queue = EvictionQueue(policy)
    for node in nodes:
        queue.offer(node)
    return queue


def use(node: TreeNode, time: int) -> None:
    node.last_access_time = time
    node.hit_count += 1


def popped(queue: EvictionQueue) -> list[TreeNode | None]:
    """Everything the queue gives, the final None included."""
    order = [queue.pop()]
    while order[-1] is not None:
        order.append(queue.pop())
    return order


def test_each_policy_has_its_own_order() -> None:
    for policy, expected in (("lru", [1, 3, 2]), ("lfu", [3, 2, 1]), ("fifo", [1, 2, 3])):
        nodes = [leaf(1, hits=5), leaf(2), leaf(3)]
        queue = queue_of(policy, *reversed(nodes))
        use(nodes[1], 9)
        order = [node.creation_time for node in popped(queue) if node is not None]
        assert order == expected, policy


def test_an_unknown_policy_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"policy='mru'.*lru, lfu, fifo"):
        EvictionQueue("mru")
    assert set(EVICTION_POLICIES) == {"lru", "lfu", "fifo"}


def test_an_empty_queue_gives_none() -> None:
    assert EvictionQueue("lru").pop() is None


def test_equals_leave_in_the_order_they_came() -> None:
    nodes = [leaf(1), leaf(1), leaf(1)]
    assert popped(queue_of("lru", *nodes)) == [*nodes, None]


def test_a_node_offered_often_is_given_once() -> None:
    node = leaf(1)
    queue = queue_of("lru", node, node, node)
    assert popped(queue) == [node, None]
    queue.offer(node)
    assert popped(queue) == [node, None]


def test_using_a_node_costs_nothing_until_it_would_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy from outside counts how often it is asked: where each use made an entry, each would be looked at."""
    asked: list[TreeNode] = []
    monkeypatch.setitem(EVICTION_POLICIES, "counting", lambda node: (asked.append(node), node.last_access_time)[1:])
    node, other = leaf(1), leaf(2)
    queue = queue_of("counting", node, other)
    assert asked == [node, other]
    for time in range(3, 1000):
        use(node, time)
        queue.offer(node)
    assert asked == [node, other]
    assert popped(queue) == [other, node, None]
    assert len(asked) < 10


@pytest.mark.parametrize("spoil", ["lock", "child", "leave"])
def test_a_node_that_is_no_unlocked_leaf_any_more_is_passed_over(spoil: str) -> None:
    node, other = leaf(1), leaf(2)
    queue = queue_of("lru", node, other)
    if spoil == "lock":
        node.lock_ref = 1
    elif spoil == "child":
        child = leaf(3)
        node.children[child.edge] = child
    else:
        node.parent = None
    assert popped(queue) == [other, None]


def test_a_node_passed_over_comes_back_when_it_is_offered_again() -> None:
    node = leaf(1)
    queue = queue_of("lru", node)
    node.lock_ref = 1
    assert queue.pop() is None
    queue.offer(node)
    assert queue.pop() is None  # still locked: the offer is no use
    node.lock_ref = 0
    queue.offer(node)
    assert queue.pop() is node


# --- policies from outside ---------------------------------------------------------------------------------------

# Priorities that fall: by use, by hits, by splits, by growth.
OUTSIDE: dict[str, Policy] = {
    "mru": lambda node: (-node.last_access_time,),
    "mfu": lambda node: (-node.hit_count, node.last_access_time),
    "short_first": lambda node: (len(node), node.last_access_time),
    "long_first": lambda node: (-len(node), node.last_access_time),
}


@pytest.fixture
def _registered() -> Iterator[None]:
    EVICTION_POLICIES.update(OUTSIDE)
    yield
    for name in OUTSIDE:
        del EVICTION_POLICIES[name]


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", *OUTSIDE])
def test_what_a_tree_gives_up_is_always_the_first_of_its_unlocked_leaves(policy: str) -> None:
    rng, priority = np.random.default_rng(7), EVICTION_POLICIES[policy]
    pool = TokenToKVPool(256, torch.float32, 1, 1, 1)
    cache = RadixCache(ReqToTokenPool(1, 16), pool, policy=policy)
    grown: TreeNode | None = None
    evicted = 0
    for _ in range(600):
        tokens = rng.integers(0, 2, int(rng.integers(1, 7)))
        if rng.random() < 0.4:
            slots = pool.alloc(len(tokens))
            assert slots is not None
            known = cache.insert(tokens, slots, grow=grown)
            pool.free(slots[:known])
        else:
            grown = cache.match_prefix(tokens).last_node
            if rng.random() < 0.3:
                cache.inc_lock_ref(grown)
                cache.match_prefix(tokens)
                cache.dec_lock_ref(grown)
        if rng.random() < 0.3:
            leaves = {id(node): priority(node) for _, node in cache.nodes() if not node.children}
            if cache.evict(1):
                evicted += 1
                left = {id(node) for _, node in cache.nodes()}
                gone = [leaves[node] for node in leaves if node not in left]
                assert gone == [min(leaves.values())]
            grown = None
        cache.check_integrity()
    assert evicted > 50


@pytest.mark.usefixtures("_registered")
def test_an_engine_takes_a_policy_from_outside_and_its_tokens_stay_the_same() -> None:
    prompts = [[5, 6, 7, 8] * n for n in range(1, 6)]
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)
    tokens = []
    for policy in ("mru", "short_first", "lru"):
        llm = LLM("story", max_running_requests=2, max_total_tokens=32, eviction_policy=policy)
        tokens.append([output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)])
        assert llm.engine.radix_cache.policy == policy
        assert llm.engine.cache.evicted_tokens > 0
        llm.engine.check_integrity()
    assert tokens[0] == tokens[1] == tokens[2]


TICKS = count()


@pytest.mark.parametrize("policy", [lambda node: (-next(TICKS),), lambda node: (math.nan,)], ids=["falls", "nan"])
def test_a_policy_that_never_says_the_same_twice_does_not_hang_the_engine(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which leaf goes first is then open, but one goes."""
    monkeypatch.setitem(EVICTION_POLICIES, "restless", policy)
    pool = TokenToKVPool(16, torch.float32, 1, 1, 1)
    cache = RadixCache(ReqToTokenPool(1, 16), pool, policy="restless")
    for first in range(4):
        slots = pool.alloc(2)
        assert slots is not None
        cache.insert([first, 9], slots)
    assert cache.evict(3) == 4
    assert cache.evict(100) == 4
    cache.check_integrity()


def test_an_error_while_room_is_made_ends_its_pass_and_loses_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(rows=2, slots=16)
    wanted = serve(engine, [9] * 8)[0].token_ids
    engine.flush_cache()
    serve(engine, [1] * 4, [2] * 4)
    free, calls = engine.radix_cache.token_to_kv_pool.free, count()

    def failing(slots: Any) -> None:
        if next(calls) == 0:
            raise OSError("on purpose")
        free(slots)

    monkeypatch.setattr(engine.radix_cache.token_to_kv_pool, "free", failing)
    request_id = engine.add_request([9] * 8, greedy())
    with pytest.raises(OSError, match="on purpose"):
        engine.step()
    engine.check_integrity()
    assert isinstance(step(engine)[request_id].error, OSError)
    assert serve(engine, [9] * 8)[0].token_ids == wanted
    assert engine.cache.evicted_tokens > 0
    assert_all_free(engine)
