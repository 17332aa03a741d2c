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


@pytest.mark.parametrize(
    ("policy", "cached", "prompts", "expected"),
    [
        (  # the longest prefix first, and equals as they came
            "lpm", ([1, 2, 3, 4], [1, 2, 7], [5, 6]),
            ([9, 9], [5, 6, 0], [1, 2, 3, 4, 0], [8], [1, 2, 0], [1, 2, 3, 9, 9, 9, 9]), [2, 5, 1, 4, 0, 3],
        ),
        ("lpm", ([1, 2, 3], [4, 5, 6]), ([1, 2], [4, 5, 6], [1, 2, 3, 4]), [2, 1, 0]),  # the last token never counts
        ("lpm", (), ([3], [1, 2], [1, 2, 3], [3, 1]), [0, 1, 2, 3]),
        ("dfs-weight", (), ([3], [1, 2], [1, 2, 3], [3, 1]), [0, 1, 2, 3]),
        ("fcfs", ([5, 6, 7],), ([1], [5, 6, 7, 8], [2], [5, 6]), [0, 1, 2, 3]),
        ("lpm", ([1] * 6, [2, 2]), ([*[1] * 6, 0], [2, 2, 5], [2, 2, 6]), [0, 1, 2]),
        ("dfs-weight", ([1] * 6, [2, 2]), ([*[1] * 6, 0], [2, 2, 5], [2, 2, 6]), [1, 2, 0]),  # where most wait
    ],
)  # fmt: skip
def test_the_order_of_a_policy(
    policy: str, cached: Sequence[list[int]], prompts: Sequence[list[int]], expected: list[int]
) -> None:
    assert order(policy, reqs_of(*prompts), cache_of(*cached)) == expected


def test_lpm_expects_nothing_cached_where_the_whole_prompt_is_computed_anew() -> None:
    cache = cache_of([1, 2, 3])
    anew, ordinary = *reqs_of([1, 2, 3, 4], prompt_logprobs=True), *reqs_of([1, 9])
    assert SCHEDULE_POLICIES["lpm"]([anew, ordinary], cache, np.random.default_rng(0)) == [ordinary, anew]


def test_lpm_keeps_namespaces_apart() -> None:
    cache = cache_of([1, 2, 3], extra_key="lora")
    reqs = reqs_of([1, 2, 3, 4], [1, 2, 3, 4])
    reqs[1].extra_key = "lora"
    assert order("lpm", reqs, cache) == [1, 0]


# --- dfs-weight --------------------------------------------------------------------------------------------------


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
