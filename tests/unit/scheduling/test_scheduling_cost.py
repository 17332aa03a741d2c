"""What a step costs while many wait: nothing is looked up or ranked again unless something has changed."""

from typing import Any

import pytest

from nanoinfer.scheduling.policy import SCHEDULE_POLICIES
from tests.helpers.fakes import A, B, C, CountingPolicy, FakeServer, bare_step, counted_calls


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> CountingPolicy:
    """`lpm`, registered under the name `counting`."""
    policy = CountingPolicy("lpm")
    monkeypatch.setitem(SCHEDULE_POLICIES, "counting", policy)
    return policy


def blocked_server(policy: CountingPolicy, num_waiting: int, **fields: Any) -> FakeServer:
    """One long request runs, `num_waiting` wait, none of which fits beside it; nothing has been counted yet."""
    server = FakeServer(max_total_tokens=40, schedule_policy="counting", **fields)
    server.add(A[:5], max_new_tokens=30)
    server.step()
    for i in range(num_waiting):
        server.add([1000 + i] * 5, max_new_tokens=10)
    policy.ranked.clear()
    server.tree.look_ups = 0
    return server


def test_a_step_in_which_nothing_changes_looks_nothing_up_and_ranks_nothing(policy: CountingPolicy) -> None:
    server = blocked_server(policy, 1000)
    bare_step(server)
    window = server.config.policy_window
    assert policy.ranked == [window]
    assert server.tree.look_ups <= window + 1, "each in the window once, and one was tried"
    before = server.tree.look_ups
    for _ in range(5):
        bare_step(server)
    assert policy.ranked == [window]
    assert server.tree.look_ups == before, "not even the first in line: nothing has ended since it did not fit"


def test_an_arrival_costs_at_most_the_policy_window(policy: CountingPolicy) -> None:
    server = blocked_server(policy, 1000, policy_window=16)
    bare_step(server)
    before = server.tree.look_ups
    server.add([5], max_new_tokens=38)
    bare_step(server)
    assert policy.ranked == [16, 16]
    assert server.tree.look_ups - before <= 16 + 1


def test_the_waiting_are_ranked_anew_after_an_arrival_or_an_insertion_and_only_then(policy: CountingPolicy) -> None:
    server = FakeServer(max_running_requests=2, schedule_policy="counting")
    first, second = server.add(A[:4], max_new_tokens=4), server.add(B[:4], max_new_tokens=8)
    server.step()
    ranked = 1
    assert policy.ranked == [2], "those of one arrival are ranked together"
    server.add(C[:4], max_new_tokens=2)
    while not first.finished:
        server.step()
        assert len(policy.ranked) == ranked, "no row is free: no request can be admitted"
    server.step()  # its tokens went to the tree, so what waits may have become cached
    assert policy.ranked == [2, 1]
    server.run()
    assert policy.ranked == [2, 1]
    assert second.finished


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
def test_a_step_does_the_same_work_however_many_wait(policy: str) -> None:
    counts = []
    for num_waiting in (200, 800):
        server = FakeServer(max_total_tokens=40, schedule_policy=policy, random_seed=0)
        server.add(A[:5], max_new_tokens=30)
        server.step()
        for i in range(num_waiting):
            server.add([1000 + i] * 5, max_new_tokens=10)
        with counted_calls() as calls:
            bare_step(server)
            bare_step(server)
        counts.append(calls)
    assert counts[0] == counts[1]
