"""The order in which each policy considers waiting requests, on trees made by hand and at random."""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import SamplingParams
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.policy import SCHEDULE_POLICIES
from tests.helpers.engines import greedy, make_engine, step


def cache_of(*sequences: Sequence[int], extra_key: Hashable = None, **options: bool) -> RadixCache:
    """A tree that holds `sequences`."""
    pool = TokenToKVPool(1024, torch.float32, 1, 1, 1)
    cache = RadixCache(ReqToTokenPool(4, 16), pool, **options)
    for tokens in sequences:
        slots = pool.alloc(len(tokens))
        pool.free(slots[: cache.insert(tokens, slots, extra_key)])
    return cache


def reqs_of(*prompts: Sequence[int], **fields: bool) -> list[Req]:
    """Waiting requests, numbered in order of arrival."""
    return [Req(i, np.array(prompt), SamplingParams(**fields)) for i, prompt in enumerate(prompts)]


def order(policy: str, reqs: Sequence[Req], cache: RadixCache, seed: int = 0) -> list[int]:
    """Request ids in the policy's order."""
    return [req.request_id for req in SCHEDULE_POLICIES[policy](reqs, cache, np.random.default_rng(seed))]


def random_tree_and_reqs(seed: int, count: int = 40) -> tuple[RadixCache, list[Req]]:
    rng = np.random.default_rng(seed)

    def sequence() -> list[int]:
        return rng.integers(0, 3, size=rng.integers(1, 9)).tolist()

    return cache_of(*(sequence() for _ in range(12))), reqs_of(*(sequence() for _ in range(count)))


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
def test_every_policy_orders_the_same_requests_and_leaves_the_cache_alone(policy: str) -> None:
    for seed in range(5):
        cache, reqs = random_tree_and_reqs(seed)
        before = [(id(node), len(node), node.last_access_time, node.hit_count) for _, node in cache.nodes()]
        ids = [req.request_id for req in reqs]
        assert sorted(order(policy, reqs, cache)) == ids
        assert [req.request_id for req in reqs] == ids  # the queue itself is not reordered
        assert [(id(node), len(node), node.last_access_time, node.hit_count) for _, node in cache.nodes()] == before


# --- lpm, fcfs, random -------------------------------------------------------------------------------------------


def test_lpm_takes_the_longest_cached_prefix_first_and_equals_as_they_came() -> None:
    cache = cache_of([1, 2, 3, 4], [1, 2, 7], [5, 6])
    reqs = reqs_of([9, 9], [5, 6, 0], [1, 2, 3, 4, 0], [8], [1, 2, 0], [1, 2, 3, 9, 9, 9, 9])
    assert order("lpm", reqs, cache) == [2, 5, 1, 4, 0, 3]


def test_lpm_does_not_count_the_last_token_which_is_computed_in_any_case() -> None:
    cache = cache_of([1, 2, 3], [4, 5, 6])
    assert order("lpm", reqs_of([1, 2], [4, 5, 6], [1, 2, 3, 4]), cache) == [2, 1, 0]


def test_lpm_expects_nothing_cached_where_the_whole_prompt_is_computed_anew() -> None:
    cache = cache_of([1, 2, 3])
    anew, ordinary = *reqs_of([1, 2, 3, 4], prompt_logprobs=True), *reqs_of([1, 9])
    assert SCHEDULE_POLICIES["lpm"]([anew, ordinary], cache, np.random.default_rng(0)) == [ordinary, anew]


def test_lpm_keeps_namespaces_apart() -> None:
    cache = cache_of([1, 2, 3], extra_key="lora")
    reqs = reqs_of([1, 2, 3, 4], [1, 2, 3, 4])
    reqs[1].extra_key = "lora"
    assert order("lpm", reqs, cache) == [1, 0]


def test_fcfs_keeps_the_order_of_arrival_whatever_is_cached() -> None:
    cache = cache_of([5, 6, 7])
    assert order("fcfs", reqs_of([1], [5, 6, 7, 8], [2], [5, 6]), cache) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_with_nothing_cached_the_order_is_that_of_arrival(policy: str) -> None:
    prompts = [[3], [1, 2], [1, 2, 3], [3, 1]]
    assert order(policy, reqs_of(*prompts), cache_of()) == [0, 1, 2, 3]
    assert order(policy, reqs_of(*prompts), cache_of([1, 2], disable=True)) == [0, 1, 2, 3]


# --- dfs-weight --------------------------------------------------------------------------------------------------


def test_dfs_weight_prefers_the_subtree_where_most_wait_to_the_longest_match() -> None:
    cache = cache_of([1, 1, 1, 1, 1, 1], [2, 2])
    reqs = reqs_of([1, 1, 1, 1, 1, 1, 0], [2, 2, 5], [2, 2, 6])
    assert order("dfs-weight", reqs, cache) == [1, 2, 0]
    assert order("lpm", reqs, cache) == [0, 1, 2]


def test_dfs_weight_keeps_requests_of_one_subtree_together() -> None:
    cache = cache_of([1, 1, 2], [1, 1, 3], [4, 4])
    reqs = reqs_of([1, 1, 2, 0], [4, 4, 0], [1, 1, 3, 0], [4, 4, 1], [1, 1, 2, 9])
    assert order("dfs-weight", reqs, cache) == [0, 4, 2, 1, 3]


def test_dfs_weight_takes_what_is_below_a_node_before_what_ends_at_it() -> None:
    # As SGLang: who matched nothing would push out of the cache what the others still need.
    cache = cache_of([1, 1], [1, 1, 2])
    reqs = reqs_of([8], [1, 1, 9], [1, 1, 2, 0], [9])
    assert order("dfs-weight", reqs, cache) == [2, 1, 0, 3]


@pytest.mark.parametrize("seed", range(20))
def test_dfs_weight_is_a_walk_of_the_tree_heaviest_subtree_first(seed: int) -> None:
    cache, reqs = random_tree_and_reqs(seed)
    place = {request_id: i for i, request_id in enumerate(order("dfs-weight", reqs, cache))}
    ends_at: dict[TreeNode, list[int]] = {}
    for req in reqs:
        ends_at.setdefault(cache.peek_prefix(req.reusable_tokens)[1], []).append(place[req.request_id])

    def places(node: TreeNode) -> list[int]:
        """Checks the subtree; returns where its requests came in the order."""
        below = [found for child in node.children.values() if (found := places(child))]
        here = ends_at.get(node, [])
        assert here == sorted(here)  # as they came
        assert all(position < first for first in here for found in below for position in found)
        in_turn = sorted(below, key=min)
        assert all(len(a) >= len(b) for a, b in pairwise(in_turn))
        together = sorted(here + [position for found in below for position in found])
        assert not together or together == list(range(together[0], together[-1] + 1))
        return together

    assert len(places(cache.root)) == len(reqs)


def test_dfs_weight_survives_a_very_deep_tree() -> None:
    deep = [7] * 900
    cache = cache_of(deep)
    for length in range(899, 0, -1):
        cache.match_prefix(deep[:length])  # splits: one node per token
    assert len(list(cache.nodes())) == 900
    assert order("dfs-weight", reqs_of([8, 8], [7, 7, 0], [*deep, 0]), cache) == [2, 1, 0]


# --- a policy from outside ---------------------------------------------------------------------------------------


def shortest_first(reqs: Sequence[Req], cache: RadixCache, rng: np.random.Generator) -> list[Req]:
    return sorted(reqs, key=lambda req: req.prompt_len)


def test_an_engine_takes_a_policy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULE_POLICIES, "shortest", shortest_first)
    lens = [9, 2, 7, 4]
    ends: dict[str, list[int]] = {}
    for policy in ("fcfs", "shortest"):
        engine = make_engine(rows=1, schedule_policy=policy)
        ids = [engine.add_request(list(range(5, 5 + n)), greedy(2)) for n in lens]
        ended: list[int] = []
        while engine.has_unfinished():
            outputs = [output for output in step(engine).values() if output.finished]
            assert all(output.token_ids == [5 + output.prompt_tokens, 6 + output.prompt_tokens] for output in outputs)
            ended += [lens[ids.index(output.request_id)] for output in outputs]
        ends[policy] = ended
    assert ends == {"fcfs": lens, "shortest": sorted(lens)}


@pytest.mark.parametrize("answer", [lambda reqs: reqs[1:], lambda reqs: []])
def test_a_policy_that_leaves_a_request_out_is_named(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULE_POLICIES, "forgetful", lambda reqs, cache, rng: answer(reqs))
    engine = make_engine(rows=1, schedule_policy="forgetful")
    for first in (5, 50, 70):
        engine.add_request([first], greedy(1))
    with pytest.raises(RuntimeError, match="schedule_policy='forgetful'"):
        engine.step()
