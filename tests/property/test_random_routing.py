"""Random traffic and accidents: whatever happens, a policy's counts come back to nothing, and the gone get nothing."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.cache.block_events import BlockRemoved, BlockStored, EventBatch, Snapshot, block_hashes
from nanoinfer.cluster import LeastLoaded, Policy, PrefixHash, PrefixRouter, RoundRobin, RoutedRequest
from nanoinfer.errors import NoReplicaError
from tests.helpers.fake_cluster import COSTS

NAMES = ("a", "b", "c", "d")
PROMPTS = [[i] * 16 + [j] * 16 + [k] * 5 for i in range(2) for j in range(3) for k in range(2)]
KINDS = (
    "choose",
    "choose",
    "choose",
    "first",
    "end",
    "end",
    "join",
    "leave",
    "events",
    "gap",
    "wait",
    "snapshot",
)


def make(kind: str, clock: Any) -> Policy:
    policies = {
        "round robin": RoundRobin,
        "least loaded": LeastLoaded,
        "prefix hash": lambda: PrefixHash(20),
        "prefix router": lambda: PrefixRouter(
            COSTS, clock=clock, max_imbalance_s=0.1, linger_s=1, pending_s=4, max_running_requests=2
        ),
    }
    policy: Policy = policies[kind]()
    return policy


@pytest.mark.parametrize("kind", ["round robin", "least loaded", "prefix hash", "prefix router"])
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11), st.integers(0, 3)), max_size=60))
@settings(max_examples=50)
def test_counts_come_back_to_nothing_and_the_gone_get_nothing(kind: str, steps: list[tuple[str, int, int]]) -> None:
    now = [0.0]
    policy = make(kind, lambda: now[0])
    at: dict[str, str | None] = {}  # request → replica
    seqs: dict[str, int] = {}
    for number, (action, pick, which) in enumerate(steps):
        name, prompt = NAMES[which], PROMPTS[pick]
        some = sorted(at)[pick % len(at)] if at else None
        if action == "choose":
            homeless = [each for each, replica in at.items() if replica is None]
            request_id = homeless[0] if homeless and pick % 2 else f"{number}"
            request = RoutedRequest(request_id, prompt, 1 + pick)
            if not seqs:
                with pytest.raises(NoReplicaError):
                    policy.choose(request)
                continue
            ahead = (
                {each: policy.queued_seconds(each, min(1 + pick, policy._output_tokens)) for each in seqs}
                if (isinstance(policy, PrefixRouter))
                else {}
            )
            at[request_id] = policy.choose(request)
            assert at[request_id] in seqs
            if ahead:
                assert ahead[str(at[request_id])] <= min(ahead.values()) + 0.1
        elif action == "first" and some is not None:
            policy.note_first_token(some, cached_tokens=pick)
        elif action == "end" and some is not None:
            policy.note_end(some, output_tokens=pick)
            del at[some]
        elif action == "join" and name not in seqs:
            policy.add_replica(name)
            seqs[name] = 0
        elif action == "leave" and name in seqs:
            policy.remove_replica(name)
            del seqs[name]
            at = {each: None if replica == name else replica for each, replica in at.items()}
        elif action in ("events", "gap") and name in seqs:
            hashes = block_hashes(prompt, 16)
            event = BlockRemoved(hashes) if pick % 3 == 0 else BlockStored(hashes, None, prompt[:32], 16, None, None)
            is_gap = action == "gap" and isinstance(policy, PrefixRouter)
            assert policy.note_events(name, EventBatch(seqs[name] + is_gap, now[0], [event], name)) is not is_gap
            seqs[name] += not is_gap and action == "events"
            if action == "gap" and not is_gap:
                seqs[name] += 1
        elif action == "snapshot" and name in seqs:
            seqs[name] += 1
            policy.note_snapshot(name, Snapshot(seqs[name], [], name))
        elif action == "wait":
            now[0] += pick / 4
        for each in seqs:
            assert policy.in_flight(each) == sum(replica == each for replica in at.values())
            if isinstance(policy, PrefixRouter):
                assert policy.queued_seconds(each) >= 0
    for each in list(at):
        policy.note_end(each)
    now[0] += 1000  # what was sent is not expected any more
    for each in list(seqs):
        assert policy.in_flight(each) == 0
    if isinstance(policy, PrefixRouter):
        assert all(policy.queued_seconds(each) == 0 for each in seqs)
        policy.pending.expire(now[0])
        assert policy.pending.sets.masks == {}
        for each in list(seqs):
            policy.remove_replica(each)
        assert policy.index.sets.masks == {}
    assert policy._sent == {}
