"""Rendezvous hashing: everybody gets a share, and those who stay keep theirs."""

from collections import Counter
from random import Random

import numpy as np
import pytest

from nanoinfer.cluster import PrefixHash
from nanoinfer.cluster.replica_table import rendezvous, salt
from tests.helpers.fake_cluster import request, tokens_of

RNG = Random("keys")
KEYS = [RNG.getrandbits(64) for _ in range(8000)]


@pytest.mark.parametrize("names", [list("ab"), list("abcdefgh"), [f"replica-{i}" for i in range(50)]])
def test_keys_are_shared_out_evenly_and_so_are_those_of_a_replica_that_goes(names: list[str]) -> None:
    salts = np.array([salt(name) for name in names], dtype=np.uint64)
    before = [rendezvous(key, salts) for key in KEYS]
    share = len(KEYS) / len(names)
    assert all(0.7 * share < count < 1.3 * share for count in Counter(before).values())
    assert len(set(before)) == len(names)
    left = [rendezvous(key, salts[1:]) + 1 for key in KEYS]
    assert all(now == then for now, then in zip(left, before, strict=True) if then != 0)
    moved = Counter(now for now, then in zip(left, before, strict=True) if then == 0)
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
