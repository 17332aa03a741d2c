"""What a policy counts, and what it refuses."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from nanoinfer.cache.block_events import EventBatch, block_hashes
from nanoinfer.cluster import PrefixHash, PrefixRouter
from nanoinfer.cluster.policy import rendezvous, salt
from nanoinfer.errors import NoReplicaError, UnknownReplicaError
from tests.helpers.fake_cluster import COSTS, POLICIES, Make, request, stored, tokens_of

ROOT = Path(__file__).parent.parent.parent


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


def test_hashes_that_the_caller_has_computed_give_the_same_choice() -> None:
    policies = [PrefixRouter(COSTS, clock=lambda: 0.0) for _ in range(2)]
    for policy in policies:
        for name in "abcd":
            policy.add_replica(name)
        policy.note_events("c", stored("c", tokens_of(1, 320)))
    for i, prompt in enumerate((tokens_of(1, 330), tokens_of(2, 100), tokens_of(3, 15), tokens_of(1, 320))):
        keys = ("mine", "sea") if i == 1 else (None, None)
        plain = request(f"{i}", prompt, extra_key=keys[0], adapter=keys[1])
        hashed = replace(plain, hashes=block_hashes(prompt, 16, *keys))
        assert policies[0].choose(plain) == policies[1].choose(hashed)
    assert policies[0].pending.sets.masks == policies[1].pending.sets.masks
    with pytest.raises(ValueError, match="hashes"):
        policies[0].choose(request("x", [1] * 32, hashes=[1]))
    assert [policies[0].in_flight(name) for name in "abcd"] == [policies[1].in_flight(name) for name in "abcd"]


def test_a_full_batch_counts_as_waiting() -> None:
    policy = PrefixRouter(COSTS, clock=lambda: 0.0, max_running_requests=4)
    policy.add_replica("a")
    ahead = []
    for i in range(8):
        ahead.append(policy.queued_seconds("a", 100))
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
    full = policy.queued_seconds("a")
    now[0] = 0.4
    assert policy.queued_seconds("a") == pytest.approx(full - 0.4)
    now[0] = 9.0  # it takes longer than expected, but the second one has not begun
    assert policy.queued_seconds("a") == pytest.approx(full - 1.005)


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_every_policy_refuses_what_it_does_not_know(make: Make) -> None:
    policy = make(lambda: 0.0)
    with pytest.raises(NoReplicaError, match="request_id='x'"):
        policy.choose(request("x", [1]))
    policy.add_replica("a")
    with pytest.raises(ValueError, match="replica='a'"):
        policy.add_replica("a")
    for call in (
        lambda: policy.remove_replica("b"),
        lambda: policy.note_events("b", EventBatch(0, 0.0, [])),
    ):
        with pytest.raises(UnknownReplicaError, match="replica='b'"):
            call()
    policy.choose(request("x", [1]))
    with pytest.raises(ValueError, match="request_id='x'"):
        policy.choose(request("x", [1]))
    with pytest.raises(ValueError, match="request_id='y'"):
        policy.note_first_token("y")
    policy.note_end("x")
    with pytest.raises(ValueError, match="request_id='x'"):
        policy.note_end("x")


def test_a_router_loads_neither_torch_nor_an_engine() -> None:
    code = (
        "import sys; from nanoinfer.cluster import LeastLoaded, PassCosts, PrefixHash, PrefixRouter, RoundRobin\n"
        "PrefixRouter(PassCosts(1.0, 1.0, 0.0, 0.0)).add_replica('a')\n"
        "print([name for name in ('torch', 'ray', 'nanoinfer.engine.engine', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- rendezvous hashing ----------------------------------------------------------------------------------------------

RNG = Random("keys")
KEYS = [RNG.getrandbits(64) for _ in range(8000)]


@pytest.mark.parametrize("names", [list("ab"), list("abcdefgh"), [f"replica-{i}" for i in range(50)]])
def test_keys_are_shared_out_evenly_and_so_are_those_of_a_replica_that_goes(names: list[str]) -> None:
    before = [rendezvous(key, names) for key in KEYS]
    share = len(KEYS) / len(names)
    assert all(0.7 * share < count < 1.3 * share for count in Counter(before).values())
    assert len(set(before)) == len(names)
    left = [rendezvous(key, names[1:]) for key in KEYS]
    assert all(now == then for now, then in zip(left, before, strict=True) if then != names[0])
    moved = Counter(now for now, then in zip(left, before, strict=True) if then == names[0])
    assert len(moved) >= 0.9 * (len(names) - 1)
    if len(names) == 8:
        assert max(moved.values()) < 2 * min(moved.values())


def test_a_salt_is_the_same_on_every_machine_and_of_any_name() -> None:
    assert salt("replica-0") == 9011195730372987862
    assert len({salt(name) for name in ("a", "b", "A", "ä", "\udc80")}) == 5


def test_the_order_in_which_replicas_came_does_not_matter() -> None:
    one, other = PrefixHash(8), PrefixHash(8)
    for name in "abcd":
        one.add_replica(name)
    for name in "xdbyca":
        other.add_replica(name)
    for name in "xy":
        other.remove_replica(name)
    for i in range(40):
        prompt = tokens_of(i, 12)
        assert one.choose(request(f"{i}", prompt)) == other.choose(request(f"{i}", prompt))


def test_a_prefix_hash_tells_adapters_and_keys_apart() -> None:
    policy, prompt = PrefixHash(8), tokens_of(1, 12)
    for name in "abcd":
        policy.add_replica(name)
    keys = [request(f"k{i}", prompt, extra_key=i) for i in range(40)]
    adapters = [request(f"a{i}", prompt, adapter=f"adapter {i}") for i in range(40)]
    for asked in (keys, adapters):
        assert {policy.choose(each) for each in asked} == set("abcd")
