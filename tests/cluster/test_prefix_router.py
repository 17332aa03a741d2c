"""Where PrefixRouter sends requests, in a cluster of real trees and virtual time: conversations, bursts, accidents."""

from collections.abc import Sequence

import pytest

from nanoinfer.cache.block_events import CPU, DISK, GPU, BlockEvent, BlockRemoved, BlockStored, EventBatch, block_hashes
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.cluster.serve.fleet import queued_tokens
from nanoinfer.cluster.simulate.sleeping import sleeping_engine
from nanoinfer.config import EngineConfig
from tests.helpers.engines import finish, greedy, make_engine, serve, step
from tests.helpers.fake_cluster import (
    COSTS,
    POLICIES,
    FakeCluster,
    burst,
    chats,
    request,
    router,
    times_computed,
    tokens_of,
)


@pytest.fixture(scope="module")
def chatted() -> dict[str, FakeCluster]:
    found = {}
    for name, make in POLICIES.items():
        found[name] = FakeCluster(make)
        chats(found[name])
        found[name].run()
    return found


def test_it_finds_more_of_conversations_than_policies_without_knowledge(chatted: dict[str, FakeCluster]) -> None:
    best = chatted["prefix router"].hit_rate
    one = FakeCluster(router(), replicas=1, size=1 << 16)
    chats(one, seconds=20)  # nothing overlaps: all that can be cached is
    one.run()
    assert best > 0.97 * one.hit_rate
    assert best > chatted["round robin"].hit_rate + 0.12
    assert best > chatted["least loaded"].hit_rate + 0.2
    assert best >= chatted["prefix hash"].hit_rate - 0.02


def test_and_first_tokens_come_sooner_than_with_any_of_them(chatted: dict[str, FakeCluster]) -> None:
    waits = {name: cluster.mean_wait for name, cluster in chatted.items()}
    assert waits["prefix router"] == min(waits.values())
    assert waits["prefix router"] < 0.6 * min(waits[name] for name in waits if name != "prefix router")


# --- bursts -----------------------------------------------------------------------------------------------------------


def test_a_burst_of_one_new_prefix_stays_together() -> None:
    cured = burst(router())
    assert times_computed(cured) == 1
    without_memory = burst(router(pending_s=0.0, linger_s=0.0))  # without the memory of what was sent
    assert times_computed(without_memory) == 4
    assert times_computed(burst(POLICIES["least loaded"])) == 4


def test_bursts_of_several_prefixes_are_spread_over_the_replicas() -> None:
    cluster = FakeCluster(router())
    for i in range(60):
        cluster.arrive(0.02 * i, request(f"{i}", tokens_of(i % 12, 500) + tokens_of(99 + i, 20)))
    cluster.run()
    assert times_computed(cluster) == 12
    assert len(cluster.counts()) == 4
    assert max(cluster.counts().values()) <= 25


def test_a_prefix_that_many_wait_for_gets_a_second_replica_when_that_is_quicker() -> None:
    cluster = burst(router(), size=150, prefix_tokens=300)
    assert 2 <= times_computed(cluster) <= 4
    assert cluster.mean_wait < burst(router(max_imbalance_s=1e9), size=150, prefix_tokens=300, replicas=1).mean_wait


def test_what_was_sent_and_failed_is_not_expected_any_more() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0)
    for name in "ab":
        policy.add_replica(name)
    prompt = tokens_of(1, 320)
    first = policy.choose(request("first", prompt))
    assert len(policy.pending) == 1
    policy.note_end("first")
    assert len(policy.pending) == 0
    assert policy.pending.sets.masks == {}
    assert policy.queued_seconds(first) == 0


def test_what_was_sent_is_believed_in_for_a_while_only() -> None:
    now = [0.0]
    policy = PrefixRouter(COSTS, clock=lambda: now[0], pending_s=5, linger_s=1)
    policy.add_replica("a")
    for i, seconds in enumerate((0.0, 4.0)):
        now[0] = seconds
        policy.choose(request(f"{i}", tokens_of(i, 64)))
    policy.note_first_token("1")  # expected until second 5 now
    now[0] = 4.9
    policy.choose(request("2", [1]))
    assert len(policy.pending) == 2
    now[0] = 5.0
    policy.choose(request("3", [1]))
    assert len(policy.pending) == 0
    assert policy.pending.sets.masks == {}


# --- load ------------------------------------------------------------------------------------------------------------


def test_several_routers_send_a_new_prefix_to_the_same_replica() -> None:
    assert times_computed(burst(router(), routers=4)) == 1


# --- replicas that come and go ---------------------------------------------------------------------------------------


def test_a_new_replica_gets_its_share() -> None:
    cluster = FakeCluster(router(), replicas=3)
    chats(cluster, users=60, turns=4)
    cluster.at(3.0, lambda: cluster.join("new"))
    cluster.run()
    after = [done for done in cluster.done.values() if done.arrived > 3]
    assert sum(done.replica == "new" for done in after) > len(after) / 8


def test_requests_of_a_replica_that_dies_are_served_elsewhere() -> None:
    cluster, gone = FakeCluster(router(), routers=2), list[str]()
    chats(cluster, users=40)

    def kill() -> None:
        gone.append(max(cluster.replicas, key=lambda name: len(cluster.replicas[name].queue)))
        cluster.leave(gone[0])

    cluster.at(2.0, kill)
    cluster.run()
    assert len(cluster.done) == 200
    assert sum(cluster.retried.values()) > 0
    assert not any(done.replica == gone[0] for done in cluster.done.values() if done.first_token > 2)


# --- blocks in host memory and in files ------------------------------------------------------------------------------

PROMPT = [*range(1, 161)]  # ten blocks
HASHES = block_hashes(PROMPT, 16)


def of_medium(hashes: Sequence[int], medium: str = GPU) -> BlockStored:
    return BlockStored([*hashes], None, [], 16, None, None, medium)


def batch(seq: int, *events: BlockEvent) -> EventBatch:
    return EventBatch(seq, 0.0, [*events], "s")


def router_of(**held: dict[str, int]) -> PrefixRouter:
    """Each replica has so many leading blocks of the prompt, by medium."""
    policy = PrefixRouter(PassCosts(0.001, 0.001, 0.0001, 0.0), clock=lambda: 0.0)
    for name, media in held.items():
        policy.add_replica(name)
        policy.note_events(name, batch(0, *(of_medium(HASHES[:count], medium) for medium, count in media.items())))
    return policy


def choose(policy: PrefixRouter, tokens: Sequence[int] = PROMPT) -> str:
    return policy.choose(RoutedRequest("it", [*tokens], 1))


def test_a_match_may_go_on_from_one_medium_to_the_next() -> None:
    policy = router_of(a={GPU: 2}, b={GPU: 4})
    policy.note_events("a", batch(1, of_medium(HASHES[2:5], CPU), of_medium(HASHES[5:], DISK)))
    assert choose(policy) == "a"
    policy.note_events("a", batch(2, BlockRemoved(HASHES[2:3], CPU)))
    policy.note_end("it")
    assert choose(policy) == "b", "behind the gap, nothing counts"


def test_what_is_fetched_is_work_too() -> None:
    """Half of a block's prefill is ahead of the next request, and no more."""
    ahead = {}
    for media in ({}, {CPU: 10}, {GPU: 9}):
        policy = router_of(a=media)
        choose(policy)
        ahead[str(media)] = policy.queued_seconds("a", 1.0)
    nothing, half, nearly_all = ahead.values()
    assert nearly_all < half < nothing


def test_an_engine_counts_the_prompt_tokens_that_wait() -> None:
    engine = make_engine(rows=2)
    for text in ("abcd", "efgh", "ijklmn"):
        engine.add_request(text, greedy(6))
    assert queued_tokens(engine) == 14
    step(engine)
    assert queued_tokens(engine) == 6
    finish(engine)
    assert queued_tokens(engine) == 0


def test_a_model_that_sleeps_computes_prompts_in_pieces_like_any_other() -> None:
    config = EngineConfig(max_total_tokens=1024, max_context_len=512, chunked_prefill_size=64, max_running_requests=4)
    engine = sleeping_engine(config, PassCosts(1e-6, 0.0, 0.0, 0.0))
    prompts = [list(range(start, start + 100)) for start in (1000, 2000, 3000)]
    outputs = serve(engine, *prompts, max_new_tokens=3)
    assert [out.token_ids for out in outputs] == [[prompt[-1] + i for i in (1, 2, 3)] for prompt in prompts]
    engine.check_integrity()
