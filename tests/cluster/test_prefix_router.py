"""Where requests go: PrefixRouter and the policies without knowledge, in a cluster of real trees and virtual time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer.cache.block_events import BlockStored, EventBatch, block_hashes
from nanoinfer.cluster import (
    LeastLoaded,
    PassCosts,
    Policy,
    PrefixHash,
    PrefixRouter,
    RoundRobin,
    RoutedRequest,
    prefix_router,
)
from nanoinfer.cluster.policy import ReplicaLoad
from nanoinfer.errors import NoReplicaError, UnknownReplicaError
from tests.helpers.fake_cluster import COSTS, FakeCluster, Make

ROOT = Path(__file__).parent.parent.parent


def router(**options: Any) -> Make:
    return lambda clock: PrefixRouter(COSTS, clock=clock, **options)


def request(name: str, tokens: list[int], max_new_tokens: int = 8, **fields: Any) -> RoutedRequest:
    return RoutedRequest(name, tokens, max_new_tokens, **fields)


def tokens_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50_000, size=length).tolist()


def stored(name: str, tokens: list[int], seq: int = 0) -> EventBatch:
    return EventBatch(seq, 0.0, [BlockStored(block_hashes(tokens, 16), None, tokens, 16, None, None)], name)


def chats(cluster: FakeCluster, users: int = 48, turns: int = 5, seconds: float = 1.5) -> None:
    """Conversations under one of eight system prompts; a turn repeats everything before it."""
    rng = np.random.default_rng(7)
    systems = [tokens_of(100 + i, 200) for i in range(8)]
    for user in range(users):
        history, start = list(systems[user % 8]), float(rng.uniform(0, 4))
        for turn in range(turns):
            history = history + tokens_of(1000 * user + turn, 120)
            cluster.arrive(start + turn * seconds, request(f"{user}.{turn}", history))


POLICIES: dict[str, Make] = {
    "round robin": lambda clock: RoundRobin(),
    "least loaded": lambda clock: LeastLoaded(),
    "prefix hash": lambda clock: PrefixHash(),
    "prefix router": router(),
}


# --- against the others ----------------------------------------------------------------------------------------------


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
    assert best > 0.97 * one.run().hit_rate
    assert best > chatted["round robin"].hit_rate + 0.12
    assert best > chatted["least loaded"].hit_rate + 0.2
    assert best >= chatted["prefix hash"].hit_rate - 0.02


def test_and_first_tokens_come_sooner_than_with_any_of_them(chatted: dict[str, FakeCluster]) -> None:
    waits = {name: cluster.mean_wait for name, cluster in chatted.items()}
    assert waits["prefix router"] == min(waits.values())
    assert waits["prefix router"] < 0.6 * min(waits[name] for name in waits if name != "prefix router")


def test_the_same_traffic_gives_the_same_choices() -> None:
    def run() -> list[tuple[str, str, float]]:
        cluster = FakeCluster(router(), routers=2)
        chats(cluster, users=8)
        return [(name, done.replica, done.first_token) for name, done in cluster.run().done.items()]

    assert run() == run()


# --- bursts ----------------------------------------------------------------------------------------------------------


def burst(make: Make, size: int = 30, prefix_tokens: int = 1000, **options: Any) -> FakeCluster:
    """Requests with one new prefix, all within the time that it takes to compute it."""
    cluster = FakeCluster(make, **options)
    prefix = tokens_of(1, prefix_tokens)
    for i in range(size):
        cluster.arrive(0.01 * i, request(f"{i}", prefix + tokens_of(50 + i, 20)))
    return cluster.run()


def times_computed(cluster: FakeCluster) -> int:
    return sum(done.cached_tokens == 0 for done in cluster.done.values())


def test_a_burst_of_one_new_prefix_stays_together() -> None:
    cured = burst(router())
    assert times_computed(cured) == 1
    herd = burst(router(pending_s=0.0, linger_s=0.0))  # without the memory of what was sent
    assert times_computed(herd) == 4
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
    assert policy.seconds_ahead(first) == 0


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


@pytest.mark.parametrize("limit", [0.5, 2.0])
def test_no_replica_gets_a_request_while_it_is_further_behind_than_the_limit(limit: float) -> None:
    chosen: list[float] = []

    class Watched(PrefixRouter):
        def choose(self, request: RoutedRequest) -> str:
            ahead = {name: self.seconds_ahead(name, request.max_new_tokens) for name in self.replicas}
            self._output_tokens = float(request.max_new_tokens)
            replica = super().choose(request)
            chosen.append(ahead[replica] - min(ahead.values()))
            return replica

    def make(clock: Callable[[], float]) -> Policy:
        return Watched(COSTS, clock=clock, max_imbalance_s=limit)

    cluster = FakeCluster(make)
    prefix = tokens_of(1, 2000)
    cluster.arrive(0, request("first", prefix))
    for i in range(200):
        cluster.arrive(5 + 0.001 * i, request(f"{i}", prefix + tokens_of(i + 2, 60)))
    cluster.run()
    assert max(chosen) <= limit
    assert max(chosen) > 0.8 * limit  # it is used up, since the prefix is worth two seconds
    assert len(cluster.counts()) == 4


def test_several_routers_share_the_load_without_swinging(monkeypatch: pytest.MonkeyPatch) -> None:
    def traffic(**options: Any) -> FakeCluster:
        cluster = FakeCluster(router(**options), routers=4, report_s=1.0)
        cluster.is_watched = True
        for i in range(400):
            cluster.arrive(0.075 * i, request(f"{i}", tokens_of(i, 240)))  # 80 % of what four replicas can do
        return cluster.run()

    four, blind = traffic(), traffic(report_s=0.0)
    assert np.mean(four.spread) < 0.75 * np.mean(blind.spread)
    assert four.mean_wait < 0.8 * blind.mean_wait
    assert np.mean(four.spread[-130:]) < 1.5 * np.mean(four.spread[:130])  # it does not grow
    monkeypatch.setattr(prefix_router, "MOST_ROUTERS", 1)
    swinging = traffic()  # each believes that the others have done nothing since their last report
    assert np.mean(swinging.spread) > 2 * np.mean(four.spread)


def test_several_routers_send_a_new_prefix_to_the_same_replica() -> None:
    assert times_computed(burst(router(), routers=4, report_s=60)) == 1


def test_work_of_others_counts_until_the_report_is_old() -> None:
    now = [0.0]
    policy = PrefixRouter(COSTS, clock=lambda: now[0], report_s=5)
    for name in "ab":
        policy.add_replica(name)
    policy.note_load("a", ReplicaLoad(3, 3000, 5))
    assert policy.seconds_ahead("a") > 3
    assert {policy.choose(request(f"{i}", tokens_of(i, 100))) for i in range(5)} == {"b"}
    own = policy.seconds_ahead("b")
    policy.note_load("b", ReplicaLoad(0, 0, 0))  # others have sent nothing there
    assert policy.seconds_ahead("b") == own
    now[0] = 6.0
    assert policy.seconds_ahead("a") == 0


# --- replicas that come, go and lie ----------------------------------------------------------------------------------


def test_a_new_replica_gets_its_share() -> None:
    cluster = FakeCluster(router(), replicas=3)
    chats(cluster, users=60, turns=4)
    cluster.at(3.0, lambda: cluster.join("new"))
    cluster.run()
    after = [done for done in cluster.done.values() if done.arrived > 3]
    assert sum(done.replica == "new" for done in after) > len(after) / 8


def test_requests_of_a_replica_that_dies_are_served_elsewhere() -> None:
    cluster = FakeCluster(router(), routers=2)
    chats(cluster, users=40)
    cluster.at(2.0, lambda: cluster.leave("replica-1"))
    cluster.run()
    assert len(cluster.done) == 200
    assert sum(cluster.retried.values()) > 0
    assert not any(done.replica == "replica-1" for done in cluster.done.values() if done.first_token > 2)


def test_a_replica_that_lies_is_believed_less_and_less() -> None:
    """It claims whatever it is sent, so that everything goes there, and computes all of it anew."""

    def run(believe: bool) -> FakeCluster:
        def make(clock: Callable[[], float]) -> Policy:
            policy = PrefixRouter(COSTS, clock=clock)
            if believe:
                policy._started = lambda request_id, replica, cached: PrefixRouter._started(  # type: ignore[method-assign]
                    policy, request_id, replica, None
                )
            return policy

        cluster = FakeCluster(make, replicas=2, liars=["replica-0"])
        prefix = tokens_of(1, 800)
        for i in range(60):
            cluster.arrive(1.0 * i, request(f"{i}", prefix + tokens_of(i + 9, 40)))
        return cluster.run()

    fooled, wary = run(believe=True), run(believe=False)
    policy = wary.routers[0]
    assert isinstance(policy, PrefixRouter)
    if "replica-0" in wary.counts():
        assert policy.trust("replica-0") < 0.5
    assert policy.trust("replica-1") == 1.0
    assert fooled.hit_rate < 0.1
    assert wary.hit_rate > 0.5


def test_an_honest_replica_that_has_evicted_is_forgiven() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0)
    policy.add_replica("a")
    prompt = tokens_of(1, 320)
    policy.note_events("a", stored("a", prompt))
    policy.choose(request("x", prompt))
    policy.note_first_token("x", cached_tokens=0)
    low = policy.trust("a")
    assert low < 0.9
    for i in range(30):
        policy.choose(request(f"{i}", prompt))
        policy.note_first_token(f"{i}", cached_tokens=319)
    assert policy.trust("a") > 0.95


# --- what it counts --------------------------------------------------------------------------------------------------


def test_a_cached_prefix_wins_until_its_queue_is_longer_than_its_prefill() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0)
    for name in ("cold", "warm"):
        policy.add_replica(name)
    prompt = tokens_of(1, 960)
    policy.note_events("warm", stored("w", prompt))
    chosen = [policy.choose(request(f"{i}", prompt + tokens_of(i + 2, 200), 1)) for i in range(20)]
    assert chosen[:5] == ["warm"] * 5
    assert "cold" in chosen
    assert policy.in_flight("warm") == chosen.count("warm")


def test_adapters_and_keys_are_told_apart() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0)
    for name in "abcdefgh":
        policy.add_replica(name)
    prompt = tokens_of(1, 320)
    hashes = block_hashes(prompt, 16, "mine", "sea")
    policy.note_events("c", EventBatch(0, 0.0, [BlockStored(hashes, None, prompt, 16, 1, "sea")], "s"))
    assert policy.choose(request("0", prompt, extra_key="mine", adapter="sea")) == "c"
    policy.note_end("0")
    others = [{"extra_key": "mine"}, {"adapter": "sea"}, {"extra_key": "mine", "adapter": "rhymes"}, {}]
    assert {policy.choose(request(f"o{i}", prompt, **keys)) for i, keys in enumerate(others)} != {"c"}


def test_a_full_batch_counts_as_waiting() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0, max_running_requests=4)
    policy.add_replica("a")
    ahead = []
    for i in range(8):
        ahead.append(policy.seconds_ahead("a", 100))
        policy.choose(request(f"{i}", [1, 2, 3], 100))
        policy.note_first_token(f"{i}")
    steps = np.diff(ahead)
    assert steps[:3].max() < 0.1
    assert steps[3] > 0.5  # the fifth waits for one of the four
    assert (steps[4:] > 0.1).all()


def test_progress_of_the_first_prompt_counts() -> None:
    now = [0.0]
    policy = PrefixRouter(COSTS, clock=lambda: now[0])
    policy.add_replica("a")
    policy.choose(request("0", tokens_of(0, 1000), 1))
    policy.choose(request("1", tokens_of(1, 1000), 1))
    full = policy.seconds_ahead("a")
    now[0] = 0.4
    assert policy.seconds_ahead("a") == pytest.approx(full - 0.4)
    now[0] = 9.0  # it takes longer than expected, but the second one has not begun
    assert policy.seconds_ahead("a") == pytest.approx(full - 1.005)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_every_policy_refuses_what_it_does_not_know(make: Make) -> None:
    policy = make(lambda: 0.0)
    with pytest.raises(NoReplicaError, match="request_id='x': there is no replica to send it to"):
        policy.choose(request("x", [1]))
    policy.add_replica("a")
    with pytest.raises(ValueError, match="replica='a': has been added already"):
        policy.add_replica("a")
    with pytest.raises(ValueError, match="replica='': must be text that is not empty"):
        policy.add_replica("")
    unknown = "replica='b': is not among the replicas of this router: 'a'"
    for call in (
        lambda: policy.remove_replica("b"),
        lambda: policy.note_events("b", EventBatch(0, 0.0, [])),
        lambda: policy.note_load("b", ReplicaLoad(0, 0, 0)),
    ):
        with pytest.raises(UnknownReplicaError, match=unknown):
            call()
    policy.choose(request("x", [1]))
    with pytest.raises(ValueError, match="request_id='x': is at replica 'a'; note its end first"):
        policy.choose(request("x", [1]))
    with pytest.raises(ValueError, match="request_id='y': no replica was chosen for it, or it has ended"):
        policy.note_first_token("y")
    with pytest.raises(ValueError, match="cached_tokens=-1: must be an integer of at least 0"):
        policy.note_first_token("x", cached_tokens=-1)
    with pytest.raises(ValueError, match=r"output_tokens=1\.5"):
        policy.note_end("x", output_tokens=1.5)  # type: ignore[arg-type]
    policy.note_end("x")
    with pytest.raises(ValueError, match="request_id='x': no replica was chosen"):
        policy.note_end("x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"request_id": ""}, "request_id='': must be text that is not empty"),
        ({"token_ids": []}, "token_ids: is empty; must be at least one token"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: must be an integer of at least 1"),
        ({"max_new_tokens": True}, "max_new_tokens=True"),
    ],
)
def test_a_wrong_request_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoutedRequest(**{"request_id": "x", "token_ids": [1], "max_new_tokens": 1, **fields})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0"),
        ({"chunk_tokens": 0}, "chunk_tokens=0"),
        ({"max_running_requests": 0}, "max_running_requests=0"),
        ({"max_imbalance_s": -1}, "max_imbalance_s=-1: must be a number of seconds, at least 0"),
        ({"linger_s": float("nan")}, "linger_s=nan"),
        ({"max_blocks": 0}, "max_blocks=0"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixRouter(COSTS, **options)


def test_prompts_that_are_no_tokens_are_refused_and_nothing_has_changed() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0)
    policy.add_replica("a")
    for tokens, key in (([1.5], None), ([1], 1.5)):
        with pytest.raises(ValueError, match=r"token_ids: must be|extra_key=1\.5"):
            policy.choose(RoutedRequest("x", tokens, 1, key))  # type: ignore[arg-type]
    assert policy.in_flight("a") == 0
    assert policy.seconds_ahead("a") == 0
    with pytest.raises(ValueError, match="waiting_requests=-1: must be an integer of at least 0"):
        ReplicaLoad(-1, 0, 0)


def test_a_router_loads_neither_torch_nor_an_engine() -> None:
    code = (
        "import sys; from nanoinfer.cluster import LeastLoaded, PassCosts, PrefixHash, PrefixRouter, RoundRobin\n"
        "PrefixRouter(PassCosts(1.0, 1.0, 0.0, 0.0)).add_replica('a')\n"
        "print([name for name in ('torch', 'ray', 'nanoinfer.engine', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pass_costs_without_any_prefill_still_choose() -> None:
    policy = PrefixRouter(PassCosts(0.01, 0.0, 0.0, 0.0), clock=lambda: 0.0)
    for name in "ab":
        policy.add_replica(name)
    assert {policy.choose(request(f"{i}", tokens_of(i, 40))) for i in range(40)} == {"a", "b"}
