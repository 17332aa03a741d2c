"""The radix cache: what a lock keeps, and which leaf goes first by a policy from outside."""

import math
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache import RadixCache, ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.eviction import EVICTION_POLICIES, Policy
from nanoinfer.cache.tree_node import TreeNode
from tests.helpers.trees import make_cache, put, snapshot

# --- locks -------------------------------------------------------------------------------------------------------


def test_letting_go_twice_is_refused_and_changes_nothing() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 9])
    upper, lower = cache.match_prefix([1, 2]).last_node, cache.match_prefix([1, 2, 3, 4]).last_node
    cache.inc_lock_ref(lower)
    cache.dec_lock_ref(lower)
    cache.inc_lock_ref(upper)  # the upper part of the path is locked, by another request
    before = snapshot(cache)
    with pytest.raises(ValueError, match="not locked"):
        cache.dec_lock_ref(lower)
    assert snapshot(cache) == before
    cache.check_integrity()


@pytest.mark.parametrize("remove", [lambda cache: cache.evict(100), lambda cache: cache.reset()])
def test_a_node_that_has_left_the_tree_cannot_be_locked(remove: Callable[[RadixCache], object]) -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    upper, lower = cache.match_prefix([1, 2]).last_node, cache.match_prefix([1, 2, 3, 4]).last_node
    remove(cache)
    for node in (upper, lower):
        for call in (cache.inc_lock_ref, cache.dec_lock_ref):
            with pytest.raises(ValueError, match="no longer in the tree"):
                call(node)
    assert (cache.protected_size(), cache.evictable_size()) == (0, 0)
    cache.check_integrity()


def test_the_root_is_never_counted_and_may_be_locked_by_who_matched_nothing() -> None:
    cache = make_cache()
    put(cache, [1, 2])
    nothing = cache.match_prefix([9]).last_node
    cache.inc_lock_ref(nothing)
    assert (cache.protected_size(), cache.evictable_size()) == (0, 2)
    cache.reset()
    cache.dec_lock_ref(nothing)  # the request that matched nothing ends after the reset
    put(cache, [1, 2])
    assert (cache.protected_size(), cache.evictable_size()) == (0, 2)
    cache.check_integrity()


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
        cache.insert([first, 9], pool.alloc(2))
    assert cache.evict(3) == 4
    assert cache.evict(100) == 4
    cache.check_integrity()
