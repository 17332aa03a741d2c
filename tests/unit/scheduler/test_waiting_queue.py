"""The order in which the waiting are considered, and what that costs; no request waits forever: the bound of
waiting_queue.py, exactly."""

from typing import Any

import numpy as np
import pytest

from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.policy import SCHEDULE_POLICIES
from tests.helpers.fakes import (
    A,
    B,
    C,
    CountingPolicy,
    FakeServer,
    admissions,
    assert_as_expected,
    bare_step,
    counted_calls,
    expected_output,
    passes,
)

EXTEND = ForwardMode.EXTEND


def starved_server(policy: str, max_overtakes: int, **fields: Any) -> tuple[FakeServer, Req]:
    """A server where what is cached goes first, and a request that has nothing cached and waits behind a running one."""
    server = FakeServer(
        max_total_tokens=64, max_running_requests=2, schedule_policy=policy, max_overtakes=max_overtakes, **fields
    )
    server.serve(A[:10], max_new_tokens=1)
    server.add(range(300, 304), max_new_tokens=30)
    server.step()
    return server, server.add(B[:8], max_new_tokens=2)


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
@pytest.mark.parametrize("max_overtakes", [1, 5, 20])
def test_a_request_is_overtaken_so_often_and_then_it_is_next(policy: str, max_overtakes: int) -> None:
    server, cold = starved_server(policy, max_overtakes)
    overtook = 0
    for i in range(200):
        while sum(req is not cold for req in server.scheduler.waiting) < 2:
            server.add([*A[:10], i, len(server.scheduler.waiting)], max_new_tokens=1)
        if cold in admissions(server):
            break
        overtook = server.scheduler.waiting.left - cold.ticket
    assert overtook == max_overtakes
    server.run()
    assert cold.output_ids == expected_output(cold, server.vocab_size)[0]


def test_one_that_stands_in_front_blocks_the_others_until_it_fits() -> None:
    server = FakeServer(max_total_tokens=40, max_overtakes=2)
    server.serve(A[:10], max_new_tokens=1)
    running = server.add(range(300, 304), max_new_tokens=16)
    server.step()
    big = server.add(B[:20], max_new_tokens=10)  # 29 slots beside 19: only when the running one has ended
    server.step()
    small = [server.add([*A[:10], i], max_new_tokens=1) for i in range(4)]
    order = []
    while not big.finished:
        order += admissions(server)
        if big in server.scheduler.waiting and server.scheduler.waiting.left - big.ticket >= 2:
            assert order == small[:2]
    assert running.finished
    assert order.index(big) == 2
    server.run()


def test_under_fcfs_nobody_is_ever_overtaken() -> None:
    rng = np.random.default_rng(0)
    server = FakeServer(schedule_policy="fcfs", max_running_requests=3, max_overtakes=1)
    reqs = [server.add(rng.integers(0, 3, size=int(rng.integers(1, 9))), max_new_tokens=3) for _ in range(40)]
    order = []
    while not all(req.finished for req in reqs):
        order += admissions(server)
    assert order == reqs


def test_under_fcfs_those_behind_one_that_waits_for_a_shared_prefix_wait_with_it() -> None:
    server = FakeServer(max_total_tokens=256, schedule_policy="fcfs", max_context_len=128)
    reqs = [server.add(range(50), max_new_tokens=3) for _ in range(2)] + [server.add([100], max_new_tokens=3)]
    assert [admissions(server), admissions(server)] == [reqs[:1], reqs[1:]]
    server.run()


def test_one_in_front_that_shares_with_the_pass_closes_it_instead_of_being_passed() -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128, max_overtakes=1)
    long = range(1000, 1040)
    first = server.add(long, max_new_tokens=2)
    twin = server.add(long, max_new_tokens=2)
    other, another = server.add(A[:4], max_new_tokens=2), server.add(B[:4], max_new_tokens=2)
    assert admissions(server) == [first, other]
    assert admissions(server)[0] is twin
    assert twin.cached_tokens == 39
    server.run()
    assert another.finished


def test_lpm_notices_what_became_cached_after_the_request_arrived() -> None:
    server = FakeServer(max_running_requests=1)
    server.add(A[:6], max_new_tokens=3)
    server.step()
    stranger, relative = server.add(B[:4]), server.add([*A[:6], 1])
    server.step()
    assert list(server.scheduler.waiting) == [stranger, relative]
    order = [reqs[0] for mode, reqs in passes(server) if mode is EXTEND]
    assert order == [relative, stranger]


def test_a_request_that_arrives_behind_a_blocked_one_is_ranked_at_once() -> None:
    server = FakeServer(max_total_tokens=30)
    server.add(A[:6], max_new_tokens=10)
    server.step()
    blocked = server.add(B[:12], max_new_tokens=6)
    server.step()
    relative = server.add([*A[:6], 1], max_new_tokens=2)
    assert server.step().reqs == [relative]
    assert blocked in server.scheduler.waiting


def test_requests_that_wait_are_ranked_anew_when_the_tree_has_changed() -> None:
    server = FakeServer(max_total_tokens=50)
    first = server.add(A[:6], max_new_tokens=10)
    server.step()
    everything, _ = expected_output(first, server.vocab_size)
    sibling = server.add([*A[:6], *B[:10]], max_new_tokens=30)  # at first both have 6 tokens cached
    child = server.add([*A[:6], *everything], max_new_tokens=20)
    server.step()
    assert list(server.scheduler.waiting) == [sibling, child]
    order = [req for mode, reqs in passes(server) if mode is EXTEND for req in reqs]
    assert order == [child, sibling]
    assert_as_expected(server, first, sibling, child)


def test_the_random_policy_is_repeated_by_its_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        server = FakeServer(max_running_requests=1, schedule_policy="random", random_seed=seed)
        for i in range(12):
            server.add([100 + i], max_new_tokens=1)
        orders.append([reqs[0].request_id for _, reqs in passes(server)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(12))


def test_the_policy_looks_at_the_longest_waiting_only() -> None:
    server = FakeServer(max_running_requests=1, policy_window=2)
    server.serve(A[:6], max_new_tokens=1)
    reqs = [server.add(B[:2]), server.add(C[:2]), server.add([*A[:6], 1])]
    order = [batch[0] for mode, batch in passes(server) if mode is EXTEND]
    assert order[0] is reqs[0]
    assert set(order) == set(reqs)


# --- what a step costs while many wait -----------------------------------------------------------------------------


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


def test_a_step_in_which_nothing_changes_ranks_nothing_and_tries_only_the_first_in_line(policy: CountingPolicy) -> None:
    server = blocked_server(policy, 1000)
    bare_step(server)
    window = server.config.policy_window
    assert policy.ranked == [window]
    assert server.tree.look_ups <= window + 1, "each in the window once, and one was tried"
    before = server.tree.look_ups
    for _ in range(5):
        bare_step(server)
    assert policy.ranked == [window]
    assert server.tree.look_ups == before + 5


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
