"""No request waits forever, whatever the policy prefers: the bound of waiting_queue.py, exactly."""

from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM
from nanoinfer.requests.req import Req
from tests.helpers.fakes import FakeServer, admissions, expected_output

A, B = range(100, 120), range(200, 220)


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


def test_a_retracted_request_that_comes_in_again_overtakes_nobody() -> None:
    """Only those that leave the queue for the first time count towards `max_overtakes`."""
    server = FakeServer(max_total_tokens=64, max_running_requests=2, max_overtakes=2)
    queue = server.scheduler.waiting
    cold, other = server.add(A[:4]), server.add(B[:4])
    queue.remove(other)
    other.num_admissions += 1
    for _ in range(3):
        queue.put_back(other)
        queue.remove(other)
    assert queue.left == 1
    assert not queue.goes_first(cold)


@pytest.mark.parametrize("value", [0, -1, 1.5, None, True])
def test_a_bound_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="max_overtakes="):
        LLM("no/such/model", max_overtakes=value)
